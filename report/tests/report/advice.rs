//! The advice for programs whose truth can be computed by hand: each trace has an engine of two workers and
//! no time lost between an end and what it allows.

use estafette_report::attribution::attribute;
use estafette_report::model::*;
use estafette_report::terminal::{self, Style};
use estafette_report::{Report, merge, report, report_about};

use crate::made_up;
use crate::programs::{MAIN, MS, Program};

fn saves(report: &Report, change: &str) -> Option<u64> {
    let mut found = report.advice.iter().filter(|advice| advice.change.contains(change));
    found.next().map(|advice| advice.saves_ns)
}

#[test]
fn two_branches_that_share_a_scratch_tensor_should_have_two() {
    // blur  |--10--|      |--10--|
    // edges        |--10--|      |--10--|      with two of it: side by side, in half the time
    let (scratch, left, right) = (1, 2, 3);
    let mut program = Program::new(&["scratch", "left", "right"]);
    for turn in 0..4 {
        let (name, own) = if turn % 2 == 0 { ("blur", left) } else { ("edges", right) };
        let times = (turn * 10 * MS, (turn + 1) * 10 * MS);
        program.ran(
            name,
            turn as usize % 2,
            0,
            times,
            &[(scratch, AccessMode::Write), (own, AccessMode::Update)],
        );
    }
    let told = program.report(40 * MS);
    assert_eq!(saves(&told, "use two of `scratch` in turn"), Some(20 * MS), "{:?}", told.advice);
    assert!(told.advice[0].change.starts_with("use two of `scratch`"), "{:?}", told.advice);
    assert_eq!(saves(&told, "`left`"), None, "what is updated cannot be in two places");
}

#[test]
fn a_program_that_looks_at_each_result_should_look_later() {
    // load  |-8-|          |-8-|
    // train     |--10--|       |--10--|        without waiting: load beside train
    let mut program = Program::new(&["even", "odd", "loss"]);
    for turn in 0..4_u64 {
        let (batch, begin) = (1 + turn % 2, turn * 18 * MS);
        program.ran("load", 0, begin, (begin, begin + 8 * MS), &[(batch, AccessMode::Write)]);
        let train = (begin + 8 * MS, begin + 18 * MS);
        program.ran("train", 1, begin, train, &[(batch, AccessMode::Read), (3, AccessMode::Update)]);
        program.waited(begin, begin + 18 * MS, 3, 41);
    }
    let told = program.report(72 * MS);
    // 8 to load the first batch, four times 10 to train.
    let expected = 72 * MS - 48 * MS;
    assert_eq!(
        saves(&told, "continue without waiting at program.py:41"),
        Some(expected),
        "{:?}",
        told.advice
    );
}

#[test]
fn a_wait_at_the_end_is_no_advice() {
    let mut program = Program::new(&["loss"]);
    program.ran("train", 0, 0, (0, 10 * MS), &[(1, AccessMode::Update)]);
    program.ran("train", 0, 0, (10 * MS, 20 * MS), &[(1, AccessMode::Update)]);
    program.waited(0, 20 * MS, 1, 50);
    let told = program.report(20 * MS);
    assert_eq!(told.advice.len(), 1, "{:?}", told.advice);
    assert_eq!((told.advice[0].change.as_str(), told.advice[0].saves_ns), ("make `train` faster", 20 * MS));
}

#[test]
fn a_program_that_does_everything_itself_is_reported_so_first() {
    let mut program = Program::new(&["loss"]);
    for turn in 0..3_u64 {
        let begin = (turn * 20 + 17) * MS;
        program.ran("train", 0, begin, (begin, begin + 3 * MS), &[(1, AccessMode::Update)]);
        program.waited(begin, begin + 3 * MS, 1, 50);
    }
    let told = program.report(60 * MS);
    assert!(
        told.headline.starts_with("The program itself took 85 % of 60.0 ms, while nothing was under way. "),
        "{}",
        told.headline
    );
    assert_eq!(saves(&told, "submit earlier"), Some(51 * MS));
}

