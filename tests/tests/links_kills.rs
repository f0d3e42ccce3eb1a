//! Processes that are killed, are stopped or lack something while tensors cross in both directions, and what
//! that does to the other one, which sends and uses tensors as well: each is an owner and a consumer. The
//! tests run their own program again as the other process, in other roles than those of `links`.
//!
//! `ESTAFETTE_KILLS_S` says for how many seconds processes are killed at random moments; without it so many
//! are killed. With it, the process that dies large has 1 GiB, and 4 GiB from 300 s on, and more deaths are
//! counted.
//!
//! | part | what it has |
//! |---|---|
//! | here | kills at random moments, processes that are stopped, and processes that lack something |
//! | `roles` | deaths at each step in each role |
//! | `support` | a test that starts its own program again |

#![cfg(not(any(estafette_portable, estafette_loom, estafette_shuttle)))]

#[path = "../../links/tests/support/mod.rs"]
mod support;

#[path = "links_kills/roles.rs"]
mod roles;

use std::cell::{Cell, RefCell};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::ExitStatusExt;
use std::pin::pin;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use estafette::devices::DLDevice;
use estafette::engine::Memory;
use estafette::remote::{Address, Door, Link, ShareOptions, Ticket};
use estafette::{DType, Engine, Error, Tensor};
use estafette_links::steps::{self, CLOSING, GREETING, OPEN, RELEASING, STEP};
use tests::limits::limit;
use tests::nothing_left::assert_nothing_left;

use support::{role, until, wait};

const LENGTH: i64 = 300;
/// Processes that are killed at random moments.
const KILLS: u32 = 40;
/// After at most this long.
const MOMENTS_US: u64 = 12_000;
/// Tensors that a process sends that closes its link.
const ROUNDS: u64 = 60;
/// Memory that each process sends again and again.
const RING: usize = 3;
/// Each version of this remainder fails.
const FAILS: u64 = 3;

/// The tests count what the process has, so there is one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

fn engine() -> Engine {
    Engine::builder().workers(1).shared(true).build().expect("an engine")
}

/// The element at a place in a version of a process: each version is another, and so is each part of it.
fn element(version: u64, at: usize) -> i64 {
    let mixed =
        (version + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (at as u64).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (mixed ^ mixed >> 29).cast_signed()
}

/// Writes a version, after its readers everywhere.
fn fill(engine: &Engine, tensor: &Tensor, version: u64, pause: Duration) {
    let filled = engine.op("fill").writes([tensor]).run(move |[], [mut tensor]| {
        std::thread::sleep(pause);
        if version % 4 == FAILS {
            return Err("on purpose".into());
        }
        for (at, it) in tensor.as_mut_slice::<i64>()?.iter_mut().enumerate() {
            *it = element(version, at);
        }
        Ok(())
    });
    drop(filled.expect("submitted"));
}

/// Has a look at every element once they are ready. The tensor that it returns fails if one is of another
/// version.
fn read(engine: &Engine, tensor: &Tensor, version: u64) -> Tensor {
    let seen = engine.zeros(&[1], DType::I64).expect("memory");
    let looked = engine.op("look").reads([tensor]).writes([&seen]).run(move |[tensor], [_seen]| {
        let elements = tensor.as_slice::<i64>()?;
        match elements.iter().enumerate().position(|(at, it)| *it != element(version, at)) {
            Some(at) => Err(format!("half of a version: {at} of version {version}").into()),
            None => Ok(()),
        }
    });
    drop(looked.expect("submitted"));
    seen
}

/// Resources of the process that a link, a ticket or a tensor of another process may leave behind:
/// descriptors, and mappings of boards and of others' segments. Its own segments, of which it keeps one.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Counts {
    descriptors: usize,
    boards: usize,
    of_others: usize,
    own: usize,
}

fn counts() -> Counts {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("its mappings");
    let count = |what: &dyn Fn(&&str) -> bool| maps.lines().filter(what).count();
    Counts {
        descriptors: std::fs::read_dir("/proc/self/fd").expect("a folder of the kernel's").count(),
        boards: count(&|line| line.contains("memfd:estafette-board")),
        of_others: count(&|line| line.contains("r--s") && line.contains("memfd:estafette-segment")),
        own: count(&|line| line.contains("rw-s") && line.contains("memfd:estafette-segment")),
    }
}

/// Errors of a tensor of another process that ended.
fn is_its_end(error: &str, process: u32) -> bool {
    ["died", "closed the link", "hung up", "which passed the tensor on"].iter().any(|how| {
        error.contains(&format!("process {process} {how}"))
            || error.contains(&format!("process {process}, {how}"))
    })
}

