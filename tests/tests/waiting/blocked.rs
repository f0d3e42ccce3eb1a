//! Hard cases H8 and H9: waiting and the in-flight limit.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use estafette::bindings::{self, Current, WaitHook};
use estafette::wait::{Status, without_helping};
use estafette::{Access, Engine, Error, ExportOptions, Op, Produced, Tensor};
use futures::FutureExt;
use futures::executor::block_on;
use tests::gate::Gate;
use tests::ops::{add, engine, get, read, set, status, tensor, until, waits};
use tests::watchdog::Watchdog;

fn limited(workers: usize, in_flight_limit: usize) -> Engine {
    Engine::builder().workers(workers).in_flight_limit(in_flight_limit).build().expect("an engine starts")
}

fn assert_would_deadlock(error: &Error) {
    assert!(matches!(error, Error::WouldDeadlock(_)), "{error:?}");
}

#[test]
fn a_blocking_submit_with_everything_in_flight_behind_leases_would_deadlock() {
    for workers in [0, 1] {
        let engine = limited(workers, 2);
        let watchdog = Watchdog::of(&engine);
        let x = tensor(&engine, 1.0);
        let array = x.export_wait(&ExportOptions::from(Access::Read)).unwrap();
        let ops = [set(&engine, &x, 2.0), set(&engine, &x, 3.0)];
        assert_would_deadlock(&engine.op("third").writes([&x]).run(|[], [_x]| Ok(())).unwrap_err());
        let refused = engine.op("third").writes([&x]).without_waiting().run(|[], [_x]| Ok(())).unwrap_err();
        assert!(matches!(refused, Error::InFlightLimit { in_flight: 2, limit: 2 }), "{refused:?}");
        // Nothing was submitted, and what was goes on.
        drop(array);
        ops.iter().for_each(|op| op.wait().unwrap());
        assert_eq!(get(&x), 3.0);
        // A worker counts an end just after it has reported it.
        until("none is in flight", || engine.stats().in_flight == 0);
        assert!(watchdog.still_watches());
    }
}

/// Sends each time that a wait asks it.
struct Asked(std::sync::Mutex<Sender<()>>);

impl WaitHook for Asked {
    fn concerns(&self) -> bool {
        true
    }

    fn ends(&self, _needs: &dyn Fn(&[Current]) -> Option<usize>) -> bool {
        let _ = self.0.lock().unwrap().send(());
        false
    }
}

#[test]
fn an_in_flight_limit_reached_behind_a_lease_of_another_thread_waits_for_the_lease() {
    const LOOKS: usize = 5;
    for workers in [0, 1] {
        let engine = limited(workers, 4);
        let watchdog = Watchdog::of(&engine);
        let x = tensor(&engine, 1.0);
        // Asked on the submitting thread each time that it has waited for room in vain.
        let (waited, in_vain) = channel();
        let asked = std::sync::Mutex::new(waited.clone());
        bindings::engine::on_wait(&engine, Asked(asked));
        let (taken, lease) = channel();
        let theirs = x.clone();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let array = theirs.export_wait(&ExportOptions::from(Access::Read)).unwrap();
                taken.send(()).unwrap();
                (0..LOOKS).for_each(|_| in_vain.recv().unwrap());
                drop(array);
            });
            lease.recv().unwrap();
            let ops = [2.0, 3.0, 4.0, 5.0].map(|value| set(&engine, &x, value));
            let last = engine.op("last").writes([&x]).run(|[], [mut x]| {
                x.as_mut_slice::<f32>()?.fill(6.0);
                Ok(())
            });
            // Without a wait the lease would not be returned, and the test would not fail but hang.
            for _ in 0..LOOKS {
                let _ = waited.send(());
            }
            ops.iter().chain([&last.unwrap()]).for_each(|op| op.wait().unwrap());
        });
        assert_eq!(get(&x), 6.0);
        until("none is in flight", || engine.stats().in_flight == 0);
        assert!(watchdog.still_watches());
    }
}

