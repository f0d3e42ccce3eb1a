//! A fence that the host settles by hand. The protocol is that of `host_event.rs`.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use estafette_sync::process::ProcessBound;

use crate::fence::host_event::HostEvent;
use crate::fence::source::{Event, Outcome, Subscriber, Watch};
use crate::{DLDevice, DeviceError, DeviceErrorKind, Fence, FenceState};

/// A fence and the one token that settles it. `name` appears in messages.
///
/// ```
/// use estafette_devices::{DeviceErrorKind, FenceState, host};
///
/// let (completer, fence) = host::promise("frame 7");
/// drop(completer);
/// let FenceState::Failed(error) = fence.state() else { panic!("a dropped completer fails its fence") };
/// assert_eq!(error.kind(), DeviceErrorKind::Cancelled);
/// ```
pub fn promise(name: impl Into<Cow<'static, str>>) -> (Completer, Fence) {
    let promise = Arc::new(Promise { name: name.into(), host_event: HostEvent::new() });
    (Completer { promise: Some(ProcessBound::new(promise.clone())) }, Fence::event(promise).of_this_crate())
}

/// Settles the fence of a [`promise`], exactly once, from any thread. Dropped without a word, it fails the
/// fence with kind [`DeviceErrorKind::Cancelled`]. In a forked child it settles nothing: the fence is of the
/// process that made it.
#[must_use = "dropping the completer fails its fence"]
pub struct Completer {
    promise: Option<ProcessBound<Arc<Promise>>>,
}

impl Completer {
    /// The work is finished. Calls those who wait, on this thread, before it returns.
    pub fn complete(self) {
        self.settle(Ok(()));
    }

    /// The work will never be finished, because of `error`. Calls those who wait, on this thread, before it
    /// returns.
    pub fn fail(self, error: DeviceError) {
        self.settle(Err(error));
    }

    /// [`Completer::complete`] or [`Completer::fail`].
    pub fn settle(mut self, outcome: Outcome) {
        if let Some(promise) = self.take() {
            promise.host_event.settle_and_notify(&outcome);
        }
    }

    fn take(&mut self) -> Option<Arc<Promise>> {
        self.promise.take()?.into_inner().ok()
    }
}

impl Drop for Completer {
    fn drop(&mut self) {
        if let Some(promise) = self.take() {
            let message = format!("promise {:?} was dropped and will never be done", promise.name);
            let error = DeviceError::new(DeviceErrorKind::Cancelled, message);
            promise.host_event.settle_and_notify(&Err(error));
        }
    }
}

impl fmt::Debug for Completer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let promise = self.promise.as_ref().and_then(|promise| promise.get().ok());
        f.debug_tuple("Completer").field(&promise.map(|promise| &promise.name)).finish()
    }
}

struct Promise {
    name: Cow<'static, str>,
    host_event: HostEvent,
}

impl Event for Promise {
    fn device(&self) -> DLDevice {
        DLDevice::CPU
    }

    fn state(&self) -> FenceState {
        self.host_event.state()
    }

    fn observed_done(&self) -> bool {
        self.host_event.is_done()
    }

    fn watch(&self, subscriber: &Arc<dyn Subscriber>) -> Watch {
        self.host_event.watch(subscriber)
    }
}

debug_as!(promise: Promise, "promise {:?}, {:?}", promise.name, promise.host_event);
