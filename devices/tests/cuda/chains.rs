//! Cost in the driver of an operation on one stream.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use estafette_devices::{Queue, Reactor};

use crate::harness::{Bench, MOMENT, PATIENCE, bench, block, fill, order, record, settle};

#[test]
fn a_chain_on_one_stream_records_no_event_and_writes_nothing() {
    let bench = bench();
    let queue = bench.queue();
    let memory = bench.memory(64);
    let before = bench.device.counters();
    let blocked = block(&*queue);
    let mut last = record(&queue);
    for round in 0..500.min(bench.room()) {
        order(&queue, &last);
        fill(&queue, &memory, round as u8);
        last = record(&queue);
    }
    let chained = bench.device.counters();
    assert_eq!(chained.events_recorded, before.events_recorded);
    assert_eq!((chained.waits, chained.writes), (before.waits, before.writes));
    assert_eq!(chained.queue_queries, before.queue_queries, "no thread asked");
    assert!(!last.is_done());
    blocked.release();
    settle(&last).expect("nothing failed");
    let after = bench.device.counters();
    assert_eq!(after.writes - before.writes, 1, "the host asked once");
    assert_eq!(after.events_recorded, before.events_recorded);
    bench.assert_nothing_wrong();
}

#[test]
fn asking_again_is_a_load() {
    const ASKED: u32 = 100_000;
    let bench = bench();
    let queue = bench.queue();
    let memory = bench.memory(64);
    let blocked = block(&*queue);
    fill(&queue, &memory, 1);
    let fence = record(&queue);
    assert!(!fence.is_done(), "asked once, and now the device tells");
    let before = bench.device.counters();
    let start = Instant::now();
    for _ in 0..ASKED {
        assert!(!fence.is_done());
    }
    let took = start.elapsed();
    let after = bench.device.counters();
    assert_eq!(after.event_queries, before.event_queries);
    assert_eq!(after.writes, before.writes);
    // Now and then it is made sure that the device still works, as often as time allows.
    let most = took.as_millis() / 10 + 1;
    assert!(u128::from(after.queue_queries - before.queue_queries) <= most, "{after:?} after {took:?}");
    eprintln!("{:?} for each time a pending fence was asked (simulator, not a result)", took / ASKED);
    blocked.release();
    settle(&fence).expect("nothing failed");
    assert!(took < Duration::from_secs(10));
    bench.assert_nothing_wrong();
}

/// A launch on a stream that takes no more work holds its context's lock until the stream does. The reactor
/// asks the driver nothing while it waits.
#[test]
fn a_launch_that_waits_for_room_holds_up_no_notice_of_other_work() {
    let bench = bench();
    let Some(simulator) = bench.simulator("how many launches a stream takes is the driver's own business")
    else {
        return;
    };
    let (full, other) = (bench.queue(), bench.queue());
    let [first, second] = [(); 2].map(|()| bench.memory(64));
    let [to_full, to_other] = [&full, &other].map(|queue| queue.native());
    simulator.block(to_full);
    simulator.block(to_other);
    fill(&full, &first, 1);
    fill(&other, &second, 1);
    let (stuck, expected) = (record(&full), record(&other));
    let (sender, noticed) = mpsc::channel();
    Reactor::global().when_settled([&stuck], |_| ());
    Reactor::global().when_settled([&expected], move |outcome| {
        sender.send(outcome.is_ok()).expect("the test listens");
    });
    // Only the full stream is in the way.
    simulator.connections(0);
    simulator.depth(simulator.pending(to_full) as u32);
    simulator.forget_calls();
    thread::scope(|scope| {
        let launch = scope.spawn(|| fill(&full, &first, 2));
        while simulator.calls("cuMemsetD8Async") == 0 {
            thread::yield_now();
        }
        // Long enough for the driver to be asked whether the stream still works.
        thread::sleep(MOMENT);
        simulator.unblock(to_other);
        let noticed = noticed.recv_timeout(PATIENCE);
        // The queue can be asked for what needs no driver.
        let handle = full.native();
        let is_stuck = !launch.is_finished();
        simulator.unblock(to_full);
        assert_eq!((noticed, handle, is_stuck), (Ok(true), to_full, true));
    });
    settle(&record(&full)).expect("nothing failed");
    bench.assert_nothing_wrong();
}

