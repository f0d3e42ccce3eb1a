use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use estafette_devices::{FenceSet, host};

use super::super::THREADS_MAX;
use super::super::tests::{LONG, counting, counts, deleter, fence_set, gated, never_dropped};
use super::*;
use crate::exchange::Storage;

/// Waits until `done`.
fn until(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

fn statuses(reaper: &Reaper) -> Vec<ReleaseStatus> {
    reaper.slow().iter().map(|release| release.status).collect()
}

/// Storage at `address`, which nothing follows, whose drop runs `f`.
fn at(address: usize, f: impl FnOnce() + Send + 'static) -> Storage {
    let inner = deleter(f);
    Storage::owned(Box::new(inner), std::ptr::without_provenance_mut(address))
}

#[test]
fn a_deleter_that_does_not_return_is_named_and_the_others_go_on() {
    let reaper = Reaper::new();
    let calls = Arc::new(AtomicUsize::new(0));
    let (hangs, has_begun, leave) = gated();
    let layout = Layout::contiguous(DType::F32, DLDevice::CPU, &[20, 5]).unwrap();
    reaper.release_of(FenceSet::default(), hangs, || ReleasedMemory::tensor(17, &layout));
    has_begun.recv().unwrap();
    (0..500).for_each(|_| reaper.release(FenceSet::default(), counting(&calls)));
    until("the others go on", || calls.load(Ordering::Relaxed) == 500);
    until("they are counted", || counts(&reaper) == (500, 0, 1));
    let slow = reaper.slow();
    assert_eq!(slow.len(), 1, "{slow:?}");
    assert_eq!(slow[0].status, ReleaseStatus::Deleting);
    assert!(slow[0].age >= SLOW, "{slow:?}");
    let text = slow[0].to_string();
    assert!(text.contains("deleter of the tensor of variable 17 (float32 [20, 5] on cpu:0)"), "{text}");
    assert!(!reaper.flush(Duration::ZERO), "one is still to come back");
    leave.send(()).unwrap();
    assert!(reaper.flush(LONG));
    assert_eq!(counts(&reaper), (501, 0, 0));
    assert!(reaper.slow().is_empty());
    assert!(reaper.stop(LONG));
}

/// Memory that was taken together with a deleter that hangs is not stuck with it, although nothing is handed
/// over any more.
#[test]
fn what_was_taken_together_with_a_deleter_that_hangs_goes_on() {
    let reaper = Reaper::new();
    let calls = Arc::new(AtomicUsize::new(0));
    let (first, has_begun, leave_first) = gated();
    let (hangs, hangs_has_begun, leave) = gated();
    reaper.release(FenceSet::default(), first);
    has_begun.recv().unwrap();
    reaper.release(FenceSet::default(), hangs);
    reaper.release(FenceSet::default(), counting(&calls));
    leave_first.send(()).unwrap();
    hangs_has_begun.recv().unwrap();
    until("the other one goes on", || calls.load(Ordering::Relaxed) == 1);
    leave.send(()).unwrap();
    assert!(reaper.flush(LONG) && reaper.stop(LONG));
    assert_eq!(counts(&reaper), (3, 0, 0));
}

#[test]
fn deleters_that_hang_take_a_bounded_number_of_threads() {
    let reaper = Reaper::new();
    let calls = Arc::new(AtomicUsize::new(0));
    let mut hanging: Vec<_> = (0..THREADS_MAX)
        .map(|_| {
            let (hangs, has_begun, leave) = gated();
            reaper.release(FenceSet::default(), hangs);
            (has_begun, leave)
        })
        .collect();
    reaper.release(FenceSet::default(), counting(&calls));
    for (has_begun, _) in &hanging {
        has_begun.recv_timeout(LONG).unwrap();
    }
    let mut expected = vec![ReleaseStatus::Deleting; THREADS_MAX];
    expected.push(ReleaseStatus::Queued);
    until("all are named, and what waits for them", || statuses(&reaper) == expected);
    assert_eq!((calls.load(Ordering::Relaxed), reaper.shared.lock().threads.len()), (0, THREADS_MAX));
    // The thread that comes back first goes on with the others, although the leader still hangs.
    let (_, leave) = hanging.remove(0);
    leave.send(()).unwrap();
    until("memory goes on", || calls.load(Ordering::Relaxed) == 1);
    hanging.into_iter().for_each(|(_, leave)| leave.send(()).unwrap());
    assert!(reaper.flush(LONG));
    assert_eq!(counts(&reaper), (THREADS_MAX as u64 + 1, 0, 0));
    // Of the threads that came back at most one stays, to follow the leader.
    until("the others leave", || reaper.shared.lock().threads.len() <= 2);
    assert!(reaper.stop(LONG));
    assert!(reaper.shared.lock().threads.is_empty());
}

#[test]
fn deleters_of_the_same_memory_keep_their_order_when_one_is_slow() {
    let reaper = Reaper::new();
    let (order, seen) = mpsc::channel();
    let (entered, has_begun) = mpsc::channel();
    let (leave, may_leave) = mpsc::channel::<()>();
    let note = |name: &'static str| {
        let order = order.clone();
        move || order.send(name).unwrap()
    };
    let ends = note("the slow one ends");
    reaper.release(
        FenceSet::default(),
        at(0x1000, move || {
            entered.send(()).unwrap();
            may_leave.recv().unwrap();
            ends();
        }),
    );
    has_begun.recv().unwrap();
    reaper.release(FenceSet::default(), at(0x1000, note("the same memory, second")));
    reaper.release(FenceSet::default(), at(0x2000, note("other memory")));
    reaper.release(FenceSet::default(), at(0x1000, note("the same memory, third")));
    assert_eq!(seen.recv_timeout(LONG), Ok("other memory"));
    until("the second is named", || statuses(&reaper) == [ReleaseStatus::Deleting, ReleaseStatus::Queued]);
    assert!(seen.try_recv().is_err());
    leave.send(()).unwrap();
    assert!(reaper.flush(LONG));
    let rest: Vec<_> = seen.try_iter().collect();
    assert_eq!(rest, ["the slow one ends", "the same memory, second", "the same memory, third"]);
    assert!(reaper.stop(LONG));
}

