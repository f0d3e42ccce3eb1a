//! Notifications without `await`: callbacks, and fences for other schedulers.

use std::future::Future;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};

use estafette_devices::{Fence, host, log_panic};
use estafette_graph::OpId;
use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicUsize, Ordering};
use estafette_sync::time::{Duration, Instant};

use crate::core::core_ref::CoreRef;
use crate::core::error::Error;
pub(crate) use crate::core::error::device_error;
use crate::core::one_shot::OneShot;
use crate::core::operation::{Op, OpHandle, OpVar, Phase};
use crate::core::var_state::{Queried, Replaced, thin_out};
use crate::core::wakers::WakerKey;
use crate::core::{clock, context};
use crate::exchange::callback;
use crate::exchange::foreign_fence::{self, RawFence};
use crate::operation::cancellation;
use crate::tensor::handle::{Tensor, TensorInner};
use crate::trace::hooks::{self, WaitNoted};
use crate::wait::awaits::Awaited;
use crate::wait::blocking;
use crate::wait::fence;
use crate::wait::ready::{Ready, VersionEnd};
use crate::wait::stand_in::others_without_workers;

/// A self-polling future: each wake-up polls it on the waking thread. Its output goes to a callback. Needs no
/// executor.
struct Notification<F, C> {
    /// Wake-ups since the last poll began, plus one during a poll. The thread that raises the count from 0
    /// polls.
    wanted: AtomicUsize,
    /// `None` during a poll, and once the future has ended or the callback was withdrawn.
    task: Mutex<Option<(Pin<Box<F>>, C)>>,
}

impl<F, C> Notification<F, C>
where
    F: Future + Send + 'static,
    C: FnOnce(F::Output) + Send + 'static,
{
    fn run(self: Arc<Self>) {
        if self.wanted.fetch_add(1, Ordering::AcqRel) != 0 {
            // The polling thread polls once more.
            return;
        }
        let waker = Waker::from(Arc::clone(&self));
        loop {
            let seen = self.wanted.load(Ordering::Acquire);
            let task = self.task.lock().take();
            let Some((mut future, callback)) = task else { return };
            match context::while_notified(|| future.as_mut().poll(&mut Context::from_waker(&waker))) {
                Poll::Ready(output) => {
                    drop(future);
                    return callback(output);
                }
                Poll::Pending => {
                    *self.task.lock() = Some((future, callback));
                }
            }
            if self.wanted.fetch_sub(seen, Ordering::AcqRel) == seen {
                return;
            }
        }
    }
}

impl<F, C> Wake for Notification<F, C>
where
    F: Future + Send + 'static,
    C: FnOnce(F::Output) + Send + 'static,
{
    fn wake(self: Arc<Self>) {
        self.run();
    }
}

/// Calls `callback` with the output of `future`: on this thread if `future` is ready, else on the thread that
/// wakes the future last.
pub(crate) fn notify<F, C>(future: F, callback: C) -> Notice
where
    F: Future + Send + 'static,
    C: FnOnce(F::Output) + Send + 'static,
{
    let task = Mutex::new(Some((Box::pin(future), callback)));
    let notification = Arc::new(Notification { wanted: AtomicUsize::new(0), task });
    let notice = Notice(Arc::downgrade(&notification) as Weak<dyn Withdraw>);
    notification.run();
    notice
}

/// A callback that is due. Dropping the notice changes nothing.
#[derive(Debug)]
pub struct Notice(Weak<dyn Withdraw>);

impl Notice {
    /// Drops the callback, unless a thread polls or calls it at this moment.
    pub fn withdraw(&self) {
        if let Some(notification) = self.0.upgrade() {
            notification.withdraw();
        }
    }
}

trait Withdraw: Send + Sync + std::fmt::Debug {
    fn withdraw(&self);
}

impl<F, C> std::fmt::Debug for Notification<F, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Notification").finish_non_exhaustive()
    }
}

impl<F: Send, C: Send> Withdraw for Notification<F, C> {
    fn withdraw(&self) {
        let task = self.task.lock().take();
        drop(task);
    }
}

