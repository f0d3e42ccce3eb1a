//! A cancel notifies at once exactly the waits that can only end in the cancelled failure.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Barrier;
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use estafette::bindings;
use estafette::lease::Access;
use estafette::{Engine, Error, Op, Tensor};
use tests::dice::{Dice, from_environment};
use tests::gate::Gate;
use tests::ops::{engine, tensor, until};
use tests::watchdog::Watchdog;

/// The outcome of a wait so far.
fn heard(wait: Pin<&mut impl Future<Output = Result<(), Error>>>) -> Option<Result<(), Error>> {
    match wait.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => Some(outcome),
        Poll::Pending => None,
    }
}

fn is_cancelled(outcome: Option<Result<(), Error>>) -> bool {
    match outcome {
        None => false,
        Some(Err(Error::Cancelled(_))) => true,
        Some(other) => panic!("nothing runs behind the gate, so nothing else can be heard: {other:?}"),
    }
}

fn submit(engine: &Engine, reads: &[Tensor], writes: &[Tensor]) -> Op {
    let op = engine.op("step").reads(reads).writes(writes);
    op.run_external(|completion| completion.complete(Ok(()))).unwrap()
}

/// One operation of the model: which tensors it reads and writes; both is an update.
struct Step {
    op: Op,
    reads: Vec<usize>,
    writes: Vec<usize>,
    cancelled: bool,
}

/// One wait: for the version of a tensor that so many operations have made.
struct Wait {
    ready: Pin<Box<dyn Future<Output = Result<(), Error>>>>,
    is_lease: bool,
    tensor: usize,
    after: usize,
}

/// True if the version of `tensor` after the first `after` steps can only be a failure: by the definition,
/// step by step.
fn must_be_cancelled(steps: &[Step], tensors: usize, tensor: usize, after: usize) -> bool {
    let mut cancelled = vec![false; tensors];
    for step in &steps[..after] {
        let fails = step.cancelled || step.reads.iter().any(|read| cancelled[*read]);
        step.writes.iter().for_each(|written| cancelled[*written] = fails);
    }
    cancelled[tensor]
}

fn some_of(dice: &mut Dice, tensors: usize, most: usize) -> Vec<usize> {
    let mut some: Vec<usize> = (0..dice.roll(most + 1)).map(|_| dice.roll(tensors)).collect();
    some.sort_unstable();
    some.dedup();
    some
}

#[test]
fn random_cancels_are_reported_to_the_waits_that_depend_on_them_and_to_no_other() {
    const TENSORS: usize = 6;
    for seed in 0..from_environment("ESTAFETTE_SEEDS", 20) {
        let mut dice = Dice::new(seed);
        let engine = engine(1);
        let watchdog = Watchdog::of(&engine);
        let tensors: Vec<Tensor> = (0..TENSORS).map(|_| tensor(&engine, 0.0)).collect();
        let of = |some: &[usize]| some.iter().map(|index| tensors[*index].clone()).collect::<Vec<_>>();
        let gate = Gate::on_tensors(&engine, &tensors);
        let (mut steps, mut waits): (Vec<Step>, Vec<Wait>) = (Vec::new(), Vec::new());
        let (mut told, mut spared) = (0, 0);
        for _ in 0..150 {
            match dice.roll(10) {
                0..4 => {
                    let reads = some_of(&mut dice, TENSORS, 2);
                    let mut writes = some_of(&mut dice, TENSORS, 2);
                    if dice.once_in(3) {
                        writes.extend(reads.first());
                        writes.sort_unstable();
                        writes.dedup();
                    }
                    if reads.is_empty() && writes.is_empty() {
                        continue;
                    }
                    let op = submit(&engine, &of(&reads), &of(&writes));
                    steps.push(Step { op, reads, writes, cancelled: false });
                }
                4..8 => {
                    let tensor = dice.roll(TENSORS);
                    let is_lease = dice.once_in(3);
                    let ready: Pin<Box<dyn Future<Output = _>>> = if is_lease {
                        let lease = tensors[tensor].lease(Access::Read, "reader");
                        Box::pin(async { lease.await.map(drop) })
                    } else {
                        Box::pin(tensors[tensor].ready())
                    };
                    waits.push(Wait { ready, is_lease, tensor, after: steps.len() });
                }
                8 if !steps.is_empty() => {
                    let step = dice.roll(steps.len());
                    assert_eq!(steps[step].op.cancel(), !steps[step].cancelled);
                    steps[step].cancelled = true;
                }
                // Then nothing waits, and the next cancel walks nowhere.
                _ if dice.once_in(10) => waits.clear(),
                _ if !waits.is_empty() && dice.once_in(3) => drop(waits.swap_remove(dice.roll(waits.len()))),
                _ => {}
            }
            waits.retain_mut(|wait| {
                let cancelled = must_be_cancelled(&steps, TENSORS, wait.tensor, wait.after);
                assert_eq!(is_cancelled(heard(pin!(&mut wait.ready))), cancelled, "seed {seed}");
                told += usize::from(cancelled);
                spared += usize::from(!cancelled);
                !cancelled
            });
        }
        assert!(
            told > 0 && spared > 0,
            "seed {seed}: {told} waits were notified, and {spared} polls found none"
        );
        waits.retain(|wait| !wait.is_lease);
        gate.open();
        engine.wait_all(None).unwrap();
        assert!(watchdog.still_watches());
    }
}