#[test]
fn a_stop_runs_what_is_behind_a_deleter_that_hangs_and_says_that_one_has_not_ended() {
    let reaper = Reaper::new();
    let calls = Arc::new(AtomicUsize::new(0));
    let (hangs, has_begun, leave) = gated();
    reaper.release(FenceSet::default(), hangs);
    has_begun.recv().unwrap();
    (0..10).for_each(|_| reaper.release(FenceSet::default(), counting(&calls)));
    assert!(!reaper.stop(SLOW * 20), "one is still in its deleter");
    assert_eq!((calls.load(Ordering::Relaxed), counts(&reaper)), (10, (10, 0, 1)));
    reaper.release(FenceSet::default(), never_dropped());
    leave.send(()).unwrap();
    until("it has returned", || counts(&reaper) == (11, 1, 0));
    assert!(reaper.stop(LONG));
}

#[test]
fn memory_that_waits_for_device_work_for_long_is_named() {
    let reaper = Reaper::new();
    let layout = Layout::contiguous(DType::I8, DLDevice::CPU, &[1, 2, 3, 4, 5]).unwrap();
    let (completer, fence) = host::promise("a long kernel");
    let storage = Storage::vec(vec![0_i8; 120]);
    reaper.release_of(fence_set([&fence]), storage, || ReleasedMemory::tensor(4, &layout));
    assert!(reaper.slow().is_empty(), "seconds are usual there");
    let [long] = &reaper.slower_than(SLOW, Duration::ZERO)[..] else { panic!("one waits") };
    assert_eq!(long.status, ReleaseStatus::Fenced);
    let text = long.to_string();
    assert!(text.contains("variable 4 (int8 [1, 2, 3, 4, ...] on cpu:0) at 0x"), "{text}");
    completer.complete();
    assert!(reaper.flush(LONG) && reaper.slower_than(Duration::ZERO, Duration::ZERO).is_empty());
    assert!(reaper.stop(LONG));
}
