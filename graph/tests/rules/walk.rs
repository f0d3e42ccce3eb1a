//! The results of a walk back from an operation that waits.

use crate::common::{Driver, Granted, Graph, OpRef, Value, Var, complete, none, only, r, w};
use estafette_graph::{AccessMode, Step, StepKind, Walk};

const EVERYTHING: usize = usize::MAX;

fn walk<'g>(driver: &'g Driver, ops: &[&OpRef]) -> Walk<'g, Value, Value, ()> {
    let mut walk = driver.graph.walk();
    for op in ops {
        walk.add(op);
    }
    assert!(walk.run(EVERYTHING, |_, _| ()));
    walk
}

fn name(step: &Step<'_, Value, ()>) -> String {
    match step.what {
        StepKind::Op(op) => op.name.clone(),
        StepKind::Pin(()) => "hold".to_owned(),
    }
}

fn names(walk: &Walk<'_, Value, Value, ()>) -> Vec<String> {
    let mut names: Vec<_> = walk.steps().map(|step| name(&step)).collect();
    names.sort();
    names
}

#[test]
fn everything_that_blocks_an_operation_is_found_and_nothing_else() {
    let mut driver = Driver::new(6);
    driver.submit("root cause", &[w(3)]);
    driver.submit("c", &[r(3), w(2)]);
    driver.submit("b", &[r(2), w(1)]);
    let a = driver.submit_ref("a", &[r(1), w(0)]);
    driver.submit("beyond", &[r(0)]);
    driver.submit("unrelated", &[w(5)]);
    let walk = walk(&driver, &[&a]);
    assert_eq!(names(&walk), ["a", "b", "c", "root cause"]);
    let granted: Vec<_> = walk.steps().filter(|step| step.granted).map(|step| name(&step)).collect();
    assert_eq!(granted, ["root cause"]);
    assert!(walk.all_still_wait());
}

#[test]
fn a_writer_waits_for_the_reads_ahead_of_it_and_a_reader_for_the_last_write() {
    let mut driver = Driver::new(1);
    driver.submit("w1", &[w(0)]);
    driver.submit("r1", &[r(0)]);
    let r2 = driver.submit_ref("r2", &[r(0)]);
    let w2 = driver.submit_ref("w2", &[w(0)]);
    let r3 = driver.submit_ref("r3", &[r(0)]);
    assert_eq!(names(&walk(&driver, &[&r2])), ["r2", "w1"]);
    assert_eq!(names(&walk(&driver, &[&w2])), ["r1", "r2", "w1", "w2"]);
    assert_eq!(names(&walk(&driver, &[&r3])), ["r1", "r2", "r3", "w1", "w2"]);
    driver.complete("w1");
    assert_eq!(names(&walk(&driver, &[&r3])), ["r1", "r2", "r3", "w2"]);
    driver.complete("r1");
    assert_eq!(names(&walk(&driver, &[&w2, &r3])), ["r2", "r3", "w2"]);
}

#[test]
fn what_was_split_off_a_running_operation_is_found_beside_it() {
    let mut driver = Driver::new(1);
    let graph = driver.graph.clone();
    let running = graph
        .op("running".into(), [(&driver.vars[0], AccessMode::Write)])
        .submit_unreferenced()
        .expect("granted");
    let lease = running.split("lease".into(), &[&driver.vars[0]], AccessMode::Read);
    let reader = driver.submit_ref("reader", &[r(0)]);
    let writer = driver.submit_ref("writer", &[w(0)]);
    assert_eq!(names(&walk(&driver, &[&reader])), ["reader", "running"]);
    assert_eq!(names(&walk(&driver, &[&writer])), ["lease", "reader", "running", "writer"]);
    none(complete(only(complete(running))));
    assert_eq!(names(&walk(&driver, &[&writer])), ["lease", "writer"]);
    none(complete(only(complete(lease))));
}

#[test]
fn holds_are_found_by_whom_they_block() {
    let mut driver = Driver::new(2);
    assert!(driver.vars[0].try_pin(|_, _| true));
    let reader = driver.submit_ref("reader", &[r(0), w(1)]);
    let writer = driver.submit_ref("writer", &[w(0)]);
    let graph = driver.graph.clone();
    let held = |op: &OpRef| {
        let mut walk = graph.walk();
        walk.add(op);
        walk.run(EVERYTHING, |state, found| found.push((graph.next_id(), state.number)));
        let held = walk.steps().filter(|step| matches!(step.what, StepKind::Pin(0))).count();
        (walk.steps().len(), held)
    };
    assert_eq!(held(&reader), (1, 0), "it is granted");
    assert_eq!(held(&writer), (3, 1), "itself, the reader and the hold");
    driver.complete("reader");
    assert_eq!(held(&writer), (2, 1));
    driver.vars[0].unpin(|_, _| (), |granted| none(complete(granted)));
}

