use std::ffi::c_void;
use std::ptr::NonNull;

use super::api::{Api, Object};
use super::handle::{Handle, devices_in};

/// A SYCL context: what memory, queues and events belong to. Those of different contexts know nothing of each
/// other.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) api: &'static Api,
    handle: Handle,
}

/// What kind of unified shared memory a pointer is to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UsmKind {
    /// The device's own; the host cannot look into it.
    Device,
    /// Wherever it is used last, by the device or by the host.
    Shared,
    /// The host's, which the device can reach.
    Host,
}

impl UsmKind {
    /// The name that people and dpctl use.
    pub fn name(self) -> &'static str {
        match self {
            UsmKind::Device => "device",
            UsmKind::Shared => "shared",
            UsmKind::Host => "host",
        }
    }

    /// Whether the host may load and store there.
    pub fn host_accessible(self) -> bool {
        self != UsmKind::Device
    }
}

impl Context {
    pub(super) fn new(api: &'static Api, handle: Handle) -> Self {
        Self { api, handle }
    }

    /// An own handle to a foreign context; `None` if the runtime gives none.
    ///
    /// # Safety
    /// `context` is a live `sycl::context` of this process's runtime.
    pub(super) unsafe fn copy(api: &'static Api, context: NonNull<c_void>) -> Option<Self> {
        // SAFETY: by contract; the copy is ours.
        let handle = unsafe { Handle::own((api.context_copy)(context.as_ptr()), api.context_delete) }?;
        Some(Self { api, handle })
    }

    pub(super) fn raw(&self) -> Object {
        self.handle.raw()
    }

    pub(super) fn same(&self, other: &Context) -> bool {
        self.is(other.raw())
    }

    pub(super) fn is(&self, other: Object) -> bool {
        // SAFETY: both are live contexts.
        unsafe { (self.api.context_eq)(self.raw(), other) }
    }

    pub(super) fn devices(&self) -> Vec<Handle> {
        // SAFETY: a live context; the vector is ours.
        unsafe { devices_in(self.api, (self.api.context_devices)(self.raw())) }
    }

    /// What `pointer` is to this context; `None` for memory that is not its USM.
    pub(super) fn kind_of(&self, pointer: *const u8) -> Option<UsmKind> {
        // SAFETY: the runtime looks the address up and does not follow it.
        match unsafe { (self.api.pointer_kind)(pointer.cast_mut().cast(), self.raw()) } {
            1 => Some(UsmKind::Device),
            2 => Some(UsmKind::Shared),
            3 => Some(UsmKind::Host),
            _ => None,
        }
    }
}
