//! The functions of NIXL's C interface that are used here, by name.
//!
//! Signatures: `src/bindings/rust/wrapper.h` of NIXL 1.5 (ai-dynamo/nixl). Every function answers with a status: negative for a failure,
//! 1 while a transfer is in progress, else 0. What they give out is freed by the function that is named for it; bytes and names that are
//! returned through a pointer to a pointer, with `free`.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libloading::Library;

/// Any object of NIXL, behind an opaque pointer.
pub(super) type Object = *mut c_void;
pub(super) type Status = c_int;

/// `NIXL_CAPI_IN_PROG`.
pub(super) const IN_PROGRESS: Status = 1;
/// `NIXL_CAPI_MEM_DRAM`.
pub(super) const HOST_MEMORY: c_uint = 0;
/// `NIXL_CAPI_XFER_OP_READ`.
pub(super) const READ: c_uint = 0;

/// `nixl_capi_agent_config_t`. With all zero: no progress thread, no listening thread, and no locks, so an agent belongs to one thread.
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

/// Declares the table of functions and how it is filled, so that neither can be forgotten.
macro_rules! functions {
    ($($field:ident($($argument:ty),*);)*) => {
        /// The functions, found once when the library is loaded.
        #[derive(Debug)]
        pub(super) struct Api {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> Status,)*
            /// Keeps the functions where they are.
            _library: Library,
        }

        impl Api {
            /// Takes every function from `library`.
            ///
            /// # Errors
            /// The name of the first one that it lacks.
            pub(super) fn of(library: Library) -> Result<Self, &'static str> {
                $(
                    let symbol = concat!("nixl_capi_", stringify!($field));
                    // SAFETY: the type is that of the declaration in NIXL's header.
                    let $field = unsafe {
                        *library
                            .get::<unsafe extern "C" fn($($argument),*) -> Status>(symbol)
                            .map_err(|_| symbol)?
                    };
                )*
                Ok(Self { $($field,)* _library: library })
            }
        }
    };
}

functions! {
    create_configured_agent(*const c_char, *const AgentConfig, *mut Object);
    destroy_agent(Object);
    get_plugin_params(Object, *const c_char, *mut Object, *mut Object);
    destroy_mem_list(Object);
    destroy_params(Object);
    create_backend(Object, *const c_char, Object, *mut Object);
    destroy_backend(Object);
    get_local_md(Object, *mut *mut c_void, *mut usize);
    load_remote_md(Object, *const c_void, usize, *mut *mut c_char);
    create_opt_args(*mut Object);
    destroy_opt_args(Object);
    opt_args_add_backend(Object, Object);
    opt_args_set_notif_msg(Object, *const c_void, usize);
    opt_args_set_has_notif(Object, bool);
    create_reg_dlist(c_uint, *mut Object, bool);
    destroy_reg_dlist(Object);
    reg_dlist_add_desc(Object, usize, usize, u64, *const c_void, usize);
    register_mem(Object, Object, Object);
    deregister_mem(Object, Object, Object);
    create_xfer_dlist(c_uint, *mut Object, bool);
    destroy_xfer_dlist(Object);
    xfer_dlist_add_desc(Object, usize, usize, u64);
    create_xfer_req(Object, c_uint, Object, Object, *const c_char, *mut Object, Object);
    post_xfer_req(Object, Object, Object);
    get_xfer_status(Object, Object);
    release_xfer_req(Object, Object);
    destroy_xfer_req(Object);
    create_notif_map(*mut Object);
    destroy_notif_map(Object);
    get_notifs(Object, Object, Object);
    notif_map_size(Object, *mut usize);
    notif_map_get_agent_at(Object, usize, *mut *const c_char);
    notif_map_get_notifs_size(Object, *const c_char, *mut usize);
    notif_map_get_notif(Object, *const c_char, usize, *mut *const c_void, *mut usize);
    notif_map_clear(Object);
}