/// ```text
/// thread 1: cancel a, cancel c, ...        thread 2: wait for b, wait for d, ...
/// ```
#[test]
fn of_a_cancel_and_a_wait_at_the_same_time_none_is_missed() {
    const PAIRS: usize = 64;
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    for _ in 0..30 {
        let xs: Vec<_> = (0..PAIRS).map(|_| tensor(&engine, 0.0)).collect();
        let gate = Gate::on_tensors(&engine, &xs);
        let pairs: Vec<_> = xs
            .chunks(1)
            .map(|x| {
                let y = tensor(&engine, 0.0);
                let made = submit(&engine, &[], x);
                submit(&engine, x, std::slice::from_ref(&y));
                (made, y)
            })
            .collect();
        let start = Barrier::new(2);
        let waits = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                start.wait();
                let wait = |(_, y): &(Op, Tensor)| {
                    let mut lease = Box::pin(y.lease(Access::Read, "reader"));
                    let polled = lease.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                    (Box::pin(y.ready()), lease, polled)
                };
                pairs.iter().map(wait).collect::<Vec<_>>()
            });
            start.wait();
            pairs.iter().for_each(|(made, _)| assert!(made.cancel()));
            waiting.join().unwrap()
        });
        for (mut ready, lease, polled) in waits {
            assert!(is_cancelled(heard(ready.as_mut())), "both have returned, so it is known");
            let outcome = match polled {
                Poll::Ready(outcome) => Some(outcome.map(drop)),
                Poll::Pending => heard(pin!(async { lease.await.map(drop) })),
            };
            assert!(is_cancelled(outcome), "known to the request too");
        }
        gate.open();
        engine.wait_all(None).unwrap();
    }
    assert!(watchdog.still_watches());
}

#[test]
fn a_thread_that_waits_for_a_lease_hears_of_a_cancel_behind_the_lease_of_another() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    for access in [Access::Read, Access::Write] {
        let x = tensor(&engine, 0.0);
        let held = x.lease(Access::Read, "another").wait(None).unwrap();
        let write = submit(&engine, &[], std::slice::from_ref(&x));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| x.lease(access, "reader").wait(None).map(drop));
            // A request that comes after the cancel hears of it as well.
            std::thread::sleep(Duration::from_millis(20));
            assert!(write.cancel());
            assert!(is_cancelled(Some(waits.join().unwrap())));
        });
        drop(held);
        engine.wait_all(None).unwrap();
    }
    assert!(watchdog.still_watches());
}

