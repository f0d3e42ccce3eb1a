//! The last handle or reference is dropped while an operation completes.

use super::*;

/// The handle and the graph go while the last access completes: the state is dropped once, the slab is not
/// freed under the completing thread.
#[test]
fn the_last_handle_is_dropped_while_the_operation_completes() {
    model(5, || {
        let (drops, count) = counter();
        let graph: Graph<Counted, ()> = Graph::new();
        let x = graph.var(Counted(drops));
        let granted = graph.op((), [(&x, WRITE)]).submit_unreferenced().unwrap();
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
        let readers = [(); 2].map(|()| graph.op((), [(&x, READ)]).submit_unreferenced().unwrap());
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
        let (reference, granted) = graph.op(Counted(drops), [(&x, WRITE)]).submit();
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
