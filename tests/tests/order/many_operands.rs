//! Operations of many tensors: what is refused does not depend on how many there are, and very many work.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use estafette::bindings;
use estafette::{Access, Engine, Error, ExportOptions, Tensor};
use tests::dice::{Dice, few_examples, from_environment};
use tests::foreign::{Deleted, Memory};
use tests::gate::Gate;
use tests::ops::{alias_of, engine};
use tests::watchdog::Watchdog;

/// A tensor, and the elements of the memory that it lies on.
#[derive(Clone)]
struct Operand {
    tensor: Tensor,
    range: std::ops::Range<usize>,
}

/// Checks the definition pair by pair.
fn must_be_refused(reads: &[Operand], writes: &[Operand]) -> bool {
    writes.iter().enumerate().any(|(at, written)| {
        reads.iter().chain(&writes[at + 1..]).any(|other| {
            let (one, two) = (&written.range, &other.range);
            // Elements of both: an empty range has none.
            let overlap = one.start.max(two.start) < one.end.min(two.end);
            bindings::tensor::same(&written.tensor, &other.tensor) || overlap
        })
    })
}

#[test]
fn few_and_many_operands_are_refused_for_the_same_reasons() {
    const LEN: usize = 400;
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let mut dice = Dice::new(7);
    let deleted = Deleted::default();
    let memory = Memory::of(&[0.0; LEN]);
    let mut seen: BTreeMap<(bool, bool), usize> = BTreeMap::new();
    let operands: Vec<Operand> = (0..200)
        .map(|_| {
            let (start, len) = (dice.roll(LEN - 4), dice.roll(5));
            // SAFETY: the memory stays as it is described until its deleter runs, and is used through the
            // engine alone.
            let tensor = unsafe { engine.import(memory.tensor(start, len, &deleted)) }.unwrap();
            Operand { tensor, range: start..start + len }
        })
        .collect();
    for _ in 0..from_environment("ESTAFETTE_SEEDS", 20) * 50 {
        let many = dice.once_in(2);
        let mut some = |most: usize| -> Vec<Operand> {
            (0..dice.roll(most)).map(|_| operands[dice.roll(operands.len())].clone()).collect()
        };
        let (reads, writes) = if many { (some(12), some(14)) } else { (some(4), some(3)) };
        let tensors =
            |some: &[Operand]| some.iter().map(|operand| operand.tensor.clone()).collect::<Vec<_>>();
        let op = engine.op("some").reads(&tensors(&reads)).writes(&tensors(&writes));
        let outcome = op.run(|_, _| Ok(()));
        let refused = must_be_refused(&reads, &writes);
        assert_eq!(matches!(outcome, Err(Error::Conflict(_))), refused, "{many} {outcome:?}");
        *seen.entry((writes.len() * (reads.len() + writes.len()) > 64, refused)).or_default() += 1;
    }
    assert_eq!(seen.len(), 4, "both ways, and both answers: {seen:?}");
    assert!(watchdog.still_watches());
}

fn disjoint(engine: &Engine, n: usize) -> Vec<Tensor> {
    (0..n).map(|_| engine.from_vec(vec![0_u8], &[1]).unwrap()).collect()
}

#[test]
fn a_promised_alias_is_found_among_many_operands() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let (others, x, gate) = (disjoint(&engine, 40), disjoint(&engine, 1).remove(0), engine.var());
    let held = Gate::on_variable(&engine, &gate);
    let view = engine.op("view").reads([&x]).reads_vars(&[&gate]).result(alias_of(&[&x]));
    let promised = view.produce::<_, Tensor>(|[_x]| Err("nothing comes of it".into())).unwrap();
    let run = |reads: &[&Tensor], writes: &[&Tensor]| {
        let of = |some: &[&Tensor]| some.iter().map(|tensor| (*tensor).clone()).collect::<Vec<_>>();
        let (mut reads, mut writes) = (of(reads), of(writes));
        reads.extend_from_slice(&others[..20]);
        writes.extend_from_slice(&others[20..]);
        engine.op("many").reads(&reads).writes(&writes).run(|_, _| Ok(()))
    };
    let refused = |outcome: Result<_, Error>| matches!(outcome, Err(Error::Conflict(text)) if text.contains("promised alias"));
    assert!(refused(run(&[&promised], &[&x])) && refused(run(&[&x], &[&promised])));
    assert!(refused(run(&[], &[&x, &promised])));
    assert!(run(&[&x, &promised], &[]).is_ok() && run(&[&promised, &promised], &[]).is_ok());
    held.open();
    engine.wait_all(None).unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn an_own_lease_is_found_among_many_operands_under_leases() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let sources = disjoint(&engine, 2_000);
    let derived: Vec<Tensor> = sources
        .iter()
        .map(|source| {
            let lent = source.export_wait(&ExportOptions::from(Access::Read)).unwrap();
            // SAFETY: the lease keeps the memory as it is described.
            unsafe { engine.import(lent) }.unwrap()
        })
        .collect();
    let targets = disjoint(&engine, 2_000);
    engine.op("copy").reads(&derived).writes(&targets).run(|_, _| Ok(())).unwrap().wait().unwrap();
    let mut targets = targets;
    targets.push(sources[1_234].clone());
    let outcome = engine.op("copy").reads(&derived).writes(&targets).run(|_, _| Ok(()));
    assert!(
        matches!(&outcome, Err(Error::Conflict(text)) if text.contains("wait for itself")),
        "{outcome:?}"
    );
    assert!(watchdog.still_watches());
}

#[test]
fn an_operation_of_a_hundred_thousand_tensors_runs() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let tensors = disjoint(&engine, 100_000);
    let (reads, writes) = tensors.split_at(50_000);
    let op = engine.op("many").reads(reads).writes(writes).run(|reads, writes| {
        assert_eq!(reads.len() + writes.len(), 100_000);
        Ok(())
    });
    op.unwrap().wait().unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn an_in_flight_limit_of_a_million_is_reached_and_drained() {
    // A tenth in `cargo xtask test` without `--all`.
    let in_flight_limit = if few_examples() { 100_000 } else { 1_000_000 };
    let engine = Engine::builder().workers(1).in_flight_limit(in_flight_limit).build().unwrap();
    let watchdog = Watchdog::of(&engine);
    let (gate, x) = (engine.var(), engine.from_vec(vec![0_u64], &[1]).unwrap());
    let held = Gate::on_variable(&engine, &gate);
    let ran = Arc::new(AtomicUsize::new(0));
    for _ in 1..in_flight_limit {
        let ran = Arc::clone(&ran);
        let op = engine.op("one").reads_vars(&[&gate]).writes([&x]);
        op.run_detached(move |[], [_x]| {
            ran.fetch_add(1, Ordering::Relaxed);
            Ok(())
        })
        .unwrap();
    }
    let full = engine.op("one more").writes([&x]).without_waiting().run(|[], [_x]| Ok(()));
    assert!(matches!(full, Err(Error::InFlightLimit { limit, .. }) if limit == in_flight_limit), "{full:?}");
    held.open();
    engine.wait_all(None).unwrap();
    assert_eq!(ran.load(Ordering::Relaxed), in_flight_limit - 1);
    assert!(watchdog.still_watches());
}