/// Sends versions and uses those of the other process, until there are enough or that process ends. `pause`
/// before each write: what is sent is pending then. Every value is the version that was sent, or the failure
/// of that version.
fn work(engine: &Engine, link: &Link, are_enough: impl Fn(u64) -> bool, pause: Duration) {
    let ring = [(); RING].map(|()| engine.zeros(&[LENGTH], DType::I64).expect("memory"));
    let mut looks: Vec<(u64, Tensor, Option<Tensor>)> = Vec::new();
    let received = Cell::new(0);
    let receive = |looks: &mut Vec<_>| {
        let next = pin!(link.receive()).poll(&mut Context::from_waker(Waker::noop()));
        match next {
            Poll::Ready(Ok(Some(tensor))) => {
                let version = received.replace(received.get() + 1);
                let seen = read(engine, &tensor, version);
                // Some are held for longer than their look.
                looks.push((version, seen, version.is_multiple_of(5).then_some(tensor)));
                true
            }
            Poll::Ready(Ok(None)) => false,
            Poll::Ready(Err(error)) => {
                assert!(is_its_end(&error.to_string(), link.process()), "{error}");
                false
            }
            Poll::Pending => true,
        }
    };
    let check = |looks: &mut Vec<(u64, Tensor, Option<Tensor>)>, are_all: bool| {
        looks.retain(|(version, seen, _)| {
            if !are_all && !seen.is_ready() {
                return true;
            }
            match seen.wait_timeout(Duration::from_secs(60)) {
                Ok(()) => assert!(version % 4 != FAILS, "version {version} has failed, and was seen"),
                Err(error) => {
                    let error = format!("{error} {error:?}");
                    let is_own = version % 4 == FAILS && error.contains("on purpose");
                    let is_expected = is_own || is_its_end(&error, link.process());
                    assert!(is_expected, "version {version}: {error}");
                }
            }
            false
        });
    };
    let mut is_open = true;
    for version in 0.. {
        if !is_open || are_enough(version) {
            break;
        }
        let tensor = &ring[(version % RING as u64) as usize];
        fill(engine, tensor, version, pause);
        // While this process waits for the readers of a version, it releases what it reads itself.
        while pause.is_zero() && is_open && !tensor.is_ready() {
            is_open = receive(&mut looks);
            check(&mut looks, false);
            // This thread serves the link meanwhile. How the version ends is looked at elsewhere.
            let _ = tensor.wait_timeout(Duration::from_micros(50));
        }
        if let Err(error) = wait(link.send(tensor, &ShareOptions::default())) {
            assert!(is_its_end(&error.to_string(), link.process()), "{error}");
        }
        is_open = receive(&mut looks);
        check(&mut looks, false);
        std::thread::yield_now();
    }
    check(&mut looks, true);
    for tensor in &ring {
        // Its leases in the other process end, also with that process.
        fill(engine, tensor, 0, Duration::ZERO);
        let seen = read(engine, tensor, 0);
        seen.wait_timeout(Duration::from_secs(60)).expect("it was written when its readers were gone");
    }
}

/// Environment variable with the address to which the process that dies makes its link, or with a file for
/// the address of its own door.
const PLACE: &str = "ESTAFETTE_LINKS_DOOR";
/// Environment variable with the task of that process: the microseconds that each write takes, or its part in
/// tickets.
const TASK: &str = "ESTAFETTE_TASK";

fn start(name: &str, step: Option<&str>, place: &str, task: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("the path of this test"));
    command.args(["--exact", name, "--nocapture"]).env(PLACE, place).env(TASK, task);
    command.envs(step.map(|step| (STEP, step)));
    command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("a process")
}

/// The other process's part. True in that process.
fn is_the_other() -> bool {
    let Some(place) = role() else { return false };
    be_the_other(&place);
    true
}

static HAS_BEEN_STOPPED: AtomicBool = AtomicBool::new(false);

extern "C" fn goes_on(_signal: libc::c_int) {
    HAS_BEEN_STOPPED.store(true, Ordering::Relaxed);
}

fn be_the_other(place: &str) {
    // SAFETY: nothing else uses the signal, and the handler stores a flag.
    unsafe { libc::signal(libc::SIGCONT, goes_on as extern "C" fn(libc::c_int) as usize) };
    let engine = engine();
    match &*std::env::var(TASK).expect("a task") {
        "makes a ticket" => {
            let x = engine.zeros(&[LENGTH], DType::I64).expect("memory");
            fill(&engine, &x, 0, Duration::ZERO);
            let ticket = x.ticket(&ShareOptions::default()).expect("a ticket");
            publish(place, &ticket.to_bytes());
            until_killed();
        }
        "lacks descriptors" => return lacks_descriptors(&engine, place),
        "lacks memory" => return lacks_memory(&engine, place),
        "holds" => return holds(&engine, place),
        "is large" => return is_large(&engine, place),
        "is passed on" => {
            let link = wait(engine.connect(&Address::from_bytes(place.as_bytes()).expect("an address")));
            let x = engine.zeros(&[LENGTH], DType::I64).expect("memory");
            fill(&engine, &x, 0, Duration::ZERO);
            let link = link.expect("a link");
            wait(link.send(&x, &ShareOptions::default())).expect("sent");
            until_killed();
        }
        "owes" => {
            let link = wait(engine.connect(&Address::from_bytes(place.as_bytes()).expect("an address")));
            let owed = engine.zeros(&[LENGTH], DType::I64).expect("memory");
            let endless = engine.op("endless").writes([&owed]).run(|[], [_owed]| until_killed());
            drop(endless.expect("submitted"));
            wait(link.expect("a link").send(&owed, &ShareOptions::default())).expect("sent");
        }
        "uses a ticket" => {
            let bytes = std::fs::read(place).expect("a file");
            let tensor =
                engine.from_ticket(&Ticket::from_bytes(&bytes).expect("a ticket")).expect("a promise");
            let _ = tensor.wait();
        }
        task => {
            let link = match place.strip_prefix("file ") {
                None => wait(engine.connect(&Address::from_bytes(place.as_bytes()).expect("an address"))),
                Some(path) => {
                    let door = Door::open().expect("a door");
                    publish(path, door.address().as_bytes());
                    wait(engine.accept(&door))
                }
            };
            let step = std::env::var(STEP).unwrap_or_default();
            let closes = step.ends_with("stop") || CLOSING.iter().any(|it| step.starts_with(it));
            let rounds = if closes { ROUNDS } else { u64::MAX };
            let comes_before = !CLOSING.iter().any(|it| step.starts_with(it));
            let must_stop = step.ends_with("stop") && comes_before;
            let are_enough =
                |version| version >= rounds && (!must_stop || HAS_BEEN_STOPPED.load(Ordering::Relaxed));
            let link = link.expect("a link");
            match task {
                "passes on" => passes_on(&engine, &link, rounds),
                pair if pair.contains(' ') => roles::play(&engine, link, pair),
                pause => {
                    let pause = Duration::from_micros(pause.parse().expect("a number"));
                    work(&engine, &link, are_enough, pause);
                }
            }
        }
    }
    // The link thread leaves the link once the other process has answered.
    until_killed();
}

