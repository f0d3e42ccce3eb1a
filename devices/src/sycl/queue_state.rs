//! The enqueued work of one queue: waits that the next commands carry, commands that have no number yet, and
//! the number of the next record. Lives under the lock of its queue, which never covers user code.

use std::ffi::c_void;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::{DeviceError, QueueClock, QueueId, host_now_ns};

use super::api::Object;
use super::device::DeviceState;
use super::errors::refused;
use super::event::SyclEvent;
use super::handle::Handle;
use super::push::Flusher;
use super::timing::Commands;

/// Waits that commands carry before one barrier takes their place: long lists cost every command.
const WAITS_MAX: usize = 16;

/// Events as a list of dependences.
type List = SmallVec<[Object; 8]>;

pub(super) struct QueueState {
    shared: Arc<DeviceState>,
    /// One queue of the runtime; several in-order queues for an out-of-order own queue, whose commands take
    /// turns.
    handles: SmallVec<[Native; 1]>,
    /// As many, for when commands are measured, or, meanwhile, for when they are not.
    others: SmallVec<[Native; 1]>,
    profiles: bool,
    /// The timings of what is enqueued until the next record.
    timings: SmallVec<[Arc<Commands>; 1]>,
    turn: usize,
    in_order: bool,
    pub(super) clock: QueueClock,
    pub(super) sequence: u64,
    /// Events that later commands have to wait for and the runtime does not know yet. On an in-order queue
    /// the next command takes them along for all that follow; on an out-of-order queue every command carries
    /// them until they are done.
    waits: Vec<Arc<SyclEvent>>,
    /// Commands without a number. Of an in-order queue the last one is enough.
    fresh: Vec<Arc<SyclEvent>>,
    /// True if one of them waits for `newest`, so that its end implies that one's.
    covers_newest: bool,
    newest: Option<Arc<SyclEvent>>,
    /// True if the native handle was given out: foreign code may have enqueued commands unknown here.
    touched: bool,
    /// Of each of the runtime's queues the newest command that may be held back; what comes later there is
    /// held back with it.
    held_back: SmallVec<[(usize, Arc<SyclEvent>); 1]>,
}

pub(super) struct Native {
    handle: Handle,
    /// For devices whose commands stay until they are flushed.
    flusher: Option<Flusher>,
    /// Others enqueue on it too.
    foreign: bool,
}

impl Native {
    pub(super) fn new(shared: &DeviceState, handle: Handle, foreign: bool) -> Self {
        let flushes = shared.pushes && !foreign;
        Self { flusher: flushes.then(|| Flusher::of(&handle)).flatten(), foreign, handle }
    }
}

impl QueueState {
    /// # Panics
    /// Without a queue of the runtime.
    pub(super) fn new(
        shared: &Arc<DeviceState>,
        handles: SmallVec<[Native; 1]>,
        id: QueueId,
        in_order: bool,
    ) -> Self {
        assert!(!handles.is_empty(), "a queue state has a native queue");
        Self {
            shared: Arc::clone(shared),
            handles,
            others: SmallVec::new(),
            profiles: false,
            timings: SmallVec::new(),
            turn: 0,
            in_order,
            clock: QueueClock::new(id, in_order),
            sequence: 0,
            waits: Vec::new(),
            fresh: Vec::new(),
            covers_newest: false,
            newest: None,
            touched: false,
            held_back: SmallVec::new(),
        }
    }

    pub(super) fn wait_for(&mut self, event: Arc<SyclEvent>) -> Result<(), DeviceError> {
        self.waits.retain(|known| !known.is_done());
        self.waits.push(event);
        if self.waits.len() > WAITS_MAX {
            let joined = self.barrier_for(0, &list(&self.waits))?;
            self.enqueued(Arc::clone(&joined));
            self.waits = vec![joined];
        }
        Ok(())
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
        self.choose()?;
        self.waits.retain(|known| !known.is_done());
        let (at, list) = (self.next_handle(), list(&self.waits));
        let api = self.shared.api()?;
        let called_ns = self.clock_if_timed();
        // SAFETY: live objects; the memory is the caller's duty.
        let event = unsafe {
            let queue = self.handles[at].handle.raw();
            let event = (api.queue_memcpy)(queue, to.cast(), from.cast(), bytes, list.as_ptr(), list.len());
            Handle::own(event, api.event_delete)
        };
        let event = self.taken(at, event, "a copy")?;
        self.timed(&event, false, called_ns);
        self.enqueued(event);
        Ok(())
    }

