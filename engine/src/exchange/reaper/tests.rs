use super::queue::LeaderState;
use super::*;

use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;

use estafette_devices::{Fence, host};

pub(super) const LONG: Duration = Duration::from_secs(20);

/// Storage whose drop runs `f`: what a foreign deleter is to the reaper.
pub(super) fn deleter(f: impl FnOnce() + Send + 'static) -> Storage {
    struct OnDrop<F: FnOnce()>(Option<F>);
    impl<F: FnOnce()> Drop for OnDrop<F> {
        fn drop(&mut self) {
            self.0.take().expect("dropped once")();
        }
    }
    Storage::owned(Box::new(OnDrop(Some(f))), std::ptr::null_mut())
}

pub(super) fn counting(calls: &Arc<AtomicUsize>) -> Storage {
    let calls = calls.clone();
    deleter(move || {
        calls.fetch_add(1, Ordering::Relaxed);
    })
}

/// Storage whose deleter says that it has begun and waits until it may end.
pub(super) fn gated() -> (Storage, mpsc::Receiver<()>, mpsc::Sender<()>) {
    let (entered, has_entered) = mpsc::channel();
    let (leave, may_leave) = mpsc::channel::<()>();
    let storage = deleter(move || {
        entered.send(()).unwrap();
        may_leave.recv().unwrap();
    });
    (storage, has_entered, leave)
}

/// For tests of leaks: it has no size, so that leaking it leaks no byte and memory checkers stay quiet. It
/// must never be dropped.
struct NeverDropped;

impl Drop for NeverDropped {
    fn drop(&mut self) {
        // On the reaper thread the panic is contained, so the tests look at the counters as well.
        panic!("dropped what had to be leaked");
    }
}

pub(super) fn never_dropped() -> Storage {
    Storage::owned(Box::new(NeverDropped), std::ptr::null_mut())
}

pub(super) fn fence_set<const N: usize>(fences: [&Fence; N]) -> FenceSet {
    fences.into_iter().cloned().collect()
}

fn done() -> Fence {
    let (completer, fence) = host::promise("done");
    completer.complete();
    fence
}

fn failed(kind: DeviceErrorKind) -> Fence {
    let (completer, fence) = host::promise("failed");
    completer.fail(DeviceError::new(kind, "scripted failure"));
    fence
}

pub(super) fn counts(reaper: &Reaper) -> (u64, u64, u64) {
    let ReaperStats { released, leaked, pending, .. } = reaper.stats();
    (released, leaked, pending)
}

#[test]
fn a_foreign_deleter_runs_once_and_on_the_reaper_thread_only() {
    let reaper = Reaper::new();
    let (sender, receiver) = mpsc::channel();
    reaper.release(
        fence_set([&done()]),
        deleter(move || sender.send(std::thread::current().name().map(str::to_owned)).unwrap()),
    );
    assert_eq!(receiver.recv().unwrap().as_deref(), Some("estafette-reaper"));
    assert!(receiver.recv().is_err(), "the deleter is gone after its one call");
    assert!(reaper.flush(LONG));
    assert_eq!(counts(&reaper), (1, 0, 0));
    assert!(reaper.stop(LONG));
}

#[test]
fn plain_memory_with_settled_fences_is_freed_by_the_caller_without_a_thread() {
    let reaper = Reaper::new();
    reaper.release(fence_set([&done()]), Storage::vec(vec![0_u8; 100]));
    reaper.release(FenceSet::default(), Storage::vec(vec![0_u8; 100]));
    assert_eq!(counts(&reaper), (2, 0, 0));
    assert!(reaper.shared.lock().threads.is_empty());
    assert!(reaper.flush(LONG) && reaper.stop(LONG));
}

#[test]
fn plain_memory_is_freed_where_its_last_fence_settles_without_a_thread() {
    let reaper = Reaper::new();
    let (completer, fence) = host::promise("pending");
    reaper.release(fence_set([&fence]), Storage::vec(vec![0_u8; 8]));
    assert_eq!(counts(&reaper), (0, 0, 1));
    completer.complete();
    assert_eq!(counts(&reaper), (1, 0, 0));
    assert!(reaper.shared.lock().threads.is_empty());
    assert!(reaper.stop(LONG));
}

