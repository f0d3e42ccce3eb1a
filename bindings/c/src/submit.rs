//! Submitting operations.

use std::borrow::Cow;
use std::ffi::{c_char, c_void};
use std::sync::Arc;

use estafette::bindings::{self, operation::SubmitPermit};
use estafette::devices::{DLDevice, DeviceType, Queue};
use estafette::operation::{Description, Operands, Tensors};
use estafette::{Completion, Engine, Op};
use estafette_sync::valgrind;

use crate::context::{BodyContext, Context, estafette_drop};
use crate::engine::{self, estafette_engine};
use crate::entry::{Answer, DONE, Refusal, c_text, entry, flag, is_null, place, text};
use crate::names;
use crate::op::estafette_op;
use crate::options::{self, sized_options};
use crate::slots::{self, Begun, Held};
use crate::status::estafette_status;
use crate::tensor::{self, estafette_tensor, tensors};

/// The body of an operation. It is called once, by any thread, when its operands may be used, and starts the
/// work. The end is reported by `estafette_op_complete` or a related call, inside of the function or later,
/// by any thread. The function must not block for long, and must not throw.
pub type estafette_function = Option<unsafe extern "C" fn(context: *mut c_void, op: *mut estafette_op)>;

/// Called with the context of an operation that is skipped, with why: `ESTAFETTE_FAILED`,
/// `ESTAFETTE_CANCELLED`, `ESTAFETTE_DEVICE` or `ESTAFETTE_PEER_DIED`, and the text, which is only there
/// during the call. It must not throw.
pub type estafette_skip_callback =
    Option<unsafe extern "C" fn(context: *mut c_void, status: estafette_status, message: *const c_char)>;

/// Options of a submission. All bytes zero, but for `size`, are the defaults.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct estafette_submit_options {
    /// `sizeof(estafette_submit_options)`.
    pub size: u32,
    /// Among ready operations, higher ones are started first. Default 0. Priorities age: while operations
    /// with a priority wait, of any 64 that are taken to be run at least one is an ordinary one (priority 0)
    /// if one is ready, one of the oldest; and at least one is the oldest of those with a priority other
    /// than 0. An operation and those that it makes ready, one after the other and up to 32, count as one.
    pub priority: i32,
    /// Appears in messages; NULL means "c".
    pub name: *const c_char,
    /// 1: refuses with `ESTAFETTE_IN_FLIGHT_LIMIT` instead of waiting for room.
    pub nonblocking: i32,
    /// 0.
    pub reserved: i32,
    /// The device that the function enqueues on; `device_type` 0 for functions that work on the host. What
    /// comes before the operation on that device is waited for there, and not on the host; the function asks
    /// `estafette_op_stream` for the stream, and the operation is what the function has enqueued there when
    /// it reports the end.
    pub on: DLDevice,
    /// NULL, or what is called in place of the function where the operation is skipped: something that it
    /// reads has failed, or it was cancelled. It is called in the operation's turn, on a thread that could
    /// have called the function, before `drop_context`. So the turn of a collective operation always comes,
    /// and it can tell the other ranks: by `ncclCommAbort`, for example. The operation has then failed by the
    /// same cause as without it.
    pub on_skip: estafette_skip_callback,
}

// SAFETY: numbers and pointers, the size first.
sized_options!(unsafe estafette_submit_options, 24);

impl estafette_submit_options {
    pub(crate) fn nonblocking(&self) -> Result<bool, Refusal> {
        flag("estafette_submit_options: nonblocking", self.nonblocking)
    }

    pub(crate) fn check_reserved(&self) -> Result<(), Refusal> {
        if self.reserved != 0 {
            let message = format!("estafette_submit_options: reserved is {}", self.reserved);
            return Err(Refusal::invalid(message));
        }
        Ok(())
    }
}

/// An operation as it waits to be called. Dropping it without a call gives the context up.
pub(crate) struct PendingCall {
    pub(crate) function: unsafe extern "C" fn(*mut c_void, *mut estafette_op),
    pub(crate) context: BodyContext,
    /// The operation's handle, if the submitter has it too.
    pub(crate) held: Option<Held>,
    pub(crate) produces: bool,
}

