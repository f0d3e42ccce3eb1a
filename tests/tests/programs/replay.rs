//! Programs: recorded once, replayed as one operation.

use std::hint;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use estafette::program::ProgramBuilder;
use estafette::{Access, DType, Engine, Error, FailureKind, Op, Program, Tensor, Variable};
use futures::executor::block_on;
use tests::foreign::{Deleted, Memory};
use tests::gate::Gate;
use tests::ops::{add, engine, get, set, tensor};
use tests::watchdog::Watchdog;

/// A program of one node that updates `variable` and counts its calls.
fn counting(engine: &Engine, variable: &Variable) -> (Program, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let mut builder = engine.program("counting");
    let node = builder.op("count").reads_vars(&[variable]).writes_vars(&[variable]);
    let counter = Arc::clone(&calls);
    node.run(move |[], []| {
        counter.fetch_add(1, Ordering::SeqCst);
        Ok(())
    })
    .unwrap();
    (builder.finish().unwrap(), calls)
}

/// An operation that reads `variable`, and says what `calls` was when it ran.
fn seen(engine: &Engine, variable: &Variable, calls: &Arc<AtomicUsize>) -> (Op, Arc<AtomicUsize>) {
    let found = Arc::new(AtomicUsize::new(usize::MAX));
    let (calls, place) = (Arc::clone(calls), Arc::clone(&found));
    let op = engine.op("look").reads_vars(&[variable]).run(move |[], []| {
        place.store(calls.load(Ordering::SeqCst), Ordering::SeqCst);
        Ok(())
    });
    (op.unwrap(), found)
}

#[test]
fn typed_views_and_updates_in_place() {
    for workers in [0, 1, 3] {
        let engine = engine(workers);
        let watchdog = Watchdog::of(&engine);
        let (x, y) = (tensor(&engine, 1.0), engine.zeros(&[1], DType::F32).unwrap());
        let mut builder = engine.program("step");
        builder
            .op("copy")
            .reads([&x])
            .writes([&y])
            .run(|[x], [mut y]| {
                y.as_mut_slice::<f32>()?.copy_from_slice(x.as_slice()?);
                Ok(())
            })
            .unwrap();
        let node = builder.op("add").reads(std::slice::from_ref(&y)).updates([&x]);
        node.run(|y, [], [mut x]| {
            x.as_mut_slice::<f32>()?[0] += y[0].as_slice::<f32>()?[0];
            Ok(())
        })
        .unwrap();
        let program = builder.finish().unwrap();
        assert_eq!(format!("{program:?}"), r#"Program { name: "step", nodes: 2 }"#);
        for round in 1..=5 {
            program.replay().unwrap();
            assert_eq!(get(&x), f32::powi(2.0, round));
        }
        assert!(watchdog.still_watches());
    }
}

#[test]
fn a_replay_is_one_operation_between_those_submitted_before_and_after() {
    for workers in [0, 1, 3] {
        let engine = engine(workers);
        let watchdog = Watchdog::of(&engine);
        let variable = engine.var();
        let (program, calls) = counting(&engine, &variable);
        let gate = Gate::on_variable(&engine, &variable);
        let (_, before) = seen(&engine, &variable, &calls);
        let first = program.replay().unwrap();
        let (_, between) = seen(&engine, &variable, &calls);
        // Two more are queued one behind the other.
        let queued = [program.replay().unwrap(), program.replay().unwrap()];
        let (last, after) = seen(&engine, &variable, &calls);
        assert!(!first.is_done());
        assert_eq!(first.name(), "counting");
        assert_eq!(calls.load(Ordering::SeqCst), 0);
        gate.open();
        last.wait().unwrap();
        assert!(queued.iter().all(Op::is_done));
        assert_eq!([&before, &between, &after].map(|found| found.load(Ordering::SeqCst)), [0, 1, 3]);
        assert_eq!(variable.version(), 4);
        assert!(watchdog.still_watches());
    }
}

#[test]
fn an_empty_program_ends_at_once_and_can_be_awaited() {
    for workers in [0, 2] {
        let engine = engine(workers);
        let program = engine.program("nothing").finish().unwrap();
        assert!(format!("{program:?}").contains("nodes: 0"));
        program.replay().unwrap().wait().unwrap();
        let replay = block_on(program.replay_async()).unwrap();
        block_on(replay).unwrap();
    }
}

#[test]
fn a_program_dropped_early_runs_to_its_end() {
    for workers in [0, 1, 3] {
        let engine = engine(workers);
        let watchdog = Watchdog::of(&engine);
        let variable = engine.var();
        let (program, calls) = counting(&engine, &variable);
        let gate = Gate::on_variable(&engine, &variable);
        let replays: Vec<_> = (0..10).map(|_| program.replay().unwrap()).collect();
        drop(program);
        gate.open();
        for replay in replays {
            replay.wait().unwrap();
        }
        assert_eq!(calls.load(Ordering::SeqCst), 10);
        engine.wait_all(None).unwrap();
        // The bodies are dropped with the last run.
        tests::ops::until("the program has gone", || Arc::strong_count(&calls) == 1);
        assert!(watchdog.still_watches());
    }
}

#[test]
fn a_replay_cancelled_before_it_began_calls_nothing() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let variable = engine.var();
    let (program, calls) = counting(&engine, &variable);
    let gate = Gate::on_variable(&engine, &variable);
    let replay = program.replay().unwrap();
    assert!(replay.cancel());
    gate.open();
    assert!(matches!(replay.wait().unwrap_err(), Error::Cancelled(cause) if cause.operation() == "counting"));
    engine.wait_all(None).unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    assert!(watchdog.still_watches());
}

