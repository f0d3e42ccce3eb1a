//! A graph that one thread has for itself, and a second thread.

use super::*;

/// The first thread takes no locks until the second one comes: whenever that is, they run one after the
/// other.
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

/// An operation that the owner granted without locks is completed by another thread, while the owner goes on.
#[test]
fn an_operation_granted_by_the_owner_is_completed_elsewhere() {
    model(2, || {
        let world = World::biased(2);
        let first = world.graph.op(vec![(0, WRITE)], [(&world.vars[0], WRITE)]).submit_unreferenced();
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
        let granted = graph.op((), [(&var, WRITE)]).submit_unreferenced().unwrap();
        let theirs = graph.clone();
        let thread = thread::spawn(move || {
            granted.complete(|_| (), |_| unreachable!("no thread waits"));
            drop(theirs);
        });
        drop(var);
        thread.join().unwrap();
        assert_eq!(count(), 1);
        drop(graph);
    });
}
