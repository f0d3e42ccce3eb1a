//! Situations of fences, promises and the reactor on the host.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use estafette_devices::{
    DLDevice, DeviceError, DeviceErrorKind, Event, Fence, FenceSet, FenceState, Reactor, Subscriber, Watch,
    host,
};

/// Counts wake-ups.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn poll_once<F: Future>(future: Pin<&mut F>, waker: &Waker) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(waker))
}

#[test]
fn a_completed_promise_is_done_for_every_clone_and_for_ever() {
    let (completer, fence) = host::promise("answer");
    assert!(fence.state().is_pending());
    assert_eq!(fence.device(), DLDevice::CPU);
    assert_eq!(fence.queue(), None);
    completer.complete();
    for fence in [&fence, &fence.clone()] {
        assert!(fence.is_done() && fence.observed_done());
        assert!(matches!(fence.wait_timeout(None), Some(Ok(()))));
    }
}

#[test]
fn a_failed_promise_gives_the_same_error_as_often_as_it_is_asked() {
    let (completer, fence) = host::promise("answer");
    let root = DeviceError::new(DeviceErrorKind::Other, "no answer").with_code(-7);
    completer.fail(root.clone());
    for _ in 0..3 {
        let FenceState::Failed(error) = fence.state() else { panic!("it has failed") };
        assert!(error.same_root(&root));
        assert!(fence.wait_timeout(None).unwrap().unwrap_err().same_root(&root));
        assert!(futures::executor::block_on(fence.settled()).unwrap_err().same_root(&root));
    }
    assert!(!fence.is_done());
}

#[test]
fn a_dropped_completer_cancels_its_fence_and_names_it() {
    let (completer, fence) = host::promise("frame 7");
    drop(completer);
    let FenceState::Failed(error) = fence.state() else { panic!("nothing will finish it") };
    assert_eq!(error.kind(), DeviceErrorKind::Cancelled);
    assert_eq!(error.to_string(), "promise \"frame 7\" was dropped and will never be done");
}

#[test]
fn a_future_as_a_fence_finishes_with_the_future() {
    let (sender, receiver) = futures::channel::oneshot::channel::<u32>();
    let (fence, driver) = host::fence_of(async move {
        match receiver.await {
            Ok(_) => Ok(()),
            Err(cancelled) => Err(cancelled),
        }
    });
    let mut driver = pin!(driver);
    assert!(poll_once(driver.as_mut(), Waker::noop()).is_pending());
    assert!(fence.state().is_pending());
    sender.send(1).unwrap();
    assert!(poll_once(driver.as_mut(), Waker::noop()).is_ready());
    assert!(fence.is_done());
}

#[test]
fn a_future_that_is_dropped_or_panics_cancels_its_fence() {
    let (fence, driver) = host::fence_of(std::future::pending::<Result<(), String>>());
    drop(driver);
    assert!(matches!(fence.state(), FenceState::Failed(error) if error.kind() == DeviceErrorKind::Cancelled));

    let (fence, driver) = host::fence_of(async {
        assert_eq!(1, 2, "this future is broken on purpose");
        Ok::<(), String>(())
    });
    let driving = std::thread::spawn(|| futures::executor::block_on(driver));
    assert!(driving.join().is_err());
    assert!(matches!(fence.state(), FenceState::Failed(error) if error.kind() == DeviceErrorKind::Cancelled));
}

#[test]
fn a_waiter_that_is_polled_with_another_waker_wakes_the_last_one_only() {
    let (completer, fence) = host::promise("answer");
    let wakes = [Arc::new(Wakes::default()), Arc::new(Wakes::default())];
    let wakers = wakes.each_ref().map(|wakes| Waker::from(wakes.clone()));
    let mut settled = pin!(fence.settled());
    assert!(poll_once(settled.as_mut(), &wakers[0]).is_pending());
    assert!(poll_once(settled.as_mut(), &wakers[1]).is_pending());
    completer.complete();
    assert_eq!(wakes.each_ref().map(|wakes| wakes.0.load(Ordering::SeqCst)), [0, 1]);
    assert!(poll_once(settled.as_mut(), &wakers[0]).is_ready());
}

