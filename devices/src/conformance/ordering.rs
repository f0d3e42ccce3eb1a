use crate::{DeviceError, DeviceErrorKind, Order, host};

use super::{Check, Skip, bench::Bench};

pub(super) const CHECKS: &[Check] = &[
    ("ordering: an in-order queue needs no wait for its own fences", own_fences),
    ("ordering: a consumer on another queue sees what the producer wrote", producer_and_consumer),
    ("ordering: a writer waits for readers on two queues", two_readers_then_a_writer),
    ("ordering: a wait that was made is not made again", no_wait_twice),
    ("ordering: a wait for something newer covers what is older", newer_covers_older),
    ("ordering: a wait that another wait implies is not made", implied_by_another_wait),
    ("ordering: what is not implied is waited for", not_implied),
    ("ordering: a done fence needs no wait", done_needs_no_wait),
    ("ordering: a promise of the host is waited for by the host", promises),
    ("ordering: a failed promise is refused", failed_promise),
];

fn own_fences(bench: &Bench<'_>) -> Result<(), Skip> {
    let queue = bench.queue();
    if !queue.in_order() {
        return Err(Skip::because("its queues are out of order"));
    }
    let blocked = bench.block(&*queue)?;
    let fence = bench.record(&*queue);
    assert_eq!(bench.order(&*queue, &fence), Order::Nothing);
    blocked.release();
    assert!(bench.settle(&fence).is_ok());
    Ok(())
}

fn producer_and_consumer(bench: &Bench<'_>) -> Result<(), Skip> {
    let (producer, consumer) = (bench.queue(), bench.queue());
    let (source, target) = (bench.memory(256), bench.memory(256));
    let blocked = bench.block_all(&*producer)?;
    bench.fill(&*producer, &source, 42);
    let written = bench.record(&*producer);
    assert_eq!(bench.order(&*consumer, &written), Order::Device, "two queues of one runtime");
    bench.copy(&*consumer, &source, &target);
    let read = bench.record(&*consumer);
    assert!(read.same_or_later_on_queue(&written), "the consumer's fence is ordered after the producer's");
    bench.harness.advance();
    assert!(read.state().is_pending());
    blocked.release();
    assert!(bench.settle(&read).is_ok());
    assert!(written.is_done());
    bench.assert_filled(&target, 42);
    Ok(())
}

fn two_readers_then_a_writer(bench: &Bench<'_>) -> Result<(), Skip> {
    let (first, second, writer) = (bench.queue(), bench.queue(), bench.queue());
    let (shared, a, b) = (bench.memory(64), bench.memory(64), bench.memory(64));
    bench.fill(&*writer, &shared, 1);
    let written = bench.record(&*writer);
    let mut blocks = Vec::new();
    let mut reads = Vec::new();
    for (queue, copy) in [(&first, &a), (&second, &b)] {
        blocks.push(bench.block_all(&**queue)?);
        bench.order(&**queue, &written);
        bench.copy(&**queue, &shared, copy);
        reads.push(bench.record(&**queue));
    }
    for read in &reads {
        assert_eq!(bench.order(&*writer, read), Order::Device);
    }
    bench.fill(&*writer, &shared, 2);
    let rewritten = bench.record(&*writer);
    // The reader that was waited for last ends first: waiting for only one of them would show.
    while let Some(blocked) = blocks.pop() {
        bench.harness.advance();
        assert!(rewritten.state().is_pending());
        blocked.release();
    }
    assert!(bench.settle(&rewritten).is_ok());
    bench.assert_filled(&a, 1);
    bench.assert_filled(&b, 1);
    bench.assert_filled(&shared, 2);
    Ok(())
}

fn no_wait_twice(bench: &Bench<'_>) -> Result<(), Skip> {
    let (producer, consumer) = (bench.queue(), bench.queue());
    let blocked = bench.block(&*producer)?;
    let fence = bench.record(&*producer);
    assert_eq!(bench.order(&*consumer, &fence), Order::Device);
    assert_eq!(bench.order(&*consumer, &fence), Order::Nothing);
    assert_eq!(bench.order(&*consumer, &fence.clone()), Order::Nothing);
    blocked.release();
    assert!(bench.settle(&bench.record(&*consumer)).is_ok());
    Ok(())
}

