//! Calls about contexts, logging, helping, versions, and what tensors say of themselves.

use super::*;
use estafette::devices::DeviceType;
use estafette::exchange::DLTensor;

/// Kinds of calls here.
pub(super) const CALLS: usize = 6;

/// Registered contexts: the library keeps their addresses and never reads through them.
static CONTEXTS: [u64; 3] = [0; 3];

/// A context that was registered.
pub(super) struct Registration {
    kind: DeviceType,
    id: i32,
    handle: *mut c_void,
}

unsafe extern "C" fn log(context: *mut c_void, level: i32, message: *const c_char) {
    assert!((1..=5).contains(&level) && !message.is_null(), "a log event that cannot be");
    // SAFETY: given away with a count of the context.
    let _shared = unsafe { &*context.cast::<Shared>() };
}

impl Program {
    /// Takes one of the steps. Returns the step, or `None` without a value to call it with.
    pub(super) fn others(&mut self, bytes: &mut Bytes<'_>) -> Option<usize> {
        let call = bytes.below(CALLS);
        match call {
            0 => self.register_context(bytes),
            1 => self.unregister_context(bytes),
            2 => self.set_log(bytes),
            3 => self.words(bytes),
            4 => self.inspect_tensor(bytes),
            _ => self.stream_of_the_host(bytes),
        }
        .map(|()| call)
    }

    fn register_context(&mut self, bytes: &mut Bytes<'_>) -> Option<()> {
        // OpenCL, Vulkan and Metal; the last two have numbers of their own.
        let kind = DeviceType([4, 7, 8, 1, 2][bytes.below(5)]);
        let handle = (&raw const CONTEXTS[bytes.below(CONTEXTS.len())]).cast_mut().cast::<c_void>();
        let valid = kind.0 >= 4;
        let (mut id, mut again, mut found) = (0, 0, ptr::null_mut());
        // SAFETY: a context of these kinds is an address to the library.
        unsafe {
            let got = estafette_register_context(kind, ptr::null_mut(), &raw mut id);
            refuses(got, "no context");
            let got = estafette_register_context(kind, handle, ptr::null_mut());
            refuses(got, "a number to nowhere");
            let got = estafette_register_context(kind, handle, &raw mut id);
            accepts_if(valid, got, "register");
            if !valid {
                return None;
            }
            let got = estafette_register_context(kind, handle, &raw mut again);
            accepts(got, "register once more");
            assert_eq!(id, again, "a context has one number");
            let got = estafette_resolve_context(kind, id, &raw mut found);
            accepts(got, "resolve");
            assert_eq!(found, handle, "another context");
            let got = estafette_resolve_context(kind, id, ptr::null_mut());
            refuses(got, "resolve to nowhere");
        }
        accepts(estafette_unregister_context(kind, id), "unregister once");
        self.contexts.push(Registration { kind, id, handle });
        if self.contexts.len() > HELD_MAX {
            self.contexts.remove(0).unregister(&self.contexts);
        }
        Some(())
    }

    fn unregister_context(&mut self, bytes: &mut Bytes<'_>) -> Option<()> {
        if let Some(registration) = take(&mut self.contexts, bytes) {
            registration.unregister(&self.contexts);
        }
        let nothing = estafette_unregister_context(DeviceType(7), i32::MAX);
        refuses(nothing, "a number that nothing has");
        Some(())
    }

    fn set_log(&mut self, bytes: &mut Bytes<'_>) -> Option<()> {
        let level = bytes.below(7) as i32;
        let context = Arc::into_raw(self.shared.clone()).cast_mut().cast();
        // SAFETY: as the interface wants it, or wrong in a way that it promises to see.
        let got = unsafe { estafette_set_log(level, Some(log), context, Some(drop_shared)) };
        let valid = (1..=5).contains(&level);
        accepts_if(valid, got, "set_log");
        if valid {
            Shared::count(&self.shared.contexts);
            self.logs = true;
        } else {
            // SAFETY: it was not taken.
            drop(unsafe { Arc::from_raw(context.cast::<Shared>()) });
        }
        Some(())
    }

    fn words(&mut self, bytes: &mut Bytes<'_>) -> Option<()> {
        let number = [0, 3, -1, -11, 77, i32::MIN][bytes.below(6)];
        let (mut major, mut minor) = (u32::MAX, u32::MAX);
        // SAFETY: as the interface wants it; texts end.
        unsafe {
            let text = std::ffi::CStr::from_ptr(estafette_status_text(number));
            assert_eq!(text == c"unknown status", matches!(number, 77 | i32::MIN), "{text:?}");
            estafette_version(&raw mut major, &raw mut minor);
            estafette_version(ptr::null_mut(), ptr::null_mut());
            assert_eq!((major, minor), (ESTAFETTE_VERSION_MAJOR, ESTAFETTE_VERSION_MINOR));
            let text = std::ffi::CStr::from_ptr(estafette_version_text()).to_string_lossy();
            assert!(text.starts_with(&format!("{major}.{minor}.")), "{text}");
            estafette_string_free(ptr::null_mut());
        }
        assert!(!estafette_get_api().is_null() && estafette_get_api() == estafette_get_api(), "one table");
        traces_that_cannot_be();
        let mut has_run = -1;
        // SAFETY: as the interface wants it.
        let got = unsafe { estafette_run_ready(self.engine, &raw mut has_run) };
        accepts(got, "run what is ready");
        assert!(matches!(has_run, 0 | 1), "{has_run} is no answer");
        let before = estafette_set_helping(bytes.below(3) as i32 - 1);
        assert!(matches!(before, 0 | 1), "{before} is no answer");
        Some(())
    }

