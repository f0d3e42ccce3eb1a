//! The handles of a C program, through the functions of the C interface.

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use estafette_c::*;
use estafette_devices::DLDevice;

use crate::c_fuzz::zeroed;

type Status = estafette_status;

/// A C engine with one worker, n tensors and n operations that wait for one whose end is reported last.
pub struct Handles {
    engine: *mut estafette_engine,
    /// Its readers wait.
    gate: *mut estafette_tensor,
    opener: *mut estafette_op,
    tensors: Vec<*mut estafette_tensor>,
    ops: Vec<*mut estafette_op>,
}

unsafe extern "C" fn ends(_: *mut c_void, op: *mut estafette_op) {
    // SAFETY: no text.
    ok(unsafe { estafette_op_complete(op, Status::ESTAFETTE_OK as i32, null()) });
}

unsafe extern "C" fn stays(begun: *mut c_void, op: *mut estafette_op) {
    let begun = begun.cast::<std::sync::mpsc::SyncSender<usize>>();
    // SAFETY: the sender lives for as long as the process.
    unsafe { &*begun }.send(op.addr()).expect("the test waits for it");
}

unsafe extern "C" fn nothing(_: *mut c_void, _: estafette_status, _: *const std::ffi::c_char) {}

fn ok(status: estafette_status) {
    assert_eq!(status, Status::ESTAFETTE_OK);
}

impl Handles {
    /// Makes `n` tensors and `n` operations.
    pub(super) fn new(n: usize) -> Self {
        let options = estafette_engine_options {
            workers: 1,
            in_flight_limit: (10 * n + 1_000) as u64,
            ..zeroed!(estafette_engine_options)
        };
        let mut engine = null_mut();
        // SAFETY: the options are as long as they say, and the result has a place.
        ok(unsafe { estafette_engine_create(&options, &mut engine) });
        let mut handles =
            Self { engine, gate: null_mut(), opener: null_mut(), tensors: Vec::new(), ops: Vec::new() };
        handles.gate = handles.tensor();
        let (sender, receiver) = std::sync::mpsc::sync_channel::<usize>(1);
        // It may still be at work when what it has sent is received.
        let context = std::ptr::from_ref(Box::leak(Box::new(sender))).cast_mut().cast();
        let opener = handles.submit(Some(stays), context, &[], &[handles.gate]);
        receiver.recv().expect("it begins");
        handles.opener = opener;
        for _ in 0..n {
            let tensor = handles.tensor();
            handles.ops.push(handles.pending(tensor));
            handles.tensors.push(tensor);
        }
        handles
    }

    /// A tensor of one byte.
    pub(super) fn tensor(&self) -> *mut estafette_tensor {
        let mut tensor = null_mut();
        // SAFETY: a shape of one dimension, and a place for the result.
        ok(unsafe {
            estafette_zeros(self.engine, &1, 1, DLDataType { code: 1, bits: 8, lanes: 1 }, &mut tensor)
        });
        tensor
    }

    fn submit(
        &self,
        body: estafette_function,
        context: *mut c_void,
        reads: &[*mut estafette_tensor],
        writes: &[*mut estafette_tensor],
    ) -> *mut estafette_op {
        let (mut op, options) = (null_mut(), null());
        let (reads, n_reads) = (reads.as_ptr(), reads.len());
        let (writes, n_writes) = (writes.as_ptr(), writes.len());
        // SAFETY: the arrays are as long as given, and there is a place for the operation.
        ok(unsafe {
            estafette_submit_with(
                self.engine,
                options,
                body,
                context,
                None,
                reads,
                n_reads,
                writes,
                n_writes,
                &mut op,
            )
        });
        op
    }

    /// An operation that waits for the gate, and writes the tensor.
    pub(super) fn pending(&self, tensor: *mut estafette_tensor) -> *mut estafette_op {
        self.submit(Some(ends), null_mut(), &[self.gate], &[tensor])
    }