#[test]
fn a_worker_that_sleeps_is_not_one_that_is_busy() {
    // worker 0 |--10--| 5 |-1-|     worker 1 |-----12-----|
    let three = || {
        let mut program = Program::new(&["a", "b", "c"]);
        program.ran("one", 0, 0, (0, 10 * MS), &[(1, AccessMode::Write)]);
        program.ran("two", 1, 0, (0, 12 * MS), &[(2, AccessMode::Write)]);
        // Submitted when both are busy; one is free from 10 on, and takes it at 15.
        program.ran("three", 0, 5 * MS, (15 * MS, 16 * MS), &[(3, AccessMode::Write)]);
        let part = program.0.operations.last_mut().unwrap();
        (part.granted, part.ready) = (Some(5 * MS), Some(5 * MS));
        program
    };
    let told = three().report(16 * MS);
    let waited = |cause: &str| told.causes.iter().find(|row| row.cause == cause).unwrap().waited_ns;
    assert_eq!((waited("no worker"), waited("not resumed")), (5 * MS, 5 * MS));
    assert_eq!(saves(&told, "use more workers"), Some(5 * MS), "{:?}", told.advice);
    assert_eq!(saves(&told, "Python"), None, "{:?}", told.advice);
    assert_eq!(saves(&told, "a worker with nothing to do sleeps"), Some(5 * MS), "{:?}", told.advice);

    // It waits for the Python lock as well.
    let mut program = three();
    let part = program.0.operations.last_mut().unwrap();
    (part.awake, part.began) = (Some(15 * MS), Some(15 * MS + MS / 2));
    let told = program.report(16 * MS);
    assert_eq!(saves(&told, "use more workers, if what they run releases the Python lock"), Some(5 * MS));
}

#[test]
fn a_body_that_waits_for_its_event_loop_waits_for_no_lock_and_keeps_no_worker() {
    // loop |-----------50-----------|-1-|     worker 0 |-10-|
    let mut program = Program::new(&["x", "y"]);
    program.0.tracks[0].kind = TrackKind::EventLoop;
    program.ran("fetch", 0, 0, (50 * MS, 51 * MS), &[(1, AccessMode::Write)]);
    let fetch = program.0.operations.last_mut().unwrap();
    (fetch.granted, fetch.ready, fetch.awake, fetch.track) = (Some(0), Some(0), Some(0), Some(0));
    program.ran("work", 0, 0, (0, 10 * MS), &[(2, AccessMode::Write)]);
    let told = program.report(51 * MS);
    assert!(told.worst[0].sentence.ends_with("because the event loop was busy"), "{:?}", told.worst);
    assert!(told.headline.contains("not resumed (the event loop)"), "{}", told.headline);
    let waited = |cause: &str| told.causes.iter().find(|row| row.cause == cause).unwrap().waited_ns;
    assert_eq!((waited("no worker"), waited("not resumed")), (0, 50 * MS));
}

/// Four operations on variables of their own, each of which is waited for before the next one is submitted.
/// The waits may have a name.
fn waited_for_each(name: Option<&str>) -> Program {
    let mut program = Program::new(&["a", "b", "c", "d"]);
    for turn in 0..4 {
        let times = (turn * 10 * MS, (turn + 1) * 10 * MS);
        program.ran("work", turn as usize % 2, times.0, times, &[(1 + turn, AccessMode::Write)]);
    }
    // The engine gives these numbers behind all operations.
    for turn in 0..4 {
        program.waited_for(turn * 10 * MS, (turn + 1) * 10 * MS, 1 + turn);
        if let Some(name) = name {
            program.0.operations.last_mut().unwrap().name = name.into();
        }
    }
    program
}

#[test]
fn a_wait_for_an_operation_by_name_is_played_too() {
    // work |-10-|     |-10-|      without waiting: two at once
    // main |-wait-|   |-wait-|
    let told = waited_for_each(None).report(40 * MS);
    assert_eq!(saves(&told, "continue without waiting on thread `main`"), Some(20 * MS), "{:?}", told.advice);
}

#[test]
fn a_submission_that_waits_for_room_gets_advice_about_the_limit() {
    // work |-10-|          |-10-|          the next one is submitted when the one before has ended
    // main |-wait for room-|
    let told = waited_for_each(Some(IN_FLIGHT_LIMIT)).report(40 * MS);
    let change = "raise the in-flight limit: the program waited for room on thread `main`";
    assert_eq!(saves(&told, change), Some(20 * MS), "{:?}", told.advice);
    assert_eq!(saves(&told, "continue without waiting"), None, "{:?}", told.advice);
}