#[test]
fn completing_and_waiting_at_the_same_time_never_misses() {
    //  completer:  complete()
    //  waiter:             register ... look again
    for round in 0..2_000 {
        let (completer, fence) = host::promise("race");
        let together = Arc::new(Barrier::new(2));
        let waiter = std::thread::spawn({
            let together = together.clone();
            move || {
                together.wait();
                if round % 2 == 0 {
                    fence.wait_timeout(None).unwrap()
                } else {
                    futures::executor::block_on(fence.settled())
                }
            }
        });
        together.wait();
        completer.complete();
        assert!(waiter.join().unwrap().is_ok());
    }
}

#[test]
fn a_callback_runs_before_complete_returns_and_exactly_once() {
    let (completer, fence) = host::promise("answer");
    let calls = Arc::new(AtomicUsize::new(0));
    for _ in 0..3 {
        let calls = calls.clone();
        Reactor::global().when_settled([&fence], move |outcome| {
            assert!(outcome.is_ok());
            calls.fetch_add(1, Ordering::SeqCst);
        });
    }
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    completer.complete();
    assert_eq!(calls.load(Ordering::SeqCst), 3);
}

#[test]
fn several_fences_with_failures_report_the_failure_seen_first_after_all_have_settled() {
    let (completers, fences): (Vec<_>, Vec<_>) = (0..4).map(|_| host::promise("part")).unzip();
    let fence_set: FenceSet = fences.into_iter().collect();
    assert_eq!(fence_set.len(), 4, "promises are never merged");
    let (told, telling) = std::sync::mpsc::channel();
    Reactor::global().when_settled(&fence_set, move |outcome| told.send(outcome).unwrap());
    for (part, completer) in completers.into_iter().enumerate() {
        assert!(telling.try_recv().is_err());
        match part {
            1 | 2 => completer.fail(DeviceError::new(DeviceErrorKind::Other, format!("part {part}"))),
            _ => completer.complete(),
        }
    }
    assert_eq!(telling.recv().unwrap().unwrap_err().message(), "part 1");
    assert!(matches!(fence_set.state(), FenceState::Failed(error) if error.message() == "part 1"));
}

#[test]
fn a_long_chain_of_promises_that_complete_each_other_does_not_overflow_the_stack() {
    const LINKS: usize = 200_000;
    let (first, mut previous) = host::promise("first");
    for _ in 0..LINKS {
        let (completer, next) = host::promise("link");
        Reactor::global().when_settled([&previous], move |outcome| completer.settle(outcome));
        previous = next;
    }
    first.complete();
    assert!(previous.is_done(), "the whole chain settles before complete returns");
}

#[test]
fn a_panicking_callback_does_not_reach_the_completing_thread() {
    let (completer, fence) = host::promise("answer");
    Reactor::global().when_settled([&fence], |_| panic!("this callback is broken on purpose"));
    let (told, telling) = std::sync::mpsc::channel();
    Reactor::global().when_settled([&fence], move |_| told.send(()).unwrap());
    completer.complete();
    telling.try_recv().unwrap();
}

#[test]
fn giving_up_many_times_leaves_nothing_behind() {
    let (completer, fence) = host::promise("slow");
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(wakes.clone());
    for _ in 0..10_000 {
        assert!(poll_once(pin!(fence.settled()).as_mut(), &waker).is_pending());
    }
    assert_eq!(Arc::strong_count(&wakes), 2);
    for _ in 0..10 {
        assert!(fence.wait_timeout(Some(Duration::from_micros(1))).is_none());
    }
    completer.complete();
    assert_eq!(wakes.0.load(Ordering::SeqCst), 0, "no thread is woken who went away");
}

#[test]
fn fences_and_fence_sets_may_be_shared_between_threads() {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<Fence>();
    shared::<FenceSet>();
    shared::<DeviceError>();
    shared::<host::Completer>();
}