#[test]
fn a_failed_input_skips_the_replay_and_a_pure_write_heals() {
    for workers in [0, 2] {
        let engine = engine(workers);
        let watchdog = Watchdog::of(&engine);
        let (x, y) = (tensor(&engine, 1.0), tensor(&engine, 2.0));
        let mut builder = engine.program("step");
        builder.op("read").reads([&x]).run(|[_x], []| Ok(())).unwrap();
        let node = builder.op("set").writes([&y]);
        node.run(|[], [mut y]| {
            y.as_mut_slice::<f32>()?.fill(5.0);
            Ok(())
        })
        .unwrap();
        let program = builder.finish().unwrap();
        tests::ops::fail(&engine, &y, "y is broken");
        program.replay().unwrap().wait().unwrap();
        assert_eq!(get(&y), 5.0);
        tests::ops::fail(&engine, &x, "x is broken");
        let error = program.replay().unwrap().wait().unwrap_err();
        assert_eq!(error.operation().unwrap().message(), "x is broken");
        assert_eq!(y.wait().unwrap_err().operation().unwrap().operation(), "fail");
        set(&engine, &x, 1.0);
        program.replay().unwrap().wait().unwrap();
        assert_eq!(get(&y), 5.0);
        assert!(watchdog.still_watches());
    }
}

/// ```text
/// fails ──x──► reads x, writes y ──y──► reads y
///        └──x (only order)──► overwrites x ──x──► reads x again
/// stands beside
/// ```
#[test]
fn a_failure_follows_data_within_a_replay_and_poisons_all_that_it_writes() {
    for (workers, panics) in [(0, false), (0, true), (3, false), (3, true)] {
        let engine = engine(workers);
        let watchdog = Watchdog::of(&engine);
        let [x, y, z, side] = std::array::from_fn(|_| engine.var());
        let called = Arc::new(AtomicUsize::new(0));
        let note = |bit: usize| {
            let called = Arc::clone(&called);
            move |[]: [estafette::View<'_>; 0], []: [estafette::ViewMut<'_>; 0]| {
                called.fetch_or(1 << bit, Ordering::SeqCst);
                Ok(())
            }
        };
        let mut builder = engine.program("step");
        let bad = builder.op("bad").writes_vars(&[&x]);
        bad.run(move |[], []| if panics { panic!("fate of bad") } else { Err("fate of bad".into()) })
            .unwrap();
        builder.op("reader").reads_vars(&[&x]).writes_vars(&[&y]).run(note(0)).unwrap();
        builder.op("reader of reader").reads_vars(&[&y]).run(note(1)).unwrap();
        builder.op("overwrites").writes_vars(&[&x]).run(note(2)).unwrap();
        builder.op("reads again").reads_vars(&[&x]).run(note(3)).unwrap();
        builder.op("beside").writes_vars(&[&side]).run(note(4)).unwrap();
        builder.op("late").writes_vars(&[&z]).run(|[], []| Err("comes second".into())).unwrap();
        let program = builder.finish().unwrap();
        for _ in 0..3 {
            called.store(0, Ordering::SeqCst);
            let replay = program.replay().unwrap();
            let error = replay.wait().unwrap_err();
            let cause = error.operation().unwrap();
            assert_eq!((cause.operation(), cause.message()), ("bad", "fate of bad"), "{error}");
            assert_eq!(cause.id(), replay.id());
            assert_eq!(cause.kind(), if panics { FailureKind::Panic } else { FailureKind::Error });
            assert_eq!(called.load(Ordering::SeqCst), 0b11100);
            for variable in [&x, &y, &side] {
                let reader = engine.op("after").reads_vars(&[variable]).run(|[], []| panic!("never runs"));
                let error = reader.unwrap().wait().unwrap_err();
                assert_eq!(error.operation().unwrap().operation(), "bad");
            }
        }
        assert!(watchdog.still_watches());
    }
}