#[test]
fn an_await_on_a_thread_that_does_something_else_is_no_thread_that_sleeps() {
    // quick |-1-|
    // main  |-await-, resumed at 20
    let program = |kind: OperationKind| {
        let mut program = Program::new(&["x"]);
        program.ran("quick", 0, 0, (0, MS), &[(1, AccessMode::Write)]);
        program.waited_for(0, MS, 1);
        let part = program.0.operations.last_mut().unwrap();
        (part.kind, part.resumed) = (kind, Some(20 * MS));
        program.report(20 * MS)
    };
    let told = program(OperationKind::Await);
    assert_eq!(saves(&told, "keep thread `main` free"), Some(19 * MS), "{:?}", told.advice);
    assert_eq!(saves(&told, "wake fewer sleeping threads"), None, "{:?}", told.advice);
    let told = program(OperationKind::Wait);
    assert_eq!(saves(&told, "keep thread `main` free"), None, "{:?}", told.advice);
    assert_eq!(saves(&told, "wake fewer sleeping threads"), Some(19 * MS), "{:?}", told.advice);
}

#[test]
fn the_copy_of_an_import_makes_no_worker_of_the_programs_thread() {
    let mut program = Program::new(&["a", "b", "c", "d", "imported"]);
    for turn in 0..4 {
        let times = (turn * 10 * MS, (turn + 1) * 10 * MS);
        program.ran("work", turn as usize % 2, times.0, times, &[(1 + turn, AccessMode::Write)]);
    }
    program.ran("copy by numpy", 0, 0, (0, 0), &[(5, AccessMode::Write)]);
    let copy = program.0.operations.last_mut().unwrap();
    (copy.kind, copy.track) = (OperationKind::Copy, copy.submitter);
    for turn in 0..4 {
        program.waited_for(turn * 10 * MS, (turn + 1) * 10 * MS, 1 + turn);
    }
    let told = program.report(40 * MS);
    // Three workers take two rounds, and four would take one.
    assert_eq!(saves(&told, "continue without waiting on thread `main`"), Some(20 * MS), "{:?}", told.advice);
}

#[test]
fn a_plain_variable_is_not_to_be_had_twice() {
    let program = |name: &str| {
        let mut program = Program::new(&[name, "left", "right"]);
        for turn in 0..4 {
            let times = (turn * 10 * MS, (turn + 1) * 10 * MS);
            program.ran(
                "step",
                turn as usize % 2,
                0,
                times,
                &[(1, AccessMode::Write), (2 + turn % 2, AccessMode::Update)],
            );
        }
        program
    };
    assert_eq!(saves(&program("scratch").report(40 * MS), "use two of `scratch`"), Some(20 * MS));
    let mut plain = program("log file");
    plain.0.variables[0].bytes = None;
    assert_eq!(saves(&plain.report(40 * MS), "use two of"), None);
}

#[test]
fn a_report_about_a_name_has_what_a_whole_one_has_no_room_for() {
    // Eleven operations, one after the other, each of which takes less than the one before.
    let mut program = Program::new(&["x"]);
    let mut at = 0;
    for length in (1..12).rev() {
        program.ran(&format!("op-{length:02}"), 0, 0, (at, at + length * MS), &[(1, AccessMode::Update)]);
        at += length * MS;
    }
    program.0.duration = at;
    attribute(&mut program.0);
    let whole = report(&program.0);
    assert_eq!((saves(&whole, "op-02"), whole.worst.len()), (None, 10));
    let about = report_about(&program.0, "op-02");
    assert_eq!((saves(&about, "op-02"), about.advice.len()), (Some(2 * MS), 1));
    assert_eq!(about.operations.len(), 1);
    // It waited, and the next one waited for it.
    assert!(
        about.worst.iter().all(|row| row.sentence.contains("op-02")) && about.worst.len() == 2,
        "{about:?}"
    );
    let empty = terminal::text(&report_about(&program.0, "absent"), Style::default());
    assert!(empty.ends_with("What would help most\n  nothing that this trace shows\n"), "{empty}");
}

/// The main thread computes, and holds the Python lock, from `from` to `to`: an operation waits for the lock
/// meanwhile.
fn lock_held(from: u64, to: u64) -> Program {
    let mut program = Program::new(&["x"]);
    program.ran("score", 0, from, (to, to + MS), &[(1, AccessMode::Write)]);
    let score = program.0.operations.last_mut().unwrap();
    (score.granted, score.ready, score.awake) = (Some(from), Some(from), Some(from));
    program.waited_for(to, to + MS, 1);
    program
}

