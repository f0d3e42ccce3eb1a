//! Queues that wait for each other: the cases in which others have lost a wait.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use estafette_devices::{Device, Fence, Order};

use crate::harness::{MOMENT, bench, block, fill, order, record, settle};

/// Each of two streams reads what the other one writes.
#[test]
fn crossed_streams() {
    let bench = bench();
    let (a, b) = (bench.queue(), bench.queue());
    let [x, y, from_x, from_y] = [(); 4].map(|()| bench.memory(4_096));
    let blocks = [block(&*a), block(&*b)];
    fill(&a, &x, 1);
    let x_written = record(&a);
    fill(&b, &y, 2);
    let y_written = record(&b);
    assert_eq!(order(&a, &y_written), Order::Device);
    bench.copy(&a, &y, &from_y);
    assert_eq!(order(&b, &x_written), Order::Device);
    bench.copy(&b, &x, &from_x);
    let ends = [record(&a), record(&b)];
    drop(blocks);
    ends.iter().for_each(|end| settle(end).expect("nothing failed"));
    bench.assert_filled(&from_x, 1);
    bench.assert_filled(&from_y, 2);
    bench.assert_nothing_wrong();
}

/// One event per variable would know the last reader only.
#[test]
fn a_writer_after_two_readers_on_two_streams() {
    let bench = bench();
    if !bench.runs_beside(1) {
        return;
    }
    let (first, second, writer) = (bench.queue(), bench.queue(), bench.queue());
    let [shared, a, b] = [(); 3].map(|()| bench.memory(4_096));
    fill(&writer, &shared, 1);
    let written = record(&writer);
    let blocked_first = block(&*first);
    order(&first, &written);
    bench.copy(&first, &shared, &a);
    let first_read = record(&first);
    order(&second, &written);
    bench.copy(&second, &shared, &b);
    let second_read = record(&second);
    for read in [&first_read, &second_read] {
        order(&writer, read);
    }
    fill(&writer, &shared, 2);
    let rewritten = record(&writer);
    settle(&second_read).expect("nothing holds it up");
    assert!(rewritten.wait_timeout(Some(MOMENT)).is_none(), "one reader is not done");
    blocked_first.release();
    settle(&rewritten).expect("nothing failed");
    bench.assert_filled(&a, 1);
    bench.assert_filled(&b, 1);
    bench.assert_nothing_wrong();
}

/// A ring of 64 events would have been used more than thrice, and the first waits be for other work.
#[test]
fn far_more_than_64_operations_in_flight() {
    let bench = bench();
    // A stream takes two commands for each: the work and an event.
    let count = 200.min(bench.room() / 2);
    let (producer, consumer) = (bench.queue(), bench.queue());
    let pairs: Vec<_> = (0..count).map(|_| [bench.memory(256), bench.memory(256)]).collect();
    let elsewhere: Vec<_> = (0..count).map(|_| bench.queue()).collect();
    let before = bench.device.counters();
    let blocked = block(&*producer);
    let mut fences = Vec::new();
    for ((number, [source, _]), elsewhere) in pairs.iter().enumerate().zip(&elsewhere) {
        fill(&producer, source, number as u8);
        // Asked for one by one, so that each has an event of its own.
        let written = record(&producer);
        order(elsewhere, &written);
        fences.push(written);
    }
    for ([source, target], written) in pairs.iter().zip(&fences) {
        assert_eq!(order(&consumer, written), Order::Device);
        bench.copy(&consumer, source, target);
    }
    let end = record(&consumer);
    assert!(end.wait_timeout(Some(MOMENT)).is_none());
    let between = bench.device.counters();
    assert!(between.events_recorded - before.events_recorded >= count as u64);
    blocked.release();
    settle(&end).expect("nothing failed");
    for (number, [_, target]) in pairs.iter().enumerate() {
        bench.assert_filled(target, number as u8);
    }
    assert!(fences.iter().all(|fence| fence.is_done()));
    bench.assert_nothing_wrong();
}

