//! Hard cases H1 to H3: leases.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use estafette::bindings::{self, Origin, reaper, wait_any};
use estafette::devices::{DeviceError, DeviceErrorKind, host};
use estafette::lease::LeaseOwner;
use estafette::wait::Status;
use estafette::{Access, Completion, Engine, Error, ExportOptions, ImportOptions, ManagedTensor, Op, Tensor};
use futures::FutureExt;
use futures::executor::block_on;
use tests::foreign;
use tests::foreign::Deleted;
use tests::gate::Gate;
use tests::ops::{add, engine, fail, get, read, set, tensor, waits};
use tests::watchdog::Watchdog;

fn export(tensor: &Tensor, access: Access, owner: &str) -> ManagedTensor {
    let options = ExportOptions { owner: Some(owner.into()), ..ExportOptions::from(access) };
    tensor.export_wait(&options).expect("no lease is open")
}

fn assert_held(error: &Error, owner: &str) {
    let Error::LeaseHeld(held) = error else { panic!("{error:?}") };
    assert_eq!(held.leases.len(), 1, "{held}");
    assert!(held.leases[0].contains(owner), "{held}");
}

#[test]
fn held_by_the_waiter_itself_is_refused_at_once_naming_the_lease_and_its_owner() {
    // A wait that lasted until the timeout would not end here.
    let engine = Engine::builder().workers(2).lease_timeout(Duration::from_secs(3_600)).build().unwrap();
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let array = export(&x, Access::Read, "array `a`");
    let op = set(&engine, &x, 2.0);
    // All forms of the wait that a second `np.from_dlpack(t)` makes.
    assert_held(&x.wait().unwrap_err(), "array `a`");
    assert_held(&op.wait().unwrap_err(), "array `a`");
    assert_held(&x.export_wait(&ExportOptions::from(Access::Read)).unwrap_err(), "array `a`");
    assert_held(&x.to_vec::<f32>().unwrap_err(), "array `a`");
    assert_held(&engine.wait_all(None).unwrap_err(), "array `a`");
    drop(array);
    op.wait().unwrap();
    assert_eq!(get(&x), 2.0);
    assert!(watchdog.still_watches());
}