    /// Enqueues setting `bytes` bytes to `value`.
    ///
    /// # Safety
    /// The range is USM of this queue's context, as for [`crate::Device::copy`].
    pub(super) unsafe fn fill(
        &mut self,
        to: *mut c_void,
        value: u8,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        self.choose()?;
        let at = self.next_handle();
        // The interface has no fill with dependences.
        self.flush_to(at)?;
        let api = self.shared.api()?;
        let called_ns = self.clock_if_timed();
        // SAFETY: live objects; the memory is the caller's duty.
        let event = unsafe {
            let event = (api.queue_memset)(self.handles[at].handle.raw(), to, value, bytes);
            Handle::own(event, api.event_delete)
        };
        let event = self.taken(at, event, "a fill")?;
        self.timed(&event, false, called_ns);
        self.enqueued(event);
        Ok(())
    }

    /// Begins to measure; `None` for a foreign queue that was not made for it.
    pub(super) fn time(&mut self) -> Result<Option<Arc<Commands>>, DeviceError> {
        let commands = Commands::new(&self.shared);
        if self.handles[0].foreign {
            let api = self.shared.api()?;
            // SAFETY: a live queue.
            if !unsafe { (api.queue_profiles)(self.handles[0].handle.raw()) } {
                return Ok(None);
            }
            let called_ns = host_now_ns();
            commands.add(&self.barrier()?, true, called_ns);
        }
        self.timings.push(Arc::clone(&commands));
        if let Err(error) = self.choose() {
            self.timings.pop();
            return Err(error);
        }
        Ok(Some(commands))
    }

    /// Goes over to the runtime's queues that are right for what is enqueued next: with profiling if it is
    /// measured.
    fn choose(&mut self) -> Result<(), DeviceError> {
        let profiles = !self.timings.is_empty();
        if profiles == self.profiles || self.handles[0].foreign {
            return Ok(());
        }
        while self.others.len() < self.handles.len() {
            self.others.push(Native::new(&self.shared, self.shared.queue(profiles)?, false));
        }
        if self.touched {
            let event = self.barrier()?;
            self.enqueued(event);
            self.touched = false;
        }
        if self.in_order {
            // The next work comes after the work that is there, which is on another queue of the runtime.
            let last = self.fresh.last().or(self.newest.as_ref()).filter(|last| !last.is_done());
            self.waits.extend(last.cloned());
        }
        std::mem::swap(&mut self.handles, &mut self.others);
        self.profiles = profiles;
        Ok(())
    }

    fn clock_if_timed(&self) -> u64 {
        if self.timings.is_empty() { 0 } else { host_now_ns() }
    }

    fn timed(&self, event: &Arc<SyclEvent>, moment: bool, called_ns: u64) {
        self.timings.iter().for_each(|timing| timing.add(event, moment, called_ns));
    }

    fn next_handle(&mut self) -> usize {
        self.turn = (self.turn + 1) % self.handles.len();
        self.turn
    }

    /// The event of a command that the runtime has taken.
    fn taken(&mut self, at: usize, event: Option<Handle>, what: &str) -> Result<Arc<SyclEvent>, DeviceError> {
        let event = event.ok_or_else(|| refused(what))?;
        if let Some(flusher) = &self.handles[at].flusher {
            flusher.flush();
        }
        self.shared.counters.commands.one();
        self.held_back.retain(|(_, event)| event.is_held_back());
        let foreign = self.handles[at].foreign;
        let held_back = foreign
            || self.touched
            || !self.held_back.is_empty()
            || self.waits.iter().any(|wait| wait.is_held_back());
        let event = SyclEvent::new(&self.shared, event, held_back);
        if held_back && !foreign {
            self.held_back.retain(|(queue, _)| *queue != at);
            self.held_back.push((at, Arc::clone(&event)));
        }
        Ok(event)
    }

    /// Notes a command that has no number yet.
    fn enqueued(&mut self, event: Arc<SyclEvent>) {
        self.covers_newest |= match &self.newest {
            Some(newest) => newest.is_done() || self.waits.iter().any(|wait| Arc::ptr_eq(wait, newest)),
            None => true,
        };
        if self.in_order {
            self.waits.clear();
            self.fresh.clear();
        }
        self.fresh.push(event);
    }