/// Calls `callback` at the end of `op`, which `ended` is the future of. No thread waits for it, so stand-ins
/// run what it needs.
pub(crate) fn notify_end<F, C>(ended: F, op: Option<&OpHandle>, callback: C) -> Notice
where
    F: Future<Output = Result<(), Error>> + Send + 'static,
    C: FnOnce(Result<(), Error>) + Send + 'static,
{
    let stand_ins = op.map(|op| Awaited::stand_ins(&op.payload().core, std::iter::once(op)));
    notify(ended, move |outcome| {
        drop(stand_ins);
        call_back(move || callback(outcome));
    })
}

/// The fence that settles as `future` does.
pub(crate) fn fence_of<F>(name: &'static str, future: F) -> Fence
where
    F: Future<Output = Result<(), Error>> + Send + 'static,
{
    let (completer, fence) = host::promise(name);
    notify(future, move |outcome| completer.settle(outcome.map_err(device_error)));
    fence
}

impl Tensor {
    /// Calls `callback` once, when the version current at this call is finished. The call happens on this
    /// thread if the version is finished already, else on the thread that finds its end, under no lock. The
    /// callback must be short and must not block: a wait in a callback that would block ends with
    /// [`Error::WouldDeadlock`]. What a callback itself asks for is called when that callback has returned. A
    /// panic of the callback is logged.
    pub fn on_ready<C>(&self, callback: C)
    where
        C: FnOnce(Result<(), Error>) + Send + 'static,
    {
        notify(self.notified_ready(), move |outcome| call_back(move || callback(outcome)));
    }

    /// The outcome of the current version, if it is known. A failure stays unretrieved.
    pub(crate) fn outcome(&self) -> Option<Result<(), Error>> {
        match self.inner.inspect() {
            // It is known to be cancelled before the operations in front of it have ended.
            None if cancellation::is_any() => VersionEnd::new(&self.inner, false).outcome(),
            outcome => outcome,
        }
    }

    /// The readiness of the version current at this call, as a fence. If only one fence of a device is
    /// pending for this version, this function returns that very fence. So the device's other queues can be
    /// ordered after the version without the host.
    pub fn ready_fence(&self) -> Fence {
        match self.only_fence() {
            Some(fence) => fence,
            None => fence_of("a tensor", self.notified_ready()),
        }
    }

    /// `fence`, of this tensor's uses, for another scheduler. The owner of the struct owns one count of it.
    pub(crate) fn export_fence(&self, fence: Fence) -> RawFence {
        fence::export(&self.inner.core, fence, Vec::new())
    }

    /// Operations of the tensor's variables. In a forked child none: other threads may hold the graph's
    /// locks.
    pub(crate) fn last_uses(&self, of: impl Fn(&OpVar) -> Vec<OpHandle>) -> Vec<OpId> {
        if self.inner.core.generation.is_inherited() {
            return Vec::new();
        }
        self.inner.vars.iter().flat_map(of).map(|op| op.id()).collect()
    }

    /// [`ready`](Self::ready), for a notification, which an operation may ask for about its own end.
    fn notified_ready(&self) -> Ready {
        context::while_notified(|| self.ready())
    }

    /// The one pending fence of a version that is issued and has not failed.
    fn only_fence(&self) -> Option<Fence> {
        let inner: &TensorInner = &self.inner;
        let [var] = inner.vars.as_slice() else { return None };
        if !self.is_defined() || inner.core.generation.is_inherited() || var.has_unfinished_write() {
            return None;
        }
        let writers = var.with_ordering_state(|state, _| state.failure().is_none().then(|| state.writers()));
        // Work that a failed version has left may end well.
        let asked = Queried::query(&writers?);
        if asked.failed.is_some() || asked.pending.len() != 1 {
            return None;
        }
        asked.pending.into_iter().next()
    }

    /// Notes a use of the memory outside of every operation and lease. The use is over when `fence` is done.
    /// Writes that begin later, and the memory's deleter, wait for the use.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked child.
    pub fn used_until(&self, fence: &Fence) -> Result<(), Error> {
        self.inner.core.generation.check()?;
        let mut replaced = Replaced::default();
        for var in &self.inner.vars {
            var.with_ordering_state(|state, flags| state.add_reader(fence, flags, &mut replaced));
            thin_out(var.flags(), |look| var.with_ordering_state(look));
        }
        Ok(())
    }
}

/// Calls a callback of the program, which must not block. A panic is logged.
fn call_back(callback: impl FnOnce() + 'static) {
    callback::in_turn(move || {
        log_panic("a callback of the program", || callback::run(callback));
    });
}

type EndFuture = Pin<Box<dyn Future<Output = Result<(), Error>>>>;

/// Blocks until one of the operations has ended or one of the tensors is finished. Returns the places of
/// those that have, counted through `ops` and then `tensors`. Failures stay unretrieved. An operation that
/// leaves device work has ended when that was issued.
///
/// # Errors
/// As [`wait_any_work`].
pub fn wait_any(ops: &[Op], tensors: &[Tensor], timeout: Option<Duration>) -> Result<Vec<usize>, Error> {
    wait_for_one(ops, |op| op.outcome().is_some(), |op| Box::pin(OpEnded(op)), tensors, timeout)
}

/// Blocks until one of the operations has ended and its device work is done, or one of the tensors is
/// finished. Returns as [`wait_any`]. Several steps of one operation may end a wait early: then no place is
/// returned.
///
/// # Errors
/// [`Error::Timeout`]; [`Error::Forked`]; the reason why the last of them can never end, if none can.
pub fn wait_any_work(ops: &[Op], tensors: &[Tensor], timeout: Option<Duration>) -> Result<Vec<usize>, Error> {
    let is_over = |op: &Op| op.outcome().is_some() && !op.left().state().is_pending();
    wait_for_one(ops, is_over, |op| Box::pin(work_done(op)), tensors, timeout)
}

async fn work_done(op: Op) -> Result<(), Error> {
    let ended = OpEnded(op.clone()).await;
    for fence in &op.left() {
        let _ = fence.settled().await;
    }
    ended
}

fn wait_for_one(
    ops: &[Op],
    is_over: impl Fn(&Op) -> bool,
    end_of: impl Fn(Op) -> EndFuture,
    tensors: &[Tensor],
    timeout: Option<Duration>,
) -> Result<Vec<usize>, Error> {
    ops.iter().try_for_each(|op| op.handle.payload().core.generation.check())?;
    tensors.iter().try_for_each(|tensor| tensor.inner.core.generation.check())?;
    if timeout == Some(Duration::ZERO) {
        // This wait only polls: it subscribes to no fence and makes no query.
        return poll_once(ops, is_over, tensors);
    }
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut cx = Context::from_waker(&waker);
    let mut ends: Vec<EndFuture> = Vec::new();
    let mut waiting: Vec<(&CoreRef, OpHandle)> = Vec::new();
    // In a trace each of them is a wait, which is over when this one is, whichever ends it. Dropped before
    // the queries.
    let mut noted: Vec<QueryNoted> = Vec::new();
    for op in ops {
        ends.push(end_of(op.clone()));
        waiting.push((&op.handle.payload().core, op.handle.clone()));
    }
    for tensor in tensors {
        let ended = VersionEnd::new(&tensor.inner, true);
        if let Some(query) = ended.handle() {
            noted.extend(QueryNoted::of(&query));
            waiting.push((&tensor.inner.core, query));
        }
        ends.push(Box::pin(ended));
    }
    let mut ended = || -> Vec<usize> {
        let polled = ends.iter_mut().map(|ended| ended.as_mut().poll(&mut cx).is_ready());
        polled.enumerate().filter_map(|(place, is_ready)| is_ready.then_some(place)).collect()
    };
    let known = ended();
    if !known.is_empty() {
        return Ok(known);
    }
    let _noted: Vec<WaitNoted> =
        ops.iter().filter_map(|op| WaitNoted::for_op(op.handle.id(), true)).collect();
    let until = timeout.and_then(clock::deadline);
    let what = if waiting.len() == 1 { "a promise" } else { "one of several promises" };
    // Another one may end while this thread would run the first.
    let takes_slots = waiting.len() == 1;
    // This thread runs what the first one needs. Another one may end first, by what an engine without workers
    // has to run.
    let _stand_ins = match &waiting[..] {
        [(core, _), _, ..] if others_without_workers(core) => {
            Some(Awaited::stand_ins(core, waiting.iter().map(|(_, handle)| handle)))
        }
        _ => None,
    };
    let mut outcome = Ok(Vec::new());
    for (core, handle) in waiting {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        outcome = blocking::block_while(core, &handle, &what, &woken.0, left, takes_slots).map(|()| ended());
        // Another one may still end.
        if !matches!(outcome, Err(Error::WouldDeadlock(_) | Error::LeaseHeld(_))) {
            return outcome;
        }
    }
    outcome
}

fn poll_once(ops: &[Op], is_over: impl Fn(&Op) -> bool, tensors: &[Tensor]) -> Result<Vec<usize>, Error> {
    let polled = ops.iter().map(is_over).chain(tensors.iter().map(|tensor| tensor.outcome().is_some()));
    let over: Vec<usize> =
        polled.enumerate().filter_map(|(place, is_over)| is_over.then_some(place)).collect();
    if over.is_empty() { Err(Error::Timeout(Duration::ZERO)) } else { Ok(over) }
}

/// A readiness query in a trace. The wait for it ends when this is dropped.
struct QueryNoted(OpId);

impl QueryNoted {
    fn of(query: &OpHandle) -> Option<Self> {
        query.payload().noted.then(|| Self(query.id()))
    }
}

impl Drop for QueryNoted {
    fn drop(&mut self) {
        hooks::resumed(self.0.get(), true);
    }
}

/// A thread that waits for a wake-up.
pub(super) struct Woken(pub(super) OneShot<()>);

impl Default for Woken {
    fn default() -> Self {
        Self(OneShot::new())
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.set(());
    }
}

/// The end of an operation, whose outcome stays unretrieved.
struct OpEnded(Op);

impl Future for OpEnded {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Op { handle, key, .. } = &mut self.0;
        let state = handle.payload();
        state.core.generation.check()?;
        let polled = state.one_shot().peek(cx, key);
        if polled.is_ready() {
            // A one-shot that is set has no wakers.
            *key = WakerKey::default();
        }
        polled.map_err(Error::from)
    }
}