#[test]
fn a_wait_that_only_leases_hold_up_first_collects_garbage_once() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let garbage = Arc::new(std::sync::Mutex::new(Some(export(&x, Access::Read, "garbage"))));
    let collections = Arc::new(AtomicUsize::new(0));
    let (in_hook, counted) = (Arc::clone(&garbage), Arc::clone(&collections));
    bindings::engine::on_lease_wait(&engine, move || {
        counted.fetch_add(1, Ordering::SeqCst);
        drop(in_hook.lock().unwrap().take());
    });
    set(&engine, &x, 2.0);
    x.wait().unwrap();
    assert_eq!((get(&x), collections.load(Ordering::SeqCst)), (2.0, 1));
    // A lease that the collector cannot end is still refused, after one collection.
    let held = export(&x, Access::Read, "held");
    set(&engine, &x, 3.0);
    assert_held(&x.wait().unwrap_err(), "held");
    assert_eq!(collections.load(Ordering::SeqCst), 2);
    drop(held);
    x.wait().unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn held_by_another_thread_is_refused_after_the_lease_timeout() {
    let timeout = Duration::from_millis(80);
    let engine = Engine::builder().workers(1).lease_timeout(timeout).build().unwrap();
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let theirs = x.clone();
    let array = std::thread::spawn(move || export(&theirs, Access::Write, "another thread")).join().unwrap();
    let op = read(&engine, &x);
    let began = Instant::now();
    assert_held(&op.wait().unwrap_err(), "another thread");
    assert!(began.elapsed() >= timeout, "{:?}", began.elapsed());
    assert_held(&engine.wait_all(None).unwrap_err(), "another thread");
    // The wait was refused; the operation was not cancelled.
    drop(array);
    op.wait().unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn that_goes_to_another_thread_is_waited_for_where_it_was_asked_for() {
    // As long as the consumer takes, no wait of the producer may fail.
    let engine = Engine::builder().workers(2).lease_timeout(Duration::from_secs(3_600)).build().unwrap();
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 0.0);
    let owner = LeaseOwner::from("consumer").of_any_thread();
    let (sender, receiver) = channel::<ManagedTensor>();
    let consumer = std::thread::spawn(move || {
        for array in receiver {
            std::thread::sleep(Duration::from_millis(30));
            drop(array);
        }
    });
    for turn in 1..=4 {
        let op = set(&engine, &x, turn as f32);
        // Blocking waits of each kind, with and without a timeout.
        match turn {
            1 => op.wait().unwrap(),
            2 => x.wait().unwrap(),
            3 => x.wait_timeout(Duration::from_secs(3_600)).unwrap(),
            _ => engine.wait_all(None).unwrap(),
        }
        let options = ExportOptions { owner: Some(owner.clone()), ..ExportOptions::from(Access::Read) };
        sender.send(x.export_wait(&options).unwrap()).unwrap();
    }
    drop(sender);
    consumer.join().unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn that_goes_to_another_thread_is_refused_after_the_lease_timeout() {
    let timeout = Duration::from_millis(80);
    let engine = Engine::builder().workers(1).lease_timeout(timeout).build().unwrap();
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let lease = x.lease(Access::Read, LeaseOwner::from("consumer").of_any_thread()).wait(None).unwrap();
    let op = set(&engine, &x, 2.0);
    let began = Instant::now();
    let error = op.wait().unwrap_err();
    assert_held(&error, "consumer");
    assert!(!error.to_string().contains("by this thread"), "{error}");
    assert!(began.elapsed() >= timeout, "{:?}", began.elapsed());
    drop(lease);
    op.wait().unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn a_garbage_collection_that_takes_long_puts_off_the_lease_timeout_by_no_more_than_that() {
    let engine = Engine::builder().workers(1).lease_timeout(Duration::from_millis(300)).build().unwrap();
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let theirs = x.clone();
    let array = std::thread::spawn(move || export(&theirs, Access::Write, "another thread")).join().unwrap();
    // Looks are spaced at a hundred times their duration: 60 s, if this were a part of one.
    bindings::engine::on_lease_wait(&engine, || std::thread::sleep(Duration::from_millis(600)));
    let began = Instant::now();
    assert_held(&x.wait().unwrap_err(), "another thread");
    assert!(began.elapsed() < Duration::from_secs(50), "{:?}", began.elapsed());
    drop(array);
    x.wait().unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn a_wait_with_a_short_timeout_ends_with_the_timeout() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let theirs = x.clone();
    let array = std::thread::spawn(move || export(&theirs, Access::Write, "another thread")).join().unwrap();
    let error = x.wait_timeout(Duration::from_millis(20)).unwrap_err();
    assert!(matches!(error, Error::Timeout(_)), "{error:?}");
    drop(array);
    // A timeout beyond the clock's range is no timeout.
    x.wait_timeout(Duration::MAX).unwrap();
    engine.wait_all(Some(Duration::MAX)).unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn await_keeps_waiting_for_a_lease_of_its_own_thread() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let array = export(&x, Access::Read, "the same thread");
    set(&engine, &x, 2.0);
    let mut ready = x.ready();
    assert!((&mut ready).now_or_never().is_none());
    drop(array);
    block_on(ready).unwrap();
    assert_eq!(get(&x), 2.0);
    assert!(watchdog.still_watches());
}

#[test]
fn a_lease_never_returned_is_named_in_the_diagnosis_with_what_waits_for_it() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let array = export(&x, Access::Read, "a forgotten array");
    let op = set(&engine, &x, 2.0);
    let diagnosis = engine.diagnose();
    let waiting = diagnosis.operations.iter().find(|known| known.id == op.id()).unwrap();
    assert_eq!((waiting.status.clone(), waiting.blocked_by.len()), (Status::Waiting, 1));
    assert!(waiting.blocked_by[0].name.contains("read lease taken by a forgotten array"), "{diagnosis}");
    let held = diagnosis.operations.iter().find(|known| known.id == waiting.blocked_by[0].id).unwrap();
    assert!(matches!(&held.status, Status::Held(text) if text.contains("a forgotten array")), "{diagnosis}");
    drop(array);
    op.wait().unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn round_trip_is_derived_carries_the_lease_and_may_not_be_written() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let deleted = Deleted::default();
    // SAFETY: a fresh tensor that describes its own memory.
    let t = unsafe { engine.import(foreign::tensor(&[1.0, 2.0, 3.0], &deleted)) }.unwrap();
    // SAFETY: the lease keeps the memory, which this test owns.
    let u = unsafe { engine.import(export(&t, Access::Read, "numpy")) }.unwrap();
    assert_eq!(u.data_ptr().unwrap(), t.data_ptr().unwrap(), "nothing was copied");
    assert!(u.is_read_only().unwrap());
    // A read of the derived tensor does not wait for its own lease, at any depth.
    // SAFETY: as above.
    let v = unsafe { engine.import(export(&u, Access::Read, "jax")) }.unwrap();
    for derived in [&u, &v] {
        read(&engine, derived).wait().unwrap();
        assert_eq!(derived.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0]);
        let refused = engine.op("write").writes([derived]).run(|[], [_u]| Ok(())).unwrap_err();
        assert!(matches!(&refused, Error::Conflict(why) if why.contains("read lease")), "{refused:?}");
        let refused = derived.export_wait(&ExportOptions::from(Access::Write)).unwrap_err();
        assert!(matches!(refused, Error::Conflict(_)), "{refused:?}");
    }
    // The lease lasts as long as any tensor derived from it.
    let write = set(&engine, &t, 9.0);
    drop(u);
    assert!(waits(&engine, &write), "{}", engine.diagnose());
    drop(v);
    write.wait().unwrap();
    assert_eq!(t.to_vec::<f32>().unwrap(), [9.0; 3]);
    drop((t, write));
    deleted.settle_at(1);
    assert!(watchdog.still_watches());
}

