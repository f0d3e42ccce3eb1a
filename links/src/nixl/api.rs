//! The functions of NIXL's C interface that are used here, by name.
//!
//! Signatures: `src/bindings/rust/wrapper.h` of NIXL 1.5 (ai-dynamo/nixl). Every function answers with a
//! status: negative for a failure, 1 while a transfer is in progress, else 0. What they give out is freed by
//! the function that is named for it; bytes and names that are returned through a pointer to a pointer, with
//! `free`.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// Any object of NIXL, behind an opaque pointer.
pub(super) type Object = *mut c_void;
pub(super) type Status = c_int;

/// `NIXL_CAPI_IN_PROG`.
pub(super) const IN_PROGRESS: Status = 1;
/// `NIXL_CAPI_MEM_DRAM`.
pub(super) const HOST_MEMORY: c_uint = 0;
/// `NIXL_CAPI_XFER_OP_READ`.
pub(super) const READ: c_uint = 0;

/// `nixl_capi_agent_config_t`. With all zero: no progress thread, no listening thread, and no locks, so an
/// agent belongs to one thread.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct AgentConfig {
    pub(super) has_progress_thread: bool,
    pub(super) has_listen_thread: bool,
    pub(super) listen_port: c_int,
    pub(super) thread_sync: c_uint,
    pub(super) num_workers: c_uint,
    pub(super) progress_delay_us: u64,
    pub(super) listen_delay_us: u64,
    pub(super) captures_telemetry: bool,
    /// Room for what later versions add.
    pub(super) reserved: [u64; 8],
}

estafette_sync::library_functions! {
    create_configured_agent = "nixl_capi_create_configured_agent": fn(*const c_char, *const AgentConfig, *mut Object) -> Status;
    destroy_agent = "nixl_capi_destroy_agent": fn(Object) -> Status;
    get_available_plugins = "nixl_capi_get_available_plugins": fn(Object, *mut Object) -> Status;
    destroy_string_list = "nixl_capi_destroy_string_list": fn(Object) -> Status;
    get_plugin_params = "nixl_capi_get_plugin_params": fn(Object, *const c_char, *mut Object, *mut Object) -> Status;
    destroy_mem_list = "nixl_capi_destroy_mem_list": fn(Object) -> Status;
    params_add = "nixl_capi_params_add": fn(Object, *const c_char, *const c_char) -> Status;
    destroy_params = "nixl_capi_destroy_params": fn(Object) -> Status;
    create_backend = "nixl_capi_create_backend": fn(Object, *const c_char, Object, *mut Object) -> Status;
    destroy_backend = "nixl_capi_destroy_backend": fn(Object) -> Status;
    get_local_md = "nixl_capi_get_local_md": fn(Object, *mut *mut c_void, *mut usize) -> Status;
    load_remote_md = "nixl_capi_load_remote_md": fn(Object, *const c_void, usize, *mut *mut c_char) -> Status;
    create_opt_args = "nixl_capi_create_opt_args": fn(*mut Object) -> Status;
    destroy_opt_args = "nixl_capi_destroy_opt_args": fn(Object) -> Status;
    opt_args_add_backend = "nixl_capi_opt_args_add_backend": fn(Object, Object) -> Status;
    opt_args_set_notif_msg = "nixl_capi_opt_args_set_notif_msg": fn(Object, *const c_void, usize) -> Status;
    opt_args_set_has_notif = "nixl_capi_opt_args_set_has_notif": fn(Object, bool) -> Status;
    create_reg_dlist = "nixl_capi_create_reg_dlist": fn(c_uint, *mut Object, bool) -> Status;
    destroy_reg_dlist = "nixl_capi_destroy_reg_dlist": fn(Object) -> Status;
    reg_dlist_add_desc = "nixl_capi_reg_dlist_add_desc": fn(Object, usize, usize, u64, *const c_void, usize) -> Status;
    register_mem = "nixl_capi_register_mem": fn(Object, Object, Object) -> Status;
    deregister_mem = "nixl_capi_deregister_mem": fn(Object, Object, Object) -> Status;
    create_xfer_dlist = "nixl_capi_create_xfer_dlist": fn(c_uint, *mut Object, bool) -> Status;
    destroy_xfer_dlist = "nixl_capi_destroy_xfer_dlist": fn(Object) -> Status;
    xfer_dlist_add_desc = "nixl_capi_xfer_dlist_add_desc": fn(Object, usize, usize, u64) -> Status;
    create_xfer_req = "nixl_capi_create_xfer_req": fn(Object, c_uint, Object, Object, *const c_char, *mut Object, Object) -> Status;
    post_xfer_req = "nixl_capi_post_xfer_req": fn(Object, Object, Object) -> Status;
    get_xfer_status = "nixl_capi_get_xfer_status": fn(Object, Object) -> Status;
    release_xfer_req = "nixl_capi_release_xfer_req": fn(Object, Object) -> Status;
    destroy_xfer_req = "nixl_capi_destroy_xfer_req": fn(Object) -> Status;
    create_notif_map = "nixl_capi_create_notif_map": fn(*mut Object) -> Status;
    destroy_notif_map = "nixl_capi_destroy_notif_map": fn(Object) -> Status;
    get_notifs = "nixl_capi_get_notifs": fn(Object, Object, Object) -> Status;
    notif_map_size = "nixl_capi_notif_map_size": fn(Object, *mut usize) -> Status;
    notif_map_get_agent_at = "nixl_capi_notif_map_get_agent_at": fn(Object, usize, *mut *const c_char) -> Status;
    notif_map_get_notifs_size = "nixl_capi_notif_map_get_notifs_size": fn(Object, *const c_char, *mut usize) -> Status;
    notif_map_get_notif = "nixl_capi_notif_map_get_notif": fn(Object, *const c_char, usize, *mut *const c_void, *mut usize) -> Status;
    notif_map_clear = "nixl_capi_notif_map_clear": fn(Object) -> Status;
}