impl Op {
    /// Calls `callback` once with the outcome, when the operation has ended. A failure stays unretrieved. The
    /// call happens as that of [`Tensor::on_ready`] does.
    pub(crate) fn on_end<C>(&self, callback: C) -> Notice
    where
        C: FnOnce(Result<(), Error>) + Send + 'static,
    {
        let is_pending = !self.handle.payload().core.generation.is_inherited() && !self.is_done();
        let pending = is_pending.then_some(&self.handle);
        let noted = pending.and_then(|pending| WaitNoted::for_op(pending.id(), false));
        notify_end(OpEnded(self.clone()), pending, move |outcome| {
            drop(noted);
            callback(outcome);
        })
    }

    /// The outcome of the operation, if it has ended. A failure stays unretrieved.
    pub(crate) fn outcome(&self) -> Option<Result<(), Error>> {
        let state = self.handle.payload();
        let failure = || state.failure().map(|failure| Err(failure.clone().into()));
        // A failure is set before the phase is `Done`, and after it is `Cancelled`.
        match state.phase() {
            Phase::Done => failure().or(Some(Ok(()))),
            Phase::Cancelled => failure(),
            _ => None,
        }
    }

    /// The end of the operation as a fence. An operation that leaves device work ends when this work was
    /// issued.
    pub fn fence(&self) -> Fence {
        fence_of("an operation", self.clone())
    }
}