#[test]
fn the_thread_that_held_the_python_lock_is_named() {
    let told = lock_held(0, 50 * MS).report(51 * MS);
    let text = "because the Python lock was held elsewhere, and only thread `main` was not seen waiting";
    assert!(told.worst[0].sentence.ends_with(text), "{:?}", told.worst);
    assert!(told.headline.contains("not resumed (the Python lock, by thread `main`)"), "{}", told.headline);
    assert_eq!(saves(&told, "hold the Python lock for less time on thread `main`"), Some(50 * MS));
    let spent: u64 = told.run_time.iter().map(|row| row.time_ns).sum();
    assert_eq!((spent, told.duration_ns), (51 * MS, 51 * MS));
}

#[test]
fn who_held_the_python_lock_is_named_once_in_a_trace_that_is_put_together() {
    let mut program = lock_held(0, 50 * MS);
    program.0.duration = 51 * MS;
    attribute(&mut program.0);
    let told = report(&program.0);
    let merged = merge(vec![program.0]).unwrap();
    // Reports of it find nothing to change, and copy nothing.
    assert!(
        merged.stalls.iter().any(|stall| stall.blocker == Blocker::LockOwner(MAIN)),
        "{:?}",
        merged.stalls
    );
    assert_eq!(report(&merged), told);
}

#[test]
fn an_operation_that_held_the_python_lock_is_named_and_of_two_neither() {
    let with_hog = |main_waits: bool| {
        let mut program = lock_held(0, 50 * MS);
        program.ran("tokenize", 1, 0, (0, 50 * MS), &[]);
        program.0.operations.last_mut().unwrap().awake = Some(0);
        if main_waits {
            program.waited_for(0, 50 * MS, 3);
        }
        program.report(51 * MS)
    };
    let score =
        |told: &Report| told.worst.iter().find(|row| row.sentence.starts_with("`score`")).unwrap().clone();
    let told = score(&with_hog(true));
    assert!(
        told.sentence.ends_with("held elsewhere, and only `tokenize` ran") && told.blocker == "`tokenize`",
        "{told:?}"
    );
    let told = score(&with_hog(false));
    assert!(told.sentence.ends_with("the Python lock was held elsewhere"), "{told:?}");
}

#[test]
fn an_asynchronous_body_is_not_said_to_have_held_the_python_lock() {
    // loop |-----fetch, which awaits-----|     worker 0 waits for the lock, which main does not hold
    let mut program = lock_held(0, 50 * MS);
    program.ran("fetch", 0, 0, (0, 50 * MS), &[]);
    program.0.tracks.push(Track { name: "loop".into(), kind: TrackKind::EventLoop });
    let on_loop = program.0.tracks.len() - 1;
    let fetch = program.0.operations.last_mut().unwrap();
    (fetch.track, fetch.awake) = (Some(on_loop), Some(0));
    program.waited_for(0, 50 * MS, 3);
    let told = program.report(51 * MS);
    let score = told.worst.iter().find(|row| row.sentence.starts_with("`score`")).unwrap();
    assert!(score.sentence.ends_with("the Python lock was held elsewhere"), "{score:?}");
}

#[test]
fn beside_an_asynchronous_body_no_other_is_said_to_have_held_the_python_lock() {
    // loop |---fetch, which may compute---|    main |---its own code---|    worker 0 waits for the lock
    let mut program = lock_held(0, 50 * MS);
    program.ran("fetch", 0, 0, (0, 50 * MS), &[]);
    program.0.tracks.push(Track { name: "loop".into(), kind: TrackKind::EventLoop });
    let on_loop = program.0.tracks.len() - 1;
    let fetch = program.0.operations.last_mut().unwrap();
    (fetch.track, fetch.awake) = (Some(on_loop), Some(0));
    let told = program.report(51 * MS);
    let score = told.worst.iter().find(|row| row.sentence.starts_with("`score`")).unwrap();
    assert!(score.sentence.ends_with("the Python lock was held elsewhere"), "{score:?}");
}