#[test]
fn what_is_done_is_found_done_when_it_is_first_asked_for() {
    let bench = bench();
    let (queue, consumer) = (bench.queue(), bench.queue());
    let memory = bench.memory(64);
    fill(&queue, &memory, 1);
    let first = record(&queue);
    order(&consumer, &first);
    settle(&record(&consumer)).expect("nothing failed");
    assert!(first.is_done(), "its event was there already");
    fill(&queue, &memory, 2);
    let second = record(&queue);
    // Another queue's fence is done after a wait for it; so is what it waited for.
    order(&consumer, &second);
    settle(&record(&consumer)).expect("nothing failed");
    assert!(second.is_done());
    bench.assert_nothing_wrong();
}

#[test]
fn events_are_used_again_and_again() {
    let bench = bench();
    let (queue, consumer) = (bench.queue(), bench.queue());
    let memory = bench.memory(64);
    let round = || {
        for _ in 0..100 {
            fill(&queue, &memory, 1);
            let fence = record(&queue);
            order(&consumer, &fence);
        }
        settle(&record(&consumer)).expect("nothing failed");
        settle(&record(&queue)).expect("nothing failed");
    };
    round();
    let before = bench.device.counters();
    (0..10).for_each(|_| round());
    let after = bench.device.counters();
    assert!(after.events_recorded - before.events_recorded >= 1_000);
    let created = after.events_created - before.events_created;
    assert!(created < 100, "{created} more events, though none is held");
    bench.assert_nothing_wrong();
}

#[test]
fn a_stream_goes_with_its_last_fence_and_its_work_goes_on() {
    let bench = bench();
    if !bench.runs_beside(101) {
        return;
    }
    let memory = bench.memory(64);
    // More streams than one page has words, with a number on its way to each word; only the last fence is
    // kept.
    let held_back = |bench: &Bench| {
        let queue = bench.queue();
        let blocked = block(&*queue);
        let fence = record(&queue);
        assert!(!fence.is_done());
        (queue, fence, blocked)
    };
    let old: Vec<_> = (0..100).map(|_| held_back(&bench)).collect();
    let mut blocks: Vec<_> = old.into_iter().map(|(_, _, blocked)| blocked).collect();
    let (queue, _, blocked) = held_back(&bench);
    fill(&queue, &memory, 7);
    let last = record(&queue);
    blocks.push(blocked);
    drop(queue);
    let fresh: Vec<_> = (0..100).map(|_| held_back(&bench)).collect();
    drop(blocks);
    settle(&last).expect("nothing failed");
    thread::sleep(MOMENT);
    // A word that had been used again would have got the number of the stream that it was of before.
    assert!(fresh.iter().all(|(_, fence, _)| !fence.is_done()), "these are still held back");
    for (_, fence, blocked) in fresh {
        blocked.release();
        settle(&fence).expect("nothing failed");
    }
    bench.assert_filled(&memory, 7);
    bench.assert_nothing_wrong();
}

#[test]
fn who_asks_again_and_again_is_answered_by_loads() {
    const QUESTIONS: usize = 10_000;
    let bench = bench();
    if !bench.device.counts() {
        return eprintln!("skipped: the device does not count");
    }
    let queue = bench.queue();
    let blocked = block(&*queue);
    let fence = record(&queue);
    assert_eq!(fence.peek(), None, "no thread has asked for it yet");
    assert!(!fence.is_done());
    let (before, begin) = (bench.device.counters(), Instant::now());
    let mut unanswered = 0;
    for _ in 0..QUESTIONS {
        match fence.peek() {
            Some(done) => assert!(!done),
            // From time to time a poll queries whether the stream still works.
            None => {
                unanswered += 1;
                assert!(!fence.is_done());
            }
        }
    }
    let looks = (begin.elapsed().as_millis() / 10) as u64 + 1;
    let after = bench.device.counters();
    assert!(unanswered <= looks, "{unanswered} of {QUESTIONS}, in {looks} times 10 ms");
    assert!(after.queue_queries - before.queue_queries <= looks);
    assert_eq!((after.event_queries, after.writes), (before.event_queries, before.writes));
    blocked.release();
    settle(&fence).expect("nothing failed");
    assert_eq!(fence.peek(), Some(true));
    bench.assert_nothing_wrong();
}
