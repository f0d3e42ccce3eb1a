use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use estafette_sync::sync::atomic::{AtomicUsize, Ordering};

use super::{Check, Skip, bench::Bench};

pub(super) const CHECKS: &[Check] = &[
    ("fence: of a queue without work is done", without_work),
    ("fence: is pending until its work is done", pending_until_done),
    ("fence: stays done and can be asked for ever", stays_done),
    ("fence: of one queue settle in order of recording", settle_in_order),
    ("fence: waiting with a timeout gives up and can be repeated", wait_with_timeout),
    ("fence: a future is woken once the work is done", future_is_woken),
    ("fence: dropping a future cancels only the waiting", dropping_a_future),
    ("fence: outlives its queue", outlives_its_queue),
];

fn without_work(bench: &Bench<'_>) -> Result<(), Skip> {
    let queue = bench.queue();
    let fence = bench.record(&*queue);
    assert!(bench.settle(&fence).is_ok());
    assert_eq!(fence.device(), bench.device.id());
    Ok(())
}

fn pending_until_done(bench: &Bench<'_>) -> Result<(), Skip> {
    let (queue, memory) = (bench.queue(), bench.memory(64));
    let blocked = bench.block_all(&*queue)?;
    bench.fill(&*queue, &memory, 7);
    let fence = bench.record(&*queue);
    for _ in 0..10 {
        bench.harness.advance();
        assert!(fence.state().is_pending());
        assert!(!fence.is_done());
        assert!(!fence.observed_done());
    }
    blocked.release();
    assert!(bench.settle(&fence).is_ok());
    bench.assert_filled(&memory, 7);
    Ok(())
}

fn stays_done(bench: &Bench<'_>) -> Result<(), Skip> {
    let (queue, memory) = (bench.queue(), bench.memory(64));
    bench.fill(&*queue, &memory, 1);
    let fence = bench.record(&*queue);
    assert!(bench.settle(&fence).is_ok());
    bench.fill(&*queue, &memory, 2);
    for _ in 0..10 {
        assert!(fence.is_done());
        assert!(fence.wait_timeout(None).is_some_and(|outcome| outcome.is_ok()));
    }
    assert!(bench.settle(&bench.record(&*queue)).is_ok());
    Ok(())
}

fn settle_in_order(bench: &Bench<'_>) -> Result<(), Skip> {
    let (queue, memory) = (bench.queue(), bench.memory(64));
    let blocked = bench.block_all(&*queue)?;
    let fences: Vec<_> = (0..5)
        .map(|value| {
            bench.fill(&*queue, &memory, value);
            bench.record(&*queue)
        })
        .collect();
    for pair in fences.windows(2) {
        assert!(pair[1].same_or_later_on_queue(&pair[0]));
        assert!(!pair[0].same_or_later_on_queue(&pair[1]));
    }
    assert!(fences.iter().all(|fence| fence.state().is_pending()));
    blocked.release();
    assert!(bench.settle(&fences[4]).is_ok());
    assert!(fences.iter().all(|fence| fence.is_done()), "a later fence covers the earlier ones");
    Ok(())
}

fn wait_with_timeout(bench: &Bench<'_>) -> Result<(), Skip> {
    let queue = bench.queue();
    let blocked = bench.block(&*queue)?;
    let fence = bench.record(&*queue);
    assert!(fence.wait_timeout(Some(Duration::ZERO)).is_none());
    for _ in 0..3 {
        assert!(fence.wait_timeout(Some(Duration::from_millis(1))).is_none());
    }
    blocked.release();
    assert!(bench.settle(&fence).is_ok());
    assert!(fence.wait_timeout(Some(Duration::ZERO)).is_some());
    Ok(())
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn future_is_woken(bench: &Bench<'_>) -> Result<(), Skip> {
    let queue = bench.queue();
    let blocked = bench.block(&*queue)?;
    let fence = bench.record(&*queue);
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(wakes.clone());
    let mut context = Context::from_waker(&waker);
    let mut settled = pin!(fence.settled());
    assert!(settled.as_mut().poll(&mut context).is_pending());
    assert!(settled.as_mut().poll(&mut context).is_pending(), "polling again does not register again");
    assert_eq!(wakes.0.load(Ordering::SeqCst), 0);
    blocked.release();
    bench.until(|| (wakes.0.load(Ordering::SeqCst) > 0).then_some(()));
    assert!(matches!(settled.as_mut().poll(&mut context), Poll::Ready(Ok(()))));
    assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
    let mut late = pin!(fence.settled());
    assert!(late.as_mut().poll(&mut context).is_ready(), "a future of a done fence is ready at once");
    Ok(())
}

fn dropping_a_future(bench: &Bench<'_>) -> Result<(), Skip> {
    let (queue, memory) = (bench.queue(), bench.memory(64));
    let blocked = bench.block_all(&*queue)?;
    bench.fill(&*queue, &memory, 9);
    let fence = bench.record(&*queue);
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(wakes.clone());
    for _ in 0..100 {
        let mut settled = Box::pin(fence.settled());
        assert!(settled.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    assert_eq!(Arc::strong_count(&wakes), 2, "a dropped future keeps no waker");
    blocked.release();
    assert!(bench.settle(&fence).is_ok());
    assert_eq!(wakes.0.load(Ordering::SeqCst), 0);
    bench.assert_filled(&memory, 9);
    Ok(())
}

fn outlives_its_queue(bench: &Bench<'_>) -> Result<(), Skip> {
    let (queue, memory) = (bench.queue(), bench.memory(64));
    let blocked = bench.block_all(&*queue)?;
    bench.fill(&*queue, &memory, 5);
    let fence = bench.record(&*queue);
    let id = queue.id();
    drop(queue);
    assert!(fence.state().is_pending());
    blocked.release();
    assert!(bench.settle(&fence).is_ok());
    assert!(fence.queue().is_none_or(|queue| queue == id));
    bench.assert_filled(&memory, 5);
    Ok(())
}
