use std::ffi::c_void;
use std::ptr::NonNull;

use crate::DeviceError;

use super::api::{Api, Object};
use super::exit::Calls;
use super::handle::{Handle, devices_in};

/// A SYCL context, which memory, queues and events belong to. The runtime does not relate objects of
/// different contexts.
#[derive(Debug)]
pub(super) struct Context {
    api: &'static Api,
    handle: Handle,
}

/// The kind of unified shared memory that a pointer is to.
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

    /// True if the host may load and store there.
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
    pub(super) unsafe fn copy(api: &Calls, context: NonNull<c_void>) -> Option<Self> {
        // SAFETY: by contract; the copy is ours.
        let handle = unsafe { Handle::own((api.context_copy)(context.as_ptr()), api.context_delete) }?;
        Some(Self { api: api.table, handle })
    }

    pub(super) fn api(&self) -> Result<Calls, DeviceError> {
        Calls::begin(self.api)
    }

    pub(super) fn raw(&self) -> Object {
        self.handle.raw()
    }

    pub(super) fn same(&self, other: &Context) -> bool {
        self.is(other.raw())
    }

    pub(super) fn is(&self, other: Object) -> bool {
        let Ok(api) = self.api() else { return self.raw() == other };
        // SAFETY: both are live contexts.
        unsafe { (api.context_eq)(self.raw(), other) }
    }

    pub(super) fn devices(&self) -> Result<Vec<Handle>, DeviceError> {
        let api = self.api()?;
        // SAFETY: a live context; the vector is ours.
        Ok(unsafe { devices_in(&api, (api.context_devices)(self.raw())) })
    }

    /// The kind of `pointer` in this context; `None` for memory that is not its USM.
    pub(super) fn kind_of(&self, pointer: *const u8) -> Option<UsmKind> {
        let api = self.api().ok()?;
        // SAFETY: the runtime looks the address up and does not follow it.
        match unsafe { (api.pointer_kind)(pointer.cast_mut().cast(), self.raw()) } {
            1 => Some(UsmKind::Device),
            2 => Some(UsmKind::Shared),
            3 => Some(UsmKind::Host),
            _ => None,
        }
    }
}