/// Passes on the first tensor that comes, and sends back those that follow: two of three, and one of its own
/// for each third.
fn passes_on(engine: &Engine, link: &Link, rounds: u64) {
    let receive = || wait(link.receive()).expect("the other process lives");
    let Some(first) = receive() else { return };
    wait(link.send(&first, &ShareOptions::default())).expect("sent");
    drop(first);
    for version in 0..rounds {
        let Some(x) = receive() else { return };
        if version.is_multiple_of(3) {
            let own = engine.zeros(&[LENGTH], DType::I64).expect("memory");
            fill(engine, &own, version, Duration::ZERO);
            wait(link.send(&own, &ShareOptions::default())).expect("sent");
        } else {
            wait(link.send(&x, &ShareOptions::default())).expect("sent");
        }
    }
}

fn until_killed() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(600));
    }
}

/// Writes a file that is there as a whole or not at all.
fn publish(path: &str, bytes: &[u8]) {
    let unfinished = format!("{path}~");
    std::fs::write(&unfinished, bytes).expect("a file");
    std::fs::rename(unfinished, path).expect("a file");
}

/// A file in which a process says something once.
struct Said(std::path::PathBuf);

impl Said {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("estafette-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        Self(path)
    }

    fn path(&self) -> String {
        self.0.display().to_string()
    }

    fn wait(&self) -> Vec<u8> {
        until("the other process has said it", || self.0.exists());
        std::fs::read(&self.0).expect("a file")
    }
}

impl Drop for Said {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The result of `future`, unless the process ends before; where it `comes` all the same, however late.
fn unless_it_ends<T>(child: &mut Child, comes: bool, future: impl Future<Output = T>) -> Option<T> {
    if comes {
        return Some(wait(future));
    }
    let mut future = pin!(future);
    loop {
        let has_ended = child.try_wait().expect("a child").is_some();
        // After its end there is one more look.
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => return Some(result),
            Poll::Pending if has_ended => return None,
            Poll::Pending => std::thread::sleep(Duration::from_micros(100)),
        }
    }
}

/// A process has come to the step at which it is killed.
fn end_of(what: &str, child: &mut Child) {
    let child = RefCell::new(child);
    until(&format!("{what}: it came there"), || child.borrow_mut().try_wait().expect("a child").is_some());
    let status = child.into_inner().wait().expect("a child");
    assert_eq!(status.signal(), Some(libc::SIGKILL), "{what}: {status}");
}

/// The process that survives.
struct Survivor {
    engine: Engine,
    door: Door,
    before: Counts,
}

impl Survivor {
    fn new() -> Self {
        let (engine, door) = (engine(), Door::open().expect("a door"));
        // The door for tickets and the reactor stay once they were needed, as does one segment.
        let x = engine.zeros(&[LENGTH], DType::I64).expect("memory");
        // So does the link of this process to its own door, which it takes back by what was passed on.
        let ticket = x.ticket(&ShareOptions::default()).expect("a ticket");
        engine.from_ticket(&ticket).expect("a promise").wait().expect("it is ready");
        drop(ticket);
        fill(&engine, &x, 0, Duration::ZERO);
        x.wait().expect("written");
        drop(x);
        until("what another test left is gone", || {
            let Counts { boards, of_others, own, .. } = counts();
            (boards, of_others, own) == (4, 1, 1)
        });
        Self { engine, door, before: counts() }
    }

    /// Starts a process that makes a link to this one, or, with a file, has this one make it. Where it dies
    /// in the greeting there may be none.
    fn meet(&self, name: &str, step: Option<&str>, said: Option<&Said>, task: &str) -> (Child, Option<Link>) {
        let comes = !step.is_some_and(|step| step.starts_with("greet"));
        let (child, link) = match said {
            None => {
                let mut child = start(name, step, &self.door.address().to_string(), task);
                let link = unless_it_ends(&mut child, comes, self.engine.accept(&self.door));
                (child, link)
            }
            Some(said) => {
                let mut child = start(name, step, &format!("file {}", said.path()), task);
                let address = Address::from_bytes(&said.wait()).expect("an address");
                let link = unless_it_ends(&mut child, comes, self.engine.connect(&address));
                (child, link)
            }
        };
        let link = match link {
            Some(Err(error)) => {
                assert!(matches!(error, Error::Device(_)), "{error}");
                None
            }
            link => link.map(|link| link.expect("checked")),
        };
        (child, link)
    }

    /// The other process has been killed, and nothing is left of it.
    fn assert_nothing_of(&self, what: &str, mut child: Child) {
        end_of(what, &mut child);
        self.assert_nothing_left(what);
    }

    fn assert_nothing_left(&self, what: &str) {
        assert_nothing_left(&[&self.engine]);
        until(&format!("{what}: nothing is left: {:?}, and it was {:?}", counts(), self.before), || {
            // The link of a process that died in the midst of its greeting may come after the end of the
            // process.
            drop(pin!(self.door.accept()).poll(&mut Context::from_waker(Waker::noop())));
            let now = counts();
            // A descriptor that was about to be closed may have been counted before.
            let descriptors = now.descriptors.max(self.before.descriptors);
            Counts { descriptors, ..self.before } == Counts { descriptors: self.before.descriptors, ..now }
        });
    }
}

