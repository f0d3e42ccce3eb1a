use crate::{FenceState, Frontier, Order, host};

use super::{Check, Skip, bench::Bench};

pub(super) const CHECKS: &[Check] = &[
    ("frontier: keeps only the newest fence of a queue", newest_of_a_queue),
    ("frontier: is done when all of its fences are", done_when_all_are),
    ("frontier: a write replaces exactly what it is ordered after", write_replaces),
    ("frontier: pruning drops what is done", pruning),
];

fn newest_of_a_queue(bench: &Bench<'_>) -> Result<(), Skip> {
    let (queue, memory) = (bench.queue(), bench.memory(64));
    let release = bench.block(&*queue)?;
    let older = bench.record(&*queue);
    bench.fill(&*queue, &memory, 1);
    let newer = bench.record(&*queue);
    let mut frontier = Frontier::default();
    for fence in [&older, &newer, &older, &newer] {
        frontier.insert(fence.clone());
    }
    assert_eq!(frontier.len(), 1);
    assert!(frontier.iter().all(|fence| fence.same_or_later_on_queue(&newer)));
    let mut merged = Frontier::from(older);
    merged.merge(&frontier);
    assert_eq!(merged.len(), 1);
    release();
    assert!(bench.settle(&newer).is_ok());
    Ok(())
}

fn done_when_all_are(bench: &Bench<'_>) -> Result<(), Skip> {
    let (first, second) = (bench.queue(), bench.queue());
    let (release_first, release_second) = (bench.block(&*first)?, bench.block(&*second)?);
    let fences = [bench.record(&*first), bench.record(&*second)];
    let frontier: Frontier = fences.iter().cloned().collect();
    assert!(frontier.state().is_pending());
    release_first();
    assert!(bench.settle(&fences[0]).is_ok());
    assert!(frontier.state().is_pending());
    release_second();
    assert!(bench.settle(&fences[1]).is_ok());
    assert!(matches!(frontier.state(), FenceState::Done));
    Ok(())
}

fn write_replaces(bench: &Bench<'_>) -> Result<(), Skip> {
    let (reader, other, writer) = (bench.queue(), bench.queue(), bench.queue());
    let (release_reader, release_other) = (bench.block(&*reader)?, bench.block(&*other)?);
    let (read, unrelated) = (bench.record(&*reader), bench.record(&*other));
    let (completer, promise) = host::promise("conformance");
    let mut frontier: Frontier = [read.clone(), unrelated.clone(), promise.clone()].into_iter().collect();
    assert_eq!(frontier.len(), 3);

    assert_eq!(bench.order(&*writer, &read), Order::Device);
    let write = bench.record(&*writer);
    frontier.replace_ordered_after(&write);
    assert_eq!(frontier.len(), 3, "the read is gone, the write is in");
    assert!(!frontier.iter().any(|fence| fence.on_same_queue(&read)));
    assert!(frontier.iter().any(|fence| fence.on_same_queue(&unrelated)));
    assert!(frontier.iter().any(|fence| fence.on_same_queue(&write)));

    bench.order(&*writer, &unrelated);
    frontier.replace_ordered_after(&bench.record(&*writer));
    assert_eq!(frontier.len(), 2, "a promise is known to no queue, so it stays");
    frontier.replace_ordered_after(&promise);
    assert_eq!(frontier.len(), 2);
    completer.complete();
    release_reader();
    release_other();
    assert!(bench.settle(&bench.record(&*writer)).is_ok());
    Ok(())
}

fn pruning(bench: &Bench<'_>) -> Result<(), Skip> {
    let (first, second) = (bench.queue(), bench.queue());
    let (release_first, release_second) = (bench.block(&*first)?, bench.block(&*second)?);
    let fences = [bench.record(&*first), bench.record(&*second)];
    let mut frontier: Frontier = fences.iter().cloned().collect();
    release_first();
    assert!(bench.settle(&fences[0]).is_ok());
    frontier.prune();
    assert_eq!(frontier.len(), 1);
    release_second();
    assert!(bench.settle(&fences[1]).is_ok());
    frontier.prune();
    assert!(frontier.is_empty());
    Ok(())
}
