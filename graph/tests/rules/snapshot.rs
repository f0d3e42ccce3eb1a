//! Pictures of what is queued, and what they explain.

use crate::common::{Driver, Graph, Value, complete, r, w};
use estafette_graph::{AccessMode, Dependency, Hazard, OpId, Snapshot};

fn all(driver: &Driver) -> Snapshot<String> {
    driver.graph.snapshot(|op| op.name.clone())
}

fn id(snapshot: &Snapshot<String>, name: &str) -> OpId {
    snapshot.ops.iter().find(|op| op.label == name).expect("in the picture").id
}

fn names(snapshot: &Snapshot<String>, ids: &[OpId]) -> Vec<String> {
    let mut names: Vec<_> =
        ids.iter().map(|id| snapshot.op(*id).expect("in the picture").label.clone()).collect();
    names.sort();
    names
}

#[test]
fn an_idle_graph_has_an_empty_picture() {
    let driver = Driver::new(3);
    let snapshot = all(&driver);
    assert!(snapshot.ops.is_empty() && snapshot.vars.is_empty());
    assert!(snapshot.dependencies(OpId::new(1)).is_empty() && snapshot.leaves(OpId::new(1)).is_empty());
}

#[test]
fn queues_show_granted_accesses_until_they_are_completed() {
    let mut driver = Driver::new(2);
    driver.submit("r", &[r(0)]);
    driver.submit("w", &[w(0), w(1)]);
    let snapshot = all(&driver);
    let (r, w) = (id(&snapshot, "r"), id(&snapshot, "w"));
    let [x, y] = [driver.vars[0].id(), driver.vars[1].id()];
    assert_eq!(
        snapshot.var(x).expect("busy").queue,
        [(r, AccessMode::Read, true), (w, AccessMode::Write, false)]
    );
    assert_eq!(snapshot.var(y).expect("busy").queue, [(w, AccessMode::Write, true)]);
    let op = snapshot.op(w).expect("queued");
    assert!(!op.granted);
    assert_eq!(op.accesses, [(x, AccessMode::Write, false), (y, AccessMode::Write, true)]);
    driver.complete("r");
    let snapshot = all(&driver);
    assert_eq!(snapshot.ops.len(), 1);
    assert!(snapshot.op(w).expect("queued").granted);
    assert!(snapshot.dependencies(w).is_empty());
}

#[test]
fn dependencies_are_the_nearest_conflicts_with_their_kind() {
    let mut driver = Driver::new(1);
    driver.submit("w1", &[w(0)]);
    driver.submit("w2", &[w(0)]);
    driver.submit("r1", &[r(0)]);
    driver.submit("r2", &[r(0)]);
    driver.submit("w3", &[w(0)]);
    let snapshot = all(&driver);
    let var = driver.vars[0].id();
    let by = |op, hazard| Dependency { op: id(&snapshot, op), var, hazard };
    assert_eq!(snapshot.dependencies(id(&snapshot, "w1")), []);
    assert_eq!(snapshot.dependencies(id(&snapshot, "w2")), [by("w1", Hazard::Waw)]);
    assert_eq!(snapshot.dependencies(id(&snapshot, "r1")), [by("w2", Hazard::Raw)]);
    assert_eq!(snapshot.dependencies(id(&snapshot, "r2")), [by("w2", Hazard::Raw)]);
    assert_eq!(snapshot.dependencies(id(&snapshot, "w3")), [by("r1", Hazard::War), by("r2", Hazard::War)]);
}

#[test]
fn what_a_chain_across_variables_waits_for_is_found_and_nothing_else() {
    let mut driver = Driver::new(6);
    // 0 ← 1 ← 2 ← 3 is a chain across variables; 5 is unrelated; "beyond" waits for the chain but blocks
    // no operation in it.
    driver.submit("root cause", &[w(3)]);
    driver.submit("c", &[r(3), w(2)]);
    driver.submit("b", &[r(2), w(1)]);
    driver.submit("a", &[r(1), w(0)]);
    driver.submit("unrelated", &[w(5)]);
    let snapshot = all(&driver);
    let a = id(&snapshot, "a");
    assert_eq!(names(&snapshot, &snapshot.ancestors([a])), ["b", "c", "root cause"]);
    assert_eq!(names(&snapshot, &snapshot.leaves(a)), ["root cause"]);
}

#[test]
fn leaves_of_a_join_are_all_it_waits_for() {
    let mut driver = Driver::new(3);
    driver.submit("x", &[r(0)]);
    driver.submit("y", &[r(0)]);
    driver.submit("z", &[w(1)]);
    driver.submit("middle", &[w(0), w(2)]);
    driver.submit("join", &[r(1), r(2)]);
    let snapshot = all(&driver);
    let join = id(&snapshot, "join");
    assert_eq!(names(&snapshot, &snapshot.leaves(join)), ["x", "y", "z"]);
    assert_eq!(names(&snapshot, &snapshot.ancestors([join])), ["middle", "x", "y", "z"]);
}

#[test]
fn what_was_submitted_through_a_collapsed_variable_waits_on_its_group() {
    let mut driver = Driver::new(2);
    driver.collapse("collapse", &[0], 1);
    driver.complete("collapse");
    driver.submit("w", &[w(1)]);
    driver.submit("r", &[r(0)]);
    let snapshot = all(&driver);
    assert_eq!(names(&snapshot, &snapshot.leaves(id(&snapshot, "r"))), ["w"]);
}

