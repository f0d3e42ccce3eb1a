//! The cost of waiting, as counts of what is looked at, which do not depend on the machine.

use std::sync::mpsc;
use std::time::{Duration, Instant};
use tests::ops::exclusive;

use estafette::bindings::{self, Current, WaitHook, inspected};
use estafette::{Access, Engine, Error, Tensor};

/// Long enough for several looks.
const WHILE: Duration = Duration::from_millis(300);

fn engine() -> Engine {
    Engine::builder().workers(2).in_flight_limit(1 << 20).build().expect("an engine")
}

fn tensor(engine: &Engine) -> Tensor {
    engine.from_vec(vec![0_u8], &[1]).expect("a tensor")
}

/// Makes the next writes of `tensor` wait until the result is dropped or used.
fn gate(engine: &Engine, tensor: &Tensor) -> mpsc::Sender<()> {
    let (open, opened) = mpsc::channel::<()>();
    engine
        .op("gate")
        .writes([tensor])
        .run(move |[], [_]| {
            let _ = opened.recv();
            Ok(())
        })
        .expect("submitted");
    open
}

/// A chain of operations, each of which reads what the one before it wrote. Gives its last tensor.
fn chain(engine: &Engine, first: &Tensor, length: usize) -> Tensor {
    let mut last = first.clone();
    for _ in 0..length {
        let next = tensor(engine);
        engine.op("link").reads([&last]).writes([&next]).run(|[_], [_]| Ok(())).expect("submitted");
        last = next;
    }
    last
}

fn counted<R>(f: impl FnOnce() -> R) -> (R, u64) {
    let before = inspected();
    let result = f();
    (result, inspected() - before)
}

#[test]
fn the_start_of_a_wait_looks_at_no_more_behind_a_long_chain_than_behind_a_short_one() {
    let _alone = exclusive();
    let engine = engine();
    let [short, long] = [500_u64, 5_000].map(|length| {
        let first = tensor(&engine);
        let open = gate(&engine, &first);
        let last = chain(&engine, &first, length as usize);
        let began = Instant::now();
        // A wait with a timeout of less than a look's time takes none; one without takes one before it
        // sleeps.
        let waiter = std::thread::spawn(move || counted(|| last.wait()));
        while engine.diagnose().operations.iter().all(|op| op.name != "ready") {
            std::thread::yield_now();
        }
        drop(open);
        let (waited, looked) = waiter.join().expect("it does not panic");
        waited.expect("the chain runs");
        // It may have slept for so long that looks went through the whole chain: after 10, 30, 70 ... ms.
        let looks = (1..32).take_while(|look| WHILE / 30 * ((1 << look) - 1) <= began.elapsed()).count();
        (looked, 500 + looks.max(2) as u64 * 4 * length)
    });
    assert!(short.0 < short.1 && long.0 < long.1, "{short:?}, {long:?}");
}

#[test]
fn a_wait_of_little_among_much_that_waits_and_is_alive_looks_at_little() {
    let _alone = exclusive();
    let engine = engine();
    let first = tensor(&engine);
    let open = gate(&engine, &first);
    let _last = chain(&engine, &first, 5_000);
    let _idle: Vec<_> = (0..5_000).map(|_| engine.var()).collect();
    let mine = tensor(&engine);
    let (_, looked) = counted(|| {
        for _ in 0..10 {
            engine.op("mine").writes([&mine]).run(|[], [_]| Ok(())).expect("submitted");
            mine.wait().expect("a free worker runs it");
        }
    });
    assert!(looked <= 10 * 20, "{looked} accesses were looked at");
    drop(open);
    engine.wait_all(None).expect("everything ends");
}

#[test]
fn a_long_wait_behind_a_long_chain_looks_now_and_then() {
    const LENGTH: usize = 4_000;
    let _alone = exclusive();
    let engine = engine();
    let first = tensor(&engine);
    let open = gate(&engine, &first);
    let last = chain(&engine, &first, LENGTH);
    let (waited, looked) = counted(|| last.wait_timeout(WHILE));
    assert!(matches!(waited, Err(Error::Timeout(_))), "{waited:?}");
    // A look every 10, 20, 40 ... ms, each at the two or three accesses of each operation.
    assert!(looked <= 6 * 4 * LENGTH as u64, "{looked} accesses were looked at");
    drop(open);
    last.wait().expect("the chain runs");
}

