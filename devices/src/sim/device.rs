use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Weak};

use estafette_sync::process::Generation;
use estafette_sync::sync::atomic::{AtomicUsize, Ordering};
use estafette_sync::sync::{Mutex, MutexGuard};

use crate::fence::source::deliver;
use crate::host::allocate_host;
use crate::log_panic::log_panic;
use crate::{
    Allocation, DLDevice, Device, DeviceError, DeviceErrorKind, DeviceType, Fence, NativeEvent, Queue,
};

use super::foreign::ForeignQueue;
use super::free_running::Runner;
use super::queue::SimQueue;
use super::schedule::{Completing, Effects, Schedule};
use super::trace::{Counters, DriverCalls, TraceEvent, TraceKind};

/// The rate of copies, in virtual time.
const COPY_BYTES_PER_NS: u64 = 16;

/// Options of a [`SimDevice`].
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// The number in its [`DLDevice`].
    pub device_id: i32,
    /// Everything that is left to chance is drawn from this.
    pub seed: u64,
    /// Added to the duration of every task, in virtual nanoseconds.
    pub latency_ns: u64,
    /// At most this is added as well, drawn from the seed.
    pub jitter_ns: u64,
    /// True if [`Device::default_queue`] and [`Device::create_queue`] give out-of-order queues.
    pub out_of_order: bool,
    /// The size of its memory in bytes.
    pub memory_bytes: usize,
    /// The way in which the host learns of progress.
    pub notify: SimNotify,
    /// The cause by which time passes.
    pub pace: SimPace,
    /// True if handles of foreign queues are raw, like those of CUDA streams: callers may not keep them, and
    /// memory comes back while work of its previous user still runs.
    pub raw_handles: bool,
}

impl Default for SimOptions {
    /// In-order queues, no latency, 16 bytes per nanosecond, 1 GiB of memory; it pushes, and time passes by
    /// hand.
    fn default() -> Self {
        Self {
            device_id: 0,
            seed: 0,
            latency_ns: 0,
            jitter_ns: 0,
            out_of_order: false,
            memory_bytes: 1 << 30,
            notify: SimNotify::Push,
            pace: SimPace::Manual,
            raw_handles: false,
        }
    }
}

/// The way in which the host learns of the progress of a [`SimDevice`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SimNotify {
    /// The device notifies waiters.
    #[default]
    Push,
    /// The device has to be asked, as drivers must be: the reactor polls it.
    Poll,
}

/// The cause by which virtual time passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SimPace {
    /// Calls of [`SimDevice::advance`] and the like.
    #[default]
    Manual,
    /// A thread of the device that completes everything as soon as it can, whatever its duration.
    Immediate,
    /// A thread of the device that lets virtual time follow real time.
    RealTime,
}

/// A simulated device; see the [module](super).
///
/// When the last handle to it and to its queues is dropped, work that still runs freely ends first; in manual
/// mode, and for held tasks, no call could complete the work any more: its fences fail, kind
/// [`DeviceErrorKind::Cancelled`].
pub struct SimDevice {
    core: Arc<Core>,
    default_queue: Arc<SimQueue>,
    generation: Generation,
}

impl SimDevice {
    /// A device in its initial state, at time 0.
    ///
    /// # Errors
    /// The thread of a free-running device could not be started.
    pub fn new(options: SimOptions) -> Result<Arc<Self>, DeviceError> {
        let core = Arc::new(Core {
            device: DLDevice::new(DeviceType::EXT_DEV, options.device_id),
            name: format!("simulated device {}", options.device_id),
            schedule: Mutex::new(Schedule::new(&options)),
            handles: Mutex::default(),
            counters: Arc::new(Counters::default()),
            free_bytes: Arc::new(AtomicUsize::new(options.memory_bytes)),
            runner: Runner::new(options.pace),
            options,
        });
        Runner::start(&core)?;
        let default_queue = SimQueue::new(&core, core.options.out_of_order);
        Ok(Arc::new(Self { core, default_queue, generation: Generation::current() }))
    }

    /// A new queue of the given kind, whatever the options say.
    pub fn queue(&self, out_of_order: bool) -> Arc<SimQueue> {
        SimQueue::new(&self.core, out_of_order)
    }

    /// Virtual time, in nanoseconds since the device was made.
    pub fn now_ns(&self) -> u64 {
        self.core.schedule().now_ns
    }

    /// Lets `ns` nanoseconds of virtual time pass, and completes what falls into them.
    pub fn advance(&self, ns: u64) {
        let until_ns = self.now_ns().saturating_add(ns);
        while self.core.step(until_ns) {}
        let mut schedule = self.core.schedule();
        schedule.now_ns = schedule.now_ns.max(until_ns);
    }

