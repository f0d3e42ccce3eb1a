use estafette_sync::sync::mpsc::channel;

use crate::{DeviceErrorKind, Fence, FenceSet, FenceState, Queue, Reactor};

use super::{Blocked, Check, Skip, bench::Bench};

pub(super) const CHECKS: &[Check] = &[
    ("failure: unfinished fences fail with one root error, as often as asked", one_root_error),
    ("failure: what was done before stays done", done_before_stays_done),
    ("failure: a failed queue takes no more work", takes_no_more),
    ("failure: a queue that waits for a failed one does not hang", waiting_queue),
    ("failure: callbacks and futures get the error", callbacks_get_the_error),
];

/// Breaks `queue`, which goes on only when the guard is dropped, and gives a fence of what fails there.
fn break_held(bench: &Bench<'_>, queue: &dyn Queue) -> Result<(Blocked, Fence), Skip> {
    bench.harness.can_break()?;
    let blocked = bench.block_all(queue)?;
    bench.harness.break_queue(queue);
    Ok((blocked, bench.record(queue)))
}

fn one_root_error(bench: &Bench<'_>) -> Result<(), Skip> {
    let (queue, memory) = (bench.queue(), bench.memory(64));
    let (blocked, first) = break_held(bench, &*queue)?;
    bench.order(&*queue, &first);
    bench.fill(&*queue, &memory, 1);
    let second = bench.record(&*queue);
    blocked.release();
    let root = bench.settle(&first).expect_err("its work failed");
    for fence in [&first, &second, &first] {
        let FenceState::Failed(error) = fence.state() else { panic!("{fence:?} should have failed") };
        assert!(error.same_root(&root), "{error} is not {root}");
        assert_eq!(error.kind(), root.kind());
        assert!(!fence.is_done());
        let waited = fence.wait_timeout(None).expect("no timeout");
        assert!(waited.is_err_and(|error| error.same_root(&root)));
    }
    bench.assert_untouched(&memory);
    Ok(())
}

fn done_before_stays_done(bench: &Bench<'_>) -> Result<(), Skip> {
    let (queue, memory) = (bench.queue(), bench.memory(64));
    bench.fill(&*queue, &memory, 1);
    let before = bench.record(&*queue);
    assert!(bench.settle(&before).is_ok());
    let (blocked, after) = break_held(bench, &*queue)?;
    blocked.release();
    assert!(bench.settle(&after).is_err());
    assert!(before.is_done());
    let mut fence_set: FenceSet = [before, after].into_iter().collect();
    fence_set.prune();
    assert!(matches!(fence_set.state(), FenceState::Failed(_)), "failures are not pruned");
    Ok(())
}

fn takes_no_more(bench: &Bench<'_>) -> Result<(), Skip> {
    let (queue, other, memory) = (bench.queue(), bench.queue(), bench.memory(64));
    let (blocked, fence) = break_held(bench, &*queue)?;
    blocked.release();
    let root = bench.settle(&fence).expect_err("its work failed");
    for _ in 0..2 {
        let refused = bench.harness.fill(&*queue, &memory, 1).expect_err("the queue has failed");
        assert!(refused.same_root(&root));
        assert!(queue.record().is_err_and(|error| error.same_root(&root)));
        assert!(queue.order_after(&fence).is_err_and(|error| error.same_root(&root)));
        assert!(other.order_after(&fence).is_err(), "a failed fence cannot be waited for");
    }
    Ok(())
}

fn waiting_queue(bench: &Bench<'_>) -> Result<(), Skip> {
    let (broken, waiting, memory) = (bench.queue(), bench.queue(), bench.memory(64));
    let (blocked, fence) = break_held(bench, &*broken)?;
    bench.order(&*waiting, &fence);
    bench.fill(&*waiting, &memory, 1);
    let dependent = bench.record(&*waiting);
    blocked.release();
    let root = bench.settle(&fence).expect_err("its work failed");
    let outcome = bench.settle(&dependent);
    assert!(outcome.is_err_and(|error| error.same_root(&root)), "it can never run as ordered");
    bench.assert_untouched(&memory);
    Ok(())
}

fn callbacks_get_the_error(bench: &Bench<'_>) -> Result<(), Skip> {
    bench.harness.queues_are_independent()?;
    bench.harness.can_break()?;
    let (broken, fine) = (bench.queue(), bench.queue());
    let (blocked_broken, blocked_fine) = (bench.block_all(&*broken)?, bench.block(&*fine)?);
    bench.harness.break_queue(&*broken);
    let fences = [bench.record(&*broken), bench.record(&*fine)];
    let (told, telling) = channel();
    Reactor::global().when_settled(&fences, move |outcome| {
        told.send(outcome).expect("the check listens to the end");
    });
    blocked_broken.release();
    assert!(bench.settle(&fences[0]).is_err());
    // A queue that broke with the other has settled as well.
    if !bench.harness.breaks_the_device() {
        assert!(telling.try_recv().is_err(), "all of them settle first");
    }
    blocked_fine.release();
    let error = bench.until(|| telling.try_recv().ok()).expect_err("one of them failed");
    assert_ne!(error.kind(), DeviceErrorKind::Cancelled);
    Ok(())
}
