use crate::{FenceSet, FenceState};

use super::{Check, Skip, bench::Bench};

pub(super) const CHECKS: &[Check] = &[
    ("fence_set: keeps only the newest fence of a queue", newest_of_a_queue),
    ("fence_set: is done when all of its fences are", done_when_all_are),
    ("fence_set: pruning drops what is done", pruning),
];

fn newest_of_a_queue(bench: &Bench<'_>) -> Result<(), Skip> {
    let (queue, memory) = (bench.queue(), bench.memory(64));
    let blocked = bench.block(&*queue)?;
    let older = bench.record(&*queue);
    bench.fill(&*queue, &memory, 1);
    let newer = bench.record(&*queue);
    let mut fence_set = FenceSet::default();
    for fence in [&older, &newer, &older, &newer] {
        fence_set.insert(fence.clone());
    }
    assert_eq!(fence_set.len(), 1);
    assert!(fence_set.iter().all(|fence| fence.same_or_later_on_queue(&newer)));
    let mut merged = FenceSet::from(older);
    merged.merge(&fence_set);
    assert_eq!(merged.len(), 1);
    blocked.release();
    assert!(bench.settle(&newer).is_ok());
    Ok(())
}

fn done_when_all_are(bench: &Bench<'_>) -> Result<(), Skip> {
    bench.harness.queues_are_independent()?;
    let (first, second) = (bench.queue(), bench.queue());
    let (blocked_first, blocked_second) = (bench.block(&*first)?, bench.block(&*second)?);
    let fences = [bench.record(&*first), bench.record(&*second)];
    let fence_set: FenceSet = fences.iter().cloned().collect();
    assert!(fence_set.state().is_pending());
    blocked_first.release();
    assert!(bench.settle(&fences[0]).is_ok());
    assert!(fence_set.state().is_pending());
    blocked_second.release();
    assert!(bench.settle(&fences[1]).is_ok());
    assert!(matches!(fence_set.state(), FenceState::Done));
    Ok(())
}

fn pruning(bench: &Bench<'_>) -> Result<(), Skip> {
    bench.harness.queues_are_independent()?;
    let (first, second) = (bench.queue(), bench.queue());
    let (blocked_first, blocked_second) = (bench.block(&*first)?, bench.block(&*second)?);
    let fences = [bench.record(&*first), bench.record(&*second)];
    let mut fence_set: FenceSet = fences.iter().cloned().collect();
    blocked_first.release();
    assert!(bench.settle(&fences[0]).is_ok());
    fence_set.prune();
    assert_eq!(fence_set.len(), 1);
    blocked_second.release();
    assert!(bench.settle(&fences[1]).is_ok());
    fence_set.prune();
    assert!(fence_set.is_empty());
    Ok(())
}