    /// Completes the task that is due next, and moves virtual time there. False if none can complete.
    pub fn step(&self) -> bool {
        self.core.step(u64::MAX)
    }

    /// Completes everything that can complete.
    pub fn run_until_idle(&self) {
        while self.step() {}
    }

    /// Unfinished tasks, held ones included.
    pub fn unfinished(&self) -> usize {
        self.core.schedule().unfinished_tasks()
    }

    /// Keeps tasks called `name`, present and future, from completing until [`release`](Self::release).
    pub fn pause(&self, name: &str) {
        self.core.schedule().script.held.insert(name.to_owned());
    }

    /// Lets tasks called `name` complete again. False if they were not held.
    pub fn release(&self, name: &str) -> bool {
        self.core.change(|schedule, _| schedule.release(name))
    }

    /// The task that would complete next fails instead, and with it its queue, for good.
    pub fn fail_next(&self, error: DeviceError) {
        self.core.schedule().script.fail_next = Some(error);
    }

    /// The next task called `name` fails instead of completing, and with it its queue, for good.
    pub fn fail_named(&self, name: &str, error: DeviceError) {
        self.core.schedule().script.fail_named.push((name.to_owned(), error));
    }

    /// Every queue of the device fails at once, for good.
    pub fn fail_everything(&self, error: DeviceError) {
        self.core.change(|schedule, effects| schedule.fail_everything(&error, effects));
    }

    /// Ends the thread of the device, and nothing runs any more. For tests that leave memory behind, which
    /// keeps its device.
    pub fn stop(&self) {
        self.core.runner.stop();
    }

    /// The events, oldest first (the newest 65,536 events).
    pub fn trace(&self) -> Vec<TraceEvent> {
        self.core.schedule().trace.to_vec()
    }

    /// The names of the completed tasks, in order.
    pub fn completed(&self) -> Vec<String> {
        let name = |event: TraceEvent| match event.kind {
            TraceKind::Completed(name) => Some(name.into_owned()),
            _ => None,
        };
        self.trace().into_iter().filter_map(name).collect()
    }

    /// Counts of what would have been calls into a driver so far.
    pub fn driver_calls(&self) -> DriverCalls {
        self.core.counters.read()
    }

    /// Memory that is not allocated, in bytes.
    pub fn free_bytes(&self) -> usize {
        self.core.free_bytes.load(Ordering::Acquire)
    }
}

impl Device for SimDevice {
    fn id(&self) -> DLDevice {
        self.core.device
    }

    fn is_inherited(&self) -> bool {
        self.generation.is_inherited()
    }

    fn name(&self) -> &str {
        &self.core.name
    }

    fn host_accessible(&self) -> bool {
        true
    }

    fn default_queue(&self) -> Arc<dyn Queue> {
        self.default_queue.clone()
    }

    fn create_queue(&self) -> Result<Arc<dyn Queue>, DeviceError> {
        Ok(SimQueue::new(&self.core, self.core.options.out_of_order))
    }

    unsafe fn foreign_queue(&self, handle: usize) -> Result<Arc<dyn Queue>, DeviceError> {
        let queue = self.core.handles.lock().get(&handle).and_then(Weak::upgrade);
        let queue = queue.ok_or_else(|| {
            DeviceError::invalid(format!("{handle:#x} is no queue of {}", self.core.device))
        })?;
        Ok(Arc::new(ForeignQueue::new(queue)))
    }

    fn may_release_before_completion(&self) -> bool {
        self.core.options.raw_handles
    }

    fn barrier(&self) -> Result<Fence, DeviceError> {
        SimQueue::new(&self.core, false).record_everything()
    }

    fn allocate(&self, bytes: usize, align: usize) -> Result<Allocation, DeviceError> {
        let share = TakenMemory::take(&self.core.free_bytes, bytes)?;
        let host = allocate_host(bytes, align, self.core.device, false)?;
        if host.is_empty() {
            return Ok(host);
        }
        // SAFETY: the memory belongs to `host`, which is kept until it is released.
        Ok(unsafe {
            Allocation::from_raw(host.ptr(), bytes, self.core.device, move |_, _| drop((host, share)))
        })
    }

    unsafe fn copy(
        &self,
        queue: &dyn Queue,
        src: *const u8,
        dst: *mut u8,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        let ours = SimQueue::from_queue(queue).filter(|queue| Arc::ptr_eq(&queue.core, &self.core));
        let queue = ours.ok_or_else(|| {
            let of = self.core.device;
            DeviceError::invalid(format!("cannot copy on {}: it is no queue of {of}", queue.id()))
        })?;
        let (src, dst) = (src.expose_provenance(), dst.expose_provenance());
        let duration_ns = bytes as u64 / COPY_BYTES_PER_NS;
        queue.launch("copy", duration_ns, move || {
            let (src, dst) = (ptr::with_exposed_provenance::<u8>(src), ptr::with_exposed_provenance_mut(dst));
            if bytes > 0 {
                // SAFETY: the caller of `copy` vouches for the ranges until the copy is done, which is now.
                unsafe { ptr::copy_nonoverlapping(src, dst, bytes) };
            }
        })
    }

