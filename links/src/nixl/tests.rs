//! A NIXL that moves no bytes: a test says which call of its thread is refused, and where transfers are.

use std::cell::Cell;
use std::ffi::{c_char, c_uint, c_void};
use std::process;
use std::ptr;
use std::sync::Arc;

use super::api::{AgentConfig, Api, IN_PROGRESS, Object, Status};
use super::{Agent, library};
use crate::Segment;

/// Calls that can be refused.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Register,
    Describe,
    Load,
}

thread_local! {
    static REFUSED: Cell<Option<Call>> = const { Cell::new(None) };
    static STATUS: Cell<Status> = const { Cell::new(IN_PROGRESS) };
}

/// All agents of the process are doubles from now on, unless one has been made.
pub(crate) fn install() {
    library::replace(api);
}

/// Refuses a call of this thread from now on.
pub(crate) fn refuse(call: Option<Call>) {
    REFUSED.set(call);
}

/// Ends all transfers of this thread.
pub(crate) fn finish() {
    STATUS.set(0);
}

fn api() -> Api {
    let mut api = Api::double(absent);
    api.create_configured_agent = agent;
    api.get_available_plugins = of_agent;
    api.get_plugin_params = params;
    api.params_add = param;
    api.create_backend = backend;
    api.create_notif_map = make;
    api.create_opt_args = make;
    api.create_reg_dlist = list;
    api.create_xfer_dlist = list;
    api.destroy_agent = done;
    api.destroy_backend = done;
    api.destroy_notif_map = done;
    api.destroy_string_list = done;
    api.destroy_mem_list = done;
    api.destroy_params = done;
    api.destroy_opt_args = done;
    api.destroy_reg_dlist = done;
    api.destroy_xfer_dlist = done;
    api.destroy_xfer_req = done;
    api.opt_args_add_backend = pair;
    api.release_xfer_req = pair;
    api.opt_args_set_notif_msg = bytes;
    api.opt_args_set_has_notif = flag;
    api.reg_dlist_add_desc = described;
    api.xfer_dlist_add_desc = range;
    api.register_mem = register;
    api.deregister_mem = triple;
    api.get_local_md = local;
    api.load_remote_md = load;
    api.create_xfer_req = request;
    api.post_xfer_req = triple;
    api.get_xfer_status = status;
    api
}

extern "C" fn absent() {
    process::abort();
}

/// Writes an address that is never followed.
extern "C" fn make(made: *mut Object) -> Status {
    // SAFETY: the caller passes a place for one object.
    unsafe { made.write(ptr::without_provenance_mut(64)) };
    0
}

fn unless(call: Call) -> Status {
    if REFUSED.get() == Some(call) { -1 } else { 0 }
}

extern "C" fn agent(_: *const c_char, _: *const AgentConfig, made: *mut Object) -> Status {
    make(made)
}

extern "C" fn of_agent(_: Object, made: *mut Object) -> Status {
    make(made)
}

extern "C" fn params(_: Object, _: *const c_char, memory: *mut Object, options: *mut Object) -> Status {
    make(memory) + make(options)
}

extern "C" fn param(_: Object, _: *const c_char, _: *const c_char) -> Status {
    0
}

extern "C" fn backend(_: Object, _: *const c_char, _: Object, made: *mut Object) -> Status {
    make(made)
}

extern "C" fn list(_: c_uint, made: *mut Object, _: bool) -> Status {
    make(made)
}

extern "C" fn done(_: Object) -> Status {
    0
}

extern "C" fn pair(_: Object, _: Object) -> Status {
    0
}

extern "C" fn triple(_: Object, _: Object, _: Object) -> Status {
    0
}

extern "C" fn bytes(_: Object, _: *const c_void, _: usize) -> Status {
    0
}

extern "C" fn flag(_: Object, _: bool) -> Status {
    0
}

extern "C" fn described(_: Object, _: usize, _: usize, _: u64, _: *const c_void, _: usize) -> Status {
    0
}

extern "C" fn range(_: Object, _: usize, _: usize, _: u64) -> Status {
    0
}

extern "C" fn register(_: Object, _: Object, _: Object) -> Status {
    unless(Call::Register)
}

extern "C" fn local(_: Object, data: *mut *mut c_void, bytes: *mut usize) -> Status {
    // SAFETY: the caller passes a place for each, and frees the bytes.
    unsafe {
        data.write(libc::strdup(c"described".as_ptr()).cast());
        bytes.write(9);
    }
    unless(Call::Describe)
}

extern "C" fn load(_: Object, _: *const c_void, _: usize, name: *mut *mut c_char) -> Status {
    // SAFETY: the caller passes a place for the name, and frees it.
    unsafe { name.write(libc::strdup(c"peer".as_ptr())) };
    unless(Call::Load)
}

extern "C" fn request(
    _: Object,
    _: c_uint,
    _: Object,
    _: Object,
    _: *const c_char,
    made: *mut Object,
    _: Object,
) -> Status {
    make(made)
}

extern "C" fn status(_: Object, _: Object) -> Status {
    STATUS.get()
}

#[test]
fn memory_that_was_refused_once_is_registered_and_described_by_another_try() {
    install();
    let mut agent = Agent::new(c"one", drop).expect("an agent");
    let segment = Arc::new(Segment::new(4096).expect("a segment"));
    refuse(Some(Call::Register));
    assert!(agent.register(&segment).is_err());
    assert!(agent.register(&segment).is_err(), "it is taken for known");
    refuse(Some(Call::Describe));
    agent.register(&segment).expect("memory");
    assert!(agent.metadata().is_err());
    refuse(None);
    agent.register(&segment).expect("known memory");
    assert_eq!(agent.metadata().expect("metadata"), b"described");
    assert!(agent.metadata().expect("the same").is_empty());
}
