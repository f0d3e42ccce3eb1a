//! The variable protocol under every interleaving (within a preemption bound) that loom can produce.
//!
//! Run with `RUSTFLAGS="--cfg estafette_loom" cargo test -p estafette-graph --release --test loom`.
//!
//! Loom also watches every cell of the crate (links, targets, payloads, states): an access that the protocol does not
//! order is reported as a race, and memory that is not given back as a leak.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]
#![cfg(estafette_loom)]

use std::collections::BTreeSet;

use estafette_graph::{Granted, Graph, Mode, OpRef, Snapshot, Var};
use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

const READ: Mode = Mode::Read;
const WRITE: Mode = Mode::Write;

/// Explores with at most `preemptions` involuntary switches per execution. With three threads, one: two threads that
/// wait for one bit may yield to each other for ever, which loom would follow.
fn model(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    // Enough for three threads; only a livelock needs more.
    builder.max_branches = 10_000;
    builder.check(f);
}

/// StepKind operations touch while granted, without any lock: loom reports two that overlap and should not.
struct Data {
    cells: Vec<UnsafeCell<usize>>,
    done: AtomicUsize,
}

/// Which cells an operation uses.
type Uses = Vec<(usize, Mode)>;

struct World {
    graph: Graph<usize, Uses>,
    vars: Vec<Var<usize, Uses>>,
    data: Arc<Data>,
}

impl World {
    fn new(vars: usize) -> Self {
        Self::of(Graph::new(), vars)
    }

    /// With a graph that this thread has for itself, until another one uses it.
    fn biased(vars: usize) -> Self {
        Self::of(Graph::biased(), vars)
    }

    fn of(graph: Graph<usize, Uses>, vars: usize) -> Self {
        let cells = (0..vars).map(|_| UnsafeCell::new(0)).collect();
        let vars = (0..vars).map(|_| graph.var(0)).collect();
        Self { graph, vars, data: Arc::new(Data { cells, done: AtomicUsize::new(0) }) }
    }

    /// A copy with its own handles, for another thread.
    fn share(&self) -> Self {
        Self { graph: self.graph.clone(), vars: self.vars.clone(), data: Arc::clone(&self.data) }
    }

    fn submit(&self, uses: &[(usize, Mode)]) {
        let accesses = uses.iter().map(|(var, mode)| (&self.vars[*var], *mode));
        self.run(self.graph.submit(uses.to_vec(), accesses));
    }