#[test]
fn a_collapsed_variable_leads_on_to_its_group() {
    let mut driver = Driver::new(2);
    driver.submit("before", &[w(0)]);
    driver.collapse("collapse", &[0], 1);
    driver.submit("w", &[w(1)]);
    let reader = driver.submit_ref("r", &[r(0)]);
    assert_eq!(names(&walk(&driver, &[&reader])), ["before", "collapse", "r", "w"]);
}

#[test]
fn who_can_move_is_known_for_each_of_several() {
    let mut driver = Driver::new(3);
    driver.submit("lease", &[r(0)]);
    driver.submit("running", &[w(1)]);
    let behind_lease = driver.submit_ref("behind the lease", &[w(0)]);
    let behind_both = driver.submit_ref("behind both", &[r(0), r(1)]);
    let behind_that = driver.submit_ref("behind that", &[w(0), w(2)]);
    let mut walk = driver.graph.walk::<()>();
    let indices = [&behind_lease, &behind_both, &behind_that].map(|op| walk.add(op));
    assert!(walk.run(EVERYTHING, |_, _| ()));
    let reaches = walk.reaches(|step| name(&step) != "lease");
    assert_eq!(indices.map(|index| reaches[index]), [false, true, true]);
}

#[test]
fn a_walk_with_a_limit_stops_and_goes_on() {
    let mut driver = Driver::new(1);
    for n in 0..100 {
        driver.submit(&n.to_string(), &[w(0)]);
    }
    let last = driver.submit_ref("last", &[w(0)]);
    let mut walk = driver.graph.walk::<()>();
    walk.add(&last);
    assert!(!walk.run(20, |_, _| ()));
    assert!((20..30).contains(&walk.inspected()));
    assert!(walk.run(EVERYTHING, |_, _| ()));
    assert_eq!(walk.steps().len(), 101);
}

#[test]
fn what_moves_during_a_walk_is_noticed() {
    let mut driver = Driver::new(2);
    driver.submit("first", &[w(0)]);
    driver.submit("second", &[w(0), w(1)]);
    let third = driver.submit_ref("third", &[w(1)]);
    let graph = driver.graph.clone();
    let mut walk = graph.walk::<()>();
    walk.add(&third);
    assert!(walk.run(EVERYTHING, |_, _| ()));
    assert!(walk.all_still_wait());
    let mut under_way = graph.walk::<()>();
    under_way.add(&third);
    assert!(!under_way.run(1, |_, _| ()), "the second was found, and not visited");
    driver.complete("first");
    assert!(!walk.all_still_wait(), "the second is granted");
    driver.complete("second");
    assert!(under_way.run(EVERYTHING, |_, _| ()));
    let second = under_way.steps().find(|step| name(step) == "second").expect("found");
    assert!(second.granted, "it was over when it was visited");
    assert!(!under_way.all_still_wait());
}

/// The number of looked at accesses grows as what is found does, whatever the shape, and whatever else there
/// is.
#[test]
fn a_walk_costs_in_proportion_to_what_it_finds() {
    fn cost(count: usize, submit: impl Fn(&mut Driver, usize)) -> usize {
        let mut driver = Driver::new(count + 3);
        for at in 0..count {
            submit(&mut driver, at);
        }
        let last: Vec<_> = (0..count + 3).map(w).collect();
        let last = driver.submit_ref("last", &last);
        let walk = walk(&driver, &[&last]);
        walk.inspected()
    }
    type Submit = fn(&mut Driver, usize);
    let shapes: [(&str, Submit); 5] = [
        ("a chain of variables", |driver, at| driver.submit(&at.to_string(), &[r(at), w(at + 1)])),
        ("writes of one variable", |driver, at| driver.submit(&at.to_string(), &[w(0)])),
        ("a chain whose parts read a common one", |driver, at| {
            driver.submit(&at.to_string(), &[r(0), r(at + 1), w(at + 2)]);
        }),
        ("readers of what is written", |driver, at| {
            if at == 0 {
                driver.submit("write", &[w(0)]);
            }
            driver.submit(&at.to_string(), &[r(0), w(at + 1)]);
        }),
        ("runs of reads between writes", |driver, at| {
            let access = if at.is_multiple_of(100) { w(0) } else { r(0) };
            driver.submit(&at.to_string(), &[access, w(at + 1)]);
        }),
    ];
    for (shape, submit) in shapes {
        let (few, many) = (cost(200, submit), cost(2_000, submit));
        assert!(many <= 12 * few, "{shape}: {few} looks for 200, {many} for 2,000");
    }
}

