use std::marker::PhantomData;

use crate::{Device, DeviceError, Queue};

/// While this lives, functions of a device's runtime find on this thread what they need: code of others that enqueues, or frees.
#[derive(Debug)]
#[must_use]
pub struct CurrentGuard<'a> {
    owed: Option<Owed<'a>>,
    /// What is entered belongs to the thread.
    _stays: PhantomData<*const ()>,
}

#[derive(Debug)]
enum Owed<'a> {
    Queue(&'a dyn Queue),
    Device(&'a dyn Device),
}

impl<'a> CurrentGuard<'a> {
    /// For code that enqueues on `queue`.
    ///
    /// # Errors
    /// As [`Queue::make_current`].
    pub fn queue(queue: &'a dyn Queue) -> Result<Self, DeviceError> {
        let owed = queue.make_current()?.then_some(Owed::Queue(queue));
        Ok(Self { owed, _stays: PhantomData })
    }

    /// For code that uses `device`, on whatever queue.
    ///
    /// # Errors
    /// As [`Device::make_current`].
    pub fn device(device: &'a dyn Device) -> Result<Self, DeviceError> {
        let owed = device.make_current()?.then_some(Owed::Device(device));
        Ok(Self { owed, _stays: PhantomData })
    }
}

impl Drop for CurrentGuard<'_> {
    fn drop(&mut self) {
        match &self.owed {
            Some(Owed::Queue(queue)) => queue.restore_current(),
            Some(Owed::Device(device)) => device.restore_current(),
            None => {}
        }
    }
}