fn newer_covers_older(bench: &Bench<'_>) -> Result<(), Skip> {
    let (producer, consumer, memory) = (bench.queue(), bench.queue(), bench.memory(64));
    let blocked = bench.block(&*producer)?;
    let older = bench.record(&*producer);
    bench.fill(&*producer, &memory, 1);
    let newer = bench.record(&*producer);
    assert_eq!(bench.order(&*consumer, &newer), Order::Device);
    assert_eq!(bench.order(&*consumer, &older), Order::Nothing);
    blocked.release();
    assert!(bench.settle(&bench.record(&*consumer)).is_ok());
    Ok(())
}

fn implied_by_another_wait(bench: &Bench<'_>) -> Result<(), Skip> {
    let (first, second, third) = (bench.queue(), bench.queue(), bench.queue());
    let memory = bench.memory(64);
    let blocked = bench.block(&*first)?;
    let origin = bench.record(&*first);
    assert_eq!(bench.order(&*second, &origin), Order::Device);
    bench.fill(&*second, &memory, 1);
    let relayed = bench.record(&*second);
    assert_eq!(bench.order(&*third, &relayed), Order::Device);
    assert_eq!(bench.order(&*third, &origin), Order::Nothing, "the second queue had waited for it");
    let last = bench.record(&*third);
    assert!(last.state().is_pending());
    blocked.release();
    assert!(bench.settle(&last).is_ok());
    assert!(origin.is_done());
    Ok(())
}

fn not_implied(bench: &Bench<'_>) -> Result<(), Skip> {
    let (first, second, third) = (bench.queue(), bench.queue(), bench.queue());
    let (source, copy, target) = (bench.memory(64), bench.memory(64), bench.memory(64));
    let blocked = bench.block(&*first)?;
    let early = bench.record(&*first);
    // Recorded before the second queue waited: it knows nothing of the first.
    bench.fill(&*second, &copy, 1);
    let unaware = bench.record(&*second);
    assert!(!unaware.same_or_later_on_queue(&early), "a fence speaks for its own queue");
    bench.order(&*second, &early);
    bench.order(&*first, &early);
    bench.fill(&*first, &source, 3);
    let late = bench.record(&*first);
    bench.order(&*third, &unaware);
    assert_eq!(bench.order(&*third, &early), Order::Device);
    assert_eq!(bench.order(&*third, &late), Order::Device, "later than what was waited for");
    bench.copy(&*third, &source, &target);
    let last = bench.record(&*third);
    blocked.release();
    assert!(bench.settle(&last).is_ok());
    bench.assert_filled(&target, 3);
    assert!(bench.settle(&bench.record(&*second)).is_ok());
    Ok(())
}

fn done_needs_no_wait(bench: &Bench<'_>) -> Result<(), Skip> {
    let (producer, consumer, memory) = (bench.queue(), bench.queue(), bench.memory(64));
    bench.fill(&*producer, &memory, 1);
    let fence = bench.record(&*producer);
    assert!(bench.settle(&fence).is_ok());
    assert_eq!(bench.order(&*consumer, &fence), Order::Nothing);
    Ok(())
}

fn promises(bench: &Bench<'_>) -> Result<(), Skip> {
    let queue = bench.queue();
    let (completer, promise) = host::promise("conformance");
    for _ in 0..2 {
        let order = queue.order_after(&promise).expect("a pending promise is no error");
        assert_eq!(order, Order::Host, "asking does not make it known");
    }
    completer.complete();
    assert_eq!(bench.order(&*queue, &promise), Order::Nothing);
    Ok(())
}

fn failed_promise(bench: &Bench<'_>) -> Result<(), Skip> {
    let queue = bench.queue();
    let (completer, promise) = host::promise("conformance");
    completer.fail(DeviceError::new(DeviceErrorKind::Other, "no such thing"));
    for _ in 0..2 {
        let refused = queue.order_after(&promise).expect_err("there is nothing to wait for");
        assert_eq!(refused.message(), "no such thing");
    }
    assert!(bench.settle(&bench.record(&*queue)).is_ok(), "the queue itself is unharmed");
    Ok(())
}