#[test]
fn round_trip_of_a_write_lease_may_be_written_and_keeps_other_uses_out() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let t = tensor(&engine, 1.0);
    // SAFETY: the lease keeps the memory, which this test owns.
    let u = unsafe { engine.import(export(&t, Access::Write, "torch")) }.unwrap();
    let outside = read(&engine, &t);
    for _ in 0..100 {
        add(&engine, &u, 1.0);
    }
    assert_eq!(get(&u), 101.0);
    assert!(waits(&engine, &outside), "{}", engine.diagnose());
    drop(u);
    outside.wait().unwrap();
    assert_eq!(get(&t), 101.0);
    assert!(watchdog.still_watches());
}

#[test]
fn a_part_of_leased_memory_is_derived_as_well() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let deleted = Deleted::default();
    let memory = foreign::Memory::of(&[1.0, 2.0, 3.0, 4.0]);
    // SAFETY: a fresh tensor that describes its own memory.
    let t = unsafe { engine.import(memory.tensor(0, 4, &deleted)) }.unwrap();
    let array = export(&t, Access::Read, "numpy");
    // The struct that `array[1:3]` exports.
    // SAFETY: as above.
    let part = unsafe { engine.import(memory.tensor(1, 2, &deleted)) }.unwrap();
    assert_eq!(part.to_vec::<f32>().unwrap(), [2.0, 3.0]);
    let refused = engine.op("write").writes([&part]).run(|[], [_part]| Ok(())).unwrap_err();
    assert!(matches!(refused, Error::Conflict(_)), "{refused:?}");
    drop(array);
    let write = set(&engine, &t, 5.0);
    assert!(waits(&engine, &write), "the part still holds the lease");
    drop(part);
    write.wait().unwrap();
    drop((t, write));
    deleted.settle_at(2);
    assert!(watchdog.still_watches());
}

/// An operation on `x` whose body has begun; the test finishes the body.
fn body(engine: &Engine, x: &Tensor, access: Access) -> Completion {
    let (started, begun) = channel();
    let builder = engine.op("body");
    let start = move |completion| started.send(completion).expect("the test listens");
    if access == Access::Read {
        builder.reads([x]).run_external(start).expect("accepted");
    } else {
        builder.writes([x]).run_external(start).expect("accepted");
    }
    begun.recv().expect("the body begins")
}

