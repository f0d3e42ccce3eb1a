//! The uses of the run time of programs that were only observed: the traces are as observe mode writes them.

use estafette_report::Report;
use estafette_report::model::*;

use crate::programs::{MAIN, MS, Program};
use crate::with_graph::{CONSUMER, Seen};

fn spent(report: &Report) -> Vec<(&str, u64)> {
    report.run_time.iter().map(|row| (row.what.as_str(), row.time_ns / MS)).collect()
}

/// A function that an executor ran on the consumer's thread.
fn executed(seen: &mut Seen, name: &str, submitted: u64, times: (u64, u64)) -> OperationId {
    let id = seen.did(name, CONSUMER, times, Operation::default());
    let function = seen.0.operations.last_mut().unwrap();
    (function.submitter, function.submitted) = (Some(MAIN), submitted * MS);
    function.granted = Some(submitted * MS);
    id
}

/// As `waited`, on the consumer's thread.
fn waited_there(seen: &mut Seen, name: &str, times: (u64, u64), waits_for: OperationId) {
    seen.waited(name, 7, times, waits_for, None);
    seen.0.operations.last_mut().unwrap().submitter = Some(CONSUMER);
}

#[test]
fn an_executor_of_one_thread_takes_the_time_of_what_it_ran() {
    // main  submits three at 1, waits for each     pool |-100-|-100-|-100-|
    let mut seen = Seen::new();
    for turn in 0..3 {
        let times = (turn * 100 + 1, turn * 100 + 101);
        let work = executed(&mut seen, "slow", 1, times);
        seen.waited("Future.result", 5, times, work, None);
    }
    let rest = seen.did("pool until its end", CONSUMER, (301, 303), Operation::default());
    seen.waited("Thread.join", 3, (301, 303), rest, None);
    let told = seen.report(304);
    let expected = [
        ("no worker was free", 200),
        ("`slow` ran", 100),
        ("`pool until its end` ran", 2),
        ("the program did something else", 2),
    ];
    assert_eq!(spent(&told), expected);
    let waited =
        |cause: &str| told.causes.iter().find(|row| row.cause == cause).map(|row| row.waited_ns / MS);
    // The second function waited 100 ms for the thread, and the third 200.
    assert_eq!((waited("no worker"), waited("queued")), (Some(300), Some(0)));
}

#[test]
fn an_executor_whose_thread_was_free_has_begun_late() {
    let mut seen = Seen::new();
    executed(&mut seen, "first", 0, (0, 10));
    let work = executed(&mut seen, "second", 20, (25, 40));
    seen.waited("Future.result", 5, (20, 40), work, None);
    let told = seen.report(40);
    let late = ("thread `consumer` had been woken and did not run yet", 5);
    // Before it was submitted nothing held the program up.
    assert_eq!(spent(&told), [("the program did something else", 20), ("`second` ran", 15), late]);
}

#[test]
fn a_function_of_an_executor_that_waits_has_not_run_meanwhile() {
    let mut seen = Seen::new();
    let work = executed(&mut seen, "fetch", 0, (0, 100));
    let inner = seen.did("producer before Queue.put", MAIN, (5, 80), Operation::default());
    waited_there(&mut seen, "Queue.get", (20, 80), inner);
    seen.waited("Future.result", 5, (85, 100), work, None);
    let told = seen.report(100);
    assert_eq!(
        spent(&told),
        [("`producer before Queue.put` ran", 75), ("`fetch` ran", 20), ("the program did something else", 5)]
    );
}

#[test]
fn what_a_thread_ran_before_and_between_its_waits_is_its_own() {
    // consumer |-20-|-wait 30-|-wait 30-|-20-|
    let mut seen = Seen::new();
    let own = seen.did("consumer until its end", CONSUMER, (0, 100), Operation::default());
    for times in [(20, 50), (50, 80)] {
        let work = Operation { library: Some(0), track: None, ..Operation::default() };
        let work = seen.did("work of jax", CONSUMER, times, work);
        seen.0.operations.last_mut().unwrap().track = None;
        waited_there(&mut seen, "block_until_ready", times, work);
    }
    seen.waited("Thread.join", 9, (0, 100), own, None);
    assert_eq!(spent(&seen.report(100)), [("`work of jax` ran", 60), ("`consumer until its end` ran", 40)]);
}

