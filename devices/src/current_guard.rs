use std::marker::PhantomData;

use crate::{Device, DeviceError, Queue};

/// While this lives, foreign code on this thread may enqueue or free by functions of a device's runtime: for
/// CUDA, the device's context is the thread's current one.
#[derive(Debug)]
#[must_use]
pub struct CurrentGuard<'a> {
    owed: Option<Owed<'a>>,
    /// The current context belongs to the thread.
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

    /// For code that uses `device`, on any queue.
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
