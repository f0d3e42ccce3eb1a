//! An operation that would wait for a lease kept by one of its own operands is refused at submission.

use estafette::bindings;
use estafette::{Access, Engine, Error, ExportOptions, Tensor};
use tests::nothing_left::assert_nothing_left;
use tests::ops::{engine, get, read, set, tensor};
use tests::watchdog::Watchdog;

/// A tensor in the memory of `tensor`, derived under a lease of `tensor`.
fn derived(engine: &Engine, tensor: &Tensor, access: Access) -> Tensor {
    let options = ExportOptions { owner: Some("the borrower".into()), ..ExportOptions::from(access) };
    // SAFETY: the exported struct describes the memory and keeps it.
    unsafe { engine.import(tensor.export_wait(&options).unwrap()) }.unwrap()
}

fn assert_names_the_lease(refused: Option<Error>) {
    assert!(
        matches!(&refused, Some(Error::Conflict(why)) if why.contains("wait for itself") && why.contains("the borrower")),
        "{refused:?}"
    );
}

#[test]
fn a_write_of_what_an_operand_leases_is_refused_in_every_form() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let t = tensor(&engine, 1.0);
    let u = derived(&engine, &t, Access::Read);
    assert_names_the_lease(engine.op("run").reads([&u]).writes([&t]).run(|[_u], [_t]| Ok(())).err());
    assert_names_the_lease(engine.op("update").reads([&u]).updates([&t]).run(|[_u], [], [_t]| Ok(())).err());
    assert_names_the_lease(
        engine.op("external").reads([&u]).writes([&t]).run_external(|end| end.complete(Ok(()))).err(),
    );
    assert_names_the_lease(bindings::operation::reserve(engine.op("admit").reads([&u]).writes([&t])).err());
    // A tensor derived from a derived tensor.
    let v = derived(&engine, &u, Access::Read);
    drop(u);
    assert_names_the_lease(engine.op("deeper").reads([&v]).writes([&t]).run(|[_v], [_t]| Ok(())).err());
    // The refused operations left nothing behind, and reading both tensors is no conflict.
    assert_eq!(engine.stats().in_flight, 0);
    engine.op("both").reads([&v, &t]).run(|[_v, _t], []| Ok(())).unwrap().wait().unwrap();
    drop(v);
    set(&engine, &t, 3.0).wait().unwrap();
    assert_eq!(get(&t), 3.0);
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}

#[test]
fn any_use_of_what_an_operand_leases_for_writing_is_refused() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let t = tensor(&engine, 1.0);
    let u = derived(&engine, &t, Access::Write);
    assert_names_the_lease(engine.op("read").reads([&u, &t]).run(|[_u, _t], []| Ok(())).err());
    assert_names_the_lease(engine.op("write").reads([&t]).writes([&u]).run(|[_t], [_u]| Ok(())).err());
    set(&engine, &u, 2.0).wait().unwrap();
    drop(u);
    assert_eq!(get(&t), 2.0);
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}

#[test]
fn a_program_that_would_wait_for_itself_is_refused_in_one_node_and_across_nodes() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let t = tensor(&engine, 1.0);
    let u = derived(&engine, &t, Access::Read);
    let mut builder = engine.program("one node");
    assert_names_the_lease(builder.op("node").reads([&u]).writes([&t]).run(|[_u], [_t]| Ok(())).err());
    assert_names_the_lease(
        builder.op("node").reads([&u]).writes([&t]).run_external(|end| end.complete(Ok(()))).err(),
    );
    let mut builder = engine.program("two nodes");
    builder.op("read").reads([&u]).run(|[_u], []| Ok(())).unwrap();
    builder.op("write").writes([&t]).run(|[], [_t]| Ok(())).unwrap();
    assert_names_the_lease(builder.finish().err());
    drop(u);
    read(&engine, &t).wait().unwrap();
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}