impl PendingCall {
    pub(crate) fn start(self, completion: Completion) {
        let Self { function, context, held, produces } = self;
        let pointer = context.pointer();
        let begun = Begun { completion, context, produces };
        let begun = match held {
            Some(held) => held.begin(begun),
            None => slots::allocate_begun(begun),
        };
        let handle = match begun {
            Ok(handle) => handle,
            // The completion is dropped, which fails the operation.
            Err(refusal) => return tracing::error!(reason = refusal.message, "an operation has no handle"),
        };
        // SAFETY: the submitter promised that any thread may call it, once or as often as a program is
        // replayed; the context is given up only after the end is reported.
        valgrind::foreign(|| unsafe { function(pointer, handle) });
    }
}

/// Submits an operation. It reads the tensors in `reads` and overwrites those in `writes`; one that is in
/// both is updated in place. `function` is called with `context` when everything before it, in the order of
/// submission, that it conflicts with has been issued and what it needs is ready; it is not called at all if
/// something that it reads has failed, or when it is cancelled. `name` appears in messages; NULL means "c".
/// `drop_context`, which may be NULL, is called once with `context` when the end was reported, and the fence
/// given to `estafette_op_complete_after`, if any, has settled; or when it is known that `function` will not
/// be called. (Work that `function` has enqueued on `estafette_op_stream` may still run when the end was
/// reported without a fence.) An array may be NULL when its count is 0. When this returns, the caller may
/// release the tensors and destroy the engine: the operation keeps what it needs.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL `engine` or `function`, for NULL or a handle that is
/// not in use among the tensors, or a name that is not UTF-8; `ESTAFETTE_CONFLICT` for writing what may not
/// be written; `ESTAFETTE_WOULD_DEADLOCK` when there is no permit and never will be, or when it would wait
/// for room in a callback; `ESTAFETTE_LEASE_HELD` when leases of other threads have kept the in-flight limit
/// reached for the engine's `lease_timeout_ns`; `ESTAFETTE_SHUTDOWN`; `ESTAFETTE_FORKED`. On an error neither
/// function is called and the caller keeps `context`. May be called by any thread, inside of operations too.
///
/// # Safety
/// Each pointer but handles is NULL or what its type says; both functions may be called by any thread.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "C has no other way")]
pub unsafe extern "C" fn estafette_submit(
    engine: *mut estafette_engine,
    name: *const c_char,
    function: estafette_function,
    context: *mut c_void,
    drop_context: estafette_drop,
    reads: *const *mut estafette_tensor,
    n_reads: usize,
    writes: *const *mut estafette_tensor,
    n_writes: usize,
) -> estafette_status {
    let options = estafette_submit_options {
        size: 24,
        priority: 0,
        name,
        nonblocking: 0,
        reserved: 0,
        on: HOST,
        on_skip: None,
    };
    let work = WorkArguments {
        function,
        context,
        drop_context,
        reads: (reads, n_reads),
        writes: (writes, n_writes),
    };
    // SAFETY: by contract of this function.
    entry(|| unsafe { submit(engine, &options, work, std::ptr::null_mut()) })
}

/// As `estafette_submit`, with options (NULL for the defaults), and with a handle of the operation to `*out`,
/// which may be NULL. The caller owns the handle and gives it up by `estafette_op_release`. It is the one
/// that `function` is given.
///
/// Returns as `estafette_submit`, and `ESTAFETTE_IN_FLIGHT_LIMIT`.
///
/// # Safety
/// As for `estafette_submit`.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "C has no other way")]
pub unsafe extern "C" fn estafette_submit_with(
    engine: *mut estafette_engine,
    options: *const estafette_submit_options,
    function: estafette_function,
    context: *mut c_void,
    drop_context: estafette_drop,
    reads: *const *mut estafette_tensor,
    n_reads: usize,
    writes: *const *mut estafette_tensor,
    n_writes: usize,
    out: *mut *mut estafette_op,
) -> estafette_status {
    let work = WorkArguments {
        function,
        context,
        drop_context,
        reads: (reads, n_reads),
        writes: (writes, n_writes),
    };
    entry(|| {
        // SAFETY: by contract of this function.
        let options = unsafe { options::read(options) }?;
        // SAFETY: by contract of this function.
        unsafe { submit(engine, &options, work, out) }
    })
}

