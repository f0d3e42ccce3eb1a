//! Guarantees 1, 2 and 6: results as if operations ran one by one; readers run together, writers alone; no
//! operation starves.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use estafette::{Engine, Error, Tensor};
use tests::foreign::{Deleted, Memory};
use tests::gate::Gate;
use tests::ops::{engine, get, read, set, tensor, waits};
use tests::watchdog::Watchdog;

/// The bodies inside an access, counted by the bodies themselves.
#[derive(Default)]
struct Room {
    readers: AtomicUsize,
    writers: AtomicUsize,
    visits: AtomicUsize,
}

impl Room {
    fn read(&self) {
        self.readers.fetch_add(1, Ordering::SeqCst);
        assert_eq!(self.writers.load(Ordering::SeqCst), 0, "a reader beside a writer");
        std::thread::yield_now();
        assert_eq!(self.writers.load(Ordering::SeqCst), 0, "a writer came in beside a reader");
        self.readers.fetch_sub(1, Ordering::SeqCst);
        self.visits.fetch_add(1, Ordering::SeqCst);
    }

    fn write(&self) {
        assert_eq!(self.writers.fetch_add(1, Ordering::SeqCst), 0, "two writers");
        assert_eq!(self.readers.load(Ordering::SeqCst), 0, "a writer beside a reader");
        std::thread::yield_now();
        assert_eq!(self.readers.load(Ordering::SeqCst), 0, "a reader came in beside a writer");
        assert_eq!(self.writers.fetch_sub(1, Ordering::SeqCst), 1);
        self.visits.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_writer_is_alone_whoever_submits() {
    const THREADS: usize = 3;
    const EACH: usize = 2_000;
    let engine = engine(4);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 0.0);
    let room = Arc::new(Room::default());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (engine, x, room) = (&engine, &x, &room);
            scope.spawn(move || {
                for step in 0..EACH {
                    let room = Arc::clone(room);
                    match (step + thread) % 4 {
                        0 => engine.op("write").writes([x]).run(move |[], [_x]| {
                            room.write();
                            Ok(())
                        }),
                        1 => engine.op("update").updates([x]).run(move |[], [], [_x]| {
                            room.write();
                            Ok(())
                        }),
                        _ => engine.op("read").reads([x]).run(move |[_x], []| {
                            room.read();
                            Ok(())
                        }),
                    }
                    .unwrap();
                }
            });
        }
    });
    engine.wait_all(None).unwrap();
    // A failed assertion in a body fails the version.
    x.wait().unwrap();
    assert_eq!(room.visits.load(Ordering::SeqCst), THREADS * EACH);
    assert_eq!(x.version(), (THREADS * EACH / 2) as u64);
    assert!(watchdog.still_watches());
}

/// Reads `x`, and submits the next such reader, until a writer has run.
fn read_on(engine: &Engine, x: &Tensor, written: &Arc<AtomicBool>, before: &Arc<AtomicUsize>) {
    let next = (engine.clone(), x.clone(), Arc::clone(written), Arc::clone(before));
    let op = engine.op("read on").reads([x]).run(move |[view], []| {
        let (engine, x, written, before) = next;
        if view.as_slice::<f32>()? == [0.0] {
            assert!(!written.load(Ordering::SeqCst), "the reader was submitted before the writer");
            before.fetch_add(1, Ordering::SeqCst);
            read_on(&engine, &x, &written, &before);
        }
        Ok(())
    });
    op.expect("operations may submit");
}

#[test]
fn a_writer_is_not_starved_by_a_stream_of_readers_that_never_ends_by_itself() {
    for workers in [1, 2, 4] {
        let engine = engine(workers);
        let watchdog = Watchdog::of(&engine);
        let x = tensor(&engine, 0.0);
        let (written, before) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        for _ in 0..4 {
            read_on(&engine, &x, &written, &before);
        }
        // Readers arrive one after the other.
        tests::ops::until("the readers run", || before.load(Ordering::SeqCst) >= 100);
        let after = Arc::clone(&written);
        let write = engine.op("write").writes([&x]).run(move |[], [mut x]| {
            x.as_mut_slice::<f32>()?[0] = 1.0;
            after.store(true, Ordering::SeqCst);
            Ok(())
        });
        write.unwrap().wait().unwrap();
        engine.wait_all(None).unwrap();
        x.wait().unwrap();
        assert_eq!(x.version(), 1);
        assert!(watchdog.still_watches());
    }
}