#[test]
fn operands_that_overlap_are_refused_when_they_are_recorded() {
    let engine = engine(0);
    let x = tensor(&engine, 1.0);
    let mut builder = engine.program("step");
    let error = builder.op("both").reads([&x]).writes([&x]).run(|[_x], [_y]| Ok(())).unwrap_err();
    assert!(matches!(error, Error::Conflict(_)));
    let program = builder.finish().unwrap();
    assert!(format!("{program:?}").contains("nodes: 0"), "a refused node is not recorded");
}

#[test]
fn a_replay_waits_for_a_lease_on_what_it_writes() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let mut builder = engine.program("step");
    let node = builder.op("add").updates([&x]);
    node.run(|[], [], [mut x]| {
        x.as_mut_slice::<f32>()?[0] += 1.0;
        Ok(())
    })
    .unwrap();
    let program = builder.finish().unwrap();
    let exported = block_on(x.export(Access::Read)).unwrap();
    let replay = program.replay().unwrap();
    assert!(matches!(
        replay.wait_timeout(Some(Duration::from_millis(1))),
        Err(Error::LeaseHeld(_) | Error::Timeout(_))
    ));
    drop(exported);
    replay.wait().unwrap();
    assert_eq!(get(&x), 2.0);
    assert!(watchdog.still_watches());
}

#[test]
fn a_promised_tensor_is_defined_when_the_replay_reads_it() {
    for workers in [0, 2] {
        let engine = engine(workers);
        let variable = engine.var();
        let gate = Gate::on_variable(&engine, &variable);
        let promised = engine
            .op("make")
            .reads_vars(&[&variable])
            .produce(|[]| Ok(estafette::Produced::from_vec(vec![7.0_f32], &[1])?));
        let (promised, y) = (promised.unwrap(), tensor(&engine, 0.0));
        let mut builder = engine.program("step");
        let node = builder.op("copy").reads([&promised]).writes([&y]);
        node.run(|[x], [mut y]| {
            y.as_mut_slice::<f32>()?.copy_from_slice(x.as_slice()?);
            Ok(())
        })
        .unwrap();
        let program = builder.finish().unwrap();
        let replay = program.replay().unwrap();
        gate.open();
        replay.wait().unwrap();
        assert_eq!(get(&y), 7.0);
    }
}

#[test]
fn a_replay_inside_an_operation_and_inside_a_node() {
    for workers in [0, 1, 2] {
        let engine = engine(workers);
        let watchdog = Watchdog::of(&engine);
        let (inner, outer) = (engine.var(), engine.var());
        let (program, calls) = counting(&engine, &inner);
        let inside = program.clone();
        let op = engine.op("outer").writes_vars(&[&outer]).run(move |[], []| Ok(inside.replay()?.wait()?));
        op.unwrap().wait().unwrap();
        assert_eq!(calls.load(Ordering::SeqCst), 1);

        let mut builder = engine.program("nested");
        for _ in 0..4 {
            let inside = program.clone();
            builder.op("node").run(move |[], []| Ok(inside.replay()?.wait()?)).unwrap();
        }
        builder.finish().unwrap().replay().unwrap().wait().unwrap();
        assert_eq!(calls.load(Ordering::SeqCst), 5);
        assert!(watchdog.still_watches());
    }
}

