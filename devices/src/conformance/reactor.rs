use estafette_sync::sync::mpsc::channel;
use std::sync::Arc;

use estafette_sync::sync::atomic::{AtomicUsize, Ordering};

use crate::{Fence, FenceSet, Reactor, host};

use super::{Check, Skip, bench::Bench};

pub(super) const CHECKS: &[Check] = &[
    ("reactor: calls at once when nothing is pending", nothing_pending),
    ("reactor: calls once, after the last of several queues", after_the_last),
    ("reactor: serves many waiters on one queue", many_waiters),
    ("reactor: a panicking callback harms no other", panicking_callback),
    ("reactor: a callback may wait for more", callback_waits_for_more),
];

fn nothing_pending(bench: &Bench<'_>) -> Result<(), Skip> {
    let (queue, memory) = (bench.queue(), bench.memory(64));
    bench.fill(&*queue, &memory, 1);
    let fence = bench.record(&*queue);
    assert!(bench.settle(&fence).is_ok());
    for fence_set in [FenceSet::default(), FenceSet::from(fence)] {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        Reactor::global().when_settled(&fence_set, move |outcome| {
            assert!(outcome.is_ok());
            counted.fetch_add(1, Ordering::SeqCst);
        });
        assert_eq!(calls.load(Ordering::SeqCst), 1, "before the call returns");
    }
    Ok(())
}

fn after_the_last(bench: &Bench<'_>) -> Result<(), Skip> {
    bench.harness.queues_are_independent()?;
    let queues = [bench.queue(), bench.queue(), bench.queue()];
    let mut blocks = Vec::new();
    for queue in &queues {
        blocks.push(bench.block(&**queue)?);
    }
    let fences: Vec<_> = queues.iter().map(|queue| bench.record(&**queue)).collect();
    let (completer, promise) = host::promise("conformance");
    let fence_set: FenceSet = fences.iter().cloned().chain([promise]).collect();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    Reactor::global().when_settled(&fence_set, move |outcome| {
        assert!(outcome.is_ok());
        counted.fetch_add(1, Ordering::SeqCst);
    });
    for (blocked, fence) in blocks.into_iter().zip(&fences) {
        assert_eq!(calls.load(Ordering::SeqCst), 0);
        blocked.release();
        assert!(bench.settle(fence).is_ok());
    }
    assert_eq!(calls.load(Ordering::SeqCst), 0, "the promise is missing");
    completer.complete();
    bench.until(|| (calls.load(Ordering::SeqCst) > 0).then_some(()));
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    Ok(())
}

fn many_waiters(bench: &Bench<'_>) -> Result<(), Skip> {
    const WAITERS: usize = 500;
    let (queue, memory) = (bench.queue(), bench.memory(64));
    let blocked = bench.block(&*queue)?;
    let (told, tellings) = channel();
    let mut last: Option<Fence> = None;
    // A piece takes two places: its work, and the mark that its fence waits for.
    let pieces = 50.min(bench.harness.room() / 2);
    for waiter in 0..WAITERS {
        if waiter % WAITERS.div_ceil(pieces) == 0 {
            bench.fill(&*queue, &memory, waiter as u8);
            last = Some(bench.record(&*queue));
        }
        let told = told.clone();
        Reactor::global().when_settled(last.as_ref(), move |outcome| {
            told.send((waiter, outcome.is_ok())).expect("the check listens to the end");
        });
    }
    assert!(tellings.try_recv().is_err());
    blocked.release();
    let mut heard: Vec<usize> = Vec::new();
    bench.until(|| {
        for (waiter, done) in tellings.try_iter() {
            assert!(done);
            heard.push(waiter);
        }
        (heard.len() >= WAITERS).then_some(())
    });
    heard.sort_unstable();
    assert!(heard.into_iter().eq(0..WAITERS), "each waiter once");
    Ok(())
}

fn panicking_callback(bench: &Bench<'_>) -> Result<(), Skip> {
    let queue = bench.queue();
    let blocked = bench.block(&*queue)?;
    let fence = bench.record(&*queue);
    let calls = Arc::new(AtomicUsize::new(0));
    for waiter in 0..4 {
        let counted = calls.clone();
        Reactor::global().when_settled([&fence], move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            if waiter % 2 == 1 {
                // The panic hook is not run, so that the log of a check that passes has no panic in it.
                std::panic::resume_unwind(Box::new("this callback is broken on purpose"));
            }
        });
    }
    blocked.release();
    bench.until(|| (calls.load(Ordering::SeqCst) == 4).then_some(()));
    // Whatever observes fences is still alive.
    let blocked = bench.block(&*queue)?;
    let fence = bench.record(&*queue);
    blocked.release();
    assert!(bench.settle(&fence).is_ok());
    Ok(())
}

fn callback_waits_for_more(bench: &Bench<'_>) -> Result<(), Skip> {
    let queues = [bench.queue(), bench.queue()];
    let mut blocks = Vec::new();
    for queue in &queues {
        blocks.push(bench.block(&**queue)?);
    }
    let [first, second] = queues.each_ref().map(|queue| bench.record(&**queue));
    let (told, telling) = channel();
    Reactor::global().when_settled([first], move |_| {
        Reactor::global().when_settled([second], move |outcome| {
            told.send(outcome.is_ok()).expect("the check listens to the end");
        });
    });
    drop(blocks);
    assert!(bench.until(|| telling.try_recv().ok()));
    Ok(())
}