/// Submits an operation whose result becomes a new tensor, `*out`: a promise until
/// `estafette_op_complete_with`. Everything else is as for `estafette_submit`. The caller owns `*out`.
///
/// Returns as `estafette_submit_with`, and `ESTAFETTE_INVALID` for NULL `out`.
///
/// # Safety
/// As for `estafette_submit`; `out` is NULL or may be written.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "C has no other way")]
pub unsafe extern "C" fn estafette_produce(
    engine: *mut estafette_engine,
    options: *const estafette_submit_options,
    function: estafette_function,
    context: *mut c_void,
    drop_context: estafette_drop,
    reads: *const *mut estafette_tensor,
    n_reads: usize,
    out: *mut *mut estafette_tensor,
) -> estafette_status {
    let op = std::ptr::null_mut();
    // SAFETY: by contract of this function.
    unsafe {
        estafette_produce_with(engine, options, function, context, drop_context, reads, n_reads, out, op)
    }
}

/// As `estafette_produce`, with a handle of the operation to `*op`, which may be NULL, to query, wait for or
/// cancel. The caller gives it up by `estafette_op_release`. It is the one that `function` is given.
///
/// Returns as `estafette_produce`.
///
/// # Safety
/// As for `estafette_produce`; `op` is NULL or may be written.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "C has no other way")]
pub unsafe extern "C" fn estafette_produce_with(
    engine: *mut estafette_engine,
    options: *const estafette_submit_options,
    function: estafette_function,
    context: *mut c_void,
    drop_context: estafette_drop,
    reads: *const *mut estafette_tensor,
    n_reads: usize,
    out: *mut *mut estafette_tensor,
    op: *mut *mut estafette_op,
) -> estafette_status {
    let writes = (std::ptr::null(), 0);
    let work = WorkArguments { function, context, drop_context, reads: (reads, n_reads), writes };
    entry(|| {
        let out = place(out, "out")?;
        // SAFETY: by contract of this function.
        let options = unsafe { options::read(options) }?;
        let engine = engine::engine(engine)?;
        // SAFETY: by contract of this function.
        let CheckedWork { name, function, reads, .. } = unsafe { work.parse(&options) }?;
        let described =
            on(engine.op(name).priority(options.priority).reads(reads), queue(&engine, options.on)?);
        let described = if options.nonblocking()? { described.without_waiting() } else { described };
        let permit = bindings::operation::reserve(described)?;
        let vacant = tensor::reserve()?;
        let (handle, held) = handle_for(op)?;
        let context = Context::new(context, drop_context);
        let (permit, context) = with_context(permit, context, options.on_skip);
        let waiting = PendingCall { function, context, held, produces: true };
        let (tensor, submitted) = permit.produce_external(move |completion| waiting.start(completion));
        // SAFETY: writable, by contract.
        unsafe {
            out.write(vacant.fill(tensor));
            write_op(op, handle, submitted);
        }
        DONE
    })
}

/// A new handle of an operation, unless `out` is NULL: one reference is the operation's, the other the
/// caller's.
fn handle_for(out: *mut *mut estafette_op) -> Result<(Option<*mut estafette_op>, Option<Held>), Refusal> {
    let handle = if out.is_null() { None } else { Some(slots::allocate()?) };
    Ok(handle.unzip())
}

/// # Safety
/// `out` may be written if there is a handle.
unsafe fn write_op(out: *mut *mut estafette_op, handle: Option<*mut estafette_op>, submitted: Op) {
    if let Some(handle) = handle {
        slots::set_op(handle, submitted);
        // SAFETY: by contract of this function.
        unsafe { out.write(handle) };
    }
}

