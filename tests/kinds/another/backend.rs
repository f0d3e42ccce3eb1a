//! The kind in the device table: one device, made when it is asked for.

use std::sync::{Arc, LazyLock};

use super::device::{Accelerator, ID};
use estafette::devices::table::{self, Backend, DeviceEntry};
use estafette::devices::{DLDevice, DeviceError, DeviceType};

pub static DEVICE: LazyLock<Arc<Accelerator>> = LazyLock::new(Accelerator::new);

pub struct Another;

impl Backend for Another {
    fn kind(&self) -> DeviceType {
        ID.device_type
    }

    fn missing(&self) -> Option<DeviceError> {
        None
    }

    fn find(&self, number: i32) -> Result<Option<DeviceEntry>, DeviceError> {
        Ok((number == ID.device_id).then(|| DeviceEntry::of(&DEVICE)))
    }

    fn all(&self) -> Vec<DeviceEntry> {
        // A backend may use the table: this waits for ever if the caller holds its lock.
        let unknown = DLDevice { device_id: table::FIRST_REGISTERED, ..ID };
        assert!(table::resolve(unknown).is_err());
        vec![DeviceEntry::of(&DEVICE)]
    }
}