#[test]
fn an_in_flight_limit_reached_behind_a_lease_of_another_thread_refuses_after_the_lease_timeout() {
    let timeout = Duration::from_millis(80);
    for workers in [0, 1] {
        let engine =
            Engine::builder().workers(workers).in_flight_limit(2).lease_timeout(timeout).build().unwrap();
        let watchdog = Watchdog::of(&engine);
        let (x, y) = (tensor(&engine, 1.0), tensor(&engine, 1.0));
        let theirs = x.clone();
        let held =
            std::thread::spawn(move || theirs.export_wait(&ExportOptions::from(Access::Read)).unwrap());
        let held = held.join().unwrap();
        let own = y.export_wait(&ExportOptions::from(Access::Read)).unwrap();
        // The end of the other thread's lease would make room, so the own one makes it no deadlock.
        let ops = [set(&engine, &x, 2.0), set(&engine, &y, 2.0)];
        let began = Instant::now();
        let error = engine.op("third").writes([&x]).run(|[], [_x]| Ok(())).unwrap_err();
        assert!(began.elapsed() >= timeout, "{:?}", began.elapsed());
        let Error::LeaseHeld(leases) = &error else { panic!("{error:?}") };
        assert!(leases.held.iter().any(|lease| !lease.own), "{error}");
        assert!(
            error.to_string().starts_with("a submission at the in-flight limit waits only for leases"),
            "{error}"
        );
        drop(held);
        ops[0].wait().unwrap();
        engine.op("third").writes([&x]).run(|[], [_x]| Ok(())).unwrap().wait().unwrap();
        drop(own);
        ops[1].wait().unwrap();
        assert!(watchdog.still_watches());
    }
}

#[test]
fn many_submissions_that_leases_hold_up_are_refused_together() {
    // What is in flight takes a while to look at, and the looks of several threads are paced.
    const LIMIT: usize = 4096;
    let timeout = Duration::from_millis(500);
    let engine = Engine::builder().workers(1).in_flight_limit(LIMIT).lease_timeout(timeout).build().unwrap();
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let theirs = x.clone();
    let held = std::thread::spawn(move || theirs.export_wait(&ExportOptions::from(Access::Read)).unwrap());
    let held = held.join().unwrap();
    (0..LIMIT).for_each(|_| drop(set(&engine, &x, 2.0)));
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let refused = engine.op("more").writes([&x]).run(|[], [_x]| Ok(())).unwrap_err();
                assert!(matches!(refused, Error::LeaseHeld(_)), "{refused:?}");
            });
        }
    });
    assert!(began.elapsed() < 16 * timeout, "{:?}", began.elapsed());
    drop(held);
    engine.wait_all(None).unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn a_blocking_submit_with_everything_in_flight_behind_itself_would_deadlock() {
    for workers in [0, 1, 2] {
        let engine = limited(workers, 2);
        let watchdog = Watchdog::of(&engine);
        let x = tensor(&engine, 0.0);
        let (inner, mine) = (engine.clone(), x.clone());
        let (said, heard) = channel();
        let op = engine.op("submits").writes([&x]).run(move |[], [_x]| {
            // Each waits for this operation, which waits for room.
            let mut accepted = 0;
            let error = loop {
                match inner.op("behind").updates([&mine]).run(|[], [], [_x]| Ok(())) {
                    Ok(_) => accepted += 1,
                    Err(error) => break error,
                }
            };
            said.send((accepted, error))?;
            Ok(())
        });
        op.unwrap().wait().unwrap();
        let (accepted, error) = heard.recv().unwrap();
        assert_would_deadlock(&error);
        // The in-flight limit is exceeded, but only up to a hard cap of four times as many.
        assert_eq!(accepted, 2 * 4 - 1);
        engine.wait_all(None).unwrap();
        assert!(watchdog.still_watches());
    }
}