#[test]
fn a_slow_step_of_an_event_loop_takes_its_time() {
    let mut seen = Seen::new();
    for (name, times) in [("a step of cb", (10, 210)), ("a step of main", (210, 360))] {
        let step = seen.did(name, MAIN, times, Operation::default());
        seen.waited("asyncio's loop", 4, times, step, None);
        seen.0.operations.last_mut().unwrap().kind = OperationKind::Await;
    }
    let told = seen.report(370);
    let program = ("the program did something else", 20);
    assert_eq!(spent(&told), [("`a step of cb` ran", 200), ("`a step of main` ran", 150), program]);
}

#[test]
fn asynchronous_bodies_of_one_event_loop_are_no_part_of_each_other() {
    // loop |-a-------100-|      main waits for a
    //        |-b-40-|
    let mut program = Program::new(&["x", "y"]);
    program.0.tracks[1].kind = TrackKind::EventLoop;
    program.ran("a", 0, 0, (0, 100 * MS), &[(1, AccessMode::Write)]);
    program.ran("b", 0, 0, (10 * MS, 50 * MS), &[(2, AccessMode::Write)]);
    program.waited(0, 100 * MS, 1, 5);
    assert_eq!(spent(&program.report(100 * MS)), [("`a` ran", 100)]);
}

#[test]
fn an_asynchronous_body_does_not_have_what_its_worker_ran_meanwhile() {
    let mut program = Program::new(&["x", "y", "z"]);
    program.ran("a", 0, 0, (0, 100 * MS), &[(1, AccessMode::Write)]);
    program.ran("b", 0, 0, (10 * MS, 50 * MS), &[(2, AccessMode::Write)]);
    // `b` waits for what another worker runs.
    program.ran("c", 1, 0, (10 * MS, 40 * MS), &[(3, AccessMode::Write)]);
    program.waited(20 * MS, 40 * MS, 3, 6);
    program.0.operations.last_mut().unwrap().submitter = Some(1);
    program.waited(0, 100 * MS, 1, 5);
    assert_eq!(spent(&program.report(100 * MS)), [("`a` ran", 100)]);
}

#[test]
fn a_function_of_many_turns_has_run_between_them() {
    let mut seen = Seen::new();
    let work = executed(&mut seen, "long", 0, (0, 1000));
    for turn in 1..=5 {
        let times = (turn * 100, turn * 100 + 10);
        seen.did("long before Queue.put", CONSUMER, times, Operation::default());
    }
    let work_there = Operation { library: Some(0), ..Operation::default() };
    let work_there = seen.did("work of jax", CONSUMER, (900, 950), work_there);
    seen.0.operations.last_mut().unwrap().track = None;
    waited_there(&mut seen, "block_until_ready", (900, 950), work_there);
    seen.waited("Future.result", 5, (960, 1000), work, None);
    let expected = [("`long before Queue.put` ran", 50), ("`long` ran", 900), ("`work of jax` ran", 50)];
    let told = seen.report(1000);
    let mut spent = spent(&told);
    spent.sort_unstable();
    assert_eq!(spent, expected);
}

#[test]
fn a_function_may_be_run_by_the_thread_that_submitted_it() {
    // pool |-outer 10-|-inner 10-|
    let mut seen = Seen::new();
    executed(&mut seen, "outer", 0, (0, 10));
    let inner = executed(&mut seen, "inner", 5, (10, 20));
    seen.0.operations.last_mut().unwrap().submitter = Some(CONSUMER);
    seen.waited("Future.result", 5, (5, 20), inner, None);
    let told = seen.report(20);
    let waited =
        |cause: &str| told.causes.iter().find(|row| row.cause == cause).map(|row| row.waited_ns / MS);
    // The function itself, and who waits for it.
    assert_eq!((waited("no worker"), waited("queued")), (Some(10), Some(0)), "{:?}", told.causes);
}