impl Tensor {
    /// Adopts the fence of another scheduler, with the devices of the tensor's engine, its own among them.
    ///
    /// # Errors
    /// As [`foreign_fence::import`].
    ///
    /// # Safety
    /// As for [`foreign_fence::import`].
    pub(crate) unsafe fn import_fence(&self, fence: NonNull<RawFence>) -> Result<Fence, Error> {
        let core = &self.inner.core;
        let mut devices = core.devices.clone();
        if let Ok(place) = self.device() {
            devices.extend(core.device(place));
        }
        // SAFETY: the caller's promise is the same.
        unsafe { foreign_fence::import(fence, &devices) }
    }
}

/// Models: `RUSTFLAGS="--cfg estafette_loom" cargo test -p estafette --profile model --lib models::`.
#[cfg(all(test, estafette_loom))]
mod models {
    use estafette_sync::thread;

    use super::*;

    /// Ends after two steps of other threads.
    struct Steps {
        done: Arc<AtomicUsize>,
        waker: Arc<Mutex<Option<Waker>>>,
    }

    impl Future for Steps {
        type Output = ();

        fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
            *self.waker.lock() = Some(cx.waker().clone());
            // Only the wake-ups order this load after the steps.
            if self.done.load(Ordering::Relaxed) == 2 { Poll::Ready(()) } else { Poll::Pending }
        }
    }

    #[test]
    fn a_wake_up_that_meets_a_poll_is_not_lost() {
        loom::model(|| {
            let (done, calls) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let waker = Arc::new(Mutex::new(None));
            let counted = Arc::clone(&calls);
            notify(Steps { done: Arc::clone(&done), waker: Arc::clone(&waker) }, move |()| {
                counted.fetch_add(1, Ordering::Relaxed);
            });
            let waker: Waker = waker.lock().clone().expect("the future was polled");
            let other = {
                let (done, waker) = (Arc::clone(&done), waker.clone());
                thread::spawn(move || {
                    done.fetch_add(1, Ordering::Relaxed);
                    waker.wake();
                })
            };
            done.fetch_add(1, Ordering::Relaxed);
            waker.wake();
            other.join().expect("it does not panic");
            assert_eq!(calls.load(Ordering::Relaxed), 1);
        });
    }
}