    /// Runs what is granted and whatever that lets go.
    fn run(&self, granted: Option<Granted<usize, Uses>>) {
        let mut ready: Vec<_> = granted.into_iter().collect();
        while let Some(granted) = ready.pop() {
            for (cell, mode) in granted.payload() {
                let cell = &self.data.cells[*cell];
                match mode {
                    // SAFETY: exactly what the graph promises, and loom checks.
                    Mode::Read => assert!(cell.with(|value| unsafe { *value }) < 100),
                    // SAFETY: as above.
                    _ => cell.with_mut(|value| unsafe { *value += 1 }),
                }
            }
            granted.complete(|finish| *finish.state += 1, |granted| ready.push(granted));
            self.data.done.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Submits an operation that may be withdrawn, and that cannot be granted yet.
    fn request(&self, uses: &[(usize, Mode)]) -> OpRef<usize, Uses> {
        self.request_of(uses.to_vec(), uses)
    }

    /// As `request`, of which only `touches` is touched when it runs.
    fn request_of(&self, touches: Uses, uses: &[(usize, Mode)]) -> OpRef<usize, Uses> {
        let accesses = uses.iter().map(|(var, mode)| (&self.vars[*var], *mode));
        let (request, granted) = self.graph.submit_ref(touches, accesses);
        assert!(granted.is_none(), "something is in its way");
        request
    }

    /// Withdraws the request, and runs what that lets go; false where it was too late.
    fn withdraw(&self, request: &OpRef<usize, Uses>) -> bool {
        let mut ready = Vec::new();
        let withdrawn = request.withdraw(|granted| ready.push(granted));
        ready.into_iter().for_each(|granted| self.run(Some(granted)));
        withdrawn
    }

    fn done(&self) -> usize {
        self.data.done.load(Ordering::Relaxed)
    }
}

/// StepKind the executions of a model came across, so that a model can state that it saw every outcome.
#[derive(Clone, Default)]
struct Seen(std::sync::Arc<std::sync::Mutex<BTreeSet<usize>>>);

impl Seen {
    fn note(&self, outcome: usize) {
        self.0.lock().unwrap().insert(outcome);
    }

    fn assert(&self, outcomes: impl IntoIterator<Item = usize>) {
        assert_eq!(*self.0.lock().unwrap(), BTreeSet::from_iter(outcomes));
    }
}

/// Counts its drops.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn counter() -> (Arc<AtomicUsize>, impl Fn() -> usize) {
    let drops = Arc::new(AtomicUsize::new(0));
    let read = Arc::clone(&drops);
    (drops, move || read.load(Ordering::Relaxed))
}

/// ```text
/// thread 1: write A, B
/// thread 2: write B, A       MXNet's engine deadlocks here
/// ```
#[test]
fn crossed_submitters_both_run_alone() {
    model(3, || {
        let world = World::new(2);
        let other = world.share();
        let thread = thread::spawn(move || other.submit(&[(1, WRITE), (0, WRITE)]));
        world.submit(&[(0, WRITE), (1, WRITE)]);
        thread.join().unwrap();
        assert_eq!(world.done(), 2);
        assert!(world.vars.iter().all(Var::is_quiet));
    });
}

/// ```text
/// thread 1: read A, write B
/// thread 2: read B, write A
/// ```
#[test]
fn crossed_readers_and_writers_run_one_after_the_other() {
    model(3, || {
        let world = World::new(2);
        let other = world.share();
        let thread = thread::spawn(move || other.submit(&[(1, READ), (0, WRITE)]));
        world.submit(&[(0, READ), (1, WRITE)]);
        thread.join().unwrap();
        assert_eq!(world.done(), 2);
    });
}

#[test]
fn two_readers_and_a_writer_share_a_variable() {
    model(3, || {
        let world = World::new(1);
        let other = world.share();
        let thread = thread::spawn(move || other.submit(&[(0, READ)]));
        world.submit(&[(0, READ)]);
        world.submit(&[(0, WRITE)]);
        thread.join().unwrap();
        assert_eq!(world.done(), 3);
        assert!(world.vars[0].is_quiet());
    });
}

#[test]
fn two_readers_and_a_writer_arrive_on_three_threads() {
    model(1, || {
        let world = World::new(1);
        let threads = [(); 2].map(|()| {
            let world = world.share();
            thread::spawn(move || world.submit(&[(0, READ)]))
        });
        world.submit(&[(0, WRITE)]);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(world.done(), 3);
        assert!(world.vars[0].is_quiet());
    });
}

/// ```text
/// A ──► B ──► C ──► A
/// ```
#[test]
fn three_submitters_in_a_circle_all_run() {
    model(1, || {
        let world = World::new(3);
        let threads = [1, 2].map(|first| {
            let world = world.share();
            thread::spawn(move || world.submit(&[(first, WRITE), ((first + 1) % 3, WRITE)]))
        });
        world.submit(&[(0, WRITE), (1, WRITE)]);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(world.done(), 3);
    });
}

#[test]
fn a_join_of_two_variables_is_granted_once_by_whoever_completes_last() {
    model(3, || {
        let world = World::new(2);
        let first = world.graph.submit(vec![(0, WRITE)], [(&world.vars[0], WRITE)]);
        let second = world.graph.submit(vec![(1, WRITE)], [(&world.vars[1], WRITE)]);
        world.submit(&[(0, READ), (1, WRITE)]);
        let other = world.share();
        let thread = thread::spawn(move || other.run(second));
        world.run(first);
        thread.join().unwrap();
        assert_eq!(world.done(), 3);
    });
}

/// A flag that a writer leaves on A is there for the reader, also when the writer of B is the one that grants it.
#[test]
fn a_flag_is_seen_by_whoever_is_granted_through_another_variable() {
    model(3, || {
        let world = World::new(2);
        let first = world.graph.submit(vec![], [(&world.vars[0], WRITE)]).unwrap();
        let second = world.graph.submit(vec![], [(&world.vars[1], WRITE)]).unwrap();
        let reads = [(&world.vars[0], READ), (&world.vars[1], READ)];
        assert!(world.graph.submit(vec![], reads).is_none());
        let look = |granted: Granted<usize, Uses>| {
            let flags: u32 = granted.accesses().map(|access| access.flags()).sum();
            assert_eq!(flags, 1, "the flag on A");
            granted.complete(|_| (), |_| unreachable!("nobody waits"));
        };
        let thread = thread::spawn(move || {
            second.complete(|_| (), look);
        });
        first.complete(|finish| *finish.flags = 1, look);
        thread.join().unwrap();
    });
}

#[test]
fn a_quiet_variable_shows_what_its_writer_left() {
    let quiet = Seen::default();
    let seen = quiet.clone();
    model(3, move || {
        let graph: Graph<(), ()> = Graph::new();
        let x = graph.var(());
        let value = Arc::new(UnsafeCell::new(0));
        let granted = graph.submit((), [(&x, WRITE)]).unwrap();
        let theirs = Arc::clone(&value);
        let thread = thread::spawn(move || {
            // SAFETY: a granted write has its data alone.
            theirs.with_mut(|value| unsafe { *value = 1 });
            granted.complete(|_| (), |_| ());
        });
        if x.is_quiet() {
            // SAFETY: quiet, so the write is over and everything it did visible.
            assert_eq!(value.with(|value| unsafe { *value }), 1);
            seen.note(1);
        } else {
            seen.note(0);
        }
        thread.join().unwrap();
    });
    quiet.assert([0, 1]);
}

/// The handle and the graph go while the last access completes: the state is dropped once, the slab is not freed under
/// the completing thread.
#[test]
fn the_last_handle_is_dropped_while_the_operation_completes() {
    model(5, || {
        let (drops, count) = counter();
        let graph: Graph<Counted, ()> = Graph::new();
        let x = graph.var(Counted(drops));
        let granted = graph.submit((), [(&x, WRITE)]).unwrap();
        let thread = thread::spawn(move || {
            granted.complete(|_| (), |_| ());
        });
        drop(graph);
        drop(x);
        thread.join().unwrap();
        assert_eq!(count(), 1);
    });
}

#[test]
fn two_last_readers_complete_while_the_handle_is_dropped() {
    model(1, || {
        let (drops, count) = counter();
        let graph: Graph<Counted, ()> = Graph::new();
        let x = graph.var(Counted(drops));
        let readers = [(); 2].map(|()| graph.submit((), [(&x, READ)]).unwrap());
        drop(graph);
        let threads = readers.map(|granted| {
            thread::spawn(move || {
                granted.complete(|_| (), |_| ());
            })
        });
        drop(x);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(count(), 1);
    });
}

#[test]
fn the_last_reference_is_dropped_while_the_operation_completes() {
    model(5, || {
        let (drops, count) = counter();
        let graph: Graph<(), Counted> = Graph::new();
        let x = graph.var(());
        let (reference, granted) = graph.submit_ref(Counted(drops), [(&x, WRITE)]);
        let granted = granted.unwrap();
        drop((graph, x));
        let thread = thread::spawn(move || drop(granted.complete(|_| (), |_| ())));
        let another = reference.clone();
        drop(reference);
        assert_eq!(another.payload().0.load(Ordering::Relaxed), 0);
        drop(another);
        thread.join().unwrap();
        assert_eq!(count(), 1);
    });
}

/// A picture of [x: w1 w2], while w1 completes and w2 runs: one of the three states it can be in, never a mixture; and
/// the references that it takes keep neither operation from being dropped exactly once.
#[test]
fn a_snapshot_is_taken_while_operations_complete() {
    let lengths = Seen::default();
    let seen = lengths.clone();
    model(3, move || {
        let (drops, count) = counter();
        let graph: Graph<(), Counted> = Graph::new();
        let x = graph.var(());
        let first = graph.submit(Counted(Arc::clone(&drops)), [(&x, WRITE)]).unwrap();
        assert!(graph.submit(Counted(drops), [(&x, WRITE)]).is_none());
        let thread = thread::spawn(move || {
            let mut next = None;
            first.complete(|_| (), |granted| next = Some(granted));
            next.unwrap().complete(|_| (), |_| ());
        });
        let snapshot: Snapshot<()> = graph.snapshot(|_| ());
        let granted: Vec<_> = snapshot.ops.iter().map(|op| op.granted).collect();
        assert!(matches!(granted[..], [true, false] | [true] | []), "{granted:?}");
        seen.note(granted.len());
        for var in &snapshot.vars {
            assert_eq!(var.queue.len(), snapshot.ops.len());
        }
        drop((graph, x));
        thread.join().unwrap();
        assert_eq!(count(), 2);
    });
    lengths.assert([0, 1, 2]);
}

/// Variables end, one with and one without something queued, while pictures of all of them are taken on two threads.
#[test]
fn variables_end_while_pictures_are_taken() {
    model(2, || {
        let (drops, count) = counter();
        let graph: Graph<Counted, ()> = Graph::new();
        let (x, y) = (graph.var(Counted(Arc::clone(&drops))), graph.var(Counted(drops)));
        let granted = graph.submit((), [(&y, WRITE)]).unwrap();
        let theirs = graph.clone();
        let thread = thread::spawn(move || {
            drop((x, y));
            assert_eq!(theirs.snapshot(|_| ()).ops.len(), 1);
            granted.complete(|_| (), |_| ());
        });
        assert!(graph.snapshot(|_| ()).ops.len() <= 1);
        thread.join().unwrap();
        assert_eq!(count(), 2);
    });
}

/// A picture that finds y busy must follow the join to x, while x's writer completes and x's last handle goes.
#[test]
fn a_snapshot_follows_an_operation_to_a_variable_that_goes() {
    let lengths = Seen::default();
    let seen = lengths.clone();
    model(3, move || {
        let graph: Graph<(), u32> = Graph::new();
        let (x, y) = (graph.var(()), graph.var(()));
        let first = graph.submit(0, [(&x, WRITE)]).unwrap();
        assert!(graph.submit(1, [(&x, READ), (&y, WRITE)]).is_none());
        assert!(graph.submit(2, [(&y, READ)]).is_none());
        let thread = thread::spawn(move || {
            drop(x);
            let mut next = Some(first);
            while let Some(granted) = next.take() {
                granted.complete(|_| (), |granted| next = Some(granted));
            }
        });
        let snapshot = graph.snapshot(|number| *number);
        for op in &snapshot.ops {
            assert_eq!(op.granted, op.accesses.iter().all(|(_, _, granted)| *granted));
            assert!(op.granted || !snapshot.leaves(op.id).is_empty(), "somebody can move");
        }
        seen.note(snapshot.ops.len());
        thread.join().unwrap();
    });
    lengths.assert([0, 1, 2, 3]);
}

/// A walk from the last of a chain over x and y, while x's last handle goes and everything completes.
#[test]
fn a_walk_follows_an_operation_to_a_variable_that_goes() {
    let lengths = Seen::default();
    let seen = lengths.clone();
    model(2, move || {
        let (drops, count) = counter();
        let graph: Graph<Counted, u32> = Graph::new();
        let (x, y) = (graph.var(Counted(Arc::clone(&drops))), graph.var(Counted(drops)));
        let first = graph.submit(0, [(&x, WRITE)]).unwrap();
        assert!(graph.submit(1, [(&x, READ), (&y, WRITE)]).is_none());
        let (last, granted) = graph.submit_ref(2, [(&y, READ)]);
        assert!(granted.is_none());
        drop(y);
        let thread = thread::spawn(move || {
            drop(x);
            let mut next = Some(first);
            while let Some(granted) = next.take() {
                granted.complete(|_| (), |granted| next = Some(granted));
            }
        });
        let mut walk = graph.walk::<()>();
        let place = walk.add(&last);
        assert!(walk.run(usize::MAX, |_, _| ()));
        let reaches = walk.reaches(|_| true);
        if walk.all_still_wait() {
            assert!(reaches[place], "somebody can move");
        }
        seen.note(walk.steps().len());
        drop((walk, last));
        thread.join().unwrap();
        drop(graph);
        assert_eq!(count(), 2);
    });
    lengths.assert([1, 2, 3]);
}

/// A submission through a member while it is collapsed: before the collapse on the member or behind it on the group.
#[test]
fn a_collapse_races_a_submission_through_its_member() {
    model(3, || {
        let world = World::new(2);
        let other = world.share();
        let thread = thread::spawn(move || {
            // Cell 1 stands for the memory that member and group share.
            let granted = other.graph.submit(vec![(1, WRITE)], [(&other.vars[0], WRITE)]);
            other.run(granted);
        });
        world.run(world.graph.collapse(vec![(1, WRITE)], &[&world.vars[0]], &world.vars[1]));
        world.run(world.graph.submit(vec![(1, READ)], [(&world.vars[1], READ)]));
        thread.join().unwrap();
        assert_eq!(world.done(), 3);
        assert!(world.vars.iter().all(Var::is_quiet));
        assert_eq!(world.vars[0].ordering(), world.vars[1]);
    });
}

/// While a member is collapsed, nobody sees it quiet: neither its own write nor the collapse is over.
#[test]
fn a_member_is_not_quiet_while_it_is_collapsed() {
    model(5, || {
        let graph: Graph<(), ()> = Graph::new();
        let (member, group) = (graph.var(()), graph.var(()));
        let writing = graph.submit((), [(&member, WRITE)]).unwrap();
        let theirs = (graph.clone(), member.clone(), group.clone());
        let thread = thread::spawn(move || {
            let (graph, member, group) = theirs;
            assert!(graph.collapse((), &[&member], &group).is_none());
        });
        assert!(!member.is_quiet());
        thread.join().unwrap();
        let mut next = None;
        writing.complete(|_| (), |granted| next = Some(granted));
        assert!(!member.is_quiet());
        next.unwrap().complete(|_| (), |_| ());
        assert!(member.is_quiet());
    });
}

/// StepKind is left on the variable that orders a member is moved by the collapse, or is on the group already.
#[test]
fn what_is_left_on_a_member_is_not_missed_by_its_collapse() {
    model(3, || {
        let graph: Graph<usize, ()> = Graph::new();
        let (member, group) = (graph.var(0), graph.var(0));
        let its = member.clone();
        let thread = thread::spawn(move || its.with_ordering_state(|state, _| *state += 1));
        let granted = graph.collapse((), &[&member], &group).unwrap();
        let moved: usize =
            granted.accesses().map(|access| access.with_state(|state, _| std::mem::take(state))).sum();
        group.with_state(|state, _| *state += moved);
        granted.complete(|_| (), |_| ());
        thread.join().unwrap();
        assert_eq!(group.with_state(|state, _| *state), 1);
        assert!(member.is_ordered_with(&group));
    });
}

#[test]
fn opposite_collapses_make_one_group() {
    model(3, || {
        let world = World::new(2);
        let other = world.share();
        let thread = thread::spawn(move || {
            other.run(other.graph.collapse(vec![(0, WRITE)], &[&other.vars[0]], &other.vars[1]));
        });
        world.run(world.graph.collapse(vec![(0, WRITE)], &[&world.vars[1]], &world.vars[0]));
        thread.join().unwrap();
        assert_eq!(world.done(), 2);
        assert_eq!(world.vars[0].ordering(), world.vars[1].ordering());
    });
}

/// The last handle of a collapsed member goes while its access completes on the group: the member's state is dropped
/// once, by either thread, and not before the access is over.
#[test]
fn a_member_is_dropped_while_its_access_completes_on_the_group() {
    struct Memory {
        used: Arc<AtomicUsize>,
        _counted: Counted,
    }
    impl Drop for Memory {
        fn drop(&mut self) {
            assert_eq!(self.used.load(Ordering::Relaxed), 1, "the access is over");
        }
    }
    model(3, || {
        let (drops, count) = counter();
        let used = Arc::new(AtomicUsize::new(0));
        let graph: Graph<Option<Memory>, ()> = Graph::new();
        let member = graph.var(Some(Memory { used: Arc::clone(&used), _counted: Counted(drops) }));
        let group = graph.var(None);
        graph.collapse((), &[&member], &group).unwrap().complete(|_| (), |_| ());
        let granted = graph.submit((), [(&member, READ)]).unwrap();
        drop(graph);
        let thread = thread::spawn(move || {
            used.store(1, Ordering::Relaxed);
            granted.complete(|_| (), |_| ());
        });
        drop(member);
        drop(group);
        thread.join().unwrap();
        assert_eq!(count(), 1);
    });
}

#[test]
fn a_split_keeps_others_out_while_the_operation_completes() {
    model(3, || {
        let world = World::new(1);
        let running = world.graph.submit(vec![(0, WRITE)], [(&world.vars[0], WRITE)]).unwrap();
        let lease = running.split(vec![(0, READ)], &[&world.vars[0]], READ);
        let other = world.share();
        let thread = thread::spawn(move || {
            other.submit(&[(0, WRITE)]);
            other.run(Some(lease));
        });
        // Only completes: its own write of the cell would meet the lease, which is the caller's affair.
        let mut ready = Vec::new();
        running.complete(|_| (), |granted| ready.push(granted));
        ready.into_iter().for_each(|granted| world.run(Some(granted)));
        thread.join().unwrap();
        assert_eq!(world.done(), 2);
        assert!(world.vars[0].is_quiet());
    });
}

/// Negative control. MXNet appends an operation to one variable after the other, each under its own lock; nothing makes
/// the whole atomic. Loom must find the interleaving in which each of two crossed operations waits for the other, else
/// the models above prove nothing.
#[test]
fn appending_variable_by_variable_is_found_to_deadlock() {
    let found = std::panic::catch_unwind(|| {
        model(3, || {
            let queues = Arc::new([Mutex::new(Vec::new()), Mutex::new(Vec::new())]);
            let append = |queues: &[Mutex<Vec<u32>>; 2], operation, order: [usize; 2]| {
                for queue in order {
                    queues[queue].lock().unwrap().push(operation);
                }
            };
            let theirs = Arc::clone(&queues);
            let thread = thread::spawn(move || append(&theirs, 2, [1, 0]));
            append(&queues, 1, [0, 1]);
            thread.join().unwrap();
            let heads = [0, 1].map(|queue: usize| queues[queue].lock().unwrap()[0]);
            assert_eq!(heads[0], heads[1], "each operation is first on one variable and waits on the other");
        });
    });
    let panic = found.expect_err("loom explores the crossing");
    let message = panic.downcast_ref::<String>().expect("a failed assertion");
    assert!(message.contains("each operation is first on one variable"), "{message}");
}

/// The first thread takes no bits until the second one comes: whenever that is, they run one after the other.
#[test]
fn crossed_submitters_on_a_biased_graph_run_alone() {
    model(2, || {
        let world = World::biased(2);
        let other = world.share();
        let thread = thread::spawn(move || other.submit(&[(1, WRITE), (0, WRITE)]));
        world.submit(&[(0, WRITE), (1, WRITE)]);
        world.submit(&[(0, READ)]);
        thread.join().unwrap();
        assert_eq!(world.done(), 3);
        assert!(world.vars.iter().all(Var::is_quiet));
    });
}

/// StepKind the owner granted without bits is completed by another thread, while the owner goes on.
#[test]
fn an_operation_granted_by_the_owner_is_completed_elsewhere() {
    model(2, || {
        let world = World::biased(2);
        let first = world.graph.submit(vec![(0, WRITE)], [(&world.vars[0], WRITE)]);
        world.submit(&[(0, READ), (1, WRITE)]);
        let other = world.share();
        let thread = thread::spawn(move || other.run(first));
        world.submit(&[(1, WRITE)]);
        thread.join().unwrap();
        assert_eq!(world.done(), 3);
        assert!(world.vars.iter().all(Var::is_quiet));
    });
}

#[test]
fn the_last_handle_on_a_biased_graph_is_dropped_while_the_operation_completes() {
    model(2, || {
        let (drops, count) = counter();
        let graph: Graph<Counted, ()> = Graph::biased();
        let var = graph.var(Counted(drops));
        let granted = graph.submit((), [(&var, WRITE)]).unwrap();
        let theirs = graph.clone();
        let thread = thread::spawn(move || {
            granted.complete(|_| (), |_| unreachable!("nobody waits"));
            drop(theirs);
        });
        drop(var);
        thread.join().unwrap();
        assert_eq!(count(), 1);
        drop(graph);
    });
}

#[test]
fn a_hold_and_a_write_never_meet_and_the_write_is_not_forgotten() {
    for biased in [false, true] {
        let seen = Seen::default();
        let noted = seen.clone();
        model(3, move || {
            let world = if biased { World::biased(1) } else { World::new(1) };
            let holder = world.share();
            let thread = thread::spawn(move || {
                let cell = &holder.data.cells[0];
                let var = &holder.vars[0];
                let held = var.try_pin(|_, _| true);
                if held {
                    // SAFETY: what a hold is for, and loom checks.
                    cell.with(|value| unsafe { *value });
                    let mut ready = Vec::new();
                    var.unpin(|_, _| (), |granted| ready.push(granted));
                    ready.into_iter().for_each(|granted| holder.run(Some(granted)));
                }
                held
            });
            world.submit(&[(0, WRITE)]);
            let before = world.done();
            let held = thread.join().unwrap();
            assert_eq!(world.done(), 1, "whoever came last has run the write");
            noted.note(usize::from(held) * 2 + before);
        });
        // Refused; had before the write, or after it; and the write granted by the end of the hold.
        seen.assert([1, 2, 3]);
    }
}

#[test]
fn two_holds_and_a_write_let_each_other_go() {
    model(1, || {
        let world = World::new(1);
        let holds = [(); 2].map(|()| {
            let holder = world.share();
            thread::spawn(move || {
                if holder.vars[0].try_pin(|_, _| true) {
                    // SAFETY: as above.
                    holder.data.cells[0].with(|value| unsafe { *value });
                    let mut ready = Vec::new();
                    holder.vars[0].unpin(|_, _| (), |granted| ready.push(granted));
                    ready.into_iter().for_each(|granted| holder.run(Some(granted)));
                }
            })
        });
        world.submit(&[(0, WRITE)]);
        for hold in holds {
            hold.join().unwrap();
        }
        assert_eq!(world.done(), 1);
    });
}

/// ```text
/// x: write (completes) | request: write | read
/// ```
/// The request is withdrawn, or granted by the completion and run; the read runs once in both cases.
#[test]
fn a_request_is_withdrawn_while_what_it_waits_for_completes() {
    for biased in [false, true] {
        let seen = Seen::default();
        let noted = seen.clone();
        model(if biased { 2 } else { 3 }, move || {
            let world = if biased { World::biased(1) } else { World::new(1) };
            let first = world.graph.submit(vec![(0, WRITE)], [(&world.vars[0], WRITE)]);
            let request = world.request(&[(0, WRITE)]);
            world.submit(&[(0, READ)]);
            let other = world.share();
            let thread = thread::spawn(move || other.run(first));
            let withdrawn = world.withdraw(&request);
            drop(request);
            thread.join().unwrap();
            assert_eq!(world.done(), if withdrawn { 2 } else { 3 });
            assert!(world.vars[0].is_quiet());
            noted.note(usize::from(withdrawn));
        });
        seen.assert([0, 1]);
    }
}

/// ```text
/// x: held by a read | request: write x and y          the read behind it on x joins, the write behind it on y goes
/// ```
#[test]
fn a_request_is_withdrawn_while_others_are_submitted_behind_it() {
    let seen = Seen::default();
    let noted = seen.clone();
    model(2, move || {
        let world = World::new(2);
        let held = world.graph.submit(vec![(0, READ)], [(&world.vars[0], READ)]);
        let request = world.request(&[(0, WRITE), (1, WRITE)]);
        let other = world.share();
        let thread = thread::spawn(move || {
            other.submit(&[(0, READ), (1, WRITE)]);
            other.done()
        });
        assert!(world.withdraw(&request), "the read is not completed");
        let at_once = thread.join().unwrap();
        assert_eq!(world.done(), 1, "the submission found the way free, or the withdrawal let it go");
        noted.note(at_once);
        world.run(held);
        assert!(world.vars.iter().all(Var::is_quiet));
    });
    seen.assert([0, 1]);
}

#[test]
fn one_request_is_withdrawn_once_by_two_threads() {
    model(3, || {
        let world = World::new(1);
        let held = world.graph.submit(vec![(0, READ)], [(&world.vars[0], READ)]);
        let request = world.request(&[(0, WRITE)]);
        world.submit(&[(0, READ)]);
        let (other, theirs) = (world.share(), request.clone());
        let thread = thread::spawn(move || other.withdraw(&theirs));
        let mine = world.withdraw(&request);
        assert_ne!(mine, thread.join().unwrap(), "one of them");
        assert_eq!(world.done(), 1, "the read behind it");
        world.run(held);
        assert!(world.vars[0].is_quiet());
    });
}

#[test]
fn two_crossed_requests_are_withdrawn_at_once() {
    for biased in [false, true] {
        model(if biased { 2 } else { 3 }, move || {
            let world = if biased { World::biased(2) } else { World::new(2) };
            let held = world.graph.submit(vec![(0, READ)], [(&world.vars[0], READ)]);
            let first = world.request(&[(0, WRITE), (1, WRITE)]);
            let second = world.request(&[(1, WRITE), (0, WRITE)]);
            world.submit(&[(1, READ)]);
            let other = world.share();
            let thread = thread::spawn(move || assert!(other.withdraw(&second)));
            assert!(world.withdraw(&first));
            thread.join().unwrap();
            assert_eq!(world.done(), 1, "the read of the other variable");
            world.run(held);
            assert!(world.vars.iter().all(Var::is_quiet));
        });
    }
}

/// The last access of the request is granted by the completion on y, while it is withdrawn.
#[test]
fn a_request_for_two_variables_is_withdrawn_while_it_is_granted() {
    let seen = Seen::default();
    let noted = seen.clone();
    model(2, move || {
        let world = World::new(2);
        let first = world.graph.submit(vec![(0, WRITE)], [(&world.vars[0], WRITE)]);
        let second = world.graph.submit(vec![(1, WRITE)], [(&world.vars[1], WRITE)]);
        let request = world.request(&[(0, WRITE), (1, READ)]);
        let other = world.share();
        let thread = thread::spawn(move || {
            other.run(first);
            other.run(second);
        });
        let withdrawn = world.withdraw(&request);
        thread.join().unwrap();
        assert_eq!(world.done(), if withdrawn { 2 } else { 3 });
        assert!(world.vars.iter().all(Var::is_quiet));
        noted.note(usize::from(withdrawn));
    });
    seen.assert([0, 1]);
}

/// The request is the last that keeps one variable, and waits for another that goes at the same time.
#[test]
fn the_last_handles_are_dropped_while_a_request_is_withdrawn() {
    model(2, || {
        let (drops, count) = counter();
        let graph: Graph<Counted, ()> = Graph::new();
        let (x, y) = (graph.var(Counted(Arc::clone(&drops))), graph.var(Counted(drops)));
        let held = graph.submit((), [(&x, READ)]).unwrap();
        let (request, granted) = graph.submit_ref((), [(&x, WRITE), (&y, WRITE)]);
        assert!(granted.is_none());
        drop(graph);
        let thread = thread::spawn(move || {
            drop((x, y));
            let mut next = None;
            held.complete(|_| (), |granted| next = Some(granted));
            next.into_iter().for_each(|granted| drop(granted.complete(|_| (), |_| ())));
        });
        let _ = request.withdraw(|_| unreachable!("nothing waits behind it"));
        drop(request);
        thread.join().unwrap();
        assert_eq!(count(), 2);
    });
}

/// A picture shows the request with all its accesses or not at all.
#[test]
fn a_snapshot_is_taken_while_a_request_is_withdrawn() {
    let lengths = Seen::default();
    let seen = lengths.clone();
    model(2, move || {
        let world = World::new(2);
        let held = world.graph.submit(vec![(0, READ)], [(&world.vars[0], READ)]);
        let request = world.request(&[(0, WRITE), (1, WRITE)]);
        let other = world.share();
        let thread = thread::spawn(move || assert!(other.withdraw(&request)));
        let snapshot: Snapshot<()> = world.graph.snapshot(|_| ());
        let accesses: usize = snapshot.ops.iter().map(|op| op.accesses.len()).sum();
        seen.note(accesses);
        thread.join().unwrap();
        world.run(held);
    });
    // That of the read, and both or none of the request's.
    lengths.assert([1, 3]);
}

/// The reads of an operation leave, while one of them and the write are granted and a picture is taken. The operation is granted
/// once, by whoever comes last.
#[test]
fn an_operation_gives_its_reads_up_while_it_is_granted() {
    let seen = Seen::default();
    let noted = seen.clone();
    model(2, move || {
        let world = World::new(2);
        let first = world.graph.submit(vec![(0, WRITE)], [(&world.vars[0], WRITE)]);
        let second = world.graph.submit(vec![(1, WRITE)], [(&world.vars[1], WRITE)]);
        // Does not touch what it only reads, which it may have given up.
        let accesses = [(&world.vars[0], READ), (&world.vars[1], WRITE)];
        let (op, granted) = world.graph.submit_ref(vec![(1, WRITE)], accesses);
        assert!(granted.is_none());
        world.submit(&[(0, WRITE)]);
        let other = world.share();
        let thread = thread::spawn(move || {
            other.run(second);
            other.run(first);
        });
        let mut ready = Vec::new();
        assert!(!op.withdraw_reads(|granted| ready.push(granted)), "it writes");
        noted.note(ready.len());
        ready.into_iter().for_each(|granted| world.run(Some(granted)));
        let snapshot: Snapshot<()> = world.graph.snapshot(|_| ());
        drop(snapshot);
        thread.join().unwrap();
        assert_eq!(world.done(), 4);
        assert!(world.vars.iter().all(Var::is_quiet));
    });
    // Nothing yet or too late; or itself.
    seen.assert([0, 1]);
}

/// A walk visits an operation whose reads leave, and whose write moves to another place of its block.
#[test]
fn a_walk_visits_an_operation_that_gives_its_reads_up() {
    let lengths = Seen::default();
    let seen = lengths.clone();
    model(2, move || {
        let world = World::new(3);
        let read = world.graph.submit(vec![(0, WRITE)], [(&world.vars[0], WRITE)]);
        let held = world.graph.submit(vec![(1, READ)], [(&world.vars[1], READ)]);
        // Its cells are not touched: it may have given the first up.
        let op = world.request_of(vec![], &[(0, READ), (1, WRITE)]);
        let theirs = op.clone();
        let thread = thread::spawn(move || {
            assert!(!theirs.withdraw_reads(|_| unreachable!("the write waits")));
            drop(theirs);
        });
        let mut walk = world.graph.walk::<()>();
        let place = walk.add(&op);
        assert!(walk.run(usize::MAX, |_, _| ()));
        assert!(walk.all_still_wait());
        assert!(walk.reaches(|_| true)[place], "what its write waits for is found in any case");
        seen.note(walk.steps().len());
        drop(walk);
        thread.join().unwrap();
        drop(op);
        world.run(read);
        world.run(held);
        assert!(world.vars.iter().all(Var::is_quiet));
    });
    // Itself and what its write waits for; with or without what its read does.
    lengths.assert([2, 3]);
}

#[test]
fn a_walk_finds_a_request_that_is_withdrawn() {
    let lengths = Seen::default();
    let seen = lengths.clone();
    model(2, move || {
        let world = World::new(2);
        let held = world.graph.submit(vec![(0, READ)], [(&world.vars[0], READ)]);
        let request = world.request(&[(0, WRITE), (1, WRITE)]);
        let behind = world.request(&[(1, READ)]);
        let other = world.share();
        let thread = thread::spawn(move || {
            assert!(other.withdraw(&request));
            drop(request);
        });
        let mut walk = world.graph.walk::<()>();
        let place = walk.add(&behind);
        assert!(walk.run(usize::MAX, |_, _| ()));
        if walk.all_still_wait() {
            assert!(walk.reaches(|_| true)[place]);
        }
        seen.note(walk.steps().len());
        drop((walk, behind));
        thread.join().unwrap();
        world.run(held);
        assert!(world.vars.iter().all(Var::is_quiet));
    });
    // Itself alone; with the request, which was over when it was visited; or all.
    lengths.assert([1, 2, 3]);
}

#[test]
fn a_picture_is_taken_of_an_operation_that_gives_its_reads_up() {
    model(2, move || {
        let world = World::new(2);
        let held = world.graph.submit(vec![(1, READ)], [(&world.vars[1], READ)]);
        let op = world.request(&[(0, READ), (1, WRITE)]);
        let theirs = op.clone();
        let other = world.share();
        let thread = thread::spawn(move || {
            assert!(!theirs.withdraw_reads(|_| unreachable!("the write waits")));
            drop((theirs, other));
        });
        let snapshot = world.graph.snapshot(|_| ());
        let waiting = snapshot.ops.iter().find(|op| !op.granted).expect("it waits for its write");
        assert!(matches!(waiting.accesses.len(), 1 | 2));
        thread.join().unwrap();
        drop(op);
        world.run(held);
        assert!(world.vars.iter().all(Var::is_quiet));
    });
}
