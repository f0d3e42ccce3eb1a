//! The order of replays: reduced dependences, countdowns, and what reads from what.

use std::collections::BTreeSet;

use estafette_graph::program::{Countdown, ProgramLog, ProgramOrder, Released};
use estafette_graph::{AccessMode, VarId};
use proptest::prelude::*;

const READ: AccessMode = AccessMode::Read;
const WRITE: AccessMode = AccessMode::Write;
const UPDATE: AccessMode = AccessMode::Update;

/// The uses of each operation.
type Program = Vec<Vec<(u64, AccessMode)>>;

fn log(program: &[Vec<(u64, AccessMode)>]) -> ProgramLog {
    let mut log = ProgramLog::new();
    for uses in program {
        log.push(uses.iter().map(|(var, mode)| (VarId::new(*var), *mode)));
    }
    log
}

/// For each operation all that must end before it, by the given dependences; each row is a set of bits.
fn ancestors(len: usize, edges: impl IntoIterator<Item = (usize, usize)>) -> Vec<BTreeSet<usize>> {
    let mut before = vec![BTreeSet::new(); len];
    let mut edges: Vec<_> = edges.into_iter().collect();
    edges.sort_unstable_by_key(|(_, to)| *to);
    for (from, to) in edges {
        let mut all = before[from].clone();
        all.insert(from);
        before[to].extend(all);
    }
    before
}

/// All dependences, straight from the definition: one of two uses of a variable is exclusive.
fn conflicts(program: &[Vec<(u64, AccessMode)>]) -> Vec<(usize, usize)> {
    let conflict = |a: &[(u64, AccessMode)], b: &[(u64, AccessMode)]| {
        a.iter().any(|(var, mode)| {
            b.iter().any(|(other, its)| var == other && (mode.is_exclusive() || its.is_exclusive()))
        })
    };
    let pairs = (0..program.len()).flat_map(|to| (0..to).map(move |from| (from, to)));
    pairs.filter(|(from, to)| conflict(&program[*from], &program[*to])).collect()
}

fn program(operations: usize, vars: u64) -> impl Strategy<Value = Program> {
    let mode = prop_oneof![3 => Just(READ), 1 => Just(WRITE), 1 => Just(UPDATE)];
    let uses = prop::collection::vec((0..vars, mode), 0..4);
    prop::collection::vec(uses, 0..operations)
}

