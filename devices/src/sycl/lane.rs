//! What is enqueued on one queue: waits that the next commands carry, commands that have no number yet, and the number of
//! the next record. Lives under the lock of its queue, which never covers user code.

use std::ffi::c_void;
use std::sync::Arc;

use estafette_sync::sync::atomic::Ordering;
use smallvec::SmallVec;

use crate::{DeviceError, QueueClock, QueueId};

use super::api::Object;
use super::device::Shared;
use super::errors::refused;
use super::event::Event;
use super::handle::Handle;

/// Waits that commands carry before one barrier takes their place: long lists cost every command.
const WAITS_MAX: usize = 16;

/// Events as a list of dependences.
type List = SmallVec<[Object; 8]>;

pub(super) struct Lane {
    shared: Arc<Shared>,
    handle: Handle,
    in_order: bool,
    pub(super) clock: QueueClock,
    pub(super) sequence: u64,
    /// What later commands have to wait for and the runtime does not know yet. On an in-order queue the next command takes
    /// them along for all that follow; on an out-of-order queue every command carries them until they are done.
    waits: Vec<Arc<Event>>,
    /// Commands without a number. Of an in-order queue the last one is enough.
    fresh: Vec<Arc<Event>>,
    /// Whether one of them waits for `newest`, so that its end implies that one's.
    covers_newest: bool,
    /// The event of the last number.
    newest: Option<Arc<Event>>,
    /// Somebody has the native handle and may have enqueued what is not known here.
    touched: bool,
}

impl Lane {
    pub(super) fn new(shared: &Arc<Shared>, handle: Handle, id: QueueId, in_order: bool) -> Self {
        Self {
            shared: Arc::clone(shared),
            handle,
            in_order,
            clock: QueueClock::new(id, in_order),
            sequence: 0,
            waits: Vec::new(),
            fresh: Vec::new(),
            covers_newest: false,
            newest: None,
            touched: false,
        }
    }

    /// Makes later commands wait for `event`.
    pub(super) fn wait_for(&mut self, event: Arc<Event>) -> Result<(), DeviceError> {
        self.waits.retain(|known| !known.is_done());
        self.waits.push(event);
        if self.waits.len() > WAITS_MAX { self.flush() } else { Ok(()) }
    }

    /// Enqueues a copy.
    ///
    /// # Safety
    /// As for [`crate::Device::copy`].
    pub(super) unsafe fn copy(
        &mut self,
        from: *const u8,
        to: *mut u8,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        self.waits.retain(|known| !known.is_done());
        let list = list(&self.waits);
        let (api, queue) = (self.shared.api(), self.handle.raw());
        // SAFETY: live objects; the memory is the caller's duty.
        let event = unsafe {
            let event = (api.queue_memcpy)(queue, to.cast(), from.cast(), bytes, list.as_ptr(), list.len());
            Handle::own(event, api.event_delete)
        };
        self.enqueued(event, "a copy")
    }

    /// Enqueues setting `bytes` bytes to `value`.
    ///
    /// # Safety
    /// The range is USM of this queue's context, as for [`crate::Device::copy`].
    pub(super) unsafe fn fill(
        &mut self,
        at: *mut c_void,
        value: u8,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        // The interface has no fill with dependences.
        self.flush()?;
        let api = self.shared.api();
        // SAFETY: live objects; the memory is the caller's duty.
        let event =
            unsafe { Handle::own((api.queue_memset)(self.handle.raw(), at, value, bytes), api.event_delete) };
        self.enqueued(event, "a fill")
    }

    fn enqueued(&mut self, event: Option<Handle>, what: &str) -> Result<(), DeviceError> {
        let event = Event::new(&self.shared, event.ok_or_else(|| refused(what))?);
        self.shared.counters.commands.fetch_add(1, Ordering::Relaxed);
        self.covers_newest |= match &self.newest {
            Some(newest) => newest.is_done() || self.waits.iter().any(|wait| Arc::ptr_eq(wait, newest)),
            None => true,
        };
        if self.in_order {
            self.waits.clear();
            self.fresh.clear();
        }
        self.fresh.push(event);
        Ok(())
    }

    /// Enqueues what is waited for as a barrier, for commands that carry no list.
    pub(super) fn flush(&mut self) -> Result<(), DeviceError> {
        self.waits.retain(|known| !known.is_done());
        if self.waits.is_empty() {
            return Ok(());
        }
        let event = self.barrier_for(&list(&self.waits));
        self.enqueued(event, "a barrier")?;
        self.waits.clear();
        Ok(())
    }

    /// The native handle, for somebody who enqueues by himself until the next record.
    pub(super) fn touch(&mut self) -> Result<Object, DeviceError> {
        self.touched = true;
        self.flush()?;
        Ok(self.handle.raw())
    }

    /// An event of everything enqueued so far, and whether there was anything since the last one. The number goes up if so.
    pub(super) fn record(&mut self) -> Result<Option<Arc<Event>>, DeviceError> {
        if self.fresh.is_empty() {
            // A wait counts as something enqueued: what comes later is after it.
            self.flush()?;
        }
        let event = if self.touched {
            self.barrier()?
        } else {
            match self.fresh.as_slice() {
                [] => return Ok(None),
                [only] if self.in_order || self.covers_newest => Arc::clone(only),
                _ => self.join()?,
            }
        };
        self.touched = false;
        self.covers_newest = false;
        self.fresh.clear();
        self.newest = Some(Arc::clone(&event));
        self.sequence += 1;
        Ok(Some(event))
    }

    /// The event of everything enqueued on the queue, by whomever.
    pub(super) fn barrier(&mut self) -> Result<Arc<Event>, DeviceError> {
        self.flush()?;
        self.shared.counters.barriers.fetch_add(1, Ordering::Relaxed);
        let api = self.shared.api();
        // SAFETY: a live queue; the event is ours.
        let event = unsafe { Handle::own((api.queue_barrier)(self.handle.raw()), api.event_delete) };
        Ok(Event::new(&self.shared, event.ok_or_else(|| refused("a barrier"))?))
    }

    /// One event of several on an out-of-order queue. A barrier would hold up whatever is enqueued later as well, so it is a
    /// command that waits for them and copies one byte nobody reads.
    fn join(&mut self) -> Result<Arc<Event>, DeviceError> {
        let newest = self.newest.iter().filter(|newest| !newest.is_done());
        let list = self.fresh.iter().chain(newest).map(|event| event.raw()).collect::<List>();
        let (api, (from, to)) = (self.shared.api(), self.shared.scratch());
        // SAFETY: live objects; the two bytes are the device's and live as long as it.
        let event = unsafe {
            let event = (api.queue_memcpy)(self.handle.raw(), to, from, 1, list.as_ptr(), list.len());
            Handle::own(event, api.event_delete)
        };
        Ok(Event::new(&self.shared, event.ok_or_else(|| refused("a join of events"))?))
    }

    fn barrier_for(&self, list: &List) -> Option<Handle> {
        self.shared.counters.barriers.fetch_add(1, Ordering::Relaxed);
        let api = self.shared.api();
        // SAFETY: live objects; the event is ours.
        unsafe {
            let event = (api.queue_barrier_for)(self.handle.raw(), list.as_ptr(), list.len());
            Handle::own(event, api.event_delete)
        }
    }
}

fn list(events: &[Arc<Event>]) -> List {
    events.iter().map(|event| event.raw()).collect()
}
