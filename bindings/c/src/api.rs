//! All functions in a table, for programs that find the library at run time; and handles of what Rust code
//! beside this library has, such as the Python package in the same shared object.

use estafette::{Engine, Error, Op, Tensor};

use crate::entry::{Refusal, is_forked_else_register};
use crate::*;

/// The functions of this library, with the version of the interface in front. Members that are words of C++
/// have a `_` at the end. A new minor version adds functions at the end, and `size` grows.
#[derive(Debug)]
pub enum estafette_api {}

/// The type of [`estafette_api`], as far as this side is concerned. The header has a member of its own type
/// for each function.
#[repr(C)]
struct ApiTable<const N: usize> {
    size: u32,
    version_major: u32,
    version_minor: u32,
    reserved: u32,
    functions: [*const (); N],
}

// SAFETY: constant.
unsafe impl<const N: usize> Sync for ApiTable<N> {}

macro_rules! functions {
    ($($name:ident),* $(,)?) => {
        /// The functions in the order of the table.
        pub const FUNCTIONS: &[&str] = &[$(stringify!($name)),*];

        static API: ApiTable<{ FUNCTIONS.len() }> = ApiTable {
            size: size_of::<ApiTable<{ FUNCTIONS.len() }>>() as u32,
            version_major: ESTAFETTE_VERSION_MAJOR,
            version_minor: ESTAFETTE_VERSION_MINOR,
            reserved: 0,
            functions: [$($name as *const ()),*],
        };
    };
}

// Programs rely on the order. What is new comes last.
functions! {
    estafette_version, estafette_version_text, estafette_get_api, estafette_string_free,
    estafette_last_error, estafette_clear_error, estafette_status_text, estafette_set_log,
    estafette_engine_create, estafette_engine_destroy, estafette_engine_shutdown, estafette_wait_all,
    estafette_diagnose, estafette_engine_stats, estafette_flush_deleters, estafette_set_helping,
    estafette_import, estafette_import_fenced, estafette_zeros, estafette_tensor_retain,
    estafette_tensor_release, estafette_tensor_release_after, estafette_query, estafette_wait,
    estafette_on_ready, estafette_tensor_shape, estafette_tensor_dtype, estafette_tensor_device,
    estafette_tensor_data, estafette_tensor_read_only, estafette_tensor_lend, estafette_tensor_fence,
    estafette_writable_fence, estafette_order_on,
    estafette_export, estafette_export_fenced, estafette_op_export, estafette_lease_fence,
    estafette_lease_release,
    estafette_submit, estafette_submit_with, estafette_produce, estafette_op_complete,
    estafette_op_stream, estafette_op_complete_after, estafette_op_complete_with, estafette_op_retain,
    estafette_op_release, estafette_op_query, estafette_op_wait, estafette_op_cancel,
    estafette_op_fence,
    estafette_promise_create, estafette_promise_settle, estafette_promise_drop,
    estafette_program_begin, estafette_program_add, estafette_program_finish, estafette_program_replay,
    estafette_program_destroy,
    estafette_register_context, estafette_unregister_context, estafette_resolve_context,
    estafette_register_operator, estafette_unregister_operator, estafette_load_operators, estafette_list_operators,
    estafette_call_operator,
    estafette_trace_begin, estafette_trace_snapshot, estafette_trace_end,
    estafette_import_legacy, estafette_export_legacy,
    estafette_zeros_shared, estafette_ticket_create, estafette_ticket_bytes, estafette_ticket_revoke, estafette_from_ticket,
    estafette_door_open, estafette_door_address, estafette_door_accept, estafette_door_close, estafette_connect,
    estafette_link_process, estafette_link_send, estafette_link_receive, estafette_link_descriptor, estafette_link_close,
    estafette_declare_dead,
    estafette_produce_with, estafette_call_operator_with, estafette_wait_any, estafette_order_on_with, estafette_lease_all,
    estafette_copy, estafette_empty, estafette_run_ready, estafette_ticket_release, estafette_zeros_shared_for_writing
}

/// The functions of this library in a table, for programs that load the library at run time. It lives as long
/// as the process. The Python package gives the same table by `estafette.c_api()`, as a capsule of the name
/// "estafette.c_api".
///
/// Compare `version_major` with `ESTAFETTE_VERSION_MAJOR`. A function is there if `size` reaches beyond its
/// member. May be called by any thread, and in a forked child.
#[unsafe(no_mangle)]
pub extern "C" fn estafette_get_api() -> *const estafette_api {
    (&raw const API).cast()
}

/// Fails in a process that may not use handles, which belong to the process that used them first. To be
/// called before the functions below, whose locks may be held for ever in a child that was forked from it.
///
/// # Errors
/// [`Error::Forked`].
pub fn check_process() -> Result<(), Error> {
    if is_forked_else_register() { Err(Error::Forked) } else { Ok(()) }
}

/// A handle of an engine; `estafette_engine_destroy` gives it up. `None` when there are as many handles as
/// there can be.
pub fn engine_handle(engine: Engine) -> Option<*mut estafette_engine> {
    engine::handle_of(engine).ok()
}

/// A handle of an operation; `estafette_op_release` gives it up. `None` when there are as many handles as
/// there can be.
pub fn op_handle(op: Op) -> Option<*mut estafette_op> {
    Some(slots::Submitted::reserve().ok()?.fill(op))
}

/// The engine of a handle, which stays the caller's.
///
/// # Errors
/// The mistake in a value that is no handle of an engine.
pub fn engine_of(handle: *const estafette_engine) -> Result<Engine, String> {
    engine::engine(handle).map(|engine| Engine::clone(&engine)).map_err(text)
}

/// The tensor of a handle, which stays the caller's.
///
/// # Errors
/// The mistake in a value that is no handle of a tensor.
pub fn tensor_of(handle: *const estafette_tensor) -> Result<Tensor, String> {
    tensor::tensor(handle, "handle").map(|tensor| Tensor::clone(&tensor)).map_err(text)
}

/// The operation of a handle, which stays the caller's.
///
/// # Errors
/// The mistake in a value that is no handle of a submitted operation.
pub fn op_of(handle: *mut estafette_op) -> Result<Op, String> {
    slots::submitted(handle).map_err(text)
}

fn text(refusal: Refusal) -> String {
    refusal.message.to_string()
}
