//! Snapshots and walks beside operations that complete.

use super::*;

/// A picture of [x: w1 w2], while w1 completes and w2 runs: one of the three states it can be in, never a
/// mixture; and the references that it takes keep neither operation from being dropped exactly once.
#[test]
fn a_snapshot_is_taken_while_operations_complete() {
    let lengths = Seen::default();
    let seen = lengths.clone();
    model(3, move || {
        let (drops, count) = counter();
        let graph: Graph<(), Counted> = Graph::new();
        let x = graph.var(());
        let first = graph.op(Counted(Arc::clone(&drops)), [(&x, WRITE)]).submit_unreferenced().unwrap();
        assert!(graph.op(Counted(drops), [(&x, WRITE)]).submit_unreferenced().is_none());
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

/// Variables end, one with and one without something queued, while pictures of all of them are taken on two
/// threads.
#[test]
fn variables_end_while_pictures_are_taken() {
    model(2, || {
        let (drops, count) = counter();
        let graph: Graph<Counted, ()> = Graph::new();
        let (x, y) = (graph.var(Counted(Arc::clone(&drops))), graph.var(Counted(drops)));
        let granted = graph.op((), [(&y, WRITE)]).submit_unreferenced().unwrap();
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

/// A picture that finds y busy must follow the join to x, while x's writer completes and x's last handle
/// goes.
#[test]
fn a_snapshot_follows_an_operation_to_a_variable_that_goes() {
    let lengths = Seen::default();
    let seen = lengths.clone();
    model(3, move || {
        let graph: Graph<(), u32> = Graph::new();
        let (x, y) = (graph.var(()), graph.var(()));
        let first = graph.op(0, [(&x, WRITE)]).submit_unreferenced().unwrap();
        assert!(graph.op(1, [(&x, READ), (&y, WRITE)]).submit_unreferenced().is_none());
        assert!(graph.op(2, [(&y, READ)]).submit_unreferenced().is_none());
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
            assert!(op.granted || !snapshot.leaves(op.id).is_empty(), "an operation can move");
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
        let first = graph.op(0, [(&x, WRITE)]).submit_unreferenced().unwrap();
        assert!(graph.op(1, [(&x, READ), (&y, WRITE)]).submit_unreferenced().is_none());
        let (last, granted) = graph.op(2, [(&y, READ)]).submit();
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
            assert!(reaches[place], "an operation can move");
        }
        seen.note(walk.steps().len());
        drop((walk, last));
        thread.join().unwrap();
        drop(graph);
        assert_eq!(count(), 2);
    });
    lengths.assert([1, 2, 3]);
}