#[test]
fn memory_that_another_process_may_wait_for_ends_a_nap() {
    let reaper = Reaper::new();
    let calls = Arc::new(AtomicUsize::new(0));
    for _ in 0..20 {
        loop {
            reaper.release(FenceSet::default(), counting(&calls));
            while reaper.shared.lock().rest == LeaderState::Busy {
                std::thread::yield_now();
            }
            // A nap may be over before this thread sees it.
            if reaper.shared.lock().rest == LeaderState::Napping {
                break;
            }
        }
        let (completer, fence) = host::promise("pending");
        with_inline_deleters(|| reaper.release(fence_set([&fence]), Storage::vec(vec![0_u8; 8])));
        let queue = reaper.shared.lock();
        assert!(queue.rest != LeaderState::Napping || !queue.watch_due, "it naps beside what there is to do");
        drop(queue);
        completer.complete();
        assert!(reaper.flush(LONG));
    }
    assert!(reaper.stop(LONG));
}

#[test]
fn memory_outlives_every_one_of_its_fences() {
    let reaper = Reaper::new();
    let calls = Arc::new(AtomicUsize::new(0));
    let (first, first_fence) = host::promise("first");
    let (second, second_fence) = host::promise("second");
    reaper.release(fence_set([&first_fence, &second_fence]), counting(&calls));
    second.complete();
    assert!(!reaper.flush(Duration::from_millis(5)));
    assert_eq!((calls.load(Ordering::Relaxed), counts(&reaper)), (0, (0, 0, 1)));
    first.complete();
    assert!(reaper.flush(LONG));
    assert_eq!((calls.load(Ordering::Relaxed), counts(&reaper)), (1, (1, 0, 0)));
    assert!(reaper.stop(LONG));
}

#[test]
fn work_that_never_ran_releases_its_memory_and_a_fault_leaks_it() {
    let reaper = Reaper::new();
    let calls = Arc::new(AtomicUsize::new(0));
    for kind in [DeviceErrorKind::Cancelled, DeviceErrorKind::Other, DeviceErrorKind::Invalid] {
        reaper.release(fence_set([&failed(kind)]), counting(&calls));
    }
    assert!(reaper.flush(LONG));
    assert_eq!((calls.load(Ordering::Relaxed), counts(&reaper)), (3, (3, 0, 0)));
    // The fault counts even when another failure was seen first.
    reaper.release(
        fence_set([&failed(DeviceErrorKind::Cancelled), &failed(DeviceErrorKind::Fault), &done()]),
        never_dropped(),
    );
    let (completer, fence) = host::promise("faults later");
    reaper.release(fence_set([&fence]), never_dropped());
    completer.fail(DeviceError::new(DeviceErrorKind::Fault, "scripted fault"));
    assert!(reaper.flush(LONG));
    assert_eq!(counts(&reaper), (3, 2, 0));
    assert!(reaper.stop(LONG));
}

#[test]
fn a_flush_waits_for_what_the_deleters_that_it_waits_for_hand_over() {
    static REAPER: OnceLock<Reaper> = OnceLock::new();
    let reaper = REAPER.get_or_init(Reaper::new);
    let (inner, inner_entered, inner_leave) = gated();
    let (leave, may_leave) = mpsc::channel::<()>();
    let outer = deleter(move || {
        may_leave.recv().unwrap();
        reaper.release(FenceSet::default(), inner);
    });
    reaper.release(FenceSet::default(), outer);
    let flush = std::thread::spawn(|| (reaper.flush(LONG), counts(reaper)));
    // The flush has closed its epoch.
    while reaper.shared.lock().epochs.len() < 2 {
        std::thread::yield_now();
    }
    leave.send(()).unwrap();
    inner_entered.recv().unwrap();
    assert_eq!(reaper.shared.lock().first_epoch, 0, "the epoch is not over");
    inner_leave.send(()).unwrap();
    assert_eq!(flush.join().unwrap(), (true, (2, 0, 0)));
    assert!(reaper.stop(LONG));
}