#[test]
fn a_walk_does_not_look_at_what_is_not_in_the_way() {
    let mut driver = Driver::new(2_002);
    for at in 0..2_000 {
        driver.submit(&at.to_string(), &[r(at), w(at + 1)]);
    }
    driver.submit("running", &[w(2_001)]);
    let waiting = driver.submit_ref("waiting", &[r(2_001)]);
    assert!(walk(&driver, &[&waiting]).inspected() < 5);
}

#[test]
fn a_walk_does_not_look_at_other_reads_of_what_is_read_already() {
    let mut driver = Driver::new(2);
    for at in 0..2_000 {
        driver.submit(&at.to_string(), &[r(0)]);
    }
    driver.submit("running", &[w(1)]);
    let waiting = driver.submit_ref("waiting", &[r(0), r(1)]);
    assert!(walk(&driver, &[&waiting]).inspected() < 5);
}

#[test]
fn an_operation_of_another_graph_is_refused() {
    let mut driver = Driver::new(1);
    driver.submit("running", &[w(0)]);
    let waiting = driver.submit_ref("waiting", &[w(0)]);
    let other = Graph::new();
    let add = std::panic::AssertUnwindSafe(|| other.walk::<()>().add(&waiting));
    assert!(std::panic::catch_unwind(add).is_err());
}

/// Walks while others submit, complete, create and drop. When everything found still waits afterwards, the
/// walk has the truth: each of its operations that waits is behind one that is granted.
#[test]
fn walks_during_traffic_lead_to_something_that_moves() {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    /// As an engine bounds what is in flight: a thread that is not scheduled for long would have the others
    /// pile up work behind it.
    const IN_FLIGHT_MAX: usize = 200;
    /// The payload of this thread's operations.
    const PROBE: usize = 9;
    let graph = Graph::new();
    let vars: Vec<Var> = (0..6).map(|_| graph.var(Value::default())).collect();
    let stop = AtomicBool::new(false);
    let in_flight = AtomicUsize::new(0);
    /// Ends the traffic, also when this thread fails.
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let complete = |granted: Granted| {
        let mut ready = vec![granted];
        while let Some(granted) = ready.pop() {
            if granted.payload().number != PROBE {
                in_flight.fetch_sub(1, Ordering::Relaxed);
            }
            ready.extend(complete(granted));
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..2_usize {
            let (graph, vars, stop, in_flight, complete) =
                (graph.clone(), &vars, &stop, &in_flight, &complete);
            scope.spawn(move || {
                let mut random = 0x2545_F491_u32 + thread as u32;
                let mut step = || {
                    random ^= random << 13;
                    random ^= random >> 17;
                    random ^= random << 5;
                    random as usize
                };
                while !stop.load(Ordering::Relaxed) {
                    if in_flight.load(Ordering::Relaxed) >= IN_FLIGHT_MAX {
                        std::thread::yield_now();
                        continue;
                    }
                    let mut ready = Vec::new();
                    for _ in 0..20 {
                        in_flight.fetch_add(1, Ordering::Relaxed);
                        let own = graph.var(Value::default());
                        let accesses = [
                            (&vars[step() % 6], AccessMode::Read),
                            (&vars[step() % 6], AccessMode::Write),
                            (&own, AccessMode::Write),
                        ];
                        ready.extend(graph.op(thread.into(), accesses).submit_unreferenced());
                    }
                    ready.into_iter().for_each(complete);
                }
            });
        }
        let stopping = Stop(&stop);
        let mut conclusive = 0;
        for round in 0..2_000 {
            let mine = graph.var(Value::default());
            let (probe, granted) = graph
                .op(PROBE.into(), [(&vars[round % 6], AccessMode::Read), (&mine, AccessMode::Write)])
                .submit();
            let mut walk = graph.walk::<()>();
            let index = walk.add(&probe);
            assert!(walk.run(EVERYTHING, |_, _| ()));
            let reaches = walk.reaches(|_| true);
            if walk.all_still_wait() {
                conclusive += 1;
                assert!(reaches[index], "something granted is at the end of every way");
            }
            drop(walk);
            match granted {
                Some(granted) => complete(granted),
                None => {
                    // Too late if one of the threads has been granted it, and completes it.
                    let mut ready = Vec::new();
                    let _ = probe.withdraw(|granted| ready.push(granted));
                    ready.into_iter().for_each(complete);
                }
            }
        }
        drop(stopping);
        assert!(conclusive > 0);
    });
}
