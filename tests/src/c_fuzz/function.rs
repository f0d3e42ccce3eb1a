//! Bodies of operations: the submission decides what a body does.

use std::ffi::{c_char, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use estafette_c::estafette_status::*;
use estafette_c::{
    DLManagedTensor, DLManagedTensorVersioned, DLTensor, estafette_op, estafette_op_complete,
    estafette_op_complete_with, estafette_op_export, estafette_status, estafette_tensor,
    estafette_tensor_release,
};

use super::managed::Managed;
use super::shared::{OpenHandle, Shared};

#[derive(Clone, Copy, Debug)]
pub enum FunctionEnd {
    /// At once, well.
    Well,
    /// At once, badly.
    Badly,
    /// At once, as cancelled.
    Cancelled,
    /// At once, well, and once more.
    Twice,
    Elsewhere,
    /// At a later step of the program.
    Later,
    With,
}

pub struct FunctionBody {
    pub end: FunctionEnd,
    pub shared: Arc<Shared>,
    /// Exported and released inside the body.
    pub operand: *mut estafette_tensor,
    called: AtomicBool,
}

// SAFETY: the tensor may be used by any thread.
unsafe impl Send for FunctionBody {}

impl FunctionBody {
    /// A context for the library. It holds a count of `operand`, which may be NULL.
    pub fn new(end: FunctionEnd, shared: &Arc<Shared>, operand: *mut estafette_tensor) -> *mut FunctionBody {
        Box::into_raw(Box::new(FunctionBody {
            end,
            shared: shared.clone(),
            operand,
            called: AtomicBool::new(false),
        }))
    }

    /// Takes back a context that was not accepted.
    pub fn keep(body: *mut FunctionBody) {
        // SAFETY: made by `new`, and not given away.
        let body = unsafe { Box::from_raw(body) };
        assert!(!body.called.load(SeqCst), "a function was called in spite of an error");
        accepts(estafette_tensor_release(body.operand), "release an operand");
    }
}

/// The call did what was asked for.
pub fn accepts(status: estafette_status, what: &str) {
    expect(status, ESTAFETTE_OK, what);
}

/// The call has found that an argument is wrong.
pub fn refuses(status: estafette_status, what: &str) {
    expect(status, ESTAFETTE_INVALID, what);
}

/// The call accepts its arguments if they are `valid`, and else refuses them.
pub fn accepts_if(valid: bool, status: estafette_status, what: &str) {
    expect(status, if valid { ESTAFETTE_OK } else { ESTAFETTE_INVALID }, what);
}

/// The call ended as it should.
pub fn expect(status: estafette_status, expected: estafette_status, what: &str) {
    assert_eq!(status, expected, "{what}: {}", last_error());
}

/// The text of this thread's latest error.
pub fn last_error() -> String {
    // SAFETY: the text ends, and is this thread's.
    unsafe { std::ffi::CStr::from_ptr(estafette_c::estafette_last_error()) }.to_string_lossy().into_owned()
}

pub unsafe extern "C" fn call(context: *mut c_void, op: *mut estafette_op) {
    // SAFETY: the library calls this with its context, before the context is dropped; the parts that are used
    // after the report of the end are copied first.
    let (end, shared, operand) = unsafe {
        let body = &*context.cast::<FunctionBody>();
        assert!(!body.called.swap(true, SeqCst), "a function was called twice");
        (body.end, body.shared.clone(), body.operand)
    };
    if !operand.is_null() {
        let mut view: *mut DLManagedTensorVersioned = ptr::null_mut();
        // SAFETY: the context holds the operand; the view is released at once.
        unsafe {
            if estafette_op_export(op, operand, &raw mut view) == ESTAFETTE_OK {
                delete(view);
            }
        }
    }
    let complete = |status: i32, text: *const c_char| {
        // SAFETY: the text ends.
        unsafe { estafette_op_complete(op, status, text) }
    };
    match end {
        FunctionEnd::Well => accepts(complete(0, ptr::null()), "complete"),
        FunctionEnd::Badly => {
            Shared::count(&shared.failures);
            accepts(complete(-2, c"as planned".as_ptr()), "fail");
        }
        FunctionEnd::Cancelled => {
            Shared::count(&shared.failures);
            accepts(complete(-4, ptr::null()), "cancel from inside");
        }
        FunctionEnd::Twice => {
            refuses(complete(5, ptr::null()), "no such status");
            refuses(complete(1, ptr::null()), "pending is no end");
            accepts(complete(0, ptr::null()), "complete");
            refuses(complete(0, ptr::null()), "complete twice");
        }
        FunctionEnd::Elsewhere => {
            let op = OpenHandle(op);
            std::thread::spawn(move || {
                let OpenHandle(op) = { op };
                // SAFETY: no text.
                let status = unsafe { estafette_op_complete(op, 0, ptr::null()) };
                accepts(status, "complete elsewhere");
            });
        }
        FunctionEnd::Later => shared.open.lock().expect("no panic under this lock").push(OpenHandle(op)),
        FunctionEnd::With => {
            let managed = Managed::new(&shared, 4, false);
            Shared::count(&shared.imported);
            // SAFETY: a valid tensor, taken on success.
            let status = unsafe { estafette_op_complete_with(op, Managed::raw(managed)) };
            accepts(status, "complete with a tensor");
        }
    }
}

/// Calls a deleter as a consumer does.
///
/// # Safety
/// `view` was exported and not deleted before.
pub unsafe fn delete(view: *mut DLManagedTensorVersioned) {
    #[repr(C)]
    struct Head {
        version: [u32; 2],
        manager_ctx: *mut c_void,
        deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    }
    // SAFETY: the struct begins like this.
    unsafe {
        if let Some(deleter) = (*view.cast::<Head>()).deleter {
            deleter(view);
        }
    }
}

/// As [`delete`], of the struct from before DLPack 1.0.
///
/// # Safety
/// As there.
pub unsafe fn delete_legacy(view: *mut DLManagedTensor) {
    #[repr(C)]
    struct Whole {
        tensor: DLTensor,
        manager_ctx: *mut c_void,
        deleter: Option<unsafe extern "C" fn(*mut DLManagedTensor)>,
    }
    // SAFETY: the struct is like this.
    unsafe {
        if let Some(deleter) = (*view.cast::<Whole>()).deleter {
            deleter(view);
        }
    }
}

pub unsafe extern "C" fn skipped(context: *mut c_void, status: estafette_status, message: *const c_char) {
    // SAFETY: the library calls this with its context, in place of `call`.
    let body = unsafe { &*context.cast::<FunctionBody>() };
    assert!(!body.called.swap(true, SeqCst), "a function was called, and then skipped");
    assert!((status as i32) < 0 && !message.is_null(), "skipped without a reason");
}

pub unsafe extern "C" fn drop_body(context: *mut c_void) {
    // SAFETY: made by `FunctionBody::new`, and given away once.
    let body = unsafe { Box::from_raw(context.cast::<FunctionBody>()) };
    accepts(estafette_tensor_release(body.operand), "release an operand");
    body.shared.dropped.fetch_add(1, SeqCst);
}