#[test]
fn a_fence_that_nobody_can_observe_keeps_its_memory() {
    let (_completer, pending) = host::promise("pending");
    let cancelled = failed(DeviceErrorKind::Cancelled);
    let storage = Storage::vec(vec![0_u8; 8]);
    assert!(may_release(&storage, &fence_set([&cancelled, &done()])));
    assert!(!may_release(&storage, &fence_set([&cancelled, &pending])));
}

#[test]
fn a_release_wakes_the_sleeping_thread() {
    let reaper = Reaper::new();
    for _ in 0..3 {
        let (sender, receiver) = mpsc::channel();
        reaper.release(FenceSet::default(), deleter(move || sender.send(()).unwrap()));
        assert_eq!(receiver.recv_timeout(LONG), Ok(()));
        while reaper.shared.lock().rest != LeaderState::Asleep {
            std::thread::yield_now();
        }
    }
    assert!(reaper.stop(LONG));
}

#[test]
fn a_dropped_completer_releases_the_memory() {
    let reaper = Reaper::new();
    let calls = Arc::new(AtomicUsize::new(0));
    let (completer, fence) = host::promise("abandoned");
    reaper.release(fence_set([&fence]), counting(&calls));
    drop(completer);
    assert!(reaper.flush(LONG) && reaper.stop(LONG));
    assert_eq!((calls.load(Ordering::Relaxed), counts(&reaper)), (1, (1, 0, 0)));
}

#[test]
fn a_callback_that_is_lost_leaks_instead_of_freeing_early() {
    let reaper = Reaper::new();
    let receipt = reaper.shared.lock().register(None);
    let storage = ManuallyDrop::new(never_dropped());
    drop(FencedStorage { storage, receipt, what: ReleasedMemory::default(), shared: reaper.shared.clone() });
    assert_eq!(counts(&reaper), (0, 1, 0));
    assert!(reaper.flush(Duration::ZERO));
}

#[test]
fn a_panicking_deleter_does_not_end_the_thread() {
    let reaper = Reaper::new();
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = calls.clone();
    reaper.release(
        FenceSet::default(),
        deleter(move || {
            counter.fetch_add(1, Ordering::Relaxed);
            panic!("scripted panic in a deleter");
        }),
    );
    reaper.release(FenceSet::default(), counting(&calls));
    assert!(reaper.flush(LONG) && reaper.stop(LONG));
    assert_eq!((calls.load(Ordering::Relaxed), counts(&reaper)), (2, (2, 0, 0)));
}