#[test]
fn readers_queued_behind_a_writer_do_not_overtake_it() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let (started, begun) = channel();
    let reader =
        engine.op("long read").reads([&x]).run_external(move |end| started.send(end).unwrap()).unwrap();
    let write = set(&engine, &x, 2.0);
    let later: Vec<_> = (0..100).map(|_| read(&engine, &x)).collect();
    let end = begun.recv().unwrap();
    assert!(waits(&engine, &write));
    assert!(later.iter().all(|read| waits(&engine, read)), "{}", engine.diagnose());
    end.complete(Ok(()));
    reader.wait().unwrap();
    engine.wait_all(None).unwrap();
    assert!(write.is_done() && later.iter().all(estafette::Op::is_done));
    assert!(watchdog.still_watches());
}

#[test]
fn accesses_named_twice_are_one_access() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 3.0);
    let v = engine.var();
    // The same tensor twice among the readers: both views, one access.
    let double = engine.op("double read").reads([&x, &x]).reads_vars(&[&v, &v]).run(|[a, b], []| {
        assert_eq!(a.as_slice::<f32>()?, b.as_slice::<f32>()?);
        Ok(())
    });
    double.unwrap().wait().unwrap();
    // A read and a write of one variable are one exclusive access: one version, and the operation does not
    // wait for itself.
    let gate = Gate::on_variable(&engine, &v);
    let merged =
        engine.op("merged").reads_vars(&[&v, &v]).writes_vars(&[&v, &v]).run(|[], []| Ok(())).unwrap();
    let diagnosis = engine.diagnose();
    let waiting = diagnosis.operations.iter().find(|op| op.id == merged.id()).unwrap();
    assert_eq!(waiting.blocked_by.len(), 1, "{diagnosis}");
    assert_eq!(waiting.blocked_by[0].id, gate.op().id());
    gate.open();
    merged.wait().unwrap();
    assert_eq!(v.version(), 2);
    // The same holds for tensors in a body that gets no slices.
    let (started, begun) = channel();
    let external = engine.op("external").reads([&x, &x]).writes([&x]).run_external(move |end| {
        started.send(end).unwrap();
    });
    let external = external.unwrap();
    begun.recv().unwrap().complete(Ok(()));
    external.wait().unwrap();
    assert_eq!(x.version(), 1);
    assert!(watchdog.still_watches());
}

#[test]
fn views_that_overlap_with_a_writer_among_them_are_refused_and_updates_is_the_in_place_form() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let deleted = Deleted::default();
    let memory = Memory::of(&[1.0, 2.0, 3.0]);
    // SAFETY: fresh tensors that describe their own memory.
    let [a, b] = [0, 1].map(|start| unsafe { engine.import(memory.tensor(start, 2, &deleted)) }.unwrap());
    let refused = [
        engine.op("same").reads([&a]).writes([&a]).run(|[_x], [_y]| Ok(())).unwrap_err(),
        engine.op("twice").writes([&a, &a]).run(|[], [_x, _y]| Ok(())).unwrap_err(),
        engine.op("overlap").reads([&a]).writes([&b]).run(|[_x], [_y]| Ok(())).unwrap_err(),
        engine.op("both").writes([&a]).updates([&b]).run(|[], [_x], [_y]| Ok(())).unwrap_err(),
    ];
    for error in refused {
        assert!(matches!(&error, Error::Conflict(why) if why.contains("updates")), "{error:?}");
    }
    assert_eq!(engine.stats().in_flight, 0, "a refused operation was never submitted");
    // Overlapping readers and an update are accepted.
    engine.op("readers").reads([&a, &b]).run(|[_x, _y], []| Ok(())).unwrap().wait().unwrap();
    tests::ops::add(&engine, &b, 10.0).wait().unwrap();
    assert_eq!(a.to_vec::<f32>().unwrap(), [1.0, 12.0]);
    drop((a, b));
    deleted.settle_at(2);
    assert!(watchdog.still_watches());
}

