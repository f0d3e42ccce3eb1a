//! A part of an operation goes on as a second operation.

use super::*;

#[test]
fn a_split_keeps_others_out_while_the_operation_completes() {
    model(3, || {
        let world = World::new(1);
        let running =
            world.graph.op(vec![(0, WRITE)], [(&world.vars[0], WRITE)]).submit_unreferenced().unwrap();
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