/// With each step of the protocol, the process that dies connects or accepts, and what it sends is ready or
/// pending.
#[test]
fn a_death_at_any_step_ends_leases_and_promises_and_nothing_else() {
    if is_the_other() {
        return;
    }
    let name = "a_death_at_any_step_ends_leases_and_promises_and_nothing_else";
    let _alone = alone();
    let survivor = Survivor::new();
    let open = OPEN.into_iter().chain(["granted", "share", "adopt"]).map(|step| (step, 4));
    let once = GREETING.into_iter().chain(CLOSING).map(|step| (step, 0));
    for (step, count) in open.chain(once) {
        // A segment is shown once.
        let count = if step.starts_with("segment") { 0 } else { count };
        // A process whose writes take long does not wait.
        let pauses = if step.starts_with("serve") { &["0"][..] } else { &["0", "300"] };
        for connects in [true, false] {
            for pause in pauses {
                let what = format!("{step}, it connects: {connects}, its writes take {pause} µs");
                let said = (!connects).then(|| Said::new("kills"));
                let (child, link) =
                    survivor.meet(name, Some(&format!("{step}:{count}")), said.as_ref(), pause);
                assert!(link.is_some() || GREETING.contains(&step), "{what}: there is a link");
                if let Some(link) = &link {
                    work(&survivor.engine, link, |_| false, Duration::ZERO);
                }
                drop(link);
                survivor.assert_nothing_of(&what, child);
            }
        }
    }
}

#[test]
fn a_death_while_a_ticket_is_used_fails_the_promise_and_keeps_nothing() {
    if is_the_other() {
        return;
    }
    let name = "a_death_while_a_ticket_is_used_fails_the_promise_and_keeps_nothing";
    let _alone = alone();
    let survivor = Survivor::new();
    let engine = &survivor.engine;
    for step in GREETING.into_iter().chain([
        "share",
        "receive 1",
        "receive 2, copied",
        "receive 2",
        "segment",
        "send 3",
        "send 4",
        "send 5",
    ]) {
        let said = Said::new("tickets");
        let mut owner = start(name, Some(&format!("{step}:0")), &said.path(), "makes a ticket");
        let ticket = Ticket::from_bytes(&said.wait()).expect("a ticket");
        let tensor = engine.from_ticket(&ticket).expect("a promise");
        end_of(step, &mut owner);
        // A tensor that the dead process had sent as ready is readable.
        let has_sent = ["send 4", "send 5"].contains(&step);
        match tensor.wait_timeout(Duration::from_secs(60)) {
            Ok(()) => assert!(has_sent, "{step}"),
            Err(error) => {
                // Before there is a link, its process is not known to be dead.
                let error = error.to_string();
                let says = |how| error.contains(&format!("process {} {how}", owner.id()));
                assert!(says("died") || step.starts_with("greet") && says("hung up"), "{step}: {error}");
            }
        }
        drop(tensor);
        survivor.assert_nothing_of(step, owner);
    }
    // The consumer sends the request, and receives the answer.
    for step in GREETING.into_iter().chain([
        "redeem",
        "send 3",
        "send 4",
        "send 5",
        "segment, mapped",
        "receive 1",
        "receive 2, copied",
        "receive 2",
        "adopt",
        "answer",
    ]) {
        let said = Said::new("tickets");
        let x = engine.zeros(&[LENGTH], DType::I64).expect("memory");
        fill(engine, &x, 0, Duration::ZERO);
        let ticket = x.ticket(&ShareOptions::default()).expect("a ticket");
        publish(&said.path(), &ticket.to_bytes());
        let mut consumer = start(name, Some(&format!("{step}:0")), &said.path(), "uses a ticket");
        end_of(step, &mut consumer);
        drop(ticket);
        fill(engine, &x, 1, Duration::ZERO);
        read(engine, &x, 1).wait_timeout(Duration::from_secs(60)).expect("its lease has ended");
        drop(x);
        survivor.assert_nothing_of(step, consumer);
    }
}

/// The reason that a process which passes on tensors, and sends some of its own, does not come to the step,
/// if it does not.
fn why_never_between(step: &str) -> Option<&'static str> {
    match step {
        "redeem" => Some("what it is sent has its place in shared memory"),
        "staged" | "copied" => Some("its own tensors are in shared memory"),
        "pass on" => Some("no other process passes on its own tensors"),
        _ if RELEASING.contains(&step) => Some("its segments, and those that it is shown, stay"),
        _ if step.starts_with("serve") => Some("it waits where threads serve no link"),
        _ => None,
    }
}

