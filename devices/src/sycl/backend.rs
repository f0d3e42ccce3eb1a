use std::any::Any;
use std::ffi::c_void;
use std::ptr::NonNull;

use crate::sycl::{SyclDevice, SyclRuntime};
use crate::table::{self, Contexts, DeviceEntry};
use crate::{DLDevice, Device, DeviceError, DeviceType};

/// SYCL's root devices, in dpctl's order, and its contexts.
pub(crate) struct Backend;

impl table::Backend for Backend {
    fn kind(&self) -> DeviceType {
        DeviceType::ONE_API
    }

    fn missing(&self) -> Option<DeviceError> {
        runtime().err()
    }

    fn find(&self, number: i32) -> Result<Option<DeviceEntry>, DeviceError> {
        Ok(runtime()?.devices().iter().find(|device| device.id().device_id == number).map(DeviceEntry::of))
    }

    fn all(&self) -> Vec<DeviceEntry> {
        SyclRuntime::get().into_iter().flat_map(SyclRuntime::devices).map(DeviceEntry::of).collect()
    }

    fn contexts(&self) -> Option<&dyn Contexts> {
        Some(self)
    }
}

impl Contexts for Backend {
    unsafe fn root(&self, context: NonNull<c_void>) -> Result<Option<DLDevice>, DeviceError> {
        // SAFETY: by contract.
        Ok(unsafe { runtime()?.root_of_context(context) }.map(|root| root.id()))
    }

    unsafe fn entry(&self, context: NonNull<c_void>, id: DLDevice) -> Result<DeviceEntry, DeviceError> {
        // SAFETY: by contract.
        Ok(DeviceEntry::of(&unsafe { runtime()?.device_of_context(context, id) }?))
    }

    unsafe fn is_same(&self, device: &dyn Device, context: NonNull<c_void>) -> bool {
        let device = (device as &dyn Any).downcast_ref::<SyclDevice>();
        // SAFETY: by contract.
        device.is_some_and(|device| unsafe { device.is_of_context(context) })
    }
}

fn runtime() -> Result<&'static SyclRuntime, DeviceError> {
    SyclRuntime::get().map_err(|why| DeviceError::invalid(why.to_string()))
}
