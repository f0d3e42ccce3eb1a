//! Submission and completion: order, grants, and what a writer leaves.

use super::*;

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
        let first = world.graph.op(vec![(0, WRITE)], [(&world.vars[0], WRITE)]).submit_unreferenced();
        let second = world.graph.op(vec![(1, WRITE)], [(&world.vars[1], WRITE)]).submit_unreferenced();
        world.submit(&[(0, READ), (1, WRITE)]);
        let other = world.share();
        let thread = thread::spawn(move || other.run(second));
        world.run(first);
        thread.join().unwrap();
        assert_eq!(world.done(), 3);
    });
}

/// A flag that a writer leaves on A is there for the reader, also when the writer of B is the one that grants
/// it.
#[test]
fn a_flag_is_seen_by_whoever_is_granted_through_another_variable() {
    model(3, || {
        let world = World::new(2);
        let first = world.graph.op(vec![], [(&world.vars[0], WRITE)]).submit_unreferenced().unwrap();
        let second = world.graph.op(vec![], [(&world.vars[1], WRITE)]).submit_unreferenced().unwrap();
        let reads = [(&world.vars[0], READ), (&world.vars[1], READ)];
        assert!(world.graph.op(vec![], reads).submit_unreferenced().is_none());
        let look = |granted: Granted<usize, Uses>| {
            let flags: u32 = granted.accesses().map(|access| access.flags()).sum();
            assert_eq!(flags, 1, "the flag on A");
            granted.complete(|_| (), |_| unreachable!("no thread waits"));
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
        let granted = graph.op((), [(&x, WRITE)]).submit_unreferenced().unwrap();
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

/// Negative control. MXNet appends an operation to one variable after the other, each under its own lock;
/// nothing makes the whole atomic. Loom must find the interleaving in which each of two crossed operations
/// waits for the other, else the models above prove nothing.
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
