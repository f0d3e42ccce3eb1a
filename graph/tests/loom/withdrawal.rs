//! Operations that leave their queues before they are granted.

use super::*;

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
            let first = world.graph.op(vec![(0, WRITE)], [(&world.vars[0], WRITE)]).submit_unreferenced();
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
        let held = world.graph.op(vec![(0, READ)], [(&world.vars[0], READ)]).submit_unreferenced();
        let request = world.request(&[(0, WRITE), (1, WRITE)]);
        let other = world.share();
        let thread = thread::spawn(move || {
            other.submit(&[(0, READ), (1, WRITE)]);
            other.done()
        });
        assert!(world.withdraw(&request), "the read is not completed");
        let at_once = thread.join().unwrap();
        assert_eq!(world.done(), 1, "the submission found the way free, or the withdrawal granted it");
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
        let held = world.graph.op(vec![(0, READ)], [(&world.vars[0], READ)]).submit_unreferenced();
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
            let held = world.graph.op(vec![(0, READ)], [(&world.vars[0], READ)]).submit_unreferenced();
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
        let first = world.graph.op(vec![(0, WRITE)], [(&world.vars[0], WRITE)]).submit_unreferenced();
        let second = world.graph.op(vec![(1, WRITE)], [(&world.vars[1], WRITE)]).submit_unreferenced();
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
        let held = graph.op((), [(&x, READ)]).submit_unreferenced().unwrap();
        let (request, granted) = graph.op((), [(&x, WRITE), (&y, WRITE)]).submit();
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
        let held = world.graph.op(vec![(0, READ)], [(&world.vars[0], READ)]).submit_unreferenced();
        let request = world.request(&[(0, WRITE), (1, WRITE)]);
        let other = world.share();
        let thread = thread::spawn(move || assert!(other.withdraw(&request)));
        let snapshot: Snapshot<()> = world.graph.snapshot(|_| ());
        let accesses: usize = snapshot.ops.iter().map(|op| op.accesses.len()).sum();
        seen.note(accesses);
        thread.join().unwrap();
        world.run(held);
    });
    // The snapshot has the access of the read, and both or none of the request's.
    lengths.assert([1, 3]);
}

/// The reads of an operation leave, while one of them and the write are granted and a picture is taken. The
/// operation is granted once, by the thread that comes last.
#[test]
fn an_operation_gives_its_reads_up_while_it_is_granted() {
    let seen = Seen::default();
    let noted = seen.clone();
    model(2, move || {
        let world = World::new(2);
        let first = world.graph.op(vec![(0, WRITE)], [(&world.vars[0], WRITE)]).submit_unreferenced();
        let second = world.graph.op(vec![(1, WRITE)], [(&world.vars[1], WRITE)]).submit_unreferenced();
        // Does not touch what it only reads, which it may have given up.
        let accesses = [(&world.vars[0], READ), (&world.vars[1], WRITE)];
        let (op, granted) = world.graph.op(vec![(1, WRITE)], accesses).submit();
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
        let read = world.graph.op(vec![(0, WRITE)], [(&world.vars[0], WRITE)]).submit_unreferenced();
        let held = world.graph.op(vec![(1, READ)], [(&world.vars[1], READ)]).submit_unreferenced();
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
        let held = world.graph.op(vec![(0, READ)], [(&world.vars[0], READ)]).submit_unreferenced();
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
        let held = world.graph.op(vec![(1, READ)], [(&world.vars[1], READ)]).submit_unreferenced();
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