/// The process that dies passes on what this one sends. This one is the owner, and by a link to itself the
/// one that gets it.
#[test]
fn a_death_between_at_any_step_takes_nothing_from_who_has_the_tensor() {
    if is_the_other() {
        return;
    }
    let name = "a_death_between_at_any_step_takes_nothing_from_who_has_the_tensor";
    let _alone = alone();
    let survivor = Survivor::new();
    let engine = &survivor.engine;
    let mut passed_on_before = 0;
    for step in steps::all().filter(|step| why_never_between(step).is_none()) {
        // It greets this process, is greeted, and greets again. While links are open it is owner and consumer
        // by turns.
        let counts: &[u64] = match step {
            _ if GREETING.contains(&step) => &[0, 1, 2],
            "segment" | "segment, mapped" | "close" | "left" => &[0],
            _ if is_long() => &[0, 2, 4, 7, 12],
            _ => &[0, 4, 7],
        };
        for count in counts {
            let what = format!("{step}:{count}");
            let (mut child, link) = survivor.meet(name, Some(&what), None, "passes on");
            let x = engine.zeros(&[LENGTH], DType::I64).expect("memory");
            fill(engine, &x, 0, Duration::ZERO);
            let mut kept = None;
            if let Some(link) = &link {
                let passed_on =
                    wait(link.send(&x, &ShareOptions::default())).and_then(|()| wait(link.receive()));
                let whole = |tensor: Option<Tensor>| {
                    let seen = tensor.as_ref().map(|it| read(engine, it, 0));
                    seen.map_or(Ok(()), |seen| seen.wait_timeout(Duration::from_secs(60))).map(|()| tensor)
                };
                match passed_on.and_then(whole) {
                    Ok(tensor) => kept = tensor,
                    Err(error) => {
                        assert!(is_its_end(&format!("{error} {error:?}"), link.process()), "{what}: {error}")
                    }
                }
                work(engine, link, |_| false, Duration::from_micros(count % 2 * 300));
            }
            drop(link);
            end_of(&what, &mut child);
            fill(engine, &x, 1, Duration::ZERO);
            if let Some(kept) = kept {
                passed_on_before += 1;
                read(engine, &kept, 0).wait_timeout(Duration::from_secs(60)).expect("it stays");
                assert!(!x.is_ready(), "{what}: the write waits for who was passed the tensor");
            }
            read(engine, &x, 1).wait_timeout(Duration::from_secs(60)).expect("its leases have ended");
            drop(x);
            survivor.assert_nothing_of(&what, child);
        }
    }
    assert!(passed_on_before > 10, "of {passed_on_before} deaths the tensor had been passed on before");
}

/// The process that dies owns what this one passes on: to itself, by its own door.
#[test]
fn a_death_of_the_owner_while_its_tensor_is_passed_on_leaves_the_tensor_or_a_failure() {
    if is_the_other() {
        return;
    }
    let name = "a_death_of_the_owner_while_its_tensor_is_passed_on_leaves_the_tensor_or_a_failure";
    let _alone = alone();
    let survivor = Survivor::new();
    let engine = &survivor.engine;
    for step in
        ["greet 1", "greet 6", "receive 1", "ticket", "pass on", "send 2", "send 4, ring", "send 5", "share"]
    {
        // It greets this process twice, and has sent its door and the tensor before it is asked for a ticket
        // and, by that, for the tensor.
        let count = match step {
            "send 2" | "send 4, ring" => 2,
            "send 5" => 3,
            "greet 1" | "greet 6" | "share" => 1,
            _ => 0,
        };
        let step = format!("{step}:{count}");
        let (child, link) = survivor.meet(name, Some(&step), None, "is passed on");
        let (process, link) = (child.id(), link.expect("a link"));
        let x = wait(link.receive()).expect("a link").expect("a tensor");
        read(engine, &x, 0).wait_timeout(Duration::from_secs(60)).expect("it is whole");
        let ticket = x.ticket(&ShareOptions::default()).expect("a ticket");
        let passed_on = engine.from_ticket(&ticket).expect("a promise");
        if let Err(error) = read(engine, &passed_on, 0).wait_timeout(Duration::from_secs(60)) {
            let error = format!("{error} {error:?}");
            assert!(is_its_end(&error, process), "{step}: {error}");
        }
        read(engine, &x, 0).wait_timeout(Duration::from_secs(60)).expect("what was ready stays ready");
        drop((ticket, passed_on, x, link));
        survivor.assert_nothing_of(&step, child);
    }
}

/// The seconds for which processes are killed at random moments, in the long form of these tests.
fn seconds() -> Option<u64> {
    let seconds = std::env::var("ESTAFETTE_KILLS_S").ok();
    seconds.map(|it| it.parse().expect("ESTAFETTE_KILLS_S is a number of seconds"))
}

fn is_long() -> bool {
    seconds().is_some()
}

/// Bytes of the process that dies large. A machine that runs all suites may not have 4 GiB to spare.
fn large() -> i64 {
    match seconds() {
        Some(300..) => 4 << 30,
        Some(_) => 1 << 30,
        None => 32 << 20,
    }
}

/// Owes a tensor and writes one that it was lent, with memory that the kernel needs a while to free.
fn is_large(engine: &Engine, place: &str) {
    let link =
        wait(engine.connect(&Address::from_bytes(place.as_bytes()).expect("an address"))).expect("a link");
    let _memory = engine.empty(&[large()], DType::U8, Memory::Shared(DLDevice::CPU)).expect("memory");
    let [lent, _held] = [(); 2].map(|()| wait(link.receive()).expect("a link").expect("a tensor"));
    let owed = engine.zeros(&[LENGTH], DType::I64).expect("memory");
    let (writes, is_writing) = std::sync::mpsc::channel();
    let written = engine.op("writes to the end").writes([&lent]).run(move |[], [mut lent]| {
        let elements = lent.as_mut_slice::<i64>()?;
        writes.send(())?;
        for number in 0.. {
            std::hint::black_box(&mut *elements).fill(number);
        }
        Ok(())
    });
    drop(written.expect("submitted"));
    is_writing.recv().expect("it is written");
    // There is one worker.
    fill(engine, &owed, 0, Duration::ZERO);
    wait(link.send(&owed, &ShareOptions::default())).expect("sent");
    until_killed();
}