#[test]
fn a_node_that_waits_for_its_own_replay_is_refused() {
    for workers in [0, 2] {
        let engine = engine(workers);
        let watchdog = Watchdog::of(&engine);
        let x = tensor(&engine, 1.0);
        let mut builder = engine.program("step");
        // Enough of them that helpers run some.
        for _ in 0..64 {
            let waited = x.clone();
            builder.op("waits").run(move |[], []| Ok(waited.wait()?)).unwrap();
        }
        builder.op("writes").writes([&x]).run(|[], [_x]| Ok(())).unwrap();
        let error = builder.finish().unwrap().replay().unwrap().wait().unwrap_err();
        assert!(error.operation().unwrap().message().contains("deadlock"), "{error}");
        assert!(watchdog.still_watches());
    }
}

/// Each node waits until the other one has begun. Only the first run of a program promises to invite helpers,
/// since nothing is known of the length of its nodes yet.
#[test]
fn two_nodes_that_may_run_at_once_do_when_there_are_workers() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    for _ in 0..20 {
        let barrier = Arc::new(Barrier::new(2));
        let mut builder = engine.program("pair");
        for _ in 0..2 {
            let barrier = Arc::clone(&barrier);
            let node = builder.op("meets");
            node.run(move |[], []| {
                barrier.wait();
                Ok(())
            })
            .unwrap();
        }
        builder.finish().unwrap().replay().unwrap().wait().unwrap();
    }
    assert!(watchdog.still_watches());
}

/// One worker, which is in one of the nodes: the other one is left for the thread that waits.
#[test]
fn a_thread_that_waits_for_a_replay_runs_nodes_of_it() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    for tensor_wait in [false, true] {
        let x = tensor(&engine, 1.0);
        let (barrier, begun) = (Arc::new(Barrier::new(2)), Arc::new(AtomicBool::new(false)));
        let mut builder = engine.program("pair");
        builder.op("writes").updates([&x]).run(|[], [], [_x]| Ok(())).unwrap();
        for _ in 0..2 {
            let (barrier, begun) = (Arc::clone(&barrier), Arc::clone(&begun));
            let node = builder.op("meets");
            node.run(move |[], []| {
                begun.store(true, Ordering::SeqCst);
                barrier.wait();
                Ok(())
            })
            .unwrap();
        }
        let replay = builder.finish().unwrap().replay().unwrap();
        tests::ops::until("the worker is in a node", || begun.load(Ordering::SeqCst));
        if tensor_wait {
            x.wait().unwrap()
        } else {
            replay.wait().unwrap()
        }
        replay.wait().unwrap();
    }
    assert!(watchdog.still_watches());
}

/// The only worker is busy, so no helper that the waiting thread invites comes.
#[test]
fn replays_that_a_waiting_thread_runs_leave_no_helper_that_holds_a_permit() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let barrier = Arc::new(Barrier::new(2));
    let busy = engine.op("busy").run({
        let barrier = Arc::clone(&barrier);
        move |[], []| {
            barrier.wait();
            barrier.wait();
            Ok(())
        }
    });
    barrier.wait();
    let mut builder = engine.program("pair");
    for _ in 0..2 {
        let node = builder.op("takes time").run(|[], []| {
            std::thread::sleep(Duration::from_micros(50));
            Ok(())
        });
        node.unwrap();
    }
    let program = builder.finish().unwrap();
    for _ in 0..10 {
        program.replay().unwrap().wait().unwrap();
    }
    assert_eq!(engine.stats().in_flight, 1);
    barrier.wait();
    busy.unwrap().wait().unwrap();
    assert!(watchdog.still_watches());
}