#[test]
fn a_thousand_threads_that_wait_for_one_tensor_share_their_looks() {
    const THREADS: usize = 1_000;
    const LENGTH: usize = 1_000;
    let _alone = exclusive();
    let engine = engine();
    let first = tensor(&engine);
    let open = gate(&engine, &first);
    let last = chain(&engine, &first, LENGTH);
    let (_, looked) = counted(|| {
        std::thread::scope(|scope| {
            let spawn = |_| {
                let last = last.clone();
                let builder = std::thread::Builder::new().stack_size(1 << 18);
                builder.spawn_scoped(scope, move || last.wait()).expect("a thread")
            };
            let threads: Vec<_> = (0..THREADS).map(spawn).collect();
            std::thread::sleep(WHILE);
            drop(open);
            for thread in threads {
                thread.join().expect("it does not panic").expect("the chain runs");
            }
        });
    });
    // Each looks at what is near once. Without sharing, each would look at the whole chain, four accesses per
    // operation, and more than once.
    assert!(looked <= (THREADS * 2 * LENGTH) as u64, "{looked} accesses were looked at");
}

#[test]
fn a_wait_that_a_far_lease_of_its_own_thread_holds_up_is_refused() {
    let _alone = exclusive();
    let engine = engine();
    let first = tensor(&engine);
    let lease = first.lease(Access::Read, "a test").wait(None).expect("it is free");
    engine.op("writer").writes([&first]).run(|[], [_]| Ok(())).expect("submitted");
    let last = chain(&engine, &first, 2_000);
    let waited = last.wait();
    assert!(matches!(waited, Err(Error::LeaseHeld(_))), "{waited:?}");
    drop(lease);
    last.wait().expect("the chain runs");
}

#[test]
fn a_wait_inside_of_an_operation_that_leads_back_to_it_far_away_is_refused() {
    let _alone = exclusive();
    let engine = engine();
    let first = tensor(&engine);
    let (give, given) = mpsc::channel::<Tensor>();
    let (tell, told) = mpsc::channel();
    engine
        .op("outer")
        .writes([&first])
        .run(move |[], [_]| {
            let last = given.recv().expect("the last tensor of the chain");
            tell.send(last.wait()).expect("it is waited for");
            Ok(())
        })
        .expect("submitted");
    give.send(chain(&engine, &first, 2_000)).expect("it is waited for");
    let waited = told.recv().expect("the wait ends");
    assert!(matches!(waited, Err(Error::WouldDeadlock(_))), "{waited:?}");
    engine.wait_all(None).expect("everything ends");
}

#[test]
fn a_wait_for_what_all_busy_workers_leave_runs_it_itself() {
    let _alone = exclusive();
    let engine = engine();
    let gates: Vec<_> = (0..2).map(|_| tensor(&engine)).collect();
    let open: Vec<_> = gates.iter().map(|first| gate(&engine, first)).collect();
    let shared = tensor(&engine);
    let mine = tensor(&engine);
    let (take, taken) = mpsc::channel();
    let theirs = shared.clone();
    // The operation becomes ready when the wait has been asleep for long, and no worker is free.
    let holder = std::thread::spawn(move || {
        let lease = theirs.lease(Access::Read, "a test").wait(None).expect("it is free");
        take.send(()).expect("it is waited for");
        std::thread::sleep(WHILE);
        drop(lease);
    });
    taken.recv().expect("the lease is taken");
    engine.op("mine").writes([&shared, &mine]).run(|[], [_, _]| Ok(())).expect("submitted");
    mine.wait().expect("the waiting thread runs it");
    holder.join().expect("it does not panic");
    drop(open);
    engine.wait_all(None).expect("everything ends");
}

/// Number of times that the threads have given the processor up, each of which has its folder here.
fn switches(threads: &[String]) -> u64 {
    let of = |thread: &String| {
        let status = std::fs::read_to_string(format!("/proc/{thread}/status")).expect("the thread lives");
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        count.expect("Linux counts them").trim().parse::<u64>().expect("a number")
    };
    threads.iter().map(of).sum()
}

/// Waits with several threads until `wait` returns in them, which `open` brings about. Meanwhile there has to
/// be a second in which they all wake `most` times or less: they may take long to fall asleep, and a busy
/// machine only makes them wake less.
fn sleep_soundly(threads: usize, most: u64, wait: impl Fn() + Sync, open: impl FnOnce()) {
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (tell, wait) = (tell.clone(), &wait);
            scope.spawn(move || {
                let own = std::fs::read_link("/proc/thread-self").expect("Linux");
                tell.send(own.to_str().expect("digits").to_owned()).expect("it is waited for");
                wait();
            });
        }
        let threads: Vec<String> = (0..threads).map(|_| told.recv().expect("each tells its name")).collect();
        let woken = |_| {
            let before = switches(&threads);
            std::thread::sleep(Duration::from_secs(1));
            switches(&threads) - before
        };
        let least = (0..20).map(woken).find(|woken| *woken <= most);
        open();
        assert!(least.is_some(), "in no second they slept");
    });
}

struct Unconcerned;

impl WaitHook for Unconcerned {
    fn concerns(&self) -> bool {
        false
    }

    fn ends(&self, _needs: &dyn Fn(&[Current]) -> Option<usize>) -> bool {
        unreachable!("it concerns no thread")
    }
}