/// True if all threads of a child have ended. It is not reaped.
fn has_ended(process: u32) -> bool {
    // SAFETY: fills a struct.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let how = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        assert_eq!(libc::waitid(libc::P_PID, process, &raw mut info, how), 0);
        info.si_pid() != 0
    }
}

/// Its death is known when it begins, and what it may still touch is used once it is over.
#[test]
fn a_large_process_is_known_to_die_long_before_its_memory_is_free() {
    if is_the_other() {
        return;
    }
    let name = "a_large_process_is_known_to_die_long_before_its_memory_is_free";
    let _alone = alone();
    let survivor = Survivor::new();
    if !is_long() {
        large_dies(&survivor, name);
        return;
    }
    // This process may get the processor only once all is over. In one of several deaths it gets it earlier.
    assert!((0..5).any(|_| large_dies(&survivor, name)), "told late of each death");
}

/// Kills a large process. True if this process learned of its death long before its memory was free.
fn large_dies(survivor: &Survivor, name: &str) -> bool {
    let engine = &survivor.engine;
    let (mut child, link) = survivor.meet(name, None, None, "is large");
    let (process, link) = (child.id(), link.expect("a link"));
    let lent = engine.empty(&[LENGTH], DType::I64, Memory::SharedForWriting).expect("memory");
    let held = engine.zeros(&[LENGTH], DType::I64).expect("memory");
    wait(link.lend(&lent)).expect("lent");
    wait(link.send(&held, &ShareOptions::default())).expect("sent");
    let owed = wait(link.receive()).expect("a link").expect("a promise");
    let checks = [&lent, &held].map(|tensor| {
        let check = engine.op("waits for the end").writes([tensor]).run(move |[], [_tensor]| {
            if has_ended(process) { Ok(()) } else { Err("its threads may still run".into()) }
        });
        fill(engine, tensor, 1, Duration::ZERO);
        check.expect("submitted")
    });
    let killed = Instant::now();
    child.kill().expect("it runs");
    let error =
        owed.wait_timeout(Duration::from_secs(60)).expect_err("a promise of a dead process").to_string();
    let told = (killed.elapsed(), has_ended(process));
    assert!(is_its_end(&error, process), "{error}");
    for (tensor, check) in [&lent, &held].into_iter().zip(checks) {
        read(engine, tensor, 1).wait_timeout(Duration::from_secs(60)).expect("its leases have ended");
        check.wait().expect("after the end of its threads");
    }
    let gone = killed.elapsed();
    println!("told after {:?}, gone after {gone:?}", told.0);
    child.wait().expect("a child");
    read(engine, &lent, 1).wait().expect("nothing writes any more");
    drop((owed, lent, held, link));
    survivor.assert_nothing_of(name, child);
    !told.1 && told.0 < gone / 2
}

/// The time at which a thread hears of an end that waits for the process itself. It competes for the
/// processors as other waiting threads do.
fn since_its_end(process: u32) -> std::thread::JoinHandle<Instant> {
    // SAFETY: takes two integers.
    let end = unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) } as i32;
    assert!(end >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the descriptor is new.
    let end = unsafe { std::os::fd::OwnedFd::from_raw_fd(end) };
    std::thread::spawn(move || {
        let mut ended = libc::pollfd { fd: end.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor, which is open.
        assert_eq!(unsafe { libc::poll(&raw mut ended, 1, 60_000) }, 1, "it ends");
        Instant::now()
    })
}

/// The most between the end of a process and the failure of a promise of it, in most of many deaths, on a
/// machine that does nothing else.
const MOST_ALONE: Duration = Duration::from_millis(5);
/// As [`MOST_ALONE`], beside other tests: three threads wake one after the other.
const MOST_BESIDE_OTHERS: Duration = Duration::from_millis(50);

#[test]
fn a_thread_that_waits_for_a_process_is_notified_of_its_death_soon() {
    if is_the_other() {
        return;
    }
    let name = "a_thread_that_waits_for_a_process_is_notified_of_its_death_soon";
    let _alone = alone();
    let survivor = Survivor::new();
    let mut told: Vec<_> = (0..if is_long() { 200 } else { 25 })
        .map(|_| {
            let (mut child, link) = survivor.meet(name, None, None, "owes");
            let owed = wait(link.as_ref().expect("a link").receive()).expect("a link").expect("a promise");
            let ended = since_its_end(child.id());
            child.kill().expect("it runs");
            let error = owed.wait_timeout(Duration::from_secs(60)).expect_err("it is dead").to_string();
            let told = Instant::now();
            let told = told.saturating_duration_since(ended.join().expect("it does not panic"));
            assert!(is_its_end(&error, child.id()), "{error}");
            drop((owed, link));
            survivor.assert_nothing_of(name, child);
            told
        })
        .collect();
    told.sort_unstable();
    let [median, late] = [50, 99].map(|percent| told[(told.len() - 1) * percent / 100]);
    println!("told {median:?} after the end, p99 {late:?}");
    let most = if is_long() { MOST_ALONE } else { MOST_BESIDE_OTHERS };
    assert!(median < most, "the median of {} deaths is {median:?}", told.len());
}

#[test]
fn kills_at_random_moments_leave_whole_versions_and_nothing_else() {
    if is_the_other() {
        return;
    }
    let name = "kills_at_random_moments_leave_whole_versions_and_nothing_else";
    let _alone = alone();
    let survivor = Survivor::new();
    let seconds = seconds().map(Duration::from_secs);
    let begun = Instant::now();
    let mut kills = 0;
    while seconds.map_or(kills < KILLS, |seconds| begun.elapsed() < seconds) {
        let what = format!("kill {kills}");
        let said = (kills % 2 == 0).then(|| Said::new("random"));
        let pause = ["0", "200", "1000"][kills as usize % 3];
        let (child, link) = survivor.meet(name, None, said.as_ref(), pause);
        let link = link.expect("a process that lives");
        let moment = Duration::from_micros(u64::from(kills).wrapping_mul(7_919) % MOMENTS_US);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(moment);
                // SAFETY: a signal to a child of this process that is not reaped.
                unsafe { libc::kill(child.id().cast_signed(), libc::SIGKILL) };
            });
            work(&survivor.engine, &link, |_| false, Duration::from_micros(u64::from(kills % 2) * 300));
        });
        drop(link);
        survivor.assert_nothing_of(&what, child);
        kills += 1;
    }
    println!("{kills} kills");
    // A kill takes a twentieth of that.
    assert!(seconds.is_none_or(|seconds| u64::from(kills) >= seconds.as_secs()), "so few kills say little");
}