#[test]
fn two_operations_that_reach_the_in_flight_limit_behind_each_other_would_deadlock() {
    let engine = limited(2, 2);
    let watchdog = Watchdog::of(&engine);
    let (x, y) = (tensor(&engine, 0.0), tensor(&engine, 0.0));
    let both = Arc::new(Barrier::new(2));
    let (said, heard) = channel();
    for mine in [&x, &y] {
        let (inner, target, both, said) = (engine.clone(), mine.clone(), Arc::clone(&both), said.clone());
        engine
            .op("submits")
            .writes([mine])
            .run(move |[], [_x]| {
                both.wait();
                let error = loop {
                    if let Err(error) = inner.op("behind").updates([&target]).run(|[], [], [_x]| Ok(())) {
                        break error;
                    }
                };
                said.send(error)?;
                Ok(())
            })
            .unwrap();
    }
    assert_would_deadlock(&heard.recv().unwrap());
    // The other may have found room when the first gave up, until it was full again.
    assert_would_deadlock(&heard.recv().unwrap());
    engine.wait_all(None).unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn a_reached_in_flight_limit_waits_for_room_and_helps_meanwhile() {
    for workers in [0, 1, 3] {
        let engine = limited(workers, 4);
        let watchdog = Watchdog::of(&engine);
        let x = tensor(&engine, 0.0);
        let most = Arc::new(AtomicUsize::new(0));
        for _ in 0..500 {
            add(&engine, &x, 1.0);
            most.fetch_max(engine.stats().in_flight, Ordering::Relaxed);
        }
        assert_eq!(get(&x), 500.0);
        assert!(most.load(Ordering::Relaxed) <= 4, "{most:?} operations in flight");
        assert!(watchdog.still_watches());
    }
}

#[test]
fn many_submitters_never_exceed_the_in_flight_limit() {
    let engine = limited(2, 8);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 0.0);
    let running = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut most = 0;
            while running.load(Ordering::Relaxed) {
                most = most.max(engine.diagnose().operations.iter().filter(|op| op.name == "add").count());
            }
            most
        });
        let submitters: Vec<_> =
            (0..4).map(|_| scope.spawn(|| (0..250).for_each(|_| drop(add(&engine, &x, 1.0))))).collect();
        submitters.into_iter().for_each(|submitter| submitter.join().unwrap());
        running.store(false, Ordering::Relaxed);
        assert!(watcher.join().unwrap() <= 8);
    });
    assert_eq!(get(&x), 1000.0);
    assert!(watchdog.still_watches());
}

#[test]
fn a_refusing_submit_is_refused_and_an_asynchronous_one_waits_without_blocking() {
    let engine = limited(1, 1);
    let watchdog = Watchdog::of(&engine);
    let variable = engine.var();
    let shut = Gate::on_variable(&engine, &variable);
    let refused = engine.op("refused").without_waiting().run(|[], []| Ok(())).unwrap_err();
    assert!(matches!(refused, Error::InFlightLimit { in_flight: 1, limit: 1 }), "{refused:?}");
    let ran = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&ran);
    let mut later = Box::pin(async {
        engine.op("later").permit().await?.run(move |[], []| {
            flag.store(true, Ordering::SeqCst);
            Ok(())
        })
    });
    assert!((&mut later).now_or_never().is_none());
    // Nothing is submitted until there is room, so dropping the future submits nothing.
    let mut never =
        Box::pin(async { engine.op("never").permit().await?.run(|[], []| panic!("never submitted")) });
    assert!((&mut never).now_or_never().is_none());
    drop(never);
    assert_eq!(engine.stats().in_flight, 1);
    shut.open();
    block_on(async { later.await?.await }).unwrap();
    assert!(ran.load(Ordering::SeqCst));
    engine.wait_all(None).unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn helping_runs_only_what_the_awaited_tensor_needs() {
    let engine = engine(0);
    let watchdog = Watchdog::of(&engine);
    let (x, y, other) = (tensor(&engine, 0.0), tensor(&engine, 0.0), tensor(&engine, 0.0));
    let unneeded = [add(&engine, &other, 1.0), read(&engine, &x)];
    add(&engine, &x, 1.0);
    let needed = engine.op("needed").reads([&x]).writes([&y]).run(|[x], [mut y]| {
        y.as_mut_slice::<f32>()?.copy_from_slice(x.as_slice()?);
        Ok(())
    });
    let late = add(&engine, &y, 1.0);
    // The write waits for the reader of `x`, and not for `other`.
    needed.unwrap().wait().unwrap();
    assert_eq!(status(&engine, &unneeded[0]), Some(Status::Granted), "{}", engine.diagnose());
    assert_eq!(status(&engine, &unneeded[1]), None);
    assert_eq!(status(&engine, &late), Some(Status::Granted), "{}", engine.diagnose());
    assert_eq!(get(&y), 2.0);
    engine.wait_all(None).unwrap();
    assert_eq!(get(&other), 1.0);
    assert!(watchdog.still_watches());
}

