//! One sequence out of what was observed, and the sequential oracle that runs the program in it.

use std::collections::BTreeSet;

use estafette::FailureKind;
use estafette::tensor::TensorState;
use estafette_sync::thread;

use super::program::{BodyKind, Fate, OpIndex};
use super::world::{OpEnd, World, digest, written};

/// Counts of the oracle, so that a test can see that the program did something.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Bodies that ran and ended well.
    pub well: usize,
    /// Bodies that ran and failed.
    pub failed: usize,
    /// Operations skipped because an input had failed.
    pub skipped: usize,
    pub cancelled: usize,
}

/// The oracle's knowledge of a cell.
#[derive(Debug, Clone)]
struct CellKnowledge {
    /// Not known where a device that may have broken was to write it: an operation that is skipped after that
    /// does not change it.
    value: Option<u64>,
    version: u64,
    /// Possible root causes of a poisoned version. More than one only where no thread could observe which.
    poison: BTreeSet<OpIndex>,
    /// True if a broken device may have failed it.
    doubtful: bool,
    /// True if it has failed for certain: of the last operation to write it, which is doubtful, nothing was
    /// carried out.
    lost: bool,
}

/// Checks everything that `world` observed.
pub fn replay(world: &World) -> Counts {
    let ran = ran(world);
    let mut counts = Counts::default();
    let cell = CellKnowledge {
        value: Some(0),
        version: world.first_version,
        poison: BTreeSet::new(),
        doubtful: false,
        lost: false,
    };
    let mut cells = vec![cell; world.cells.len()];
    for op in sequence(world) {
        let plan = &world.plans[op].1;
        let ended = world.ended[op].get().expect("all ended");
        let accesses = plan.accesses();
        let doubtful = world.shape.breaks
            && (plan.body == BodyKind::Device
                || accesses.iter().any(|(cell, reads, _)| *reads && cells[*cell].doubtful));
        let carried_out = world.digests[op].get().is_some();
        let reads_lost = accesses.iter().any(|(cell, reads, _)| *reads && cells[*cell].lost);
        assert!(
            !(carried_out && reads_lost),
            "operation {op} {plan:?} was carried out with what a broken device lost"
        );
        for (cell, _, _) in accesses.iter().filter(|(_, _, writes)| *writes) {
            cells[*cell].doubtful = doubtful;
            cells[*cell].lost = doubtful && !carried_out;
        }
        if doubtful {
            for (cell, _, _) in accesses.into_iter().filter(|(_, _, writes)| *writes) {
                cells[cell].version += u64::from(!world.shape.write_leases);
                cells[cell].value = None;
            }
            continue;
        }
        let causes: BTreeSet<OpIndex> = accesses
            .iter()
            .filter(|(_, reads, _)| *reads)
            .flat_map(|(cell, _, _)| cells[*cell].poison.iter().copied())
            .collect();
        let skipped = !causes.is_empty() || ended.cancelled;
        assert_eq!(ran[op], !skipped, "operation {op} {plan:?}: inputs poisoned by {causes:?}, {ended:?}");
        let poison = if skipped {
            counts.skipped += usize::from(!ended.cancelled);
            counts.cancelled += usize::from(ended.cancelled);
            poison_of_skipped(world, op, ended, &causes)
        } else {
            // The value that it reads is known, since no broken device may have failed it.
            let known = |known: &CellKnowledge| known.value.unwrap_or_default();
            let seen = digest(plan, op, |cell| (known(&cells[cell]), cells[cell].version));
            assert_eq!(world.digests[op].get(), Some(&seen), "operation {op} {plan:?} saw something else");
            for (cell, reads, _) in accesses.iter().filter(|(_, _, writes)| *writes) {
                let before = if *reads { known(&cells[*cell]) } else { 0 };
                cells[*cell].value = Some(written(op, *cell, seen, before));
            }
            counts.well += usize::from(plan.fate == Fate::Well);
            counts.failed += usize::from(plan.fate != Fate::Well);
            poison_of_run(world, op, ended)
        };
        for (cell, _, _) in accesses.into_iter().filter(|(_, _, writes)| *writes) {
            cells[cell].version += u64::from(!world.shape.write_leases);
            cells[cell].poison.clone_from(&poison);
        }
    }
    for (number, known) in cells.iter().enumerate().filter(|(_, known)| !known.doubtful) {
        compare(world, number, known);
    }
    counts
}

/// Bodies that ran; every operation has signed every one of its cells once, and always the same, or none if
/// it was cancelled.
fn ran(world: &World) -> Vec<bool> {
    let mut signed = vec![(0, 0); world.plans.len()];
    for cell in &world.cells {
        for entry in cell.log() {
            let (ran, dropped) = &mut signed[entry.op];
            *(if entry.ran { ran } else { dropped }) += 1;
        }
    }
    let cancelled = |op: OpIndex| world.ended[op].get().is_some_and(|ended| ended.cancelled);
    let check = |(op, (ran, dropped)): (OpIndex, (usize, usize))| {
        let cells = world.plans[op].1.accesses().len();
        assert!(
            (ran, dropped) == (cells, 0)
                || (ran, dropped) == (0, cells)
                || (cancelled(op) && ran + dropped == 0),
            "operation {op}: {ran}, {dropped}"
        );
        ran > 0
    };
    signed.into_iter().enumerate().map(check).collect()
}