#[test]
fn a_deleter_may_release_more_and_a_flush_inside_it_does_not_hang() {
    let reaper = Arc::new(Reaper::new());
    let calls = Arc::new(AtomicUsize::new(0));
    let (sender, receiver) = mpsc::channel();
    let (inner, counter) = (reaper.clone(), calls.clone());
    reaper.release(
        FenceSet::default(),
        deleter(move || {
            inner.release(FenceSet::default(), counting(&counter));
            sender.send((inner.flush(LONG), inner.stats().pending)).unwrap();
        }),
    );
    assert_eq!(receiver.recv().unwrap(), (false, 2), "it would wait for the deleter it runs in");
    assert!(reaper.flush(LONG) && reaper.stop(LONG));
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

/// ```text
/// main                       flusher            reaper
/// release A ────────────────────────────────────▶ in A's deleter
///                            flush begins
/// release B (never settles)
/// let A's deleter return ──────────────────────▶ A released
///                            flush ends: true
/// ```
#[test]
fn a_flush_waits_for_what_was_handed_over_before_it_and_for_nothing_later() {
    let reaper = Arc::new(Reaper::new());
    let (a, has_entered, leave) = gated();
    reaper.release(FenceSet::default(), a);
    has_entered.recv().unwrap();
    let flusher = std::thread::spawn({
        let reaper = reaper.clone();
        move || reaper.flush(LONG)
    });
    // Only a flush that has begun closes the epoch of A.
    while reaper.shared.lock().epochs.len() < 2 {
        std::thread::yield_now();
    }
    let (completer, fence) = host::promise("B");
    reaper.release(fence_set([&fence]), Storage::vec(vec![0_u8; 8]));
    assert_eq!(reaper.stats().pending, 2);
    leave.send(()).unwrap();
    assert!(flusher.join().unwrap());
    assert_eq!(counts(&reaper), (1, 0, 1));
    assert!(!reaper.flush(Duration::ZERO));
    completer.complete();
    assert!(reaper.flush(LONG) && reaper.stop(LONG));
    assert_eq!(counts(&reaper), (2, 0, 0));
}

#[test]
fn many_releases_from_many_threads_run_each_deleter_once() {
    const EACH: usize = 5_000;
    let reaper = Arc::new(Reaper::new());
    let calls: Arc<Vec<AtomicUsize>> = Arc::new((0..4 * EACH).map(|_| AtomicUsize::new(0)).collect());
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let (reaper, calls) = (reaper.clone(), calls.clone());
            std::thread::spawn(move || {
                let mut open = Vec::new();
                for index in 0..EACH {
                    let calls = calls.clone();
                    let storage = deleter(move || {
                        calls[thread * EACH + index].fetch_add(1, Ordering::Relaxed);
                    });
                    let (completer, fence) = host::promise("use");
                    reaper.release(
                        if index % 3 == 0 { FenceSet::default() } else { fence_set([&fence]) },
                        storage,
                    );
                    open.push(completer);
                    if open.len() > 10 {
                        drop(open.swap_remove(index % 10));
                    }
                    if index % 1000 == 0 {
                        reaper.flush(Duration::ZERO);
                    }
                }
                open.into_iter().for_each(|completer| completer.complete());
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(reaper.flush(LONG));
    assert!(calls.iter().all(|calls| calls.load(Ordering::Relaxed) == 1));
    assert_eq!(counts(&reaper), (4 * EACH as u64, 0, 0));
    let queue = reaper.shared.lock();
    assert!(queue.epochs.is_empty() && queue.ready.is_empty());
    drop(queue);
    assert!(reaper.stop(LONG));
}

#[test]
fn stop_runs_what_is_ready_and_leaks_what_comes_later() {
    let reaper = Reaper::new();
    let calls = Arc::new(AtomicUsize::new(0));
    let (completer, fence) = host::promise("settles after the stop");
    reaper.release(fence_set([&fence]), never_dropped());
    for _ in 0..100 {
        reaper.release(FenceSet::default(), counting(&calls));
    }
    assert!(reaper.stop(LONG));
    assert_eq!((calls.load(Ordering::Relaxed), counts(&reaper)), (100, (100, 0, 1)));
    completer.complete();
    assert_eq!(counts(&reaper), (100, 1, 0));
    reaper.release(FenceSet::default(), never_dropped());
    assert_eq!(counts(&reaper), (100, 2, 0));
    reaper.release(FenceSet::default(), Storage::vec(vec![1_u8]));
    assert_eq!(counts(&reaper), (101, 2, 0), "plain memory needs no thread");
    assert!(reaper.stop(LONG) && reaper.flush(LONG));
}

#[test]
fn stop_before_any_work_needs_no_thread() {
    let reaper = Reaper::new();
    assert!(reaper.stop(Duration::ZERO));
    reaper.release(FenceSet::default(), never_dropped());
    assert_eq!(counts(&reaper), (0, 1, 0));
}

#[test]
fn stop_gives_up_on_a_deleter_that_hangs_and_leaks_the_rest() {
    // No other thread goes on with the rest.
    let mut shared = ReaperState::default();
    shared.slow = Duration::MAX;
    let reaper = Reaper { shared: Arc::new(shared) };
    let (first, first_entered, first_leave) = gated();
    let (hangs, hangs_entered, hangs_leave) = gated();
    reaper.release(FenceSet::default(), first);
    first_entered.recv().unwrap();
    // The thread takes these two together when it is done with the first.
    reaper.release(FenceSet::default(), hangs);
    reaper.release(FenceSet::default(), never_dropped());
    first_leave.send(()).unwrap();
    hangs_entered.recv().unwrap();
    reaper.release(FenceSet::default(), never_dropped());
    assert!(!reaper.stop(Duration::from_millis(5)));
    assert_eq!(counts(&reaper), (1, 2, 1), "what was still in the queue is leaked at once");
    hangs_leave.send(()).unwrap();
    let threads = mem::take(&mut reaper.shared.lock().threads);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(counts(&reaper), (2, 2, 0));
}

#[test]
#[cfg(unix)]
fn a_forked_child_leaks_quietly_and_never_hangs() {
    let reaper = Reaper::new();
    let (sender, receiver) = mpsc::channel::<()>();
    let (completer, fence) = host::promise("parent's");
    reaper.release(fence_set([&fence]), deleter(move || drop(sender)));
    let storage = never_dropped();
    let fine = {
        // The worst moment for a fork: another thread of the parent is inside. The child must not wait for
        // that lock.
        let _inside = reaper.shared.lock();
        let (reaper, storage) = (&reaper, &storage);
        estafette_sync::platform::child::in_forked_child(|| {
            // SAFETY: the child's copy of the storage, given up once in this process.
            reaper.release(FenceSet::default(), unsafe { std::ptr::read(storage) });
            // The child's own reaper works.
            let (own, (sender, receiver)) = (Reaper::new(), mpsc::channel::<()>());
            own.release(FenceSet::default(), deleter(move || drop(sender)));
            let has_run = receiver.recv().is_err() && own.flush(LONG);
            reaper.flush(LONG)
                && reaper.stop(LONG)
                && reaper.stats() == ReaperStats { leaked: 1, ..ReaperStats::default() }
                && has_run
                && counts(&own) == (1, 0, 0)
        })
    };
    assert!(fine);
    mem::forget(storage);
    assert_eq!(counts(&reaper), (0, 0, 1));
    completer.complete();
    assert!(receiver.recv().is_err(), "the parent's deleter ran");
    assert!(reaper.flush(LONG) && reaper.stop(LONG));
    assert_eq!(counts(&reaper), (1, 0, 0));
}

#[test]
fn the_reaper_of_the_process_is_one() {
    assert!(std::ptr::eq(reaper(), reaper()));
    let (sender, receiver) = mpsc::channel();
    reaper().release(FenceSet::default(), deleter(move || sender.send(()).unwrap()));
    receiver.recv().unwrap();
}

mod inline_deleters {
    use super::*;

    use crate::exchange::abi::{Abi, ExportFlags, export};
    use crate::exchange::reaper::with_inline_deleters;
    use crate::exchange::{DType, Layout, ManagedTensor};
    use estafette_devices::{DLDevice, Event, Subscriber, Watch};

    /// A foreign tensor without elements whose deleter runs `f`.
    fn foreign(f: impl FnOnce() + Send + 'static) -> ManagedTensor {
        let layout = Layout::contiguous(DType::U8, DLDevice::CPU, &[0]).unwrap();
        // SAFETY: there is no element to point at.
        unsafe { export(&layout, std::ptr::null_mut(), ExportFlags::default(), Abi::Versioned, f) }
    }

    fn noting(threads: &mpsc::Sender<Option<std::thread::ThreadId>>) -> impl FnOnce() + Send + 'static {
        let threads = threads.clone();
        move || threads.send(Some(std::thread::current().id())).unwrap()
    }

    #[test]
    fn a_inline_deleter_runs_at_once_in_a_good_place_and_on_the_reaper_thread_elsewhere() {
        let reaper = Reaper::new();
        let here = std::thread::current().id();
        let (sender, ran_on) = mpsc::channel();
        let storage = || Storage::foreign(foreign(noting(&sender)).with_inline_deleter());
        with_inline_deleters(|| {
            reaper.release(FenceSet::default(), storage());
            assert_eq!(ran_on.try_recv(), Ok(Some(here)));
        });
        reaper.release(FenceSet::default(), storage());
        assert!(reaper.flush(LONG));
        assert_ne!(ran_on.recv(), Ok(Some(here)));
        with_inline_deleters(|| {
            reaper.release(FenceSet::default(), Storage::foreign(foreign(noting(&sender))))
        });
        assert!(reaper.flush(LONG));
        assert_ne!(ran_on.recv(), Ok(Some(here)));
        assert_eq!((reaper.stats().deleters, reaper.stats().released), (3, 3));
    }

    #[test]
    fn a_inline_deleter_waits_for_fences_like_any_other() {
        let reaper = Reaper::new();
        let (sender, ran_on) = mpsc::channel();
        let (completer, fence) = host::promise("pending");
        with_inline_deleters(|| {
            let storage = Storage::foreign(foreign(noting(&sender)).with_inline_deleter());
            reaper.release(fence_set([&fence]), storage);
        });
        assert!(ran_on.try_recv().is_err());
        completer.complete();
        assert!(reaper.flush(LONG));
        assert!(ran_on.try_recv().is_ok());
    }

    /// Work that is done, as only a driver can tell. It notes which threads ask.
    #[derive(Debug)]
    struct AsksDriver(mpsc::Sender<std::thread::ThreadId>);

    impl Event for AsksDriver {
        fn device(&self) -> DLDevice {
            DLDevice::CPU
        }

        fn state(&self) -> FenceState {
            let _ = self.0.send(std::thread::current().id());
            FenceState::Done
        }

        fn observed_done(&self) -> bool {
            false
        }

        fn observed_state(&self) -> FenceState {
            FenceState::Pending
        }

        fn watch(&self, _: &Arc<dyn Subscriber>) -> Watch {
            Watch::MustPoll
        }
    }

    #[test]
    fn a_thread_with_a_lock_of_the_program_asks_no_driver() {
        let reaper = Reaper::new();
        let here = std::thread::current().id();
        let calls = Arc::new(AtomicUsize::new(0));
        let (sender, asked_on) = mpsc::channel();
        let fence = Fence::event(Arc::new(AsksDriver(sender)));
        with_inline_deleters(|| reaper.release(fence_set([&fence]), counting(&calls)));
        let asked = asked_on.recv_timeout(LONG).expect("the thread of the reaper asks without a flush");
        assert_ne!(asked, here);
        reaper.release(fence_set([&fence]), counting(&calls));
        assert_eq!(
            asked_on.try_iter().filter(|thread| *thread == here).count(),
            1,
            "a free thread asks itself"
        );
        assert!(reaper.flush(LONG));
        assert_eq!(calls.load(Ordering::Relaxed), 2);
        assert_eq!(counts(&reaper), (2, 0, 0));
    }

    #[test]
    fn of_a_chain_of_inline_deleters_only_the_first_runs_at_once() {
        let reaper = Arc::new(Reaper::new());
        let here = std::thread::current().id();
        let (sender, ran_on) = mpsc::channel();
        let (inner, again) = (noting(&sender), Arc::clone(&reaper));
        let outer = move || {
            with_inline_deleters(|| {
                again.release(FenceSet::default(), Storage::foreign(foreign(inner).with_inline_deleter()));
            });
        };
        with_inline_deleters(|| {
            reaper.release(FenceSet::default(), Storage::foreign(foreign(outer).with_inline_deleter()));
        });
        assert!(reaper.flush(LONG));
        assert_ne!(ran_on.recv(), Ok(Some(here)));
    }

    #[test]
    fn after_the_stop_inline_deleters_leak_too() {
        let reaper = Reaper::new();
        assert!(reaper.stop(LONG));
        let storage = foreign(|| panic!("the interpreter is gone"));
        with_inline_deleters(|| {
            reaper.release(FenceSet::default(), Storage::foreign(storage.with_inline_deleter()))
        });
        assert_eq!((reaper.stats().deleters, reaper.stats().leaked), (0, 1));
    }
}