#[test]
fn a_wait_without_workers_runs_however_much_it_needs() {
    let engine = engine(0);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 0.0);
    // More than a wait picks one by one.
    for _ in 0..5_000 {
        add(&engine, &x, 1.0);
    }
    x.wait().unwrap();
    assert_eq!(get(&x), 5_000.0);
    assert!(watchdog.still_watches());
}

#[test]
fn a_wait_helps_another_engine_whose_operations_its_tensor_needs() {
    for workers in [0, 1] {
        let (one, two) = (engine(workers), engine(0));
        let watchdogs = [Watchdog::of(&one), Watchdog::of(&two)];
        let x = tensor(&one, 0.0);
        for _ in 0..10 {
            add(&one, &x, 1.0);
            // Only the waiting thread can run this operation.
            add(&two, &x, 1.0);
        }
        assert_eq!(get(&x), 20.0);
        assert!(watchdogs.iter().all(Watchdog::still_watches));
    }
}

#[test]
fn operations_that_need_a_lock_of_their_own_world_are_not_run_by_waiting_threads() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let (x, y) = (tensor(&engine, 0.0), tensor(&engine, 0.0));
    let (said, heard) = channel();
    let me = |said: &Sender<_>| {
        let said = said.clone();
        move || said.send(std::thread::current().id())
    };
    // The only worker is busy, so only helping could run what is ready.
    let (go, wait) = channel::<()>();
    engine.op("busy").run(move |[], []| Ok(wait.recv()?)).unwrap();
    let (worker_only, helped) = (me(&said), me(&said));
    bindings::operation::worker_only(engine.op("worker_only"))
        .writes([&x])
        .run(move |[], [_x]| Ok(worker_only()?))
        .unwrap();
    let timeout = x.wait_timeout(Duration::from_millis(50)).unwrap_err();
    assert!(matches!(timeout, Error::Timeout(_)), "{timeout:?}");
    assert!(heard.try_recv().is_err());
    engine.op("helped").writes([&y]).run(move |[], [_y]| Ok(helped()?)).unwrap();
    y.wait().unwrap();
    assert_eq!(heard.recv().unwrap(), std::thread::current().id());
    go.send(()).unwrap();
    x.wait().unwrap();
    assert_ne!(heard.recv().unwrap(), std::thread::current().id());
    assert!(watchdog.still_watches());
}

#[test]
fn a_reached_in_flight_limit_does_not_run_such_operations_either() {
    let engine = limited(1, 2);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 0.0);
    let me = std::thread::current().id();
    // A helped operation grants one that must not be helped.
    for _ in 0..200 {
        add(&engine, &x, 1.0);
        let op = bindings::operation::worker_only(engine.op("worker_only")).updates([&x]);
        op.run(
            move |[], [], [_x]| if std::thread::current().id() == me { Err("helped".into()) } else { Ok(()) },
        )
        .unwrap();
    }
    x.wait().unwrap();
    assert!(watchdog.still_watches());
}

/// Waits inside waits: an operation that makes the next one and waits for it, `depth` times.
fn nest(engine: &Engine, depth: usize, worker_only: bool) -> Tensor {
    let op =
        if worker_only { bindings::operation::worker_only(engine.op("nest")) } else { engine.op("nest") };
    let inner = engine.clone();
    op.produce(move |[]| {
        let below = if depth == 0 { 0.0 } else { nest(&inner, depth - 1, worker_only).to_vec::<f32>()?[0] };
        Ok(Produced::from_vec(vec![below + 1.0], &[1])?)
    })
    .expect("inside of operations the in-flight limit is higher")
}