/// The set finds its fences again by queue and by identity, whatever its size, and after some were taken out.
#[test]
fn a_large_set_of_fences_keeps_one_per_queue_and_each_stand_alone_one_once() {
    use estafette_devices::{Fence, FenceSet, host};
    let promises: Vec<_> = (0..1_000).map(|_| host::promise("one of many")).collect();
    let mut set = FenceSet::default();
    for _ in 0..2 {
        for (_, fence) in &promises {
            set.insert(fence.clone());
        }
        assert_eq!(set.len(), promises.len());
    }
    let same = |a: &Fence, b: &Fence| a.same_or_later_on_queue(b);
    assert!(promises.iter().all(|(_, fence)| set.counterpart(fence).is_some_and(|found| same(found, fence))));
    let mut gone: Vec<Fence> = Vec::new();
    let odd: Vec<_> = promises.iter().skip(1).step_by(2).map(|(_, fence)| fence.clone()).collect();
    let odd: FenceSet = odd.into_iter().collect();
    set.take_out(|fence| odd.counterpart(fence).is_some(), &mut gone);
    assert_eq!((set.len(), gone.len()), (500, 500));
    assert!(gone.iter().all(|fence| set.counterpart(fence).is_none()));
    for (_, fence) in &promises {
        set.insert(fence.clone());
    }
    assert_eq!(set.len(), promises.len());
    assert!(promises.iter().all(|(_, fence)| set.counterpart(fence).is_some()));
}

/// An event of a user's that never settles, keeps its newest subscriber, and panics where a waiter comes or
/// goes.
#[derive(Default)]
struct Panics {
    when_watched: bool,
    kept: Mutex<Option<Arc<dyn Subscriber>>>,
}

impl std::fmt::Debug for Panics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("panics")
    }
}

impl Event for Panics {
    fn device(&self) -> DLDevice {
        DLDevice::CPU
    }

    fn state(&self) -> FenceState {
        FenceState::Pending
    }

    fn observed_done(&self) -> bool {
        false
    }

    fn watch(&self, subscriber: &Arc<dyn Subscriber>) -> Watch {
        *self.kept.lock().expect("no test panics with it") = Some(Arc::clone(subscriber));
        assert!(!self.when_watched, "this event is broken on purpose");
        Watch::Subscribed
    }

    fn waiter_left(&self) {
        panic!("this event is broken on purpose");
    }
}

#[test]
fn an_event_that_panics_when_it_is_watched_has_failed() {
    let fence = Fence::event(Arc::new(Panics { when_watched: true, ..Panics::default() }));
    let failed = |outcome: Result<(), DeviceError>| {
        let error = outcome.expect_err("it is broken");
        assert_eq!(error.kind(), DeviceErrorKind::Fault);
        assert!(error.to_string().contains("broken on purpose"), "{error}");
    };
    failed(fence.wait_timeout(None).expect("it has ended"));
    failed(futures::executor::block_on(fence.settled()));
    let (said, heard) = channel();
    let (completer, other) = host::promise("the other one");
    Reactor::global().when_settled([&fence, &other], move |outcome| said.send(outcome).unwrap());
    assert!(heard.try_recv().is_err(), "the other one pends");
    completer.complete();
    failed(heard.recv().unwrap());
}

#[test]
fn an_event_that_panics_and_still_calls_its_subscriber_counts_once() {
    let event = Arc::new(Panics { when_watched: true, ..Panics::default() });
    let (completer, other) = host::promise("another fence");
    let outcomes = Arc::<Mutex<Vec<Result<(), DeviceError>>>>::default();
    let noted = Arc::clone(&outcomes);
    let both = [Fence::event(event.clone()), other];
    Reactor::global().when_settled(both, move |outcome| noted.lock().unwrap().push(outcome));
    let subscriber = event.kept.lock().unwrap().take().expect("it has subscribed");
    subscriber.settled(Ok(()));
    assert!(outcomes.lock().unwrap().is_empty(), "the other fence is pending");
    completer.complete();
    let outcomes = std::mem::take(&mut *outcomes.lock().unwrap());
    assert!(
        matches!(&outcomes[..], [Err(error)] if error.to_string().contains("broken on purpose")),
        "{outcomes:?}"
    );
}

#[test]
fn an_event_that_panics_when_a_waiter_has_left_leaves_the_waiter_alone() {
    let fence = Fence::event(Arc::new(Panics::default()));
    assert!(fence.wait_timeout(Some(Duration::from_millis(1))).is_none());
    let mut settled = fence.settled();
    assert!(poll_once(Pin::new(&mut settled), Waker::noop()).is_pending());
    drop(settled);
}