#[test]
fn views_in_a_body_wait_for_nothing_and_become_leases_of_the_same_mode_with_no_gap() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    for access in [Access::Read, Access::Write] {
        let x = tensor(&engine, 1.0);
        let completion = body(&engine, &x, access);
        let view = completion.scope().export(&x, &ExportOptions::from(access)).unwrap();
        assert_eq!(view.flags().read_only, access == Access::Read);
        // A view that is dropped before the body ends becomes no lease.
        drop(completion.scope().export(&x, &ExportOptions::from(access)).unwrap());
        // Both are queued before the body ends: they would run in a gap between the body and the lease.
        let read = read(&engine, &x);
        let write = set(&engine, &x, 2.0);
        completion.complete(Ok(()));
        if access == Access::Read {
            // Readers, earlier and later ones, run beside a view for reading.
            read.wait().unwrap();
        } else {
            assert!(waits(&engine, &read), "{}", engine.diagnose());
        }
        assert!(waits(&engine, &write), "{}", engine.diagnose());
        drop(view);
        write.wait().unwrap();
        assert_eq!(get(&x), 2.0);
        engine.wait_all(None).unwrap();
        assert!(engine.diagnose().is_idle(), "{}", engine.diagnose());
    }
    assert!(watchdog.still_watches());
}

/// Any thread may run a body, so its views are no leases of the thread that did, which would wait for itself.
#[test]
fn a_view_that_a_waiting_thread_has_lent_is_waited_for_like_one_that_a_worker_has_lent() {
    let engine = engine(0);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let (lend, lent) = channel::<ManagedTensor>();
    let consumer = std::thread::spawn(move || {
        let view = lent.recv().expect("a view");
        std::thread::sleep(Duration::from_millis(300));
        drop(view);
    });
    let lending = x.clone();
    let op = engine.op("lends").reads([&x]).run_external(move |completion| {
        let view = completion.scope().export(&lending, &ExportOptions::from(Access::Read));
        lend.send(view.expect("an operand")).expect("the consumer listens");
        completion.complete(Ok(()));
    });
    drop(op.unwrap());
    drop(set(&engine, &x, 2.0));
    x.wait().unwrap();
    assert_eq!(get(&x), 2.0);
    consumer.join().unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn views_of_a_body_that_failed_become_leases_too() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let completion = body(&engine, &x, Access::Write);
    let view = completion.scope().export(&x, &ExportOptions::from(Access::Write)).unwrap();
    completion.complete(Err("the body failed".into()));
    let write = set(&engine, &x, 2.0);
    assert!(waits(&engine, &write), "{}", engine.diagnose());
    drop(view);
    write.wait().unwrap();
    assert_eq!(get(&x), 2.0);
    assert!(watchdog.still_watches());
}

#[test]
fn memory_that_its_owner_gives_again_during_an_operation_is_ordered_behind_it() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let deleted = Deleted::default();
    let memory = foreign::Memory::of(&[1.0]);
    // SAFETY: a fresh tensor that describes its own memory.
    let t = unsafe { engine.import(memory.tensor(0, 1, &deleted)) }.unwrap();
    let completion = body(&engine, &t, Access::Write);
    let view = completion.scope().export(&t, &ExportOptions::from(Access::Write)).unwrap();
    // Outside the operation: this code cannot have the operation's views.
    // SAFETY: as above.
    let again = unsafe { engine.import(memory.tensor(0, 1, &deleted)) }.unwrap();
    assert!(bindings::lease::imported_under(&again).is_none());
    // Inside the operation: the memory counts as derived from the view.
    // SAFETY: as above.
    let inside = bindings::scope::make_current(completion.scope(), || unsafe {
        engine.import(memory.tensor(0, 1, &deleted))
    })
    .unwrap();
    assert!(bindings::lease::imported_under(&inside).is_some());
    drop(inside);
    let read = read(&engine, &again);
    assert!(waits(&engine, &read), "{}", engine.diagnose());
    // SAFETY: the operation has the memory to itself.
    unsafe { view.data().cast::<f32>().write(2.0) };
    drop(view);
    completion.complete(Ok(()));
    read.wait().unwrap();
    assert_eq!(get(&again), 2.0);
    // The tensor holds no lease: such a lease would never end.
    set(&engine, &t, 3.0).wait().unwrap();
    assert_eq!(get(&again), 3.0);
    drop((t, again, read));
    deleted.settle_at(3);
    assert!(watchdog.still_watches());
}