#[test]
fn a_blocking_wait_inside_an_operation_is_covered_by_a_spare_worker() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    // The only worker waits for what only a worker may run.
    assert_eq!(get(&nest(&engine, 1, true)), 2.0);
    assert!(watchdog.still_watches());
}

#[test]
fn a_wait_for_another_engine_inside_an_operation_is_covered_too() {
    let soon = Duration::from_secs(20);
    for kind in 0..3 {
        let (engine, other) = (engine(1), engine(1));
        let watchdog = Watchdog::of(&engine);
        let (own, there) = (engine.clone(), other.clone());
        let outer = engine.op("outer").run(move |[], []| {
            let x = tensor(&own, 0.0);
            let inner = own.op("inner").writes([&x]);
            let inner = if kind == 0 { bindings::operation::worker_only(inner) } else { inner };
            inner.run(|[], [_x]| Ok(()))?;
            // It needs the only worker, which waits for it here.
            let across = read(&there, &x);
            match kind {
                0 => across.wait()?,
                1 => without_helping(|| across.wait())?,
                _ => across.wait_timeout(Some(soon))?,
            }
            Ok(())
        });
        outer.unwrap().wait_timeout(Some(soon)).unwrap();
        assert!(watchdog.still_watches());
    }
}

#[test]
fn a_wait_for_another_engine_in_more_operations_than_there_may_be_threads_for_ends() {
    type Wait = fn(&Engine, &Tensor) -> Result<(), Error>;
    let waits: [Wait; 4] = [
        |other, _| other.wait_all(None),
        |other, _| other.wait_all(Some(Duration::from_secs(20))),
        |other, _| {
            block_on(other.shutdown());
            Ok(())
        },
        |_, out| block_on(out.ready()),
    ];
    for wait in waits {
        let (engine, other) = (engine(1), engine(1));
        let out = tensor(&other, 0.0);
        let watchdog = Watchdog::of(&other);
        let begin = Arc::new(Barrier::new(2));
        let count = 2 + std::thread::available_parallelism().unwrap().get();
        let bodies: Vec<_> = (0..count)
            .map(|number| {
                let (begin, other, out) = (Arc::clone(&begin), other.clone(), out.clone());
                let body = engine.op("waits").run(move |[], []| {
                    if number == 0 {
                        begin.wait();
                    }
                    Ok(wait(&other, &out)?)
                });
                body.unwrap()
            })
            .collect();
        // It comes behind all of them, and they wait for what reads it.
        let x = tensor(&engine, 0.0);
        set(&engine, &x, 1.0);
        let last = other.op("last").reads([&x]).writes([&out]).run(|[_x], [_out]| Ok(())).unwrap();
        begin.wait();
        // A wait here would have it run.
        until("the read has ended", || last.is_done());
        bodies.iter().for_each(|body| body.wait().unwrap());
        assert!(watchdog.still_watches());
    }
}

#[test]
fn waits_nested_deeper_than_helping_goes_still_end() {
    for workers in [0, 1, 2] {
        let engine = engine(workers);
        let watchdog = Watchdog::of(&engine);
        // Without workers, helping is all there is, so there it must suffice.
        let depth = if workers == 0 { 12 } else { 40 };
        assert_eq!(get(&nest(&engine, depth, false)), depth as f32 + 1.0);
        assert!(watchdog.still_watches());
    }
}

/// As [`nest`], with an executor in each body, in `engines` by turns.
fn nest_executors(engines: [&Engine; 2], depth: usize) -> Tensor {
    let [outer, inner] = engines.map(Engine::clone);
    let nested = engines[0].op("nest").produce(move |[]| {
        let mut below = 0.0;
        if depth > 0 {
            let tensor = nest_executors([&inner, &outer], depth - 1);
            block_on(tensor.ready())?;
            below = tensor.to_vec::<f32>()?[0];
        }
        Ok(Produced::from_vec(vec![below + 1.0], &[1])?)
    });
    nested.expect("inside of operations the in-flight limit is higher")
}