/// Kills a child if this thread panics, so that no other thread waits for that child.
struct KilledOnPanic(u32);

impl Drop for KilledOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // SAFETY: a signal to a child of this process that is not reaped.
            unsafe { libc::kill(self.0.cast_signed(), libc::SIGKILL) };
        }
    }
}

/// A process that is stopped at any step is no dead process: nothing fails, and all goes on with it.
#[test]
fn a_stop_at_any_step_is_waited_for() {
    if is_the_other() {
        return;
    }
    let name = "a_stop_at_any_step_is_waited_for";
    let _alone = alone();
    let survivor = Survivor::new();
    let engine = &survivor.engine;
    let once = GREETING.into_iter().chain(CLOSING);
    for step in OPEN.into_iter().chain(["granted", "share", "adopt"]).chain(once.clone()) {
        for connects in [true, false] {
            let what = format!("{step}, it connects: {connects}");
            let said = (!connects).then(|| Said::new("stops"));
            let place = said.as_ref().map(|said| format!("file {}", said.path()));
            let place = place.unwrap_or_else(|| survivor.door.address().to_string());
            let pause = if step.starts_with("serve") { "0" } else { "300" };
            let mut child = start(name, Some(&format!("{step}:0:stop")), &place, pause);
            let process = child.id();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let _killed = KilledOnPanic(process);
                    // SAFETY: has a look at a child of this process, which is not reaped.
                    until(&format!("{what}: it came there"), || unsafe {
                        let mut info: libc::siginfo_t = std::mem::zeroed();
                        let how = libc::WSTOPPED | libc::WNOHANG | libc::WNOWAIT;
                        assert_eq!(libc::waitid(libc::P_PID, process, &raw mut info, how), 0);
                        info.si_pid() != 0
                    });
                    if once.clone().all(|it| it != step) {
                        // All that this process sends it is used by it, and written again after that.
                        let holder = format!("process {process}");
                        until(&format!("{what}: it is named"), || {
                            engine.diagnose().to_string().contains(&holder)
                        });
                    } else {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    // SAFETY: as above.
                    unsafe { libc::kill(process.cast_signed(), libc::SIGCONT) };
                });
                let link = match &said {
                    None => wait(engine.accept(&survivor.door)),
                    Some(said) => {
                        wait(engine.connect(&Address::from_bytes(&said.wait()).expect("an address")))
                    }
                };
                let link = link.expect("a link");
                work(engine, &link, |_| false, Duration::ZERO);
                let last = wait(link.receive()).expect("it has not died");
                assert!(last.is_none(), "{what}: it has closed the link");
            });
            child.kill().expect("it runs");
            survivor.assert_nothing_of(&what, child);
        }
    }
}

/// Has a tensor, and owes one, until the word comes to go on.
fn holds(engine: &Engine, place: &str) {
    let link =
        wait(engine.connect(&Address::from_bytes(place.as_bytes()).expect("an address"))).expect("a link");
    let held = wait(link.receive()).expect("a link").expect("a tensor");
    let owed = engine.zeros(&[LENGTH], DType::I64).expect("memory");
    let (resume, may_go_on) = std::sync::mpsc::channel();
    let written = engine.op("owed").writes([&owed]).run(move |[], [mut owed]| {
        may_go_on.recv()?;
        owed.as_mut_slice::<i64>()?.fill(7);
        Ok(())
    });
    drop(written.expect("submitted"));
    wait(link.send(&owed, &ShareOptions::default())).expect("sent");
    wait(link.receive()).expect("a link").expect("a word");
    drop(held);
    resume.send(()).expect("it is received");
    assert!(wait(link.receive()).expect("a link").is_none());
}

#[test]
fn a_stopped_process_keeps_its_leases_and_promises_and_is_named() {
    if is_the_other() {
        return;
    }
    let name = "a_stopped_process_keeps_its_leases_and_promises_and_is_named";
    let _alone = alone();
    let survivor = Survivor::new();
    let engine = &survivor.engine;
    let (mut child, link) = survivor.meet(name, None, None, "holds");
    let link = link.expect("a link");
    let x = engine.zeros(&[LENGTH], DType::I64).expect("memory");
    fill(engine, &x, 0, Duration::ZERO);
    wait(link.send(&x, &ShareOptions::default())).expect("sent");
    let owed = wait(link.receive()).expect("a link").expect("a promise");
    let process = child.id().cast_signed();
    // SAFETY: a signal to a child of this process, and waiting until it has stopped; it is not reaped.
    unsafe {
        libc::kill(process, libc::SIGSTOP);
        libc::waitpid(process, std::ptr::null_mut(), libc::WUNTRACED);
    }
    fill(engine, &x, 1, Duration::ZERO);
    wait(link.send(&engine.zeros(&[1], DType::I64).expect("memory"), &ShareOptions::default()))
        .expect("a word");
    for waiting in [&x, &owed] {
        assert!(matches!(waiting.wait_timeout(Duration::from_millis(50)), Err(Error::Timeout(_))));
    }
    let diagnosis = engine.diagnose().to_string();
    assert!(diagnosis.contains(&format!("process {process}")), "{diagnosis}");
    // SAFETY: as above.
    unsafe { libc::kill(process, libc::SIGCONT) };
    read(engine, &x, 1).wait_timeout(Duration::from_secs(60)).expect("written once it was released");
    owed.wait_timeout(Duration::from_secs(60)).expect("the promise is kept");
    assert_eq!(owed.to_vec::<i64>().expect("elements"), vec![7; LENGTH as usize]);
    drop((owed, link));
    assert!(child.wait().expect("a child").success());
}