#[cfg(test)]
mod tests {
    use estafette_devices::host;
    use estafette_sync::time::Duration;

    use crate::tensor::alias_map::carry;
    use crate::{DType, Engine};

    #[test]
    fn fences_that_are_done_do_not_gather_where_a_memory_is_only_read() {
        let engine = Engine::builder().workers(1).build().expect("it starts");
        let tensor = engine.zeros(&[4], DType::F32).expect("it is made");
        tensor.wait().expect("it is there");
        let gathered = || tensor.inner.vars[0].with_ordering_state(|state, _| state.fences().1.iter().len());
        let use_it = |is_over: bool| {
            let (completer, fence) = host::promise("a reader");
            tensor.used_until(&fence).expect("this process has made it");
            if is_over {
                completer.complete();
                None
            } else {
                Some(completer)
            }
        };
        let under_way: Vec<_> = (0..100).filter_map(|_| use_it(false)).collect();
        assert_eq!(gathered(), 100, "what is under way is waited for");
        for _ in 0..10_000 {
            let over = use_it(true);
            assert!(over.is_none() && gathered() <= 2 * 101, "{} fences", gathered());
        }
        drop(under_way);
        // A reader that begins looks at them too.
        for _ in 0..200 {
            // Each of these has its writers looked at, and its readers only where they are many.
            let (completer, written) = host::promise("a writer");
            completer.complete();
            carry(&tensor.inner.vars[0], &written.into());
            let read = engine.op("read").reads([&tensor]).run(|[_], []| Ok(())).expect("it is submitted");
            read.wait().expect("it succeeds");
            use_it(true);
        }
        assert!(gathered() < 64, "{} fences", gathered());
        assert!(engine.shutdown_timeout(Duration::from_secs(10)).drained);
    }
}