#[test]
fn an_executor_that_sleeps_inside_an_operation_is_covered_by_a_spare_worker() {
    for workers in [0, 1, 2] {
        let engines = [engine(workers), engine(workers)];
        let watchdogs = engines.each_ref().map(Watchdog::of);
        // The last depth is above the number of spare workers.
        for depth in [1, 2, 20] {
            for second in &engines {
                let nested = nest_executors([&engines[0], second], depth);
                block_on(nested.ready()).unwrap();
                assert_eq!(get(&nested), depth as f32 + 1.0);
            }
        }
        assert!(watchdogs.iter().all(Watchdog::still_watches));
    }
}

#[test]
fn executors_in_all_threads_may_wait_for_an_asynchronous_body_that_submits() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let out = tensor(&engine, 0.0);
    let (begin, begun) = futures::channel::oneshot::channel();
    let own = engine.clone();
    let body = engine.op("asynchronous").writes([&out]).run_future(move |[], [_out]| async move {
        begun.await?;
        Ok(own.op("inner").run(|[], []| Ok(()))?.await?)
    });
    drop(body.unwrap());
    let running = Arc::new(AtomicUsize::new(0));
    let count = 1 + std::thread::available_parallelism().unwrap().get();
    for _ in 0..count {
        let (running, out) = (Arc::clone(&running), out.clone());
        let body = engine.op("executor").run(move |[], []| {
            running.fetch_add(1, Ordering::SeqCst);
            Ok(block_on(out.ready())?)
        });
        drop(body.unwrap());
    }
    until("all threads have a body", || running.load(Ordering::SeqCst) == count);
    begin.send(()).unwrap();
    until("the asynchronous body has ended", || out.is_ready());
    engine.wait_all(None).unwrap();
    assert!(watchdog.still_watches());
}

/// A future that a thread has polled goes to a body that is the last which could run what it needs.
#[test]
fn an_executor_may_get_a_future_that_is_pending_already() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 0.0);
    let (give, given) = channel::<Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>>();
    let body = engine.op("executor").run(move |[], []| Ok(block_on(given.recv()?)?));
    set(&engine, &x, 1.0);
    let tensor = x.clone();
    let mut ready = Box::pin(async move { tensor.ready().await });
    assert!((&mut ready).now_or_never().is_none(), "the one worker is taken");
    give.send(ready).unwrap();
    until("the write has ended", || x.is_ready());
    body.unwrap().wait().unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn a_wait_for_itself_is_an_error() {
    for workers in [0, 1, 2] {
        let engine = engine(workers);
        let watchdog = Watchdog::of(&engine);
        let x = tensor(&engine, 0.0);
        let ((said, heard), (give, given)) = (channel(), channel::<Op>());
        let (mine, inner) = (x.clone(), engine.clone());
        let op = engine.op("self").writes([&x]).run(move |[], [_x]| {
            let myself = given.recv()?;
            // By its handle, by its output, by what is queued behind it, by a lease, by everything.
            let behind = add(&inner, &mine, 1.0);
            let errors = [
                mine.wait().unwrap_err(),
                behind.wait().unwrap_err(),
                mine.export_wait(&ExportOptions::from(Access::Read)).unwrap_err(),
                inner.wait_all(None).unwrap_err(),
                block_on(mine.ready()).unwrap_err(),
                block_on(mine.writable()).unwrap_err(),
                block_on(mine.lease(Access::Read, "itself")).unwrap_err(),
                myself.wait().unwrap_err(),
                block_on(myself.clone()).unwrap_err(),
            ];
            // A function that is called at the end waits for nothing.
            bindings::operation::on_end(&myself, |_| ());
            said.send(errors)?;
            Ok(())
        });
        let op = op.unwrap();
        give.send(op.clone()).unwrap();
        op.wait().unwrap();
        heard.recv().unwrap().iter().for_each(assert_would_deadlock);
        engine.wait_all(None).unwrap();
        assert_eq!(get(&x), 1.0);
        assert!(watchdog.still_watches());
    }
}

