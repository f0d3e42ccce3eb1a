//! Leases in a diagnosis and an error, in fields for programs.

use std::time::Duration;

use estafette::bindings;
use estafette::lease::{CallSite, LeaseInfo, LeaseOwner};
use estafette::wait::Status;
use estafette::{Access, Error, ExportOptions};
use futures::FutureExt;
use futures::executor::block_on;
use tests::ops::{engine, set, tensor, waits};
use tests::watchdog::Watchdog;

fn an_owner() -> LeaseOwner {
    let site = CallSite { file: "src/pipeline.py".into(), line: 7, function: "load".into() };
    bindings::lease::owner_at(
        bindings::lease::owner_of_library(LeaseOwner::from("load (pipeline.py:7)"), Some(&"numpy")),
        site,
    )
}

fn assert_owned(lease: &LeaseInfo, access: Access) {
    assert_eq!((lease.access, &*lease.owner), (access, "load (pipeline.py:7)"));
    assert_eq!(bindings::lease::owner_library(&lease.owner), Some("numpy"));
    let site = bindings::lease::owner_site(&lease.owner).unwrap();
    assert_eq!((&*site.file, site.line, &*site.function), ("src/pipeline.py", 7, "load"));
    assert!(lease.age < Duration::from_secs(60));
    let words = format!("{access} lease taken by load (pipeline.py:7)");
    assert!(lease.to_string().starts_with(&words), "{lease}");
}

#[test]
fn a_lease_in_the_way_is_reported_with_its_owner_wherever_a_program_asks() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    for access in [Access::Read, Access::Write] {
        let x = tensor(&engine, 1.0);
        let options = ExportOptions { owner: Some(an_owner()), ..ExportOptions::from(access) };
        let exported = x.export_wait(&options).unwrap();
        let op = set(&engine, &x, 2.0);
        assert!(waits(&engine, &op));
        let diagnosis = engine.diagnose();
        let [lease, writer] = &diagnosis.operations[..] else { panic!("{diagnosis}") };
        let seen = lease.lease.as_ref().unwrap();
        assert_owned(seen, access);
        assert!(seen.held && seen.own && matches!(lease.status, Status::Held(_)));
        assert!(writer.lease.is_none());
        let [blocked] = &writer.blocked_by[..] else { panic!("{diagnosis}") };
        assert_eq!(blocked.id, lease.id);
        assert_owned(blocked.lease.as_ref().unwrap(), access);
        let Err(Error::LeaseHeld(error)) = x.wait() else { panic!("only its owner can end the wait") };
        assert_eq!((error.held.len(), error.leases.len()), (1, 1));
        assert_owned(&error.held[0], access);
        drop(exported);
        op.wait().unwrap();
    }
    assert!(watchdog.still_watches());
}

#[test]
fn what_the_holder_has_made_of_it_is_reported_once_it_is_noted() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let lease = block_on(x.lease(Access::Read, an_owner())).unwrap();
    let seen = || engine.diagnose().operations[0].lease.clone().unwrap();
    assert_eq!(seen().object, None);
    bindings::lease::note_object(&lease, "numpy.ndarray");
    bindings::lease::note_object(&lease, "something else");
    assert_eq!(seen().object.as_deref(), Some("numpy.ndarray"));
    assert!(seen().to_string().contains("for a numpy.ndarray"));
    drop(lease);
    assert!(engine.diagnose().is_idle());
    assert!(watchdog.still_watches());
}

#[test]
fn a_lease_that_waits_is_reported_as_not_held() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let first = block_on(x.lease(Access::Write, "the first")).unwrap();
    let mut second = Box::pin(x.lease(Access::Read, an_owner()));
    assert!((&mut second).now_or_never().is_none());
    let diagnosis = engine.diagnose();
    let [held, waiting] = &diagnosis.operations[..] else { panic!("{diagnosis}") };
    assert!(held.lease.as_ref().unwrap().held && waiting.status == Status::Waiting);
    let seen = waiting.lease.as_ref().unwrap();
    assert_owned(seen, Access::Read);
    assert!(!seen.held);
    assert_eq!(&*waiting.blocked_by[0].lease.as_ref().unwrap().owner, "the first");
    drop(first);
    drop(block_on(second).unwrap());
    assert!(watchdog.still_watches());
}

#[test]
fn several_leases_taken_at_once_have_one_owner() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let (x, y) = (tensor(&engine, 1.0), tensor(&engine, 1.0));
    let wanted = [(x, Access::Read), (y, Access::Write)];
    let leases = block_on(engine.lease_all(&wanted, an_owner())).unwrap();
    let diagnosis = engine.diagnose();
    assert_eq!(diagnosis.operations.len(), 2, "{diagnosis}");
    for (seen, (_, access)) in diagnosis.operations.iter().zip(&wanted) {
        assert_owned(seen.lease.as_ref().unwrap(), *access);
    }
    drop(leases);
    assert!(watchdog.still_watches());
}

#[test]
fn a_view_that_outlives_its_body_is_known_by_the_operation() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let (send, views) = std::sync::mpsc::channel();
    let operand = x.clone();
    let op = engine.op("keeps it").reads([&x]).run_external(move |end| {
        let _ = send.send(end.scope().export(&operand, &ExportOptions::from(Access::Read)));
        end.complete(Ok(()));
    });
    op.unwrap().wait().unwrap();
    let view = views.recv().unwrap().unwrap();
    let seen = engine.diagnose().operations[0].lease.clone().unwrap();
    assert_eq!((&*seen.owner, seen.held), ("operation `keeps it`", true));
    drop(view);
    assert!(watchdog.still_watches());
}