#[test]
fn an_import_that_names_the_owner_as_its_origin_is_not_derived_from_a_lease() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let deleted = Deleted::default();
    let memory = foreign::Memory::of(&[1.0]);
    let import = |origin| {
        let managed = memory.tensor(0, 1, &deleted);
        // SAFETY: a fresh tensor that describes its own memory.
        unsafe {
            engine
                .import_with(managed, ImportOptions { origin: Some(&|| origin), ..ImportOptions::default() })
        }
        .unwrap()
    };
    let t = import(Origin::Unknown);
    for access in [Access::Read, Access::Write] {
        let array = export(&t, access, "an array");
        let (owned, lent) = (import(Origin::Owner), import(Origin::Lent));
        assert!(bindings::lease::imported_under(&owned).is_none());
        assert_eq!(
            bindings::lease::imported_under(&lent).map(|lease| bindings::lease::access(&lease)),
            Some(access)
        );
        drop(lent);
        let write = set(&engine, &owned, 2.0);
        assert!(waits(&engine, &write), "{}", engine.diagnose());
        drop(array);
        write.wait().unwrap();
        assert_eq!(get(&t), 2.0);
    }
    // Without a lease the origin of the memory does not matter.
    let managed = memory.tensor(0, 1, &deleted);
    // SAFETY: as above.
    let asked = unsafe {
        engine.import_with(
            managed,
            ImportOptions { origin: Some(&|| panic!("asked")), ..ImportOptions::default() },
        )
    };
    drop((t, asked.unwrap()));
    deleted.settle_at(6);
    assert!(watchdog.still_watches());
}

#[test]
fn a_view_of_something_that_is_no_operand_is_refused() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let (x, y) = (tensor(&engine, 1.0), tensor(&engine, 1.0));
    let completion = body(&engine, &x, Access::Read);
    let scope = completion.scope().clone();
    assert_eq!(
        (bindings::scope::access_of(&scope, &x), bindings::scope::access_of(&scope, &y)),
        (Some(Access::Read), None)
    );
    let refused = scope.export(&y, &ExportOptions::from(Access::Read)).unwrap_err();
    assert!(matches!(refused, Error::Invalid(_)), "{refused:?}");
    completion.complete(Ok(()));
    // After the end every tensor is refused.
    assert_eq!(bindings::scope::access_of(&scope, &x), None);
    let refused = scope.export(&x, &ExportOptions::from(Access::Read)).unwrap_err();
    assert!(matches!(refused, Error::Invalid(_)), "{refused:?}");
    assert!(watchdog.still_watches());
}

#[test]
fn an_alias_is_tracked_by_nobody() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let alias = export(&x, Access::Alias, "a user of an alias");
    set(&engine, &x, 2.0).wait().unwrap();
    // SAFETY: no other code uses the memory now, and the alias keeps it.
    assert_eq!(unsafe { *alias.data().cast::<f32>() }, 2.0);
    assert!(engine.diagnose().is_idle());
    let lease = block_on(x.lease(Access::Alias, "another user"));
    if let Ok(lease) = &lease {
        // An alias must not hold up writers.
        set(&engine, &x, 3.0).wait().unwrap();
        assert_eq!(bindings::lease::access(lease), Access::Alias);
    }
    assert!(watchdog.still_watches());
}

#[test]
fn dropping_a_lease_that_was_not_granted_yet_gives_up_its_place() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let held = export(&x, Access::Write, "first");
    let mut second = Box::pin(x.export(Access::Write));
    assert!((&mut second).now_or_never().is_none());
    let op = set(&engine, &x, 2.0);
    drop(second);
    drop(held);
    op.wait().unwrap();
    assert!(engine.diagnose().is_idle(), "{}", engine.diagnose());
    assert!(watchdog.still_watches());
}

#[test]
fn a_lease_waits_for_its_turn_like_an_operation_and_readers_share() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let (first, second) = (export(&x, Access::Read, "first"), export(&x, Access::Read, "second"));
    let mut writer = Box::pin(x.export(Access::Write));
    assert!((&mut writer).now_or_never().is_none());
    // The reader waits behind the writer: it does not overtake.
    let mut third = Box::pin(x.export(Access::Read));
    assert!((&mut third).now_or_never().is_none());
    drop(first);
    assert!((&mut writer).now_or_never().is_none());
    drop(second);
    let written = block_on(writer).unwrap();
    assert!((&mut third).now_or_never().is_none());
    drop(written);
    drop(block_on(third).unwrap());
    engine.wait_all(None).unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn a_request_that_was_polled_before_may_be_waited_for_and_tried() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 0.0);
    for tries in [false, true] {
        let gate = Gate::on_tensors(&engine, std::slice::from_ref(&x));
        let mut request = x.lease(Access::Write, "a consumer");
        assert!((&mut request).now_or_never().is_none());
        gate.open();
        let granted = match tries {
            true => request.try_now().unwrap().expect("it is granted"),
            false => request.wait(Some(Duration::from_secs(20))).unwrap(),
        };
        drop(granted);
        set(&engine, &x, 1.0).wait().unwrap();
    }
    assert!(watchdog.still_watches());
}