#[test]
fn threads_that_wait_for_long_are_not_woken_for_a_hook_that_does_not_concern_them() {
    let _alone = exclusive();
    let engine = engine();
    bindings::engine::on_wait(&engine, Unconcerned);
    let first = tensor(&engine);
    let open = gate(&engine, &first);
    sleep_soundly(20, 10, || first.wait().expect("the gate opens"), || drop(open));
}

/// An engine whose in-flight limit of a hundred operations is reached behind a gate.
fn full_engine() -> (Engine, Tensor, mpsc::Sender<()>) {
    let engine = Engine::builder().workers(2).in_flight_limit(100).build().expect("an engine");
    let first = tensor(&engine);
    let open = gate(&engine, &first);
    for _ in 1..100 {
        engine.op("behind").writes([&first]).run(|[], [_]| Ok(())).expect("submitted");
    }
    (engine, first, open)
}

#[test]
fn threads_that_wait_for_all_sleep_until_everything_has_ended() {
    let _alone = exclusive();
    let (engine, _first, open) = full_engine();
    // One of the threads checks for a standstill, twice a second after a while.
    sleep_soundly(20, 10, || engine.wait_all(None).expect("the gate opens"), || drop(open));
}

#[test]
fn threads_that_wait_for_all_with_a_timeout_sleep_until_everything_has_ended() {
    let _alone = exclusive();
    let (engine, _first, open) = full_engine();
    let wait = || engine.wait_all(Some(Duration::from_secs(3_600))).expect("the gate opens");
    sleep_soundly(20, 10, wait, || drop(open));
}

#[test]
fn threads_that_wait_for_room_sleep_until_there_is_some() {
    let _alone = exclusive();
    let (engine, first, open) = full_engine();
    let submit = || drop(engine.op("more").writes([&first]).run(|[], [_]| Ok(())).expect("the gate opens"));
    sleep_soundly(20, 10, submit, || drop(open));
}

#[test]
fn two_hundred_threads_that_wait_for_all_check_as_seldom_as_one() {
    const THREADS: usize = 200;
    let _alone = exclusive();
    let (engine, _first, open) = full_engine();
    let began = std::time::Instant::now();
    let (_, looked) = counted(|| {
        std::thread::scope(|scope| {
            let builder = || std::thread::Builder::new().stack_size(1 << 18);
            let wait = || builder().spawn_scoped(scope, || engine.wait_all(None)).expect("a thread");
            let threads: Vec<_> = (0..THREADS).map(|_| wait()).collect();
            std::thread::sleep(3 * WHILE);
            drop(open);
            for thread in threads {
                thread.join().expect("it does not panic").expect("the gate opens");
            }
        });
    });
    // Checks after 20, 40, 80 ... ms, and every half a second in the end, each of the hundred operations in
    // flight.
    let checks = 10.0 + 2.0 * began.elapsed().as_secs_f64();
    assert!(looked as f64 <= checks * 100.0, "{looked} operations were looked at");
}

#[test]
fn each_thread_that_waits_for_room_gets_the_only_permit_that_is_left() {
    let _alone = exclusive();
    let engine = Engine::builder().workers(2).in_flight_limit(100).build().expect("an engine");
    let (first, single, mine) = (tensor(&engine), tensor(&engine), tensor(&engine));
    let [open, make_room] = [gate(&engine, &first), gate(&engine, &single)];
    for _ in 2..100 {
        engine.op("behind").writes([&first]).run(|[], [_]| Ok(())).expect("submitted");
    }
    std::thread::scope(|scope| {
        let submit = || drop(engine.op("more").writes([&mine]).run(|[], [_]| Ok(())).expect("a permit"));
        let threads: Vec<_> = (0..20).map(|_| scope.spawn(submit)).collect();
        std::thread::sleep(WHILE);
        // From here on a single place is free at a time, and a quarter of the in-flight limit never is.
        drop(make_room);
        threads.into_iter().for_each(|thread| thread.join().expect("each gets the place"));
    });
    drop(open);
    engine.wait_all(None).expect("everything ends");
}

#[test]
fn a_wait_in_an_engine_without_workers_sleeps_until_something_comes() {
    let _alone = exclusive();
    let engine = Engine::builder().workers(0).build().expect("an engine");
    let first = tensor(&engine);
    let (end, ended) = mpsc::channel();
    let start = move |completion: estafette::Completion| end.send(completion).expect("it is waited for");
    engine.op("elsewhere").writes([&first]).run_external(start).expect("submitted");
    engine.run_ready();
    let completion = ended.recv().expect("it has begun");
    // The fence that it waits for is looked at now and then: twice a second, after a while.
    sleep_soundly(1, 20, || first.wait().expect("it ends well"), || completion.complete(Ok(())));
}