/// Runs what is left of `program` after its first `done` operations in some order that the countdown allows,
/// and checks each against what must come first.
fn check_run(order: &ProgramOrder, before: &[BTreeSet<usize>], countdown: &mut Countdown, done: usize) {
    countdown.restart(order, done);
    let mut ended: BTreeSet<usize> = (0..done).collect();
    while let Some(taken) = countdown.take() {
        let mut next = Some(taken);
        while let Some(op) = next {
            assert!(before[op as usize].is_subset(&ended), "{op} runs too early");
            assert!(ended.insert(op as usize), "{op} runs twice");
            next = countdown.ended(order, op).next;
        }
    }
    assert_eq!(ended.len(), order.len(), "everything runs");
    let rest = order.len() - done;
    assert_eq!(countdown.account(rest), rest > 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn reduced_dependences_order_the_same_and_none_follows_from_others(program in program(100, 8)) {
        let log = log(&program);
        let reduced = log.reduced();
        let wanted = ancestors(program.len(), conflicts(&program));
        prop_assert_eq!(&ancestors(program.len(), reduced.iter().copied()), &wanted);
        for (left_out, edge) in reduced.iter().enumerate() {
            let others = reduced.iter().enumerate().filter(|(place, _)| *place != left_out).map(|(_, edge)| *edge);
            prop_assert!(!ancestors(program.len(), others)[edge.1].contains(&edge.0), "{:?} is redundant", edge);
        }
    }

    #[test]
    fn long_programs_are_reduced_window_by_window_to_the_same_order(program in program(800, 40)) {
        let log = log(&program);
        let reduced = log.reduced();
        prop_assert_eq!(ancestors(program.len(), reduced.iter().copied()), ancestors(program.len(), conflicts(&program)));
        let all = BTreeSet::from_iter(log.dependences());
        prop_assert!(reduced.iter().all(|edge| all.contains(edge)));
        prop_assert!(reduced.is_sorted());
        // None that is short and follows from others is left.
        let before = ancestors(program.len(), all.iter().copied());
        for (from, to) in reduced.iter().filter(|(from, to)| to - from <= 128) {
            let between = all.iter().filter(|(_, end)| end == to).any(|(via, _)| before[*via].contains(from));
            prop_assert!(!between, "{} to {} is redundant", from, to);
        }
    }

    #[test]
    fn every_countdown_runs_everything_once_and_in_order(program in program(300, 12), share in 0..=100_usize) {
        let order = ProgramOrder::of(&log(&program));
        let before = ancestors(program.len(), conflicts(&program));
        let mut countdown = Countdown::new(order.len());
        // The same memory, begun at several places.
        for done in [0, order.len() * share / 100, order.len(), 0] {
            check_run(&order, &before, &mut countdown, done);
        }
    }

    #[test]
    fn readers_are_those_who_look_at_what_was_left(program in program(60, 6)) {
        let order = ProgramOrder::of(&log(&program));
        for (from, uses) in program.iter().enumerate() {
            let written = |var: u64| uses.iter().any(|(its, mode)| *its == var && mode.is_exclusive());
            let mut wanted = Vec::new();
            for to in from + 1..program.len() {
                // A variable counts while no operation in between has changed it; a read and a write of it
                // are an update.
                let looks = program[to].iter().any(|(var, _)| {
                    let unchanged = program[from + 1..to].iter().flatten();
                    let unchanged = unchanged.filter(|(its, mode)| its == var && mode.is_exclusive()).count() == 0;
                    let modes: BTreeSet<_> =
                        program[to].iter().filter(|(its, _)| its == var).map(|(_, mode)| *mode).collect();
                    written(*var) && unchanged && modes != BTreeSet::from([WRITE])
                });
                if looks {
                    wanted.push(u32::try_from(to).unwrap());
                }
            }
            prop_assert_eq!(order.readers(u32::try_from(from).unwrap()), wanted);
        }
    }
}

#[test]
fn a_chain_is_one_whatever_its_variables() {
    let chain = [vec![(1, WRITE)], vec![(1, READ), (2, WRITE)], vec![(2, UPDATE)]];
    assert!(ProgramOrder::of(&log(&chain)).is_chain());
    assert!(ProgramOrder::of(&log(&chain[..1])).is_chain());
    assert!(ProgramOrder::of(&log(&[])).is_chain());
    let fork = [vec![(1, WRITE)], vec![(1, READ)], vec![(1, READ)]];
    assert!(!ProgramOrder::of(&log(&fork)).is_chain());
    // The last is ordered with the first, but not with its neighbour.
    let beside = [vec![(1, WRITE)], vec![(2, WRITE)], vec![(1, WRITE)]];
    assert!(!ProgramOrder::of(&log(&beside)).is_chain());
}

#[test]
fn the_first_that_is_freed_is_kept_and_the_others_are_listed() {
    let fan = [vec![(1, WRITE)], vec![(1, READ)], vec![(1, READ)], vec![(1, READ)], vec![(1, WRITE)]];
    let order = ProgramOrder::of(&log(&fan));
    let mut run = Countdown::new(order.len());
    run.restart(&order, 0);
    assert_eq!(run.take(), Some(0));
    assert!(!run.has_listed());
    assert_eq!(run.ended(&order, 0), Released { next: Some(1), listed: 2 });
    assert!(run.has_listed());
    assert_eq!([run.take(), run.take(), run.take()], [Some(2), Some(3), None]);
    assert_eq!(run.ended(&order, 3), Released { next: None, listed: 0 });
    assert_eq!(run.ended(&order, 1), Released { next: None, listed: 0 });
    assert!(!run.account(2));
    assert_eq!(run.ended(&order, 2), Released { next: Some(4), listed: 0 });
    assert_eq!(run.ended(&order, 4), Released { next: None, listed: 0 });
    assert!(!run.account(2));
    assert!(!run.account(0), "told once");
    assert!(run.account(1));
    assert!(!run.account(0));
}

#[test]
fn only_dependences_that_do_not_follow_from_others_are_edges() {
    let log = log(&[
        vec![(1, WRITE)],
        vec![(1, READ)],
        vec![(1, READ)],
        vec![(1, WRITE)],
        vec![(1, UPDATE)],
        vec![(1, READ), (2, WRITE)],
    ]);
    assert_eq!(log.dependences(), [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (4, 5)]);
}

#[test]
fn accesses_are_merged_as_the_graph_merges_them() {
    let log = log(&[vec![(2, READ), (1, READ), (2, WRITE), (1, READ)]]);
    assert_eq!(log.ops(), [[(VarId::new(1), READ), (VarId::new(2), UPDATE)]]);
    assert_eq!(log.dependences(), []);
}