#[test]
fn what_has_failed_on_a_derived_tensor_fails_its_owner_when_the_lease_ends() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let t = tensor(&engine, 1.0);
    for depth in [1, 2] {
        // SAFETY: the lease keeps the memory, which this test owns.
        let derive = |t: &Tensor| unsafe { engine.import(export(t, Access::Write, "torch")) }.unwrap();
        let mut chain = vec![derive(&t)];
        while chain.len() < depth {
            chain.push(derive(chain.last().unwrap()));
        }
        fail(&engine, chain.last().unwrap(), "torn").wait().unwrap_err();
        // The innermost goes first, as its lease is of the next.
        chain.into_iter().rev().for_each(drop);
        let error = block_on(t.ready()).unwrap_err();
        assert_eq!(error.operation().unwrap().message(), "torn");
        // An update needs what was there; an overwrite does not.
        add(&engine, &t, 1.0).wait().unwrap_err();
        set(&engine, &t, 2.0).wait().unwrap();
        assert_eq!(get(&t), 2.0);
        // A version that the consumer has written whole since then is good.
        let u = derive(&t);
        fail(&engine, &u, "torn").wait().unwrap_err();
        set(&engine, &u, 3.0).wait().unwrap();
        drop(u);
        block_on(t.ready()).unwrap();
        assert_eq!(get(&t), 3.0);
    }
    assert!(watchdog.still_watches());
}

#[test]
fn a_good_write_of_one_derived_tensor_does_not_hide_from_the_owner_that_another_one_has_failed() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let memory = foreign::Memory::of(&[1.0, 2.0]);
    // SAFETY: fresh tensors that describe memory that they keep.
    let import =
        |start, len| unsafe { engine.import(memory.tensor(start, len, &Deleted::default())) }.unwrap();
    let t = import(0, 2);
    let array = export(&t, Access::Write, "a consumer");
    let [first, second] = [import(0, 1), import(1, 1)];
    drop(array);
    fail(&engine, &first, "torn").wait().unwrap_err();
    set(&engine, &second, 3.0).wait().unwrap();
    drop((first, second));
    assert_eq!(block_on(t.ready()).unwrap_err().operation().unwrap().message(), "torn");
    set(&engine, &t, 2.0).wait().unwrap();
    // A version that is declared good is good.
    let array = export(&t, Access::Write, "a consumer");
    let [first, second] = [import(0, 1), import(1, 1)];
    drop(array);
    fail(&engine, &first, "torn").wait().unwrap_err();
    set(&engine, &second, 3.0).wait().unwrap();
    first.clear_error().unwrap();
    drop((first, second));
    block_on(t.ready()).unwrap();
    assert!(watchdog.still_watches());
}

/// Runs `body` as an operation that writes `t`, with a tensor that was derived from a view of `t`. The view
/// has ended when the operation ends.
fn in_an_operation(engine: &Engine, t: &Tensor, body: impl FnOnce(&Engine, Tensor) + Send + 'static) {
    let (own, tensor) = (engine.clone(), t.clone());
    let op = engine.op("outer").writes([t]).run_external(move |end| {
        let view = end.scope().export(&tensor, &Access::Write.into()).unwrap();
        // SAFETY: the operation keeps the memory.
        let derived = unsafe { own.import(view) }.unwrap();
        body(&own, derived);
        // The view ends where deleters run.
        reaper().flush(Duration::from_secs(20));
        end.complete(Ok(()));
    });
    op.unwrap().wait().unwrap();
}

