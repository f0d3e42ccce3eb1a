//! The order of grants: situations of one thread, event by event.

use crate::common::{Driver, Graph, Value, complete, none, only, r, w};
use estafette_graph::{AccessMode, OpId};

#[test]
fn an_operation_without_accesses_is_granted_at_once_and_outlives_the_graph() {
    let graph = Graph::new();
    let granted = graph.op("alone".into(), []).submit_unreferenced().expect("nothing to wait for");
    drop(graph);
    assert_eq!(granted.payload().name, "alone");
    assert_eq!(granted.accesses().len(), 0);
    granted.complete(|_| unreachable!(), |_| unreachable!());
}

#[test]
fn readers_between_writers_run_together() {
    let mut driver = Driver::new(1);
    driver.submit("w1", &[w(0)]);
    for name in ["r1", "r2", "r3"] {
        driver.submit(name, &[r(0)]);
    }
    driver.submit("w2", &[w(0)]);
    driver.submit("r4", &[r(0)]);
    assert_eq!(driver.granted(), ["w1"]);
    assert_eq!(driver.complete("w1"), ["r1", "r2", "r3"]);
    assert_eq!(driver.complete("r2"), [""; 0]);
    assert_eq!(driver.complete("r1"), [""; 0]);
    assert_eq!(driver.complete("r3"), ["w2"], "the last reader lets the writer in");
    assert_eq!(driver.complete("w2"), ["r4"]);
}

#[test]
fn a_writer_is_not_starved_by_readers_that_keep_coming() {
    let mut driver = Driver::new(1);
    driver.submit("r0", &[r(0)]);
    driver.submit("w", &[w(0)]);
    for name in ["r1", "r2", "r3"] {
        driver.submit(name, &[r(0)]);
    }
    assert_eq!(driver.granted(), ["r0"], "readers behind a waiting writer wait too");
    assert_eq!(driver.complete("r0"), ["w"]);
    assert_eq!(driver.complete("w"), ["r1", "r2", "r3"]);
}

#[test]
fn readers_join_readers_only_while_no_writer_waits() {
    let mut driver = Driver::new(1);
    driver.submit("r1", &[r(0)]);
    driver.submit("r2", &[r(0)]);
    assert_eq!(driver.granted(), ["r1", "r2"]);
    assert_eq!(driver.complete("r1"), [""; 0]);
    driver.submit("r3", &[r(0)]);
    assert_eq!(driver.granted(), ["r2", "r3"]);
}

#[test]
fn duplicates_do_not_deadlock_and_read_with_write_is_an_update() {
    let u = |var| (var, AccessMode::Update);
    for (accesses, mode) in [
        (&[w(0), w(0)][..], AccessMode::Write),
        (&[u(0), w(0)], AccessMode::Update),
        (&[r(0), w(0)], AccessMode::Update),
        (&[w(0), r(0)], AccessMode::Update),
        (&[r(0), w(0), r(0), w(0), r(0)], AccessMode::Update),
    ] {
        let mut driver = Driver::new(2);
        driver.submit("first", accesses);
        driver.submit("second", &[r(0)]);
        assert_eq!(driver.granted(), ["first"]);
        assert_eq!(driver.accesses("first"), [(0, mode)]);
        assert_eq!(driver.complete("first"), ["second"]);
    }
    let mut driver = Driver::new(1);
    driver.submit("reads", &[r(0), r(0), r(0)]);
    assert_eq!(driver.accesses("reads"), [(0, AccessMode::Read)]);
}

#[test]
fn an_operation_waits_for_all_its_variables() {
    let mut driver = Driver::new(3);
    for (name, var) in [("a", 0), ("b", 1), ("c", 2)] {
        driver.submit(name, &[w(var)]);
    }
    driver.submit("join", &[r(0), r(1), w(2)]);
    assert_eq!(driver.complete("b"), [""; 0]);
    assert_eq!(driver.complete("c"), [""; 0]);
    assert_eq!(driver.complete("a"), ["join"]);
}

#[test]
fn newly_granted_operations_of_one_variable_come_in_submission_order() {
    let mut driver = Driver::new(1);
    driver.submit("gate", &[w(0)]);
    let names: Vec<String> = (0..100).map(|n| format!("r{n}")).collect();
    for name in &names {
        driver.submit(name, &[r(0)]);
    }
    assert_eq!(driver.complete("gate"), names);
}

#[test]
fn quiet_means_no_unfinished_write_and_no_user_flag() {
    let graph = Graph::new();
    let x = graph.var(7.into());
    assert!(x.is_quiet());
    let reading =
        graph.op(Value::default(), [(&x, AccessMode::Read)]).submit_unreferenced().expect("nothing ahead");
    assert!(x.is_quiet(), "readers do not disturb");
    assert!(graph.op(Value::default(), [(&x, AccessMode::Write)]).submit_unreferenced().is_none());
    assert!(!x.is_quiet() && x.has_unfinished_write(), "queued counts as unfinished");
    let write = only(complete(reading));
    assert!(!x.is_quiet());
    write.complete(
        |finish| {
            finish.state.number += 1;
            *finish.flags = 0x00AB_CDEF;
        },
        |_| unreachable!(),
    );
    assert!(!x.has_unfinished_write());
    assert!(!x.is_quiet(), "a user flag is set");
    assert_eq!(x.flags(), 0x00AB_CDEF);
    x.with_state(|state, flags| {
        assert_eq!(state.number, 8);
        *flags = 0;
    });
    assert!(x.is_quiet());
}

