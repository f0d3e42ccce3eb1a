//! Lifetimes: every state and payload is dropped exactly once, and never early.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{Granted, Graph, Value, Var, complete, none, only};
use estafette_graph::AccessMode;

/// Counts how often it is dropped; a second drop of one value would count twice.
#[derive(Clone, Default)]
struct Drops(Arc<AtomicUsize>);

struct Counted(Drops);

impl Drops {
    fn counted(&self) -> Value {
        Value::of(Counted(self.clone()))
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn write(graph: &Graph, payload: Value, var: &Var) -> Option<Granted> {
    graph.op(payload, [(var, AccessMode::Write)]).submit_unreferenced()
}

#[test]
fn dropping_the_last_handle_of_an_idle_variable_frees_it_at_once() {
    let drops = Drops::default();
    let graph = Graph::new();
    let x = graph.var(drops.counted());
    let clone = x.clone();
    drop(x);
    assert_eq!(drops.count(), 0);
    drop(clone);
    assert_eq!(drops.count(), 1);
}

#[test]
fn dropping_the_last_handle_while_operations_are_queued_frees_after_the_last_one() {
    let drops = Drops::default();
    let graph = Graph::new();
    let x = graph.var(drops.counted());
    let mut next = write(&graph, 0.into(), &x);
    for n in 1..10 {
        assert!(write(&graph, n.into(), &x).is_none());
    }
    drop(x);
    drop(graph);
    for n in 0..10 {
        assert_eq!(drops.count(), 0);
        let granted = next.take().expect("one after the other");
        assert_eq!(granted.payload().number, n);
        next = complete(granted).pop();
    }
    assert_eq!(drops.count(), 1);
}

#[test]
fn the_last_of_several_readers_frees_an_orphaned_variable() {
    let drops = Drops::default();
    let graph = Graph::new();
    let x = graph.var(drops.counted());
    let mut readers: Vec<_> = (0..3)
        .map(|_| {
            graph
                .op(Value::default(), [(&x, AccessMode::Read)])
                .submit_unreferenced()
                .expect("readers run together")
        })
        .collect();
    drop(x);
    while let Some(reader) = readers.pop() {
        assert_eq!(drops.count(), 0);
        none(complete(reader));
    }
    assert_eq!(drops.count(), 1);
}

#[test]
fn a_payload_is_dropped_by_completion_unless_referenced() {
    let drops = Drops::default();
    let graph = Graph::new();
    let x = graph.var(Value::default());
    none(complete(write(&graph, drops.counted(), &x).expect("idle")));
    assert_eq!(drops.count(), 1);

    let (reference, granted) = graph.op(drops.counted(), [(&x, AccessMode::Write)]).submit();
    let granted = granted.expect("idle");
    let another = granted.to_ref();
    assert_eq!(reference, another);
    assert_eq!(reference.id(), granted.id());
    none(complete(granted));
    drop(reference);
    assert_eq!(drops.count(), 1);
    let third = another.clone();
    drop(another);
    assert_eq!(drops.count(), 1);
    let held = third.payload().held.as_ref().and_then(|held| held.downcast_ref::<Counted>());
    assert_eq!(held.map(|counted| counted.0.count()), Some(1), "the payload is still there");
    drop(third);
    assert_eq!(drops.count(), 2);
}

#[test]
fn references_outlive_graph_and_variables() {
    let drops = Drops::default();
    let graph = Graph::new();
    let x = graph.var(drops.counted());
    let granted = write(&graph, drops.counted(), &x).expect("idle");
    let reference = granted.to_ref();
    drop((graph, x));
    none(complete(granted));
    assert_eq!(drops.count(), 1, "the variable went with its last access");
    drop(reference);
    assert_eq!(drops.count(), 2);
}

#[test]
fn a_reference_dropped_before_completion_changes_nothing() {
    let drops = Drops::default();
    let graph = Graph::new();
    let x = graph.var(Value::default());
    let (reference, granted) = graph.op(drops.counted(), [(&x, AccessMode::Write)]).submit();
    drop(reference);
    drop((graph, x));
    assert_eq!(drops.count(), 0);
    none(complete(granted.expect("idle")));
    assert_eq!(drops.count(), 1);
}

#[test]
fn states_and_payloads_may_use_the_graph_when_they_are_dropped() {
    // Both are dropped outside every lock and lock, so dropping them may submit, complete and drop handles.
    struct Restless(Graph, Var);
    impl Drop for Restless {
        fn drop(&mut self) {
            let Self(graph, other) = self;
            drop(graph.var(Value::default()));
            let granted = write(graph, Value::default(), other).expect("idle");
            none(complete(granted));
            let _ = graph.snapshot(|_| ());
        }
    }
    let graph = Graph::new();
    let other = graph.var(Value::default());
    let restless = || Value::of(Restless(graph.clone(), other.clone()));
    let x = graph.var(restless());
    let granted = graph.op(restless(), [(&x, AccessMode::Write)]).submit_unreferenced().expect("idle");
    drop(x);
    none(complete(granted));
    assert!(other.is_quiet());
}

#[test]
fn handles_and_operations_come_apart_on_many_threads() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 2_000;
    let (states, payloads) = (Drops::default(), Drops::default());
    let graph = Graph::new();
    std::thread::scope(|scope| {
        let (send, receive) = std::sync::mpsc::sync_channel::<Granted>(64);
        for _ in 0..THREADS - 1 {
            let (graph, send) = (graph.clone(), send.clone());
            let (states, payloads) = (states.clone(), payloads.clone());
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let x = graph.var(states.counted());
                    let y = graph.var(states.counted());
                    let pair = [(&x, AccessMode::Write), (&y, AccessMode::Read)];
                    let (reference, granted) = graph.op(payloads.counted(), pair).submit();
                    let later = graph.op(payloads.counted(), [(&x, AccessMode::Read)]).submit_unreferenced();
                    assert!(later.is_none());
                    send.send(granted.expect("fresh variables")).expect("the completer lives");
                    if round % 2 == 0 {
                        drop(x);
                        drop(reference);
                    } else {
                        drop(reference);
                        drop(y);
                    }
                }
            });
        }
        drop(send);
        scope.spawn(move || {
            for granted in receive {
                none(complete(only(complete(granted))));
            }
        });
    });
    drop(graph);
    assert_eq!(states.count(), (THREADS - 1) * ROUNDS * 2);
    assert_eq!(payloads.count(), (THREADS - 1) * ROUNDS * 2);
}
