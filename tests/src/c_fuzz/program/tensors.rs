//! Calls about tensors.

use super::*;

impl Program {
    pub(super) fn import(&mut self, bytes: &mut Bytes<'_>) {
        if self.tensors.len() >= HELD_MAX {
            return;
        }
        let read_only = bytes.one_in(6);
        let managed = Managed::new(&self.shared, LENGTH, read_only);
        let (mut valid, how) = (true, bytes.below(12));
        // SAFETY: the tensor is the program's until it was taken.
        unsafe {
            match how {
                1 => (*managed).version = [2, 0],
                2 => (*managed).ndim = -1,
                3 => (*managed).shape = ptr::null_mut(),
                4 => (*managed).lanes = 0,
                5 => (*managed).device = [2, 7],
                6 => (*managed).data = ptr::null_mut(),
                _ => {}
            }
            let spoiled = &*managed;
            valid &= spoiled.version == [1, 3]
                && spoiled.ndim == 1
                && !spoiled.shape.is_null()
                && spoiled.lanes == 1
                && spoiled.device == [1, 0]
                && !spoiled.data.is_null();
        }
        let mut ready = self.any_fence(bytes);
        if let Some(fence) = &mut ready {
            match bytes.below(10) {
                1 => fence.version = 9,
                2 => fence.size = 8,
                3 => fence.retain = None,
                4 => fence.release = None,
                5 => fence.flags = 1,
                _ => {}
            }
            valid &= fence.version == 1
                && fence.size as usize == size_of::<DLFence>()
                && fence.retain.is_some()
                && fence.release.is_some()
                && fence.flags == 0;
        }
        let ready = ready.as_ref().map_or(ptr::null(), ptr::from_ref);
        let mut tensor = ptr::null_mut();
        if valid {
            Shared::count(&self.shared.imported);
        }
        // SAFETY: as the interface wants it, or wrong in a way that it promises to see.
        unsafe {
            let got = if how == 7 {
                let (legacy, writable) = (Managed::legacy(managed), i32::from(!read_only));
                let wrong = estafette_import_legacy(self.engine, legacy, 2, ready, &raw mut tensor);
                refuses(wrong, "import what may perhaps be written");
                estafette_import_legacy(self.engine, legacy, writable, ready, &raw mut tensor)
            } else {
                estafette_import(self.engine, Managed::raw(managed), ready, &raw mut tensor)
            };
            accepts_if(valid, got, "import");
            if valid {
                self.tensors.push(tensor);
            } else {
                Managed::free(managed);
            }
        }
    }

    pub(super) fn zeros(&mut self, bytes: &mut Bytes<'_>) {
        if self.tensors.len() >= HELD_MAX {
            return;
        }
        let shape = [[LENGTH as i64, 1], [0, 3], [2, -1], [i64::MAX, i64::MAX]][bytes.below(4)];
        let dtype = DLDataType { code: 2, bits: [32, 64][bytes.below(2)], lanes: 1 };
        let mut tensor = ptr::null_mut();
        // SAFETY: as the interface wants it, or wrong in a way that it promises to see.
        unsafe {
            let (shape_of, cpu) = (shape.as_ptr(), estafette::devices::DLDevice::CPU);
            let got = if self.tensors.len().is_multiple_of(2) {
                estafette_zeros(self.engine, shape_of, 2, dtype, &raw mut tensor)
            } else {
                estafette_empty(self.engine, cpu, shape_of, 2, dtype, &raw mut tensor)
            };
            let valid = shape[1] >= 0 && shape[0] <= LENGTH as i64;
            accepts_if(valid, got, "zeros");
            if valid {
                self.tensors.push(tensor);
            }
        }
    }

    pub(super) fn query_or_wait(&mut self, bytes: &mut Bytes<'_>) {
        let Some(tensor) = pick(&self.tensors, bytes) else { return };
        let got = match bytes.below(2) {
            0 => estafette_query(tensor),
            _ => estafette_wait(tensor, SHORT_NS),
        };
        allowed(got, &WAITED, "wait");
    }