/// ```text
/// 0 … 49: short │ 50: long │ 51 … 99: short │ 100 and 101: each waits until the other one has begun
/// ```
/// The last two end only if the run, which begins on one thread since the runs before were short, is shared
/// after 50.
#[test]
fn a_run_that_turns_out_long_is_shared_from_there_on() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let long = Arc::new(AtomicBool::new(false));
    let barrier = Arc::new(Barrier::new(2));
    let mut builder = engine.program("step");
    for number in 0..102 {
        let (long, barrier) = (Arc::clone(&long), Arc::clone(&barrier));
        let node = builder.op("node");
        node.run(move |[], []| {
            if long.load(Ordering::Relaxed) {
                let began = Instant::now();
                while number == 50 && began.elapsed() < Duration::from_millis(1) {
                    hint::spin_loop();
                }
                if number >= 100 {
                    barrier.wait();
                }
            }
            Ok(())
        })
        .unwrap();
    }
    let program = builder.finish().unwrap();
    for _ in 0..10 {
        long.store(false, Ordering::Relaxed);
        (0..5).for_each(|_| program.replay().unwrap().wait().unwrap());
        long.store(true, Ordering::Relaxed);
        program.replay().unwrap().wait().unwrap();
    }
    assert!(watchdog.still_watches());
}

/// The parts become one group when the whole is imported, in the middle of the recording.
#[test]
fn nodes_on_overlapping_memory_keep_their_order_however_many_overlap() {
    /// Few keep their own variables, many are collapsed into a group.
    const PARTS: [usize; 2] = [4, 40];
    for (workers, count) in [0, 3].into_iter().flat_map(|workers| PARTS.map(|count| (workers, count))) {
        let engine = engine(workers);
        let watchdog = Watchdog::of(&engine);
        let (memory, deleted) = (Memory::of(&vec![0.0; count]), Deleted::default());
        // SAFETY: the memory is there as long as a tensor is, and only the engine uses it.
        let import = |at, len| unsafe { engine.import(memory.tensor(at, len, &deleted)) }.unwrap();
        let mut builder = engine.program("step");
        let increments = |builder: &mut ProgramBuilder, tensor: &Tensor, factor: f32| {
            let node = builder.op("change").updates([tensor]);
            node.run(move |[], [], [mut tensor]| {
                tensor.as_mut_slice::<f32>()?.iter_mut().for_each(|value| *value = *value * factor + 1.0);
                Ok(())
            })
            .unwrap();
        };
        let parts: Vec<_> = (0..count).map(|at| import(at, 1)).collect();
        parts.iter().for_each(|part| increments(&mut builder, part, 2.0));
        let whole = import(0, count);
        increments(&mut builder, &whole, 3.0);
        parts.iter().for_each(|part| increments(&mut builder, part, 2.0));
        let program = builder.finish().unwrap();
        let mut expected = 0.0;
        for _ in 0..5 {
            program.replay().unwrap();
            expected = ((expected * 2.0 + 1.0) * 3.0 + 1.0) * 2.0 + 1.0;
            assert_eq!(whole.to_vec::<f32>().unwrap(), vec![expected; count]);
        }
        drop((program, parts, whole));
        engine.wait_all(None).unwrap();
        deleted.settle_at(count + 1);
        assert!(watchdog.still_watches());
    }
}

/// Two replays meet in a barrier: neither could go on if they did not run at the same time.
#[test]
fn replays_that_only_read_may_overlap() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let barrier = Arc::new(Barrier::new(2));
    let mut builder = engine.program("reads");
    let meeting = Arc::clone(&barrier);
    let node = builder.op("meets").reads([&x]);
    node.run(move |[_x], []| {
        meeting.wait();
        Ok(())
    })
    .unwrap();
    builder.op("reads").reads([&x]).run(|[_x], []| Ok(())).unwrap();
    let program = builder.finish().unwrap();
    for _ in 0..20 {
        let pair = [program.replay().unwrap(), program.replay().unwrap()];
        pair.into_iter().for_each(|replay| replay.wait().unwrap());
    }
    add(&engine, &x, 1.0);
    assert_eq!(get(&x), 2.0);
    assert!(watchdog.still_watches());
}

#[test]
fn a_program_outlives_its_engine_handle_and_is_refused_after_shutdown() {
    let engine = engine(1);
    let variable = engine.var();
    let (program, calls) = counting(&engine, &variable);
    let last = program.clone();
    program.replay().unwrap();
    assert!(engine.shutdown_timeout(Duration::from_secs(60)).drained);
    drop(engine);
    assert!(matches!(last.replay(), Err(Error::Shutdown)));
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}