#[test]
fn crossed_submitters_never_deadlock_and_each_submission_is_atomic() {
    const EACH: u64 = 3_000;
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let (a, b) = (engine.var(), engine.var());
    // For each variable: the operations that used it, in order.
    let logs: [Arc<Mutex<Vec<u64>>>; 2] = Default::default();
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (engine, a, b, logs) = (&engine, &a, &b, &logs);
            scope.spawn(move || {
                for step in 0..EACH {
                    let [first, second] = logs.clone();
                    let who = thread * EACH + step;
                    // One thread names the tensors in the opposite order.
                    let both = if thread == 0 { [b, a] } else { [a, b] };
                    let op = engine.op("both").writes_vars(&both).run(move |[], []| {
                        // Never contended: the engine serializes the bodies.
                        first.try_lock().expect("alone").push(who);
                        second.try_lock().expect("alone").push(who);
                        Ok(())
                    });
                    op.unwrap();
                }
            });
        }
    });
    engine.wait_all(None).unwrap();
    let [first, second] = logs.map(|log| std::mem::take(&mut *log.lock().unwrap()));
    assert_eq!(first.len() as u64, 3 * EACH);
    assert!(first == second, "both variables saw the same order");
    for thread in 0..3 {
        let own: Vec<_> = first.iter().filter(|who| *who / EACH == thread).collect();
        assert!(own.is_sorted(), "each thread's operations in its own order");
    }
    assert_eq!((a.version(), b.version()), (3 * EACH, 3 * EACH));
    assert!(watchdog.still_watches());
}

/// Submits operations that log their priority, while one operation keeps the engine's only worker busy.
fn started_in_order(engine: &Engine, x: &Tensor, priorities: &[i32]) -> Vec<i32> {
    let (started, busy) = channel();
    let (go, wait) = channel::<()>();
    let block = engine.op("busy").run(move |[], []| {
        started.send(()).expect("the test listens");
        wait.recv().expect("the test says when");
        Ok(())
    });
    block.expect("accepted");
    busy.recv().expect("the operation begins");
    let log = Arc::new(Mutex::new(Vec::new()));
    for &priority in priorities {
        let log = Arc::clone(&log);
        let op = engine.op("ready").reads([x]).priority(priority).run(move |[_x], []| {
            log.lock().expect("no body panics").push(priority);
            Ok(())
        });
        op.expect("accepted");
    }
    go.send(()).expect("the operation waits");
    // A blocking wait of this thread would run operations itself.
    tests::ops::until("they ran", || engine.stats().in_flight == 0);
    let log = log.lock().expect("no body panics");
    log.clone()
}

#[test]
fn priority_counts_in_the_engine_that_runs_the_operation_whoever_owns_the_tensor() {
    let (owner, runner) = (engine(1), engine(1));
    let watchdog = Watchdog::of(&runner);
    let x = tensor(&owner, 1.0);
    assert_eq!(started_in_order(&runner, &x, &[0, 9, -1, 4]), [9, 4, 0, -1]);
    assert!(watchdog.still_watches());
}

#[test]
fn priority_never_overrules_the_order_of_the_data() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let gate = Gate::on_tensors(&engine, std::slice::from_ref(&x));
    for (priority, factor) in [(-5, 2.0), (0, 3.0), (5, 5.0)] {
        let op = engine.op("scale").updates([&x]).priority(priority).run(move |[], [], [mut x]| {
            let x = &mut x.as_mut_slice::<f32>()?[0];
            // Depends on the order.
            *x = *x * factor + factor;
            Ok(())
        });
        op.unwrap();
    }
    gate.open();
    assert_eq!(get(&x), ((1.0 * 2.0 + 2.0) * 3.0 + 3.0) * 5.0 + 5.0);
    assert!(watchdog.still_watches());
}