    fn has_events(&self) -> bool {
        true
    }

    /// The native event of a simulated device is a [`Fence`] of it.
    unsafe fn fence_of_event(&self, event: NonNull<c_void>) -> Result<Fence, DeviceError> {
        // SAFETY: by contract of this method, a live event of this kind of device.
        let fence = unsafe { event.cast::<Fence>().as_ref() }.clone();
        self.own(fence)
    }

    fn event_of_fence(&self, fence: &Fence) -> Result<NativeEvent, DeviceError> {
        let event = NonNull::from(Box::leak(Box::new(self.own(fence.clone())?)));
        Ok(NativeEvent::new(event.cast(), |event| {
            // SAFETY: the box leaked above, destroyed this once.
            drop(unsafe { Box::from_raw(event.cast::<Fence>().as_ptr()) });
        }))
    }
}

impl SimDevice {
    fn own(&self, fence: Fence) -> Result<Fence, DeviceError> {
        if fence.device() == self.core.device {
            return Ok(fence);
        }
        Err(DeviceError::invalid(format!("the fence is of {}, not of {}", fence.device(), self.core.device)))
    }
}

debug_as!(device: SimDevice, "SimDevice({} at {} ns)", device.core.device, device.now_ns());

/// The state that the device, its queues and its thread share.
pub(super) struct Core {
    pub(super) options: SimOptions,
    pub(super) device: DLDevice,
    pub(super) counters: Arc<Counters>,
    pub(super) runner: Runner,
    name: String,
    schedule: Mutex<Schedule>,
    /// Queues by their native handles, for those who get such a handle.
    pub(super) handles: Mutex<HashMap<usize, Weak<SimQueue>>>,
    free_bytes: Arc<AtomicUsize>,
}

impl Core {
    pub(super) fn schedule(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock()
    }

    /// Changes the schedule, then calls whom it concerns, under no lock.
    pub(super) fn change<R>(self: &Arc<Self>, change: impl FnOnce(&mut Schedule, &mut Effects) -> R) -> R {
        let mut effects = Effects::default();
        let result = {
            let mut schedule = self.schedule();
            if let Some(real_ns) = self.runner.real_time_ns() {
                schedule.now_ns = schedule.now_ns.max(real_ns);
            }
            change(&mut schedule, &mut effects)
        };
        effects.happen();
        self.runner.ring(self);
        result
    }

    /// Completes the next task that is due at `until_ns` or before. False if there is none.
    pub(super) fn step(&self, until_ns: u64) -> bool {
        let completing = self.schedule().pop_due(until_ns);
        let Some(Completing { command, work }) = completing else { return false };
        let outcome = work.and_then(|work| {
            let mut outcome = Err(DeviceError::new(DeviceErrorKind::Fault, "the work panicked"));
            log_panic("simulated work", || {
                work();
                outcome = Ok(());
            });
            outcome
        });
        let mut effects = Effects::default();
        self.schedule().finish(command, outcome, &mut effects);
        effects.happen();
        true
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.runner.stop();
        let error = DeviceError::new(DeviceErrorKind::Cancelled, format!("{} was dropped", self.name));
        let mut effects = Effects::default();
        self.schedule().fail_everything(&error, &mut effects);
        effects.happen();
    }
}

impl Effects {
    fn happen(self) {
        for (subscriber, outcome) in self.ready {
            deliver(subscriber, outcome);
        }
        for work in self.dropped {
            log_panic("dropping simulated work", move || drop(work));
        }
    }
}

/// A part of the memory that is taken, released on drop.
struct TakenMemory {
    free_bytes: Arc<AtomicUsize>,
    bytes: usize,
}

impl TakenMemory {
    fn take(free_bytes: &Arc<AtomicUsize>, bytes: usize) -> Result<Self, DeviceError> {
        match free_bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, |free| free.checked_sub(bytes)) {
            Ok(_) => Ok(Self { free_bytes: Arc::clone(free_bytes), bytes }),
            Err(free) => {
                let message = format!("out of memory: {bytes} bytes asked for, {free} free");
                Err(DeviceError::new(DeviceErrorKind::OutOfMemory, message))
            }
        }
    }
}

impl Drop for TakenMemory {
    fn drop(&mut self) {
        self.free_bytes.fetch_add(self.bytes, Ordering::AcqRel);
    }
}