/// A number means what was enqueued before it was given, whatever another thread enqueues at that moment.
#[test]
fn a_number_is_taken_while_another_thread_enqueues() {
    let bench = bench();
    let (shared, consumer) = (bench.queue(), bench.queue());
    let [noise, source, target] = [(); 3].map(|()| bench.memory(4_096));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                fill(&shared, &noise, 9);
                record(&shared);
                thread::yield_now();
            }
        });
        for round in 1..=100 {
            fill(&shared, &source, round);
            let written = record(&shared);
            order(&consumer, &written);
            bench.copy(&consumer, &source, &target);
            let read = record(&consumer);
            order(&shared, &read);
            if round % 10 == 0 {
                settle(&read).expect("nothing failed");
                bench.assert_filled(&target, round);
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    settle(&record(&shared)).expect("nothing failed");
    bench.assert_nothing_wrong();
}

/// An event recorded late covers what was enqueued meanwhile. A wait for another stream must not be part of
/// that, or two streams would wait for each other.
#[test]
fn an_event_that_is_recorded_after_a_foreign_wait() {
    let bench = bench();
    if !bench.runs_beside(1) {
        return;
    }
    let (queue, consumer) = (bench.queue(), bench.queue());
    let [source, target] = [(); 2].map(|()| bench.memory(4_096));
    let stranger = bench.foreign_stream();
    // SAFETY: the stream lives to the end of the test.
    let acquired = unsafe { bench.device.foreign_queue(stranger.handle()) }.expect("it is of the device");
    let blocked = block(&*acquired);
    let foreign = acquired.record().expect("it works");
    fill(&queue, &source, 3);
    let written = record(&queue);
    assert_eq!(order(&queue, &foreign), Order::Device);
    // From here on the stream is stuck, and what is asked of `written` is asked too late.
    order(&consumer, &written);
    bench.copy(&consumer, &source, &target);
    settle(&record(&consumer)).expect("the consumer does not wait for the stranger");
    settle(&written).expect("and neither does the host");
    assert!(written.is_done());
    let after = record(&queue);
    assert!(after.wait_timeout(Some(MOMENT)).is_none(), "what comes after the wait waits");
    blocked.release();
    settle(&after).expect("nothing failed");
    bench.assert_filled(&target, 3);
    bench.assert_nothing_wrong();
}

/// The same where the first to ask is the host.
#[test]
fn the_host_asks_after_a_foreign_wait() {
    let bench = bench();
    if !bench.runs_beside(1) {
        return;
    }
    let queue = bench.queue();
    let memory = bench.memory(64);
    let stranger = bench.foreign_stream();
    // SAFETY: the stream lives to the end of the test.
    let acquired = unsafe { bench.device.foreign_queue(stranger.handle()) }.expect("it is of the device");
    let blocked = block(&*acquired);
    let foreign = acquired.record().expect("it works");
    fill(&queue, &memory, 3);
    let written = record(&queue);
    order(&queue, &foreign);
    let (sender, receiver) = std::sync::mpsc::channel();
    estafette_devices::Reactor::global().when_settled([&written], move |outcome| {
        sender.send(outcome).expect("the test listens");
    });
    let told =
        receiver.recv_timeout(crate::harness::PATIENCE).expect("the host need not wait for the stranger");
    assert!(told.is_ok());
    blocked.release();
    settle(&record(&queue)).expect("nothing failed");
    bench.assert_nothing_wrong();
}

/// Two streams take turns with one tensor: one wait for each crossing, and the host waits for none.
#[test]
fn a_thousand_crossings() {
    let bench = bench();
    // A stream takes three commands for every second round: a wait, the work and an event.
    let rounds = 1_000.min(bench.room() / 3 * 2);
    let queues = [bench.queue(), bench.queue()];
    let memory = bench.memory(64);
    let before = bench.device.counters();
    let blocked = block(&*queues[0]);
    let start = Instant::now();
    let mut last = None;
    for round in 0..rounds {
        let queue = &queues[round % 2];
        if let Some(last) = &last {
            order(queue, last);
            assert_eq!(order(queue, last), Order::Nothing, "once is enough");
        }
        fill(queue, &memory, round as u8);
        last = Some(record(queue));
    }
    let enqueued = start.elapsed();
    let last = last.expect("there were some");
    assert!(last.state().is_pending(), "nothing ran yet, after {enqueued:?}");
    blocked.release();
    settle(&last).expect("nothing failed");
    bench.assert_filled(&memory, (rounds - 1) as u8);
    let after = bench.device.counters();
    assert_eq!(after.waits - before.waits, rounds as u64 - 1);
    assert!(after.events_recorded - before.events_recorded <= rounds as u64);
    bench.assert_nothing_wrong();
}

#[test]
fn queues_of_two_devices_wait_for_each_other() {
    let bench = bench();
    let Some(other) = bench.another_device() else { return };
    let (here, there) = (bench.queue(), other.queue().expect("it gives queues"));
    let source = bench.memory(4_096);
    let target = other.allocate(4_096, 64).expect("there is room");
    let blocked = block(&*here);
    fill(&here, &source, 5);
    let written = record(&here);
    assert_eq!(order(&there, &written), Order::Device);
    // SAFETY: ordered by the wait, and settled before either is dropped.
    unsafe { other.copy(&*there, source.ptr().as_ptr(), target.ptr().as_ptr(), 4_096) }
        .expect("devices copy from each other");
    let read = record(&there);
    assert!(read.same_or_later_on_queue(&written));
    assert!(read.wait_timeout(Some(MOMENT)).is_none());
    blocked.release();
    settle(&read).expect("nothing failed");
    let mut host = vec![0; 4_096];
    // SAFETY: settled at once.
    unsafe { other.copy(&*there, target.ptr().as_ptr(), host.as_mut_ptr(), host.len()) }.expect("it works");
    settle(&record(&there)).expect("nothing failed");
    assert_eq!(host, [5; 4_096]);
    bench.assert_nothing_wrong();
}

/// Several threads ask for the same fences at the same moment, some for their queues and some for themselves.
#[test]
fn threads_that_pass_tensors_around() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 30;
    let bench = bench();
    let memory: Vec<Vec<_>> =
        (0..=ROUNDS).map(|_| (0..THREADS).map(|_| bench.memory(256)).collect()).collect();
    let origin = bench.queue();
    let mut first = Vec::new();
    for (number, target) in memory[0].iter().enumerate() {
        fill(&origin, target, number as u8 + 1);
        first.push(record(&origin));
    }
    let passed: Vec<Mutex<Vec<Fence>>> = first.into_iter().map(|fence| Mutex::new(vec![fence])).collect();
    thread::scope(|scope| {
        for own in 0..THREADS {
            let (bench, memory, passed) = (&bench, &memory, &passed);
            scope.spawn(move || {
                let queue = bench.queue();
                for round in 1..=ROUNDS {
                    // From the next thread, once it has passed on what it had in the round before.
                    let from = (own + 1) % THREADS;
                    let given = loop {
                        let given = passed[from].lock().expect("no thread panics").get(round - 1).cloned();
                        if let Some(given) = given {
                            break given;
                        }
                        thread::yield_now();
                    };
                    if round % 3 == own % 3 {
                        let _ = given.is_done();
                    }
                    order(&queue, &given);
                    bench.copy(&queue, &memory[round - 1][from], &memory[round][own]);
                    passed[own].lock().expect("no thread panics").push(record(&queue));
                }
            });
        }
    });
    for (own, fences) in passed.iter().enumerate() {
        let fences = fences.lock().expect("no thread panics");
        settle(&fences[ROUNDS]).expect("nothing failed");
        bench.assert_filled(&memory[ROUNDS][own], ((own + ROUNDS) % THREADS) as u8 + 1);
    }
    bench.assert_nothing_wrong();
}