#[test]
fn equal_waits_are_one_and_the_headline_is_of_the_run_time() {
    // decode |1| augment |--10--| in turn on one tensor; everything is submitted at the beginning.
    let mut program = Program::new(&["batch"]);
    for turn in 0..10 {
        let begin = turn * 11 * MS;
        program.ran("decode", 0, 0, (begin, begin + MS), &[(1, AccessMode::Write)]);
        program.ran("augment", 0, 0, (begin + MS, begin + 11 * MS), &[(1, AccessMode::Update)]);
    }
    let told = program.report(110 * MS);
    // Summed, it is ten times the run: 0 to 9 times 11 ms of each, and 1 ms more of `augment`.
    assert_eq!(told.totals.waited_ns, 1_000 * MS);
    assert!(
        told.headline.starts_with("91 % of the run time of 110 ms: computing (`augment`). "),
        "{}",
        told.headline
    );
    for row in &told.operations {
        assert_eq!(row.causes_ns.iter().sum::<u64>(), row.waited_ns, "{row:?}");
    }
    let rows: Vec<_> = told.worst.iter().map(|row| (row.blocker.as_str(), row.count, row.total_ns)).collect();
    assert_eq!(rows, [("`augment`", 9, 504 * MS), ("`augment`", 9, 495 * MS), ("`decode`", 1, MS)]);
    assert!(
        told.worst[0].sentence.starts_with("`augment` waited 504 ms in 9 waits (the longest 100 ms)"),
        "{:?}",
        told.worst
    );
    let (_, example) = told.headline.split_once("The longest: ").unwrap();
    assert!(told.worst.iter().any(|row| example == format!("{}.", row.sentence)), "{}", told.headline);
}

#[test]
fn what_the_engine_does_for_the_program_is_not_among_its_operations() {
    let mut program = Program::new(&["loss"]);
    program.ran("train", 0, 0, (0, 10 * MS), &[(1, AccessMode::Update)]);
    program.waited(0, 10 * MS, 1, 50);
    program.part("lease", OperationKind::Export, 10 * MS, &[(1, AccessMode::Read)]).resumed = Some(11 * MS);
    let told = program.report(12 * MS);
    let kinds: Vec<_> = told.operations.iter().map(|row| (row.name.as_str(), row.kind.as_str())).collect();
    assert_eq!(kinds, [("`wait` at program.py:50", "wait"), ("a lease", "export"), ("`train`", "operation")]);
    let text = terminal::text(&told, Style::default());
    let (_, tables) = text.split_once("\nOperations\n").unwrap();
    let (own, others) = tables.split_once("\nWaits, exports and imports\n").unwrap();
    assert!(own.contains("`train`") && !own.contains("wait`") && !own.contains("lease"), "{own}");
    assert!(others.contains("`wait` at program.py:50") && others.contains("a lease"), "{others}");
}

#[test]
fn a_wait_on_a_link_says_what_the_other_process_had_not_done() {
    let sentence = |name: &str, kind| {
        let mut program = Program::new(&[]);
        program.part(name, kind, 0, &[]).resumed = Some(10 * MS);
        program.report(10 * MS).worst.swap_remove(0).sentence
    };
    for name in ["connect", "accept"] {
        let told = sentence(name, OperationKind::Wait);
        assert!(told.ends_with("because the other process was not there yet"), "{told}");
    }
    for (name, kind) in [("send", OperationKind::Await), ("receive @7", OperationKind::Wait)] {
        let told = sentence(name, kind);
        assert!(told.ends_with("because the other process had not answered yet"), "{told}");
    }
}

#[test]
fn a_wait_for_room_says_so() {
    // work |-10-|      main |-wait for room-|
    let mut program = Program::new(&["a"]);
    program.ran("work", 0, 0, (0, 10 * MS), &[(1, AccessMode::Write)]);
    program.waited_for(0, 10 * MS, 1);
    program.0.operations.last_mut().unwrap().name = "in-flight limit".into();
    let told = program.report(10 * MS);
    let sentence = "a wait of thread `main` for room below the in-flight limit waited 10.0 ms for `work`, \
                    because `work` was still computing";
    assert!(told.worst.iter().any(|row| row.sentence == sentence), "{:?}", told.worst);
}

#[test]
fn a_trace_that_lasts_longer_than_sums_have_room_for_says_so() {
    let mut trace = made_up::trace(50);
    assert!(report(&trace).missing.is_empty());
    trace.duration = 1 << 50;
    assert!(report(&trace).missing[0].contains("78 hours"), "{:?}", report(&trace).missing);
}

#[test]
fn losses_of_thousands_of_threads_are_reported_in_a_few_lines() {
    let mut trace = made_up::trace(50);
    let track = trace.tracks[0].clone();
    trace.tracks.extend(vec![track; 1_000]);
    trace.losses.records = (0..1_000).map(|track| LostRecords { track, count: 3 }).collect();
    let missing = report(&trace).missing;
    assert_eq!(missing.len(), 11, "{missing:?}");
    assert_eq!(missing[10], "2970 events of 990 more did not fit");
}