#[test]
fn describing_may_use_the_graph() {
    let mut driver = Driver::new(1);
    driver.submit("w", &[w(0)]);
    let graph = driver.graph.clone();
    let snapshot = driver.graph.snapshot(|op| {
        drop(graph.var(9.into()));
        graph.snapshot(|_| ()).ops.len() + op.name.len()
    });
    assert_eq!(snapshot.ops[0].label, 2);
}

#[test]
fn ancestors_of_a_long_chain_are_found_quickly() {
    let mut driver = Driver::new(1);
    for n in 0..20_000 {
        driver.submit(&n.to_string(), &[w(0)]);
    }
    let snapshot = all(&driver);
    let last = snapshot.ops.last().expect("queued").id;
    assert_eq!(snapshot.ancestors([last]).len(), 19_999);
    assert_eq!(snapshot.leaves(last), [snapshot.ops[0].id]);
}

#[test]
fn a_picture_of_a_long_chain_of_variables_follows_it_in_one_pass() {
    const LENGTH: usize = 50_000;
    let mut driver = Driver::new(LENGTH + 1);
    for at in 0..LENGTH {
        driver.submit(&at.to_string(), &[r(at), w(at + 1)]);
    }
    let snapshot = all(&driver);
    assert_eq!(snapshot.ops.len(), LENGTH);
    let mut explained = snapshot.explained();
    assert_eq!(snapshot.ops.iter().filter(|op| explained.dependencies(op).len() == 1).count(), LENGTH - 1);
    driver.drain();
}

/// Submitters need the list of variables to make new ones.
#[test]
fn while_a_picture_is_taken_others_make_variables_and_drop_them() {
    let graph = Graph::new();
    let held = graph.var(Value::default());
    assert!(held.try_pin(|_, _| true));
    let (ask, asked) = std::sync::mpsc::channel();
    let (answer, answered) = std::sync::mpsc::channel();
    let theirs = graph.clone();
    let thread = std::thread::spawn(move || {
        for () in asked {
            drop(theirs.var(Value::default()));
            answer.send(()).expect("it is waited for");
        }
    });
    let within = std::time::Duration::from_secs(60);
    let snapshot = graph.snapshot_with(
        |_| false,
        |_, found| {
            ask.send(()).expect("the thread listens");
            answered.recv_timeout(within).expect("making a variable waits for no picture");
            found.push((OpId::new(7), true));
        },
    );
    assert_eq!(snapshot.ops.len(), 1);
    drop(ask);
    thread.join().expect("it did what it was asked for");
    held.unpin(|_, _| (), |_| unreachable!("nothing waits"));
}

/// One thread takes pictures while others submit, complete, create and drop; each picture must be consistent:
/// granted accesses are a prefix of their queue, an operation is granted exactly if all its accesses are, an
/// operation that waits is complete in the picture, and an operation in it can proceed.
#[test]
fn pictures_taken_during_traffic_are_consistent() {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    /// A thread whose operations another one completes may otherwise run far ahead of it.
    const WINDOW: usize = 100;
    let graph = Graph::new();
    let vars: Vec<_> = (0..6).map(|_| graph.var(Value::default())).collect();
    let (stop, in_flight) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for thread in 0..2_usize {
            let (graph, vars, stop, in_flight) = (graph.clone(), &vars, &stop, &in_flight);
            scope.spawn(move || {
                let mut random = 0x2545_F491_u32 + thread as u32;
                let mut step = || {
                    random ^= random << 13;
                    random ^= random >> 17;
                    random ^= random << 5;
                    random as usize
                };
                let mut ready = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let own = graph.var(Value::default());
                    while in_flight.fetch_add(1, Ordering::Relaxed) < WINDOW {
                        let accesses = [
                            (&vars[step() % 6], AccessMode::Read),
                            (&vars[step() % 6], AccessMode::Write),
                            (&own, AccessMode::Write),
                        ];
                        ready.extend(graph.op(thread.into(), accesses).submit_unreferenced());
                    }
                    in_flight.fetch_sub(1, Ordering::Relaxed);
                    drop(own);
                    while let Some(granted) = ready.pop() {
                        ready.extend(complete(granted));
                        in_flight.fetch_sub(1, Ordering::Relaxed);
                    }
                }
            });
        }
        for _ in 0..1_000 {
            check(&graph.snapshot(|op| op.number));
        }
        stop.store(true, Ordering::Relaxed);
    });
}

fn check(snapshot: &Snapshot<usize>) {
    for var in &snapshot.vars {
        assert!(var.queue.is_sorted_by_key(|(_, _, granted)| !granted), "granted ones first");
        assert!(var.queue[0].2, "the head is granted");
        let granted: Vec<_> = var.queue.iter().filter(|(_, _, granted)| *granted).collect();
        assert!(granted.len() == 1 || granted.iter().all(|(_, mode, _)| *mode == AccessMode::Read));
    }
    for op in &snapshot.ops {
        assert!(!op.accesses.is_empty());
        assert_eq!(op.granted, op.accesses.iter().all(|(_, _, granted)| *granted));
        if !op.granted {
            assert!(
                op.accesses.len() >= 2,
                "an operation that waits is in the picture with all its variables"
            );
            assert!(!snapshot.dependencies(op.id).is_empty());
        }
    }
    if let Some(last) = snapshot.ops.iter().rfind(|op| !op.granted) {
        assert!(!snapshot.leaves(last.id).is_empty());
    }
}