    /// Enqueues what is waited for as a barrier on one of the runtime's queues, for commands that carry no
    /// list.
    pub(super) fn flush_to(&mut self, at: usize) -> Result<(), DeviceError> {
        self.waits.retain(|known| !known.is_done());
        if self.waits.is_empty() {
            return Ok(());
        }
        let event = self.barrier_for(at, &list(&self.waits))?;
        self.enqueued(event);
        if self.handles.len() == 1 {
            // All that comes later comes after the barrier.
            self.waits.clear();
        }
        Ok(())
    }

    /// The native handle, for code that enqueues by itself until the next record.
    pub(super) fn touch(&mut self) -> Result<Object, DeviceError> {
        self.choose()?;
        self.flush_to(0)?;
        if !self.timings.is_empty() && !self.touched && !self.handles[0].foreign {
            // Work that other code enqueues by itself is between two barriers.
            let called_ns = host_now_ns();
            let event = self.barrier()?;
            self.timed(&event, true, called_ns);
            self.enqueued(event);
        }
        self.touched = true;
        Ok(self.handles[0].handle.raw())
    }

    /// The runtime's queue, for calls that enqueue nothing.
    pub(super) fn raw(&self) -> Object {
        self.handles[0].handle.raw()
    }

    /// An event of everything enqueued so far, and whether there was anything since the last one. The number
    /// goes up if so.
    pub(super) fn record(&mut self) -> Result<Option<Arc<SyclEvent>>, DeviceError> {
        if self.fresh.is_empty() {
            // A wait counts as something enqueued: what comes later is after it.
            self.flush_to(0)?;
        }
        if self.touched {
            let called_ns = self.clock_if_timed();
            let event = self.barrier()?;
            self.timed(&event, true, called_ns);
            self.enqueued(event);
        }
        self.timings.clear();
        let event = match self.fresh.as_slice() {
            [] => return Ok(None),
            [only] if self.in_order || self.covers_newest => Arc::clone(only),
            _ => self.join()?,
        };
        self.touched = false;
        self.covers_newest = false;
        self.fresh.clear();
        self.newest = Some(Arc::clone(&event));
        self.sequence += 1;
        Ok(Some(event))
    }

    /// The event of everything enqueued on the runtime's queue, by whomever; of the first, where there are
    /// several.
    pub(super) fn barrier(&mut self) -> Result<Arc<SyclEvent>, DeviceError> {
        self.flush_to(0)?;
        self.shared.counters.barriers.one();
        let api = self.shared.api()?;
        // SAFETY: a live queue; the event is ours.
        let event = unsafe {
            let event = (api.queue_barrier)(self.handles[0].handle.raw());
            Handle::own(event, api.event_delete)
        };
        self.taken(0, event, "a barrier")
    }

    /// As [`barrier`](Self::barrier), where there are no numbers.
    pub(super) fn record_all(&mut self) -> Result<Arc<SyclEvent>, DeviceError> {
        let called_ns = self.clock_if_timed();
        let event = self.barrier()?;
        self.timed(&event, true, called_ns);
        self.timings.clear();
        self.fresh.clear();
        Ok(event)
    }

    /// One event of several on an out-of-order queue. It holds up what comes later on one of the runtime's
    /// queues; the others go on.
    fn join(&mut self) -> Result<Arc<SyclEvent>, DeviceError> {
        let newest = self.newest.iter().filter(|newest| !newest.is_done());
        let list = self.fresh.iter().chain(newest).map(|event| event.raw()).collect::<List>();
        let at = self.next_handle();
        self.barrier_for(at, &list)
    }

    fn barrier_for(&mut self, at: usize, list: &List) -> Result<Arc<SyclEvent>, DeviceError> {
        self.shared.counters.barriers.one();
        let api = self.shared.api()?;
        // SAFETY: live objects; the event is ours.
        let event = unsafe {
            let event = (api.queue_barrier_for)(self.handles[at].handle.raw(), list.as_ptr(), list.len());
            Handle::own(event, api.event_delete)
        };
        self.taken(at, event, "a barrier")
    }
}

fn list(events: &[Arc<SyclEvent>]) -> List {
    events.iter().map(|event| event.raw()).collect()
}