    /// Cancels an operation and drops its handle.
    pub(super) fn cancel(&self, op: *mut estafette_op) {
        ok(estafette_op_cancel(op));
        ok(estafette_op_release(op));
    }

    pub(super) fn run(&self, tensor: *mut estafette_tensor) {
        let op = self.submit(Some(ends), null_mut(), &[], &[tensor]);
        ok(estafette_op_wait(op, u64::MAX));
        ok(estafette_op_release(op));
    }

    /// A read lease with memory that a consumer would get.
    pub(super) fn export(&self, tensor: *mut estafette_tensor) -> *mut DLManagedTensorVersioned {
        let mut managed = null_mut();
        // SAFETY: no options, and a place for the result.
        ok(unsafe { estafette_export(tensor, null(), &mut managed) });
        managed
    }

    pub(super) fn import(&self, managed: *mut DLManagedTensorVersioned) -> *mut estafette_tensor {
        let mut tensor = null_mut();
        // SAFETY: the struct of the library itself, ready at once, and a place for the result.
        ok(unsafe { estafette_import(self.engine, managed, null(), &mut tensor) });
        tensor
    }

    /// Takes a lease without memory, and returns it.
    pub(super) fn lease(&self, tensor: *mut estafette_tensor) {
        let mut lease = null_mut();
        // SAFETY: work of the host has no stream, and there is a place for the result.
        ok(unsafe { estafette_order_on(tensor, 1, DLDevice::CPU, null_mut(), &mut lease) });
        // SAFETY: no fence is given.
        ok(unsafe { estafette_lease_release(lease, null()) });
    }

    pub(super) fn on_ready(&self, tensor: *mut estafette_tensor) {
        // SAFETY: the callback uses no context.
        ok(unsafe { estafette_on_ready(tensor, Some(nothing), null_mut(), None) });
    }

    pub(super) fn promise(&self) {
        let (mut promise, mut fence) = (null_mut(), std::mem::MaybeUninit::<DLFence>::uninit());
        // SAFETY: places for both.
        ok(unsafe { estafette_promise_create(null(), &mut promise, fence.as_mut_ptr()) });
        // SAFETY: written by the call above.
        let fence = unsafe { fence.assume_init() };
        // SAFETY: no text.
        ok(unsafe { estafette_promise_settle(promise, Status::ESTAFETTE_OK as i32, null()) });
        let release = fence.release.expect("the library's fences are counted");
        // SAFETY: the count that the call has given.
        unsafe { release(fence.context) };
    }

    /// A program of one node, replayed once and destroyed.
    pub(super) fn program(&self, tensor: *mut estafette_tensor) {
        let (mut program, mut op) = (null_mut(), null_mut());
        // SAFETY: no name, places for the results, an array of one tensor.
        unsafe {
            ok(estafette_program_begin(self.engine, null(), &mut program));
            ok(estafette_program_add(program, null(), Some(ends), null_mut(), None, null(), 0, &tensor, 1));
            ok(estafette_program_finish(program, 0));
            ok(estafette_program_replay(program, 0, &mut op));
        }
        ok(estafette_op_wait(op, u64::MAX));
        ok(estafette_op_release(op));
        ok(estafette_program_destroy(program));
    }

    /// Reasons of all waits in flight, in words.
    pub(super) fn diagnose(&self) {
        let mut text = null_mut();
        // SAFETY: a place for the text, which is then released.
        unsafe {
            ok(estafette_diagnose(self.engine, &mut text));
            estafette_string_free(text);
        }
    }
}

impl Drop for Handles {
    fn drop(&mut self) {
        // SAFETY: no text.
        ok(unsafe { estafette_op_complete(self.opener, Status::ESTAFETTE_OK as i32, null()) });
        self.ops.drain(..).chain([self.opener]).for_each(|op| ok(estafette_op_release(op)));
        self.tensors.drain(..).chain([self.gate]).for_each(|tensor| ok(estafette_tensor_release(tensor)));
        ok(estafette_wait_all(self.engine, u64::MAX));
        ok(estafette_engine_destroy(self.engine));
    }
}