#[test]
fn a_view_that_ends_before_its_operation_leaves_what_was_derived_from_it() {
    // Without workers: the thread that waits has dropped the operands of what it waits for.
    let engine = engine(0);
    let watchdog = Watchdog::of(&engine);
    let t = tensor(&engine, 1.0);
    in_an_operation(&engine, &t, |engine, derived| {
        let torn = fail(engine, &derived, "torn");
        drop(derived);
        // Looks at no outcome.
        wait_any(&[torn], &[], None).unwrap();
    });
    assert_eq!(block_on(t.ready()).unwrap_err().operation().unwrap().message(), "torn");
    // The body has seen the failure, and it says that all is well.
    in_an_operation(&engine, &t, |engine, derived| {
        let torn = fail(engine, &derived, "torn");
        drop(derived);
        torn.wait().unwrap_err();
    });
    block_on(t.ready()).unwrap();
    // Readers wait for the work that the owner of the view has named, and fail by it.
    let (completer, work) = host::promise("work");
    in_an_operation(&engine, &t, move |_engine, derived| {
        bindings::lease::imported_under(&derived).unwrap().release_after(work);
    });
    let mut ready = t.ready();
    assert!((&mut ready).now_or_never().is_none());
    completer.fail(DeviceError::new(DeviceErrorKind::Other, "a writer"));
    let error = block_on(ready).unwrap_err();
    assert!(error.to_string().contains("a writer"));
    assert_eq!(error.operation().unwrap().operation(), "outer");
    assert!(watchdog.still_watches());
}

#[test]
fn the_failure_of_a_view_whose_tensor_is_collapsed_meanwhile_ends_with_the_next_good_write() {
    let engine = engine(0);
    let watchdog = Watchdog::of(&engine);
    for looks in [true, false] {
        let memory = foreign::Memory::of(&[0.0; 48]);
        // SAFETY: the memory is as described, and the tensors keep it.
        let t = unsafe { engine.import(memory.tensor(0, 4, &Deleted::default())) }.unwrap();
        in_an_operation(&engine, &t, move |engine, derived| {
            let torn = fail(engine, &derived, "torn");
            // Of so many parts and the whole, all get one variable.
            let import = |start, len| {
                let options = ImportOptions { origin: Some(&|| Origin::Owner), ..ImportOptions::default() };
                // SAFETY: as above.
                unsafe { engine.import_with(memory.tensor(start, len, &Deleted::default()), options) }
                    .unwrap()
            };
            let parts: Vec<_> = (2..24).map(|at| import(2 * at, 2)).collect();
            let whole = import(0, 48);
            drop(derived);
            wait_any(&[torn], &[], None).unwrap();
            drop((parts, whole));
        });
        if looks {
            assert_eq!(block_on(t.ready()).unwrap_err().operation().unwrap().message(), "torn");
        }
        set(&engine, &t, 2.0).wait().unwrap();
        // The good write replaces the failure, seen or not.
        block_on(t.ready()).unwrap();
    }
    assert!(watchdog.still_watches());
}

#[test]
fn what_a_derived_tensor_has_left_on_a_device_outlasts_its_lease() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let memory = foreign::Memory::of(&[1.0, 2.0]);
    // SAFETY: fresh tensors that describe memory that they keep.
    let import =
        |start, len| unsafe { engine.import(memory.tensor(start, len, &Deleted::default())) }.unwrap();
    let t = import(0, 2);
    for access in [Access::Read, Access::Write] {
        let array = export(&t, access, "a consumer");
        let derived = import(1, 1);
        assert!(bindings::lease::imported_under(&derived).is_some(), "it comes from inside the lease");
        drop(array);
        let (completer, used) = host::promise("a use");
        derived.used_until(&used).unwrap();
        drop(derived);
        let mut writable = t.writable();
        assert!((&mut writable).now_or_never().is_none(), "{access:?}");
        // A failure of a reader's work is no failure of what it has read.
        completer.fail(DeviceError::new(DeviceErrorKind::Other, "a reader"));
        block_on(writable).unwrap();
        block_on(t.ready()).unwrap();
    }
    // A writer's failure decides how the version ends, and the writer is named.
    let array = export(&t, Access::Write, "a consumer");
    let derived = import(1, 1);
    drop(array);
    let (completer, work) = host::promise("work");
    let op = engine.op("writes").writes([&derived]);
    op.run_external(move |end| end.complete_after(&work, Ok(()))).unwrap().wait().unwrap();
    drop(derived);
    let mut ready = t.ready();
    assert!((&mut ready).now_or_never().is_none());
    completer.fail(DeviceError::new(DeviceErrorKind::Other, "a writer"));
    assert_eq!(block_on(ready).unwrap_err().operation().unwrap().operation(), "writes");
    assert!(watchdog.still_watches());
}