/// Each call that needs a descriptor fails by an error that says so, and works again once there are some.
fn lacks_descriptors(engine: &Engine, place: &str) {
    let address = Address::from_bytes(place.as_bytes()).expect("an address");
    let link = wait(engine.connect(&address)).expect("a link");
    let x = wait(link.receive()).expect("a link").expect("a tensor");
    let bytes = wait(link.receive()).expect("a link").expect("a ticket");
    bytes.wait().expect("it is written");
    let ticket = Ticket::from_bytes(&bytes.to_vec::<u8>().expect("bytes")).expect("a ticket");
    let word = engine.zeros(&[1], DType::I64).expect("memory");
    let before = limit(libc::RLIMIT_NOFILE, 3);
    for error in [
        wait(engine.connect(&address)).expect_err("no descriptor").to_string(),
        Door::open().expect_err("no descriptor").to_string(),
        engine.from_ticket(&ticket).expect("a promise").wait().expect_err("no descriptor").to_string(),
    ] {
        assert!(error.contains("Too many open files"), "{error}");
    }
    x.wait().expect("what has come is there");
    // More memory needs a descriptor as well; the link goes on meanwhile.
    let error = engine
        .empty(&[8 << 20], DType::I64, Memory::Shared(DLDevice::CPU))
        .map(drop)
        .expect_err("no descriptor")
        .to_string();
    assert!(error.contains("Too many open files"), "{error}");
    wait(link.send(&engine.zeros(&[1], DType::I64).expect("memory"), &ShareOptions::default()))
        .expect("sent");
    drop(word);
    limit(libc::RLIMIT_NOFILE, before);
    engine.from_ticket(&ticket).expect("a promise").wait().expect("its process is reached");
    drop(wait(engine.connect(&address)).expect("a link"));
}

/// As above, with address space.
fn lacks_memory(engine: &Engine, place: &str) {
    let address = Address::from_bytes(place.as_bytes()).expect("an address");
    let link = wait(engine.connect(&address)).expect("a link");
    let x = wait(link.receive()).expect("a link").expect("a tensor");
    let statm = std::fs::read_to_string("/proc/self/statm").expect("a file of the kernel's");
    let pages: u64 = statm.split(' ').next().and_then(|word| word.parse().ok()).expect("a count");
    let before = limit(libc::RLIMIT_AS, pages * 4096 + (8 << 20));
    let error =
        engine.empty(&[8 << 20], DType::I64, Memory::Shared(DLDevice::CPU)).map(drop).expect_err("no memory");
    assert!(
        matches!(error, Error::Device(ref error) if error.kind() == estafette_devices::DeviceErrorKind::OutOfMemory),
        "{error}"
    );
    x.wait().expect("what has come is there");
    limit(libc::RLIMIT_AS, before);
    let large = engine.empty(&[8 << 20], DType::I64, Memory::Shared(DLDevice::CPU)).expect("memory");
    wait(link.send(&large, &ShareOptions::default())).expect("sent");
    assert!(wait(link.receive()).expect("a link").is_none(), "it was shown");
}

#[test]
fn a_process_without_descriptors_or_memory_says_so_and_goes_on_when_it_has_some() {
    if is_the_other() {
        return;
    }
    let name = "a_process_without_descriptors_or_memory_says_so_and_goes_on_when_it_has_some";
    let _alone = alone();
    let survivor = Survivor::new();
    let engine = &survivor.engine;
    for task in ["lacks descriptors", "lacks memory"] {
        let (mut child, link) = survivor.meet(name, None, None, task);
        let link = link.expect("a link");
        let x = engine.zeros(&[LENGTH], DType::I64).expect("memory");
        fill(engine, &x, 0, Duration::ZERO);
        wait(link.send(&x, &ShareOptions::default())).expect("sent");
        let ticket = x.ticket(&ShareOptions::default()).expect("a ticket");
        let bytes = ticket.to_bytes();
        let message = engine.zeros(&[bytes.len() as i64], DType::U8).expect("memory");
        let written = engine.op("ticket").writes([&message]).run(move |[], [mut message]| {
            message.as_mut_slice::<u8>()?.copy_from_slice(&bytes);
            Ok(())
        });
        drop(written.expect("submitted"));
        if task == "lacks descriptors" {
            wait(link.send(&message, &ShareOptions::default())).expect("sent");
        }
        let received = wait(link.receive()).expect("a link").expect("a tensor");
        received.wait_timeout(Duration::from_secs(60)).expect("it is ready");
        if task == "lacks descriptors" {
            drop(wait(engine.accept(&survivor.door)).expect("its second link"));
        }
        drop((received, link));
        let status = child.wait().expect("a child");
        assert!(status.success(), "{task}: {status}");
    }
}