/// All operations, in an order that every cell and every submitter agrees with.
fn sequence(world: &World) -> Vec<OpIndex> {
    let count = world.plans.len();
    let mut after: Vec<Vec<OpIndex>> = vec![Vec::new(); count];
    let mut missing = vec![0_usize; count];
    let mut edge = |from: OpIndex, to: OpIndex| {
        after[from].push(to);
        missing[to] += 1;
    };
    for (op, pair) in world.plans.windows(2).enumerate() {
        if pair[0].0 == pair[1].0 {
            edge(op, op + 1);
        }
    }
    for (number, cell) in world.cells.iter().enumerate() {
        let writes = |op: OpIndex| {
            let accesses = world.plans[op].1.accesses();
            accesses.iter().any(|(cell, _, writes)| *cell == number && *writes)
        };
        let (mut writer, mut readers) = (None, Vec::new());
        for entry in cell.log() {
            if let Some(writer) = writer {
                edge(writer, entry.op);
            }
            if writes(entry.op) {
                readers.drain(..).for_each(|reader| edge(reader, entry.op));
                writer = Some(entry.op);
            } else {
                readers.push(entry.op);
            }
        }
    }
    let mut open: Vec<OpIndex> = (0..count).filter(|op| missing[*op] == 0).collect();
    let mut sequence = Vec::with_capacity(count);
    while let Some(op) = open.pop() {
        sequence.push(op);
        for next in &after[op] {
            missing[*next] -= 1;
            if missing[*next] == 0 {
                open.push(*next);
            }
        }
    }
    assert_eq!(sequence.len(), count, "the cells disagree on the order: there is a circle");
    sequence
}

/// The state that a skipped operation leaves on its outputs.
fn poison_of_skipped(
    world: &World,
    op: OpIndex,
    ended: &OpEnd,
    causes: &BTreeSet<OpIndex>,
) -> BTreeSet<OpIndex> {
    let (root, kind) = root_cause(world, ended);
    if ended.cancelled {
        assert_eq!((root, kind), (op, FailureKind::Cancelled), "a cancelled operation says so");
        // It need not inspect its inputs.
        return causes.iter().copied().chain([op]).collect();
    }
    assert!(causes.contains(&root), "operation {op} names {root}, but its inputs failed by {causes:?}");
    BTreeSet::from([root])
}

/// Failure that an operation leaves whose body ran.
fn poison_of_run(world: &World, op: OpIndex, ended: &OpEnd) -> BTreeSet<OpIndex> {
    if world.plans[op].1.fate == Fate::Well {
        assert!(ended.outcomes.iter().all(Result::is_ok), "operation {op} ran well, but {ended:?}");
        return BTreeSet::new();
    }
    let (root, kind) = root_cause(world, ended);
    assert_eq!(root, op, "a failure of its own");
    assert!(matches!(kind, FailureKind::Error | FailureKind::Panic), "{kind:?}");
    BTreeSet::from([op])
}

/// Operation to blame, according to both answers.
fn root_cause(world: &World, ended: &OpEnd) -> (OpIndex, FailureKind) {
    let ids = world.ids.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let [first, second] = ended.outcomes.each_ref().map(|outcome| {
        let error = outcome.as_ref().expect_err("it has failed");
        let cause = error.operation().expect("a failed operation names one");
        assert_eq!(cause.operation(), "random");
        (ids[&cause.id()], cause.kind())
    });
    assert_eq!(first, second, "the same cause, as often as asked");
    first
}

/// Compares the final state of a cell.
fn compare(world: &World, number: usize, known: &CellKnowledge) {
    let cell = &world.cells[number];
    let value = known.value.unwrap_or_else(|| cell.value());
    assert_eq!((cell.value(), cell.version()), (value, known.version), "cell {number}");
    let Some(tensor) = cell.tensor() else { return };
    let waited = tensor.wait();
    // The work on a device is over, and its fence may settle a moment later. A wait for a version that has
    // failed does not wait for that.
    let state = loop {
        match tensor.state() {
            TensorState::Pending if waited.is_err() => thread::yield_now(),
            state => break state,
        }
    };
    if known.poison.is_empty() {
        assert!(
            matches!(state, TensorState::Ready) && waited.is_ok(),
            "cell {number}: {state:?}, {waited:?}"
        );
        assert_eq!(tensor.to_vec::<u64>().expect("a ready tensor is read"), [value]);
        return;
    }
    let TensorState::Failed(error) = state else {
        panic!("cell {number} is {state:?} after {waited:?}, oracle: {known:?}")
    };
    for error in [error, waited.expect_err("a failed tensor fails every wait")] {
        let cause = error.operation().expect("a failed tensor names an operation").id();
        let ids = world.ids.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        assert!(known.poison.contains(&ids[&cause]), "cell {number}: {error}, oracle: {known:?}");
    }
}
