//! Calls that no honest program makes.

use super::*;

impl Program {
    /// Calls that must be refused whatever the state is.
    pub(super) fn nonsense(&mut self, bytes: &mut Bytes<'_>) {
        let null = ptr::null_mut::<c_void>();
        let strange =
            (usize::from(bytes.byte()) << 33 | usize::from(bytes.byte()) << 20) as *mut estafette_op;
        // SAFETY: wrong in ways that the interface promises to see.
        let got = unsafe {
            match bytes.below(12) {
                0 => estafette_import(null.cast(), null.cast(), ptr::null(), null.cast()),
                1 => estafette_import(self.engine, null.cast(), ptr::null(), (&raw mut self.engine).cast()),
                2 => estafette_query(ptr::null()),
                3 => estafette_wait(ptr::null(), 0),
                4 => estafette_op_complete(ptr::null_mut(), 0, ptr::null()),
                5 => estafette_op_complete(strange, 0, ptr::null()),
                6 => estafette_op_wait(strange, 0),
                7 => estafette_submit(
                    null.cast(),
                    ptr::null(),
                    None,
                    null,
                    None,
                    ptr::null(),
                    0,
                    ptr::null(),
                    0,
                ),
                8 => estafette_submit(
                    self.engine,
                    ptr::null(),
                    Some(call),
                    null,
                    None,
                    ptr::null(),
                    7,
                    ptr::null(),
                    0,
                ),
                9 => estafette_export(ptr::null(), ptr::null(), null.cast()),
                10 => estafette_diagnose(self.engine, ptr::null_mut()),
                _ => estafette_zeros(
                    self.engine,
                    ptr::null(),
                    3,
                    DLDataType { code: 2, bits: 32, lanes: 1 },
                    null.cast(),
                ),
            }
        };
        refuses(got, "nonsense");
        assert!(!last_error().is_empty(), "an error without a text");
        accepts(estafette_tensor_release(ptr::null_mut()), "no tensor");
        accepts(estafette_promise_drop(ptr::null_mut()), "no promise");
        // SAFETY: NULL is legal here.
        unsafe {
            accepts(estafette_lease_release(ptr::null_mut(), ptr::null()), "no lease");
            accepts(estafette_tensor_release_after(ptr::null_mut(), ptr::null()), "no tensor");
        }
        accepts(estafette_op_release(ptr::null_mut()), "no operation");
        self.misuse(bytes);
    }
}
