//! Allocations of a replay do not depend on the number of its nodes.

use estafette::{Engine, Program};
use tests::counting::{self};
use tests::dice::mix;
use tests::ops::{engine, exclusive};
use tests::watchdog::Watchdog;

/// Rows of four nodes that each read two of the row before.
fn program(engine: &Engine, nodes: usize, work: u64) -> Program {
    let vars: Vec<_> = (0..8).map(|_| engine.var()).collect();
    let mut builder = engine.program("rows");
    for node in 0..nodes {
        let (row, place) = (node / 4, node % 4);
        let (old, new) = ((row + 1) % 2 * 4, row % 2 * 4);
        let reads = [&vars[old + place], &vars[old + (place + 1) % 4]];
        let node = builder.op("node").reads_vars(&reads).writes_vars(&[&vars[new + place]]);
        node.run(move |[], []| {
            (0..work).fold(0, |hash, turn| std::hint::black_box(mix(hash ^ turn)));
            Ok(())
        })
        .unwrap();
    }
    builder.finish().unwrap()
}

/// Allocations of one replay after some that warm up; the fewest of several, since other threads of the
/// process may allocate meanwhile.
fn allocations(program: &Program) -> usize {
    let replay = || {
        let before = counting::allocations();
        program.replay().unwrap().wait().unwrap();
        counting::allocations() - before
    };
    (0..20).for_each(|_| {
        replay();
    });
    (0..20).map(|_| replay()).min().unwrap()
}

#[test]
fn on_one_thread() {
    let _alone = exclusive();
    let engine = engine(0);
    let [few, many] = [64, 6_400].map(|nodes| allocations(&program(&engine, nodes, 0)));
    assert_eq!(few, many);
    assert!(few > 0, "submitting and waiting allocate something, or the count is broken");
}

/// Helpers that leave and are invited again cost something each time, but not per node.
#[test]
fn on_several_threads() {
    let _alone = exclusive();
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let nodes = 6_400;
    let program = program(&engine, nodes, 500);
    let count = allocations(&program);
    assert!(count < nodes / 10, "{count} allocations for {nodes} nodes");
    assert!(watchdog.still_watches());
}