    fn inspect_tensor(&mut self, bytes: &mut Bytes<'_>) -> Option<()> {
        let tensor = pick(&self.tensors, bytes)?;
        let mut lent = std::mem::MaybeUninit::<DLTensor>::uninit();
        let (mut dtype, mut device) = (std::mem::MaybeUninit::uninit(), std::mem::MaybeUninit::uninit());
        let legal = [ESTAFETTE_OK, ESTAFETTE_NOT_DEFINED];
        // SAFETY: as the interface wants it, or wrong in a way that it promises to see.
        unsafe {
            match bytes.below(4) {
                0 => {
                    let got = estafette_tensor_lend(tensor, lent.as_mut_ptr().cast());
                    allowed(got, &legal, "lend");
                    refuses(estafette_tensor_lend(tensor, ptr::null_mut()), "lend to nowhere");
                }
                1 => allowed(estafette_tensor_dtype(tensor, dtype.as_mut_ptr()), &legal, "dtype"),
                2 => allowed(estafette_tensor_device(tensor, device.as_mut_ptr()), &legal, "device"),
                _ => {
                    let got = estafette_clear_error(tensor);
                    allowed(got, &[ESTAFETTE_OK, ESTAFETTE_CONFLICT], "clear_error");
                    if !self.is_full() {
                        let (cpu, mut copy) = (estafette::devices::DLDevice::CPU, ptr::null_mut());
                        let got = estafette_copy(self.engine, tensor, cpu, &raw mut copy);
                        allowed(got, &[ESTAFETTE_OK, ESTAFETTE_LEASE_HELD], "copy");
                        accepts(estafette_tensor_release(copy), "release a copy");
                    }
                }
            }
        }
        Some(())
    }

    fn stream_of_the_host(&mut self, bytes: &mut Bytes<'_>) -> Option<()> {
        let op = pick(&self.ops, bytes).unwrap_or(ptr::null_mut());
        let mut stream = ptr::null_mut();
        // SAFETY: as the interface wants it, or wrong in a way that it promises to see.
        unsafe {
            let got = estafette_op_stream(op, &raw mut stream);
            refuses(got, "the stream of an operation of the host");
            refuses(estafette_op_stream(op, ptr::null_mut()), "a stream to nowhere");
        }
        Some(())
    }

    /// Undoes settings of the process and of the thread.
    pub(super) fn end_of_others(&mut self) {
        while let Some(registration) = self.contexts.pop() {
            registration.unregister(&self.contexts);
        }
        if self.logs {
            // SAFETY: it turns logging off.
            let got = unsafe { estafette_set_log(1, None, ptr::null_mut(), None) };
            accepts(got, "no log");
        }
        estafette_set_helping(1);
    }
}

/// A trace writes files, which a program that runs many thousand times leaves to others.
fn traces_that_cannot_be() {
    let mut out = ptr::null_mut();
    let strange = ptr::without_provenance_mut(0xdead_beef);
    // SAFETY: as the interface wants it, or wrong in a way that it promises to see.
    let refused = unsafe {
        [
            estafette_trace_begin(ptr::null(), ptr::null(), &raw mut out),
            estafette_trace_begin(c"/no/such/folder/x.pftrace".as_ptr(), ptr::null(), &raw mut out),
            estafette_trace_begin(c"x.pftrace".as_ptr(), ptr::null(), ptr::null_mut()),
            estafette_trace_snapshot(strange, c"x.pftrace".as_ptr()),
            estafette_trace_snapshot(ptr::null_mut(), ptr::null()),
            estafette_trace_end(ptr::null_mut()),
            estafette_trace_end(strange),
        ]
    };
    refused.into_iter().for_each(|got| refuses(got, "no trace"));
    assert!(out.is_null(), "a handle of no trace");
}

impl Registration {
    fn unregister(self, others: &[Registration]) {
        let Self { kind, id, handle } = self;
        let mut found = ptr::null_mut();
        // SAFETY: as the interface wants it.
        unsafe {
            accepts(estafette_resolve_context(kind, id, &raw mut found), "resolve");
            assert_eq!(found, handle, "another context");
            accepts(estafette_unregister_context(kind, id), "unregister");
            if others.iter().all(|other| other.id != id) {
                let got = estafette_resolve_context(kind, id, &raw mut found);
                refuses(got, "a number that is over");
            }
        }
    }
}