#[test]
fn a_lease_waits_for_the_work_of_each_of_its_clones() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    for last in [false, true] {
        let (first, first_work) = host::promise("of the first clone");
        let (second, second_work) = host::promise("of the second clone");
        let lease = x.lease(Access::Write, "two consumers").wait(None).unwrap();
        lease.clone().release_after(first_work);
        lease.release_after(second_work);
        let (early, late) = if last { (second, first) } else { (first, second) };
        early.complete();
        assert!(!x.is_ready(), "the other clone is not done");
        late.complete();
        x.wait().unwrap();
    }
    assert!(watchdog.still_watches());
}

#[test]
fn a_write_of_a_derived_tensor_that_is_skipped_fails_its_owner() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let memory = foreign::Memory::of(&[1.0, 2.0]);
    // SAFETY: fresh tensors that describe memory that they keep.
    let import =
        |start, len| unsafe { engine.import(memory.tensor(start, len, &Deleted::default())) }.unwrap();
    let t = import(0, 2);
    let bad = tensor(&engine, 1.0);
    let array = export(&t, Access::Write, "a consumer");
    let derived = import(1, 1);
    drop(array);
    let gate = Gate::on_tensors(&engine, std::slice::from_ref(&bad)).begun();
    let skipped = engine.op("skipped").reads([&bad]).writes([&derived]);
    let (go, wait) = channel::<()>();
    // The operands are gone by then, and the lease has ended with the last one.
    let skipped = skipped.on_skip(move |_| wait.recv().unwrap());
    let skipped = skipped.run(|[_bad], [_derived]| Ok(())).unwrap();
    drop(derived);
    gate.complete(Err("the input".into()));
    assert_eq!(block_on(t.ready()).unwrap_err().operation().unwrap().message(), "the input");
    go.send(()).unwrap();
    skipped.wait().unwrap_err();
    assert!(watchdog.still_watches());
}

/// An operation that a worker has begun, and what ends it.
fn keep_a_worker_busy(engine: &Engine) -> (Op, Sender<()>) {
    let ((begins, begun), (end, ended)) = (channel(), channel());
    let busy = engine.op("busy").run(move |[], []| {
        begins.send(())?;
        Ok(ended.recv()?)
    });
    begun.recv().expect("a worker is free");
    (busy.expect("accepted"), end)
}

#[test]
fn a_reader_of_a_derived_tensor_that_is_cancelled_is_not_what_fails_its_owner() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let t = tensor(&engine, 1.0);
    let (busy, end) = keep_a_worker_busy(&engine);
    // SAFETY: the lease keeps the memory, which this test owns.
    let u = unsafe { engine.import(export(&t, Access::Write, "torch")) }.unwrap();
    let writer = set(&engine, &u, 2.0);
    // It keeps its place, for its turn.
    let reader = engine.op("reads").reads([&u]).on_skip(|_| ()).run(|[_u], []| Ok(())).unwrap();
    assert!(writer.cancel() && reader.cancel());
    drop(u);
    let error = block_on(t.ready()).unwrap_err();
    assert!(matches!(&error, Error::Cancelled(cause) if cause.operation() == "set"), "{error:?}");
    end.send(()).unwrap();
    busy.wait().unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn a_write_of_a_derived_tensor_that_is_cancelled_fails_its_owner() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let t = tensor(&engine, 1.0);
    // The worker that would end the operation in its turn is busy.
    let (busy, end) = keep_a_worker_busy(&engine);
    // SAFETY: the lease keeps the memory, which this test owns.
    let u = unsafe { engine.import(export(&t, Access::Write, "torch")) }.unwrap();
    let cancelled = set(&engine, &u, 2.0);
    assert!(cancelled.cancel());
    // An operation that was cancelled keeps nothing.
    drop(u);
    let error = block_on(t.ready()).unwrap_err();
    assert!(matches!(&error, Error::Cancelled(cause) if cause.operation() == "set"), "{error:?}");
    end.send(()).unwrap();
    busy.wait().unwrap();
    assert!(watchdog.still_watches());
}