    pub(super) fn export(&mut self, bytes: &mut Bytes<'_>) {
        if self.views.len() >= HELD_MAX {
            return;
        }
        let Some(tensor) = pick(&self.tensors, bytes) else { return };
        let mut options = zeroed!(estafette_export_options);
        options.access = bytes.below(4) as i32;
        options.copy = bytes.below(4) as i32 - 1;
        options.nonblocking = bytes.below(2) as i32;
        options.timeout_ns = SHORT_NS;
        if bytes.one_in(8) {
            options.stream = ptr::dangling_mut();
        }
        let valid = options.access < 3 && options.copy < 2 && options.stream.is_null();
        let (mut view, mut legacy) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: as the interface wants it, or wrong in a way that it promises to see.
        let got = unsafe { estafette_export(tensor, &raw const options, &raw mut view) };
        // An error that was cleared may have left nothing.
        let mut legal = vec![ESTAFETTE_CONFLICT, ESTAFETTE_INVALID, ESTAFETTE_NOT_DEFINED];
        legal.extend(WAITED);
        allowed(got, &legal, "export");
        assert!(valid || got != ESTAFETTE_OK, "wrong options were accepted");
        // SAFETY: as above; deleted once.
        unsafe {
            let got = estafette_export_legacy(tensor, &raw const options, &raw mut legacy);
            allowed(got, &legal, "export to a legacy struct");
            if got == ESTAFETTE_OK {
                delete_legacy(legacy);
            }
        }
        if got == ESTAFETTE_OK {
            self.views.push(view);
        }
        if !valid && options.access < 2 {
            self.export_fenced(tensor, options.access);
        }
    }

    /// Exports with fences, and gives up at once, ready or not.
    fn export_fenced(&self, tensor: *mut estafette_tensor, access: i32) {
        let (mut fenced, mut none) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: as the interface wants it, or wrong in a way that it promises to see; deleted once.
        unsafe {
            let got = estafette_export_fenced(tensor, access, &raw mut fenced);
            allowed(got, &[ESTAFETTE_OK, ESTAFETTE_CONFLICT], "export with fences");
            let wrong = estafette_import_fenced(self.engine, ptr::null_mut(), &raw mut none);
            refuses(wrong, "import of no fenced tensor");
            if got == ESTAFETTE_OK {
                delete(fenced.cast());
            }
        }
    }

    pub(super) fn release_view(&mut self, bytes: &mut Bytes<'_>) {
        if let Some(view) = take(&mut self.views, bytes) {
            // SAFETY: exported, and deleted once.
            unsafe { delete(view) };
        }
    }

    pub(super) fn release_tensor(&mut self, bytes: &mut Bytes<'_>) {
        let Some(tensor) = take(&mut self.tensors, bytes) else { return };
        let fence = self.any_fence(bytes);
        let got = match fence {
            None => estafette_tensor_release(tensor),
            // SAFETY: as the interface wants it.
            Some(fence) => unsafe { estafette_tensor_release_after(tensor, &raw const fence) },
        };
        accepts(got, "release");
        // A function that has it for an operand holds it too.
        if estafette_query(tensor) == ESTAFETTE_INVALID {
            self.is_over(Over::Tensor(tensor));
        }
    }

    pub(super) fn describe(&mut self, bytes: &mut Bytes<'_>) {
        let Some(tensor) = pick(&self.tensors, bytes) else { return };
        let legal = [ESTAFETTE_OK, ESTAFETTE_NOT_DEFINED];
        let (mut ndim, mut shape, mut data, mut flag) = (0, [0; 4], ptr::null_mut(), 0);
        // SAFETY: as the interface wants it.
        unsafe {
            let got = match bytes.below(4) {
                0 => estafette_tensor_shape(tensor, shape.as_mut_ptr(), 4, &raw mut ndim),
                1 => estafette_tensor_data(tensor, &raw mut data),
                2 => estafette_tensor_read_only(tensor, &raw mut flag),
                _ => estafette_tensor_shape(tensor, ptr::null_mut(), 0, &raw mut ndim),
            };
            allowed(got, &legal, "describe");
        }
    }
}