#[test]
fn an_access_of_a_granted_operation_reaches_state_and_flags() {
    let graph = Graph::new();
    let (x, y) = (graph.var(1.into()), graph.var(2.into()));
    let granted = graph
        .op(Value::default(), [(&x, AccessMode::Read), (&y, AccessMode::Write)])
        .submit_unreferenced()
        .expect("nothing ahead");
    let mut seen: Vec<_> = granted
        .accesses()
        .map(|access| {
            access.with_state(|state, flags| {
                state.number += 10;
                *flags |= 1 << 23;
            });
            assert_eq!(access.flags(), 1 << 23);
            (access.var(), access.mode())
        })
        .collect();
    seen.sort_unstable();
    assert_eq!(seen, [(x.id(), AccessMode::Read), (y.id(), AccessMode::Write)]);
    assert_eq!(x.with_state(|state, _| state.number), 11);
    let mut finished = 0;
    granted.complete(|_| finished += 1, |_| unreachable!());
    assert_eq!(finished, 2);
}

#[test]
fn an_operation_over_ten_thousand_variables_is_fine() {
    let graph = Graph::new();
    let vars: Vec<_> = (0..10_000).map(|_| graph.var(Value::default())).collect();
    let mut wide = vars.iter().rev().map(|var| (var, AccessMode::Write)).collect::<Vec<_>>();
    wide.extend(vars.iter().map(|var| (var, AccessMode::Read)));
    let first = graph.op("wide".into(), wide.iter().copied()).submit_unreferenced().expect("nothing ahead");
    assert_eq!(first.accesses().len(), 10_000);
    assert!(graph.op("again".into(), wide).submit_unreferenced().is_none());
    let mut next = None;
    first.complete(|finish| finish.state.number += 1, |granted| next = Some(granted));
    next.expect("granted once, by the last variable").complete(|finish| finish.state.number += 1, |_| ());
    assert!(vars.iter().all(|var| var.with_state(|state, _| state.number == 2) && var.is_quiet()));
}

#[test]
fn a_chain_of_a_million_completes_without_recursion() {
    let graph = Graph::new();
    let x = graph.var(Value::default());
    let mut next = None;
    for n in 0..1_000_000 {
        if let Some(granted) = graph.op(n.into(), [(&x, AccessMode::Write)]).submit_unreferenced() {
            next = Some(granted);
        }
    }
    let mut completed = 0;
    while let Some(granted) = next.take() {
        let number = granted.payload().number;
        granted.complete(
            |finish| {
                assert_eq!(finish.state.number, number, "in order");
                finish.state.number += 1;
            },
            |granted| next = Some(granted),
        );
        completed += 1;
    }
    assert_eq!(completed, 1_000_000);
    assert!(x.is_quiet());
}

#[test]
fn names_are_unique_and_ascend_for_one_thread() {
    let graph = Graph::new();
    let x = graph.var(Value::default());
    assert!(x.id() < graph.var(Value::default()).id());
    let mut last: Option<OpId> = None;
    for _ in 0..1000 {
        let granted = graph
            .op(Value::default(), [(&x, AccessMode::Write)])
            .submit_unreferenced()
            .expect("completed at once");
        assert!(last.is_none_or(|last| last < granted.id()));
        last = Some(granted.id());
        none(complete(granted));
    }
    assert_eq!(x.id().to_string(), "var 1");
    assert_eq!(OpId::new(17).to_string(), "op 17");
}

#[test]
fn a_panicking_ready_still_gets_the_other_operations() {
    let graph = Graph::new();
    let x = graph.var(Value::default());
    let gate =
        graph.op(Value::default(), [(&x, AccessMode::Write)]).submit_unreferenced().expect("nothing ahead");
    for n in 1..=3 {
        assert!(graph.op(n.into(), [(&x, AccessMode::Read)]).submit_unreferenced().is_none());
    }
    let mut got = Vec::new();
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        gate.complete(
            |_| (),
            |granted| {
                let number = granted.payload().number;
                got.push(granted);
                assert_ne!(number, 1, "the first one panics");
            },
        );
    }));
    assert!(panic.is_err());
    assert_eq!(got.len(), 3);
    for granted in got {
        none(complete(granted));
    }
    assert!(x.is_quiet());
}

#[test]
fn a_panicking_finish_leaves_no_bit_taken_and_the_operation_visible() {
    let graph = Graph::new();
    let x = graph.var(Value::default());
    let granted =
        graph.op("broken".into(), [(&x, AccessMode::Write)]).submit_unreferenced().expect("nothing ahead");
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        granted.complete(|_| panic!("finish"), |_| ());
    }));
    assert!(panic.is_err());
    x.with_state(|_, _| ());
    let snapshot = graph.snapshot(|op| op.name.clone());
    assert_eq!(snapshot.ops.iter().map(|op| &op.label).collect::<Vec<_>>(), ["broken"]);
}

#[test]
#[cfg(debug_assertions)]
fn dropping_a_granted_operation_is_a_loud_bug() {
    let graph = Graph::new();
    let x = graph.var(Value::default());
    let granted =
        graph.op(Value::default(), [(&x, AccessMode::Write)]).submit_unreferenced().expect("nothing ahead");
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(granted)));
    let message = *panic.expect_err("it panics").downcast::<String>().expect("a formatted message");
    assert_eq!(message, "op 1 was granted and dropped without being completed");
}

#[test]
#[should_panic(expected = "var 1 belongs to another graph")]
fn a_variable_of_another_graph_is_refused() {
    let (here, there) = (Graph::new(), Graph::new());
    let stranger = there.var(Value::default());
    let _ = here.op(Value::default(), [(&stranger, AccessMode::Read)]);
}