#[test]
fn two_operations_that_wait_for_each_other_are_reported() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let (x, y) = (tensor(&engine, 0.0), tensor(&engine, 0.0));
    let both = Arc::new(Barrier::new(2));
    let ops = [(&x, &y), (&y, &x)].map(|(mine, other)| {
        let (both, other) = (Arc::clone(&both), other.clone());
        let op = engine.op("waits").writes([mine]).run(move |[], [_mine]| {
            both.wait();
            Ok(other.wait()?)
        });
        op.unwrap()
    });
    let outcomes = ops.map(|op| op.wait());
    let told = |error: &Error| error.to_string().contains("would deadlock");
    assert!(outcomes.iter().any(|outcome| outcome.as_ref().is_err_and(told)), "{outcomes:?}");
    engine.wait_all(None).unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn a_circle_of_waits_by_way_of_a_queue_is_reported() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let (x, y, z) = (tensor(&engine, 0.0), tensor(&engine, 0.0), tensor(&engine, 0.0));
    let (begin, begun) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let (other, go) = (z.clone(), Arc::clone(&begin));
    let a = engine.op("a").writes([&x]).run(move |[], [_x]| {
        go.wait();
        Ok(other.wait()?)
    });
    let (other, go) = (x.clone(), Arc::clone(&begun));
    let b = engine.op("b").writes([&y]).run(move |[], [_y]| {
        go.wait();
        Ok(other.wait()?)
    });
    // z waits for y, which waits for x in its body, which waits for z in its body.
    engine.op("c").reads([&y]).writes([&z]).run(|[_y], [_z]| Ok(())).unwrap();
    begin.wait();
    begun.wait();
    let outcomes = [a.unwrap().wait(), b.unwrap().wait()];
    assert!(outcomes.iter().any(|outcome| outcome.is_err()), "{outcomes:?}");
    engine.wait_all(None).unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn waiting_for_all_inside_an_operation_is_an_error_even_when_two_do_it() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let both = Arc::new(Barrier::new(2));
    let ops = [0, 1].map(|_| {
        let (both, inner) = (Arc::clone(&both), engine.clone());
        let op = engine.op("all").run(move |[], []| {
            both.wait();
            match inner.wait_all(None) {
                Err(Error::WouldDeadlock(_)) => Ok(()),
                other => Err(format!("{other:?}").into()),
            }
        });
        op.unwrap()
    });
    ops.iter().for_each(|op| op.wait().unwrap());
    assert!(watchdog.still_watches());
}

#[test]
fn waiting_for_all_does_not_mistake_the_end_for_a_standstill() {
    for seed in 0..300 {
        let engine = engine(2);
        let watchdog = Watchdog::of(&engine);
        let x = tensor(&engine, 0.0);
        for _ in 0..seed % 7 {
            add(&engine, &x, 1.0);
        }
        engine.wait_all(None).unwrap();
        assert_eq!(engine.stats().in_flight, 0);
        assert!(watchdog.still_watches());
    }
}

