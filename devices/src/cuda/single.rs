//! Fences that stand alone: work of somebody else's queue, events from outside, and points in a graph that is being recorded.

use std::fmt;
use std::sync::Arc;

use cudarc::driver::sys::CUevent;
use estafette_sync::sync::OnceLock;
use estafette_sync::sync::atomic::{AtomicU8, Ordering};

use crate::source::{self, Subscriber, Watch};
use crate::{DLDevice, DeviceError, DeviceErrorKind, FenceState};

use super::context::Context;
use super::events::{Event, query};
use super::handle::Handle;

/// Nobody knows yet. Becomes one of the other two, once.
const PENDING: u8 = 0;
/// Done. Final.
const DONE: u8 = 1;
/// Failed; `failure` says why. Final.
const FAILED: u8 = 2;

/// One event.
pub(super) struct Single {
    context: Arc<Context>,
    native: Native,
    state: AtomicU8,
    failure: OnceLock<DeviceError>,
}

enum Native {
    /// Recorded for this fence and nothing else.
    Ours(Arc<Event>),
    /// Somebody else's, alive until this has settled.
    Theirs(Handle<CUevent>),
    /// None: settled from the beginning.
    Gone,
}

impl Single {
    pub(super) fn of(event: Arc<Event>) -> Self {
        Self::new(Arc::clone(event.context()), Native::Ours(event), PENDING)
    }

    /// # Safety
    /// The event stays alive, and as it is recorded, until this has settled.
    pub(super) unsafe fn foreign(context: &Arc<Context>, event: CUevent) -> Self {
        Self::new(Arc::clone(context), Native::Theirs(Handle::new(event)), PENDING)
    }

    /// Something of `context` that is done.
    pub(super) fn done(context: &Arc<Context>) -> Self {
        Self::new(Arc::clone(context), Native::Gone, DONE)
    }

    fn new(context: Arc<Context>, native: Native, state: u8) -> Self {
        Self { context, native, state: AtomicU8::new(state), failure: OnceLock::new() }
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The event, where there is one.
    pub(super) fn raw(&self) -> Option<CUevent> {
        match &self.native {
            Native::Ours(event) => Some(event.raw()),
            Native::Theirs(event) => Some(event.get()),
            Native::Gone => None,
        }
    }

    /// The event, where it is ours to keep.
    pub(super) fn event(&self) -> Option<&Arc<Event>> {
        match &self.native {
            Native::Ours(event) => Some(event),
            Native::Theirs(_) | Native::Gone => None,
        }
    }

    fn settle(&self, outcome: Result<(), DeviceError>) {
        let state = match outcome {
            Ok(()) => DONE,
            Err(error) => {
                self.failure.get_or_init(|| error);
                FAILED
            }
        };
        let _ = self.state.compare_exchange(PENDING, state, Ordering::AcqRel, Ordering::Relaxed);
    }
}

impl source::Event for Single {
    fn device(&self) -> DLDevice {
        self.context.id
    }

    fn state(&self) -> FenceState {
        if self.state.load(Ordering::Acquire) == PENDING {
            let asked = match (self.context.fault(), self.raw()) {
                (Some(fault), _) => Err(fault.clone()),
                (None, Some(event)) => query(&self.context, event),
                (None, None) => Ok(true),
            };
            match asked {
                Ok(false) => {}
                outcome => self.settle(outcome.map(drop)),
            }
        }
        match (self.state.load(Ordering::Acquire), self.failure.get()) {
            (PENDING, _) => FenceState::Pending,
            (FAILED, Some(error)) => FenceState::Failed(error.clone()),
            _ => FenceState::Done,
        }
    }

    fn observed_done(&self) -> bool {
        self.state.load(Ordering::Acquire) == DONE
    }

    fn watch(&self, _subscriber: &Arc<dyn Subscriber>) -> Watch {
        self.state().outcome().map_or(Watch::MustPoll, Watch::Settled)
    }
}

impl fmt::Debug for Single {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.native {
            Native::Ours(event) => event.fmt(f),
            Native::Theirs(_) => write!(f, "a CUDA event of somebody else's, of {}", self.context.id),
            Native::Gone => write!(f, "settled work of {}", self.context.id),
        }
    }
}

/// A point in a graph that is being recorded.
///
/// Nothing has run when it is made, and what it stands for may run often or never: it has no moment at which it is done. So it is
/// never queried (that would break the recording); to whoever asks it has failed, with words that say so, and nobody waits for
/// ever. What it is good for is order within the same recording: another queue that takes part in it may be made to wait for it.
pub(super) struct Captured {
    event: Arc<Event>,
    /// The driver's number of the recording; `None` where it does not say, and then nothing can be ordered after this.
    pub(super) recording: Option<u64>,
    failure: DeviceError,
}

impl Captured {
    pub(super) fn new(event: Arc<Event>, recording: Option<u64>) -> Self {
        let message = "this point was recorded into a graph: it has no time of its own, what it stands for runs whenever the \
                       graph is launched";
        Self { event, recording, failure: DeviceError::new(DeviceErrorKind::Invalid, message) }
    }

    pub(super) fn raw(&self) -> CUevent {
        self.event.raw()
    }
}

impl source::Event for Captured {
    fn device(&self) -> DLDevice {
        self.event.context().id
    }

    fn state(&self) -> FenceState {
        FenceState::Failed(self.failure.clone())
    }

    fn observed_done(&self) -> bool {
        false
    }

    fn watch(&self, _subscriber: &Arc<dyn Subscriber>) -> Watch {
        Watch::Settled(Err(self.failure.clone()))
    }
}

impl fmt::Debug for Captured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a point in a graph, {:?}", self.event)
    }
}