/// The arguments that describe work, of an operation and of a node alike.
pub(crate) struct WorkArguments {
    pub(crate) function: estafette_function,
    pub(crate) context: *mut c_void,
    pub(crate) drop_context: estafette_drop,
    pub(crate) reads: (*const *mut estafette_tensor, usize),
    pub(crate) writes: (*const *mut estafette_tensor, usize),
}

/// Arguments after their checks.
pub(crate) struct CheckedWork {
    pub(crate) name: Cow<'static, str>,
    pub(crate) function: unsafe extern "C" fn(*mut c_void, *mut estafette_op),
    pub(crate) reads: Tensors,
    pub(crate) writes: Tensors,
}

impl WorkArguments {
    /// # Safety
    /// As for [`estafette_submit`].
    pub(crate) unsafe fn parse(&self, options: &estafette_submit_options) -> Result<CheckedWork, Refusal> {
        let function = self.function.ok_or_else(|| is_null("function"))?;
        options.check_reserved()?;
        // SAFETY: by contract of this function.
        let (name, reads, writes) = unsafe {
            let name = text(options.name, "c", "name")?;
            (
                name,
                tensors(self.reads.0, self.reads.1, "reads")?,
                tensors(self.writes.0, self.writes.1, "writes")?,
            )
        };
        Ok(CheckedWork { name: names::kept(name), function, reads, writes })
    }
}

/// The description, with its queue if it has one.
pub(crate) fn on<T, R, W, U>(
    work: Description<T, R, W, U>,
    queue: Option<Arc<dyn Queue>>,
) -> Description<T, R, W, U> {
    match queue {
        Some(queue) => work.on(&queue),
        None => work,
    }
}

/// # Safety
/// As for [`estafette_submit`].
unsafe fn submit(
    engine: *mut estafette_engine,
    options: &estafette_submit_options,
    arguments: WorkArguments,
    out: *mut *mut estafette_op,
) -> Answer {
    let engine = engine::engine(engine)?;
    // SAFETY: by contract of this function.
    let CheckedWork { name, function, reads, writes } = unsafe { arguments.parse(options) }?;
    let op = engine.op(name).priority(options.priority).reads(reads).writes(writes);
    let op = on(op, queue(&engine, options.on)?);
    let op = if options.nonblocking()? { op.without_waiting() } else { op };
    let permit = bindings::operation::reserve(op)?;
    let (handle, held) = handle_for(out)?;
    // Nothing can fail after this.
    let context = Context::new(arguments.context, arguments.drop_context);
    let (permit, context) = with_context(permit, context, options.on_skip);
    let waiting = PendingCall { function, context, held, produces: false };
    let op: Op = permit.run_external(move |completion| waiting.start(completion));
    // SAFETY: writable, by contract.
    unsafe { write_op(out, handle, op) };
    DONE
}

/// Gives an operation its context, and the function that is called with the context where the operation is
/// skipped.
fn with_context<'e, R: Operands, W: Operands, U: Operands>(
    permit: SubmitPermit<'e, R, W, U>,
    context: Context,
    on_skip: estafette_skip_callback,
) -> (SubmitPermit<'e, R, W, U>, BodyContext) {
    let Some(on_skip) = on_skip else { return (permit, BodyContext::Own(context)) };
    let context = Arc::new(context);
    let shared = Arc::clone(&context);
    let permit = permit.on_skip(move |cause| {
        let error = estafette::Error::from(cause.clone());
        let text = c_text(&bindings::full_text(&error));
        // SAFETY: the submitter promised that any thread may call it; this is the one call, and `shared`
        // keeps the context.
        valgrind::foreign(|| unsafe {
            on_skip(shared.pointer(), estafette_status::of(&error), text.as_ptr());
        });
    });
    (permit, BodyContext::Shared(context))
}

const HOST: DLDevice = DLDevice { device_type: DeviceType(0), device_id: 0 };

/// The queue for work on `device`; `None` for the host.
pub(crate) fn queue(engine: &Engine, device: DLDevice) -> Result<Option<Arc<dyn Queue>>, Refusal> {
    if device == HOST || device == DLDevice::CPU {
        return Ok(None);
    }
    Ok(Some(bindings::engine::queue_on(engine, device)?))
}