#[test]
fn wait_all_with_a_timeout_says_so_and_leaves_the_work_alone() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let variable = engine.var();
    let shut = Gate::on_variable(&engine, &variable);
    let error = engine.wait_all(Some(Duration::from_millis(10))).unwrap_err();
    assert!(matches!(error, Error::Timeout(_)), "{error:?}");
    shut.open();
    engine.wait_all(Some(Duration::from_secs(30))).unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn a_wait_on_a_chain_behind_a_busy_operation_is_not_a_lease_problem() {
    let engine = Engine::builder().workers(1).lease_timeout(Duration::ZERO).build().unwrap();
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 0.0);
    let theirs = x.clone();
    let array = std::thread::spawn(move || theirs.export_wait(&ExportOptions::from(Access::Read)).unwrap());
    let array = array.join().unwrap();
    // Beside the lease there is a reader that runs: a wait behind both waits.
    let (go, wait) = channel::<()>();
    let reader = engine.op("reads").reads([&x]).run(move |[_x], []| Ok(wait.recv()?)).unwrap();
    until("the reader runs", || status(&engine, &reader) == Some(Status::Running));
    let write = set(&engine, &x, 1.0);
    let error = write.wait_timeout(Some(Duration::from_millis(100))).unwrap_err();
    assert!(matches!(error, Error::Timeout(_)), "{error:?}");
    go.send(()).unwrap();
    reader.wait().unwrap();
    let error = write.wait().unwrap_err();
    assert!(matches!(error, Error::LeaseHeld(_)), "{error:?}");
    assert!(waits(&engine, &write));
    drop(array);
    write.wait().unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn a_cancelled_operation_behind_a_lease_is_known_at_once_to_all_who_wait() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let (x, y) = (tensor(&engine, 1.0), tensor(&engine, 1.0));
    let array = x.export_wait(&ExportOptions::from(Access::Read)).unwrap();
    let update = add(&engine, &x, 1.0);
    engine.op("copy").reads([&x]).writes([&y]).run(|[_x], [_y]| Ok(())).unwrap();
    let before = y.ready();
    assert!(update.cancel());
    assert!(!update.cancel(), "once is enough");
    // Earlier waits and new ones; for the tensor itself, and for one that depends on it.
    let errors = [
        block_on(before).unwrap_err(),
        block_on(x.ready()).unwrap_err(),
        y.wait().unwrap_err(),
        update.wait().unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(&error, Error::Cancelled(cause) if cause.operation() == "add"), "{error:?}");
    }
    drop(array);
    engine.wait_all(None).unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn wait_all_with_a_timeout_ends_where_only_leases_hold_up_what_is_left() {
    for workers in [0, 1] {
        let engine =
            Engine::builder().workers(workers).lease_timeout(Duration::from_millis(50)).build().unwrap();
        let watchdog = Watchdog::of(&engine);
        let x = tensor(&engine, 1.0);
        let lease = x.lease(Access::Read, "a reader").try_now().unwrap().unwrap();
        let op = set(&engine, &x, 2.0);
        let error = engine.wait_all(Some(Duration::from_secs(3_600))).unwrap_err();
        assert!(matches!(error, Error::LeaseHeld(_)), "{error:?}");
        drop(lease);
        op.wait().unwrap();
        // A shutdown waits for its timeout, before it cancels.
        let lease = x.lease(Access::Read, "a reader").try_now().unwrap().unwrap();
        set(&engine, &x, 3.0);
        let began = Instant::now();
        assert_eq!(engine.shutdown_timeout(Duration::from_millis(200)).cancelled, ["set"]);
        assert!(began.elapsed() >= Duration::from_millis(200));
        drop(lease);
        assert!(watchdog.still_watches());
    }
}

#[test]
fn an_operation_has_released_its_permit_when_its_waiters_wake() {
    let engine = limited(1, 1);
    let watchdog = Watchdog::of(&engine);
    let gate = Gate::on_variable(&engine, &engine.var());
    let (op, own, (said, heard)) = (gate.op().clone(), engine.clone(), channel());
    bindings::operation::on_end(&op, move |_| said.send(own.stats().in_flight).unwrap());
    gate.open();
    assert_eq!(heard.recv().unwrap(), 0);
    assert!(watchdog.still_watches());
}

#[test]
fn a_submission_waits_for_an_operation_without_operands_that_another_engine_holds_up() {
    let (engine, other) = (limited(1, 1), limited(1, 1));
    let watchdog = Watchdog::of(&engine);
    let gate = Gate::on_variable(&other, &other.var());
    let ends = gate.op().clone();
    engine.op("waits").run(move |[], []| Ok(ends.wait()?)).unwrap();
    let opens = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        gate.open();
    });
    engine.op("next").run(|[], []| Ok(())).unwrap().wait().unwrap();
    opens.join().unwrap();
    assert!(watchdog.still_watches());
}
