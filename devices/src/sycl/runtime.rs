use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use estafette_sync::sync::OnceLock;

use crate::{DLDevice, DeviceError, DeviceType};

use super::api::{ALL_DEVICES, Api, Object};
use super::context::Context;
use super::device::SyclDevice;
use super::exit::{self, Calls, RUNTIME};
use super::handle::{Handle, devices_in};
use super::library::{self, SyclUnavailable};

/// The SYCL runtime of this process, with its root devices.
#[derive(Debug)]
pub struct SyclRuntime {
    api: &'static Api,
    devices: Vec<Arc<SyclDevice>>,
}

impl SyclRuntime {
    /// The runtime; loaded and looked through at the first call.
    ///
    /// # Errors
    /// The reason why there is none, the same at every call.
    pub fn get() -> Result<&'static SyclRuntime, SyclUnavailable> {
        estafette_sync::per_process! {
            static PROBED: OnceLock<Result<SyclRuntime, SyclUnavailable>> = OnceLock::new();
        }
        PROBED.get_or_init(Self::probe).as_ref().map_err(SyclUnavailable::clone)
    }

    /// True if the library is in the process already, so that looking for it loads nothing.
    pub fn is_loaded() -> bool {
        library::is_loaded()
    }

    fn probe() -> Result<Self, SyclUnavailable> {
        if !RUNTIME.claim() {
            let why = "a process that this one was forked from has started the runtime, which then works there only; start this one by spawn";
            return Err(SyclUnavailable(why.to_owned()));
        }
        let api: &'static Api = Box::leak(Box::new(library::load()?));
        let calls = Calls::begin(api).map_err(|error| SyclUnavailable(error.message().to_owned()))?;
        // SAFETY: the vector is ours.
        let handles = unsafe { devices_in(&calls, (calls.devices_get)(ALL_DEVICES)) };
        let mut devices: Vec<Arc<SyclDevice>> = Vec::new();
        for (index, device) in handles.into_iter().enumerate() {
            let Some(context) = default_context(&calls, &device) else { continue };
            // Devices of one platform share their context, and queues know each other by it.
            let known = devices.iter().map(|known| known.context()).find(|known| known.same(&context));
            let context = known.cloned().unwrap_or_else(|| Arc::new(context));
            let id = DLDevice::new(DeviceType::ONE_API, index as i32);
            match SyclDevice::new(id, context, device) {
                Ok(device) => devices.push(device),
                Err(error) => tracing::warn!(%error, device = %id, "a SYCL device cannot be used"),
            }
        }
        exit::arrange();
        if devices.is_empty() { Err(SyclUnavailable::no_device()) } else { Ok(Self { api, devices }) }
    }

    /// The root devices in dpctl's order, each with the default context of its platform. Their numbers are
    /// dpctl's and dpnp's.
    pub fn devices(&self) -> &[Arc<SyclDevice>] {
        &self.devices
    }

    /// The device that `context` gives: its first one, with a queue in that context. `id` is the name that it
    /// shall have.
    ///
    /// # Errors
    /// A context without devices, or one that gives no queue.
    ///
    /// # Safety
    /// `context` is a live `sycl::context` of this runtime (in dpctl: `addressof_ref()`).
    pub unsafe fn device_of_context(
        &self,
        context: NonNull<c_void>,
        id: DLDevice,
    ) -> Result<Arc<SyclDevice>, DeviceError> {
        // SAFETY: by contract.
        let context = unsafe { Context::copy(&Calls::begin(self.api)?, context) }
            .ok_or_else(|| DeviceError::invalid("this is no SYCL context"))?;
        let device = context
            .devices()?
            .into_iter()
            .next()
            .ok_or_else(|| DeviceError::invalid("this SYCL context has no device"))?;
        SyclDevice::new(id, Arc::new(context), device)
    }

    /// The root device whose default context `context` is, if it is one: then there is nothing to register.
    ///
    /// # Safety
    /// `context` is a live `sycl::context` of this runtime.
    pub(crate) unsafe fn root_of_context(&self, context: NonNull<c_void>) -> Option<&Arc<SyclDevice>> {
        self.devices.iter().find(|device| device.context().is(context.as_ptr()))
    }
}

/// Context and device of a queue.
///
/// # Safety
/// `queue` is a live queue.
pub(super) unsafe fn parts_of_queue(api: &Api, queue: Object) -> Option<(Handle, Handle)> {
    // SAFETY: by contract; both results are ours.
    unsafe {
        let context = Handle::own((api.queue_context)(queue), api.context_delete)?;
        let device = Handle::own((api.queue_device)(queue), api.device_delete)?;
        Some((context, device))
    }
}

/// The device that `device` is a part of, or itself.
pub(super) fn root_device(api: &Api, mut device: Handle) -> Handle {
    // SAFETY: live devices; the results are ours. A device that is no part of another has none.
    while let Some(parent) = unsafe { Handle::own((api.device_parent)(device.raw()), api.device_delete) } {
        device = parent;
    }
    device
}

fn default_context(api: &Calls, device: &Handle) -> Option<Context> {
    // SAFETY: a live device; both results are ours.
    unsafe {
        let platform = Handle::own((api.device_platform)(device.raw()), api.platform_delete)?;
        let context = Handle::own((api.platform_context)(platform.raw()), api.context_delete)?;
        Some(Context::new(api.table, context))
    }
}
