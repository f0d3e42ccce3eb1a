//! Values that are kept for each device.

use std::sync::{Arc, Weak};

use estafette_devices::Device;
use estafette_sync::sync::Mutex;

/// One `T` per device, which goes with the last handle that others have of the device.
pub(crate) struct PerDevice<T>(Mutex<Vec<Of<T>>>);

type Of<T> = (Weak<dyn Device>, Arc<T>);

impl<T: Default> PerDevice<T> {
    estafette_sync::const_fn! {
        pub(crate) fn new() -> Self {
            Self(Mutex::new(Vec::new()))
        }
    }

    /// The one of `device`, made at first use.
    pub(crate) fn of(&self, device: &Arc<dyn Device>) -> Arc<T> {
        let (found, gone) = {
            let mut known = self.0.lock();
            let gone: Vec<_> = known.extract_if(.., |(device, _)| device.strong_count() == 0).collect();
            let found =
                known.iter().find(|(other, _)| std::ptr::addr_eq(other.as_ptr(), Arc::as_ptr(device)));
            let found = match found {
                Some((_, found)) => Arc::clone(found),
                None => {
                    let fresh = Arc::new(T::default());
                    known.push((Arc::downgrade(device), Arc::clone(&fresh)));
                    fresh
                }
            };
            (found, gone)
        };
        // A kept value calls the driver when it is dropped.
        drop(gone);
        found
    }
}

#[cfg(all(test, not(estafette_shuttle)))]
mod tests {
    use estafette_devices::host::HostDevice;

    use super::*;

    #[test]
    fn each_device_has_its_own_and_it_goes_with_the_device() {
        estafette_sync::statics! { static KEPT: PerDevice<u8> = PerDevice::new(); }
        let one: Arc<dyn Device> = HostDevice::new();
        let other: Arc<dyn Device> = HostDevice::new();
        let (a, b) = (KEPT.of(&one), KEPT.of(&other));
        assert!(Arc::ptr_eq(&a, &KEPT.of(&one)) && !Arc::ptr_eq(&a, &b));
        drop(one);
        drop(KEPT.of(&other));
        assert_eq!((Arc::strong_count(&a), Arc::strong_count(&b)), (1, 2));
    }
}