/// A refused lease leaves the versions of its other tensors as they are.
#[test]
fn a_lease_that_a_cancel_refuses_fails_no_wait_for_its_other_tensors() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let (x, y, z) = (tensor(&engine, 0.0), tensor(&engine, 0.0), tensor(&engine, 0.0));
    let gate = Gate::on_tensors(&engine, std::slice::from_ref(&x));
    let write = submit(&engine, &[], std::slice::from_ref(&x));
    let wanted = [(x.clone(), Access::Read), (y.clone(), Access::Write)];
    let mut lease = pin!(async { engine.lease_all(&wanted, "both").await.map(drop) });
    assert!(heard(lease.as_mut()).is_none());
    submit(&engine, std::slice::from_ref(&y), std::slice::from_ref(&z));
    let mut waits = vec![Box::pin(y.ready()), Box::pin(z.ready())];
    let mut failing = pin!(x.ready());
    assert!(waits.iter_mut().all(|wait| heard(wait.as_mut()).is_none()) && heard(failing.as_mut()).is_none());
    assert!(write.cancel());
    assert!(is_cancelled(heard(failing)), "it is behind the lease, and waits for the cancelled version");
    waits.extend([Box::pin(y.ready()), Box::pin(z.ready())]);
    assert!(waits.iter_mut().all(|wait| heard(wait.as_mut()).is_none()));
    assert!(is_cancelled(heard(lease)));
    gate.open();
    engine.wait_all(None).unwrap();
    assert!(waits.iter_mut().all(|wait| matches!(heard(wait.as_mut()), Some(Ok(())))));
    assert!(watchdog.still_watches());
}

#[test]
fn what_is_ready_and_not_begun_is_known_to_be_cancelled_while_every_worker_is_busy() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let (x, y) = (tensor(&engine, 0.0), tensor(&engine, 0.0));
    let (begun, has_begun) = channel();
    let (go, may_go) = channel::<()>();
    let busy = engine.op("busy").run(move |[], []| {
        begun.send(()).unwrap();
        let _ = may_go.recv();
        Ok(())
    });
    has_begun.recv().unwrap();
    let write = submit(&engine, &[], std::slice::from_ref(&x));
    submit(&engine, &[x], std::slice::from_ref(&y));
    let mut before = pin!(y.ready());
    assert!(heard(before.as_mut()).is_none());
    assert!(write.cancel());
    assert!(is_cancelled(heard(before)) && is_cancelled(heard(pin!(y.ready()))));
    go.send(()).unwrap();
    busy.unwrap().wait().unwrap();
    engine.wait_all(None).unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn a_failure_that_was_mended_is_reported_to_no_later_wait() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let (x, y) = (tensor(&engine, 0.0), tensor(&engine, 0.0));
    let gate = |tensor| Gate::on_tensors(&engine, std::slice::from_ref(tensor));
    let (one, two) = (gate(&x), gate(&y));
    let write = submit(&engine, &[], std::slice::from_ref(&x));
    submit(&engine, std::slice::from_ref(&x), std::slice::from_ref(&y));
    let mut before = pin!(y.ready());
    assert!(heard(before.as_mut()).is_none());
    assert!(write.cancel());
    assert!(is_cancelled(heard(before)));
    one.open();
    until("the cancelled write is through", || x.clear_error().is_ok());
    // The second operation still waits, and will find a good version.
    assert!(!y.is_ready());
    assert!(heard(pin!(y.ready())).is_none());
    two.open();
    y.wait().unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn an_operation_that_runs_is_not_cancelled_by_the_first_handle_that_is_made_of_it() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 0.0);
    let gate = Gate::on_tensors(&engine, std::slice::from_ref(&x));
    let (said, heard) = channel();
    let op = engine.op("runs").updates([&x]).run_external(move |end| {
        said.send(bindings::operation::completion_op(&end).expect("an operation").cancel()).unwrap();
        end.complete(Ok(()));
    });
    drop(op.unwrap());
    gate.open();
    assert!(!heard.recv().unwrap());
    x.wait().unwrap();
    assert!(watchdog.still_watches());
}
