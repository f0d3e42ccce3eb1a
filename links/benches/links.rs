//! The cost of a link, beside a pipe and a unix socket: `cargo bench -p estafette-links`.
//!
//! Rounds are interleaved. Each figure is the median of its rounds, with the least and the largest; a round
//! of round trips is itself a median. `ESTAFETTE_LINKS_GIB` says how much memory the processes have that are
//! killed (1). With `ESTAFETTE_FIGURES` the figures are also printed for `cargo xtask links`.

use std::fs::File;
use std::future::Future;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use estafette_devices::{Fence, Reactor, host};
use estafette_links::{Address, Door, Link};
use futures::executor::block_on;

#[path = "../../benches/src/spread.rs"]
mod spread;

use spread::{Spread, median_us};

const ROUNDS: usize = 7;
const AWAKE: usize = 20_000;
const IDLE: usize = 300;
const STREAM: usize = 100_000;
const WINDOW: usize = 64;
/// Items of a stream that are timed together.
const BATCH: usize = 256;
const KILLS: usize = 7;
/// Kills for the percentile of how soon a waiter learns of a death. What takes long is the memory of the
/// processes, so most are small.
const SMALL_KILLS: usize = 200;
const IN_FLIGHT: usize = 10_000;
/// In this time a process that waits has gone to sleep.
const ASLEEP: Duration = Duration::from_micros(200);

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match &arguments[1..] {
        [role, address] if role.starts_with("link") || role.contains("victim") => link_role(role, address),
        [role] if role.starts_with("bytes") => bytes_role(role == "bytes-awake"),
        _ => measure(),
    }
}

// The second process.

fn link_role(role: &str, address: &str) {
    let link = block_on(Link::connect(&Address::from_bytes(address.as_bytes()).expect("an address")))
        .expect("a link");
    match role {
        "link-awake" => {
            pin(1);
            loop {
                match link.try_receive() {
                    Ok(Some(received)) => {
                        while received.fence().peek() != Some(true) {
                            std::hint::spin_loop();
                        }
                        received.complete();
                    }
                    Ok(None) => std::hint::spin_loop(),
                    Err(_) => return,
                }
            }
        }
        "link-idle" => {
            while let Ok(received) = link.receive_timeout(None) {
                let received = received.expect("it waits for ever");
                block_on(received.fence().settled()).expect("it is done");
                received.complete();
            }
        }
        "link-inline" => {
            Wake::wake(Inline::new(link));
            loop {
                std::thread::park();
            }
        }
        "link-keeps" => {
            let kept: Vec<_> = (0..IN_FLIGHT).map(|_| block_on(link.receive()).expect("sent")).collect();
            link.try_send(&done(), &[]).expect("there is room");
            let _ = block_on(link.receive());
            drop(kept);
        }
        _ => {
            let gib = || std::env::var("ESTAFETTE_LINKS_GIB").ok()?.parse::<usize>().ok();
            let bytes = if role == "victim" { gib().unwrap_or(1) << 30 } else { 1 };
            let resident = vec![1_u8; bytes];
            let received = block_on(link.receive()).expect("sent");
            let (_completer, promise) = host::promise("never kept");
            link.try_send(&promise, &[]).expect("there is room");
            loop {
                std::thread::sleep(Duration::from_secs(resident[0].into()));
                std::hint::black_box((&received, &resident));
            }
        }
    }
}

/// Receives and answers on the thread that wakes it, which is the link thread; ends the process with the
/// link.
struct Inline(Mutex<Pin<Box<dyn Future<Output = ()> + Send>>>);

impl Inline {
    fn new(link: Link) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Box::pin(async move {
            while let Ok(received) = link.receive().await {
                received.complete();
            }
            std::process::exit(0);
        }))))
    }
}

impl Wake for Inline {
    fn wake(self: Arc<Self>) {
        let waker = Waker::from(Arc::clone(&self));
        let mut serving = self.0.lock().expect("no thread panics");
        let _ = serving.as_mut().poll(&mut Context::from_waker(&waker));
    }
}

/// Sends each byte from the standard input back to the standard output.
fn bytes_role(is_awake: bool) {
    use std::os::fd::AsFd;
    let [mut input, mut output] = [std::io::stdin().as_fd(), std::io::stdout().as_fd()]
        .map(|fd| File::from(fd.try_clone_to_owned().expect("a descriptor")));
    if is_awake {
        pin(1);
        set_nonblocking(&input);
    }
    let mut byte = [0];
    while read_byte(&mut input, &mut byte) {
        output.write_all(&byte).expect("the other process reads");
    }
}

/// False at the end.
fn read_byte(from: &mut impl Read, byte: &mut [u8; 1]) -> bool {
    loop {
        match from.read(byte) {
            Ok(count) => return count == 1,
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => panic!("{error}"),
        }
    }
}

fn set_nonblocking(file: &impl AsRawFd) {
    // SAFETY: takes integers.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
}

/// Keeps the calling thread on one core.
fn pin(core: usize) {
    // SAFETY: the set is valid, and all zero is empty.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
    }
}

fn unpin() {
    // SAFETY: as above.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        (0..libc::CPU_SETSIZE as usize).for_each(|core| libc::CPU_SET(core, &mut set));
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
    }
}

// The first process.

fn done() -> Fence {
    let (completer, fence) = host::promise("done");
    completer.complete();
    fence
}

fn this(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("the path of this bench"));
    command.args(arguments);
    command
}

/// A process in a role, and a link to it.
struct Peer(Link, Child);

impl Peer {
    fn start(door: &Door, role: &str) -> Self {
        let child = this(&[role, &door.address().to_string()]).spawn().expect("a process");
        Self(block_on(door.accept()).expect("a link"), child)
    }

    fn end(self) {
        let Self(link, mut child) = self;
        drop(link);
        child.wait().expect("it ends");
    }
}

fn spread(figures: Vec<f64>) -> Spread {
    Spread::of(figures).expect("it was measured")
}

/// The median of round trips; with a pause before each, both sides sleep.
fn round_trips(count: usize, is_awake: bool, mut trip: impl FnMut()) -> f64 {
    if is_awake {
        pin(0);
    }
    let times = (0..count).map(|_| {
        if !is_awake {
            std::thread::sleep(ASLEEP);
        }
        let start = Instant::now();
        trip();
        start.elapsed()
    });
    let median = median_us(times);
    unpin();
    median
}

fn link_awake(door: &Door) -> f64 {
    let peer = Peer::start(door, "link-awake");
    let fence = done();
    let median = round_trips(AWAKE, true, || {
        let used = peer.0.try_send(&fence, &[]).expect("there is room");
        while used.peek() != Some(true) {
            std::hint::spin_loop();
        }
    });
    peer.end();
    median
}

fn link_idle(door: &Door) -> f64 {
    let peer = Peer::start(door, "link-idle");
    let fence = done();
    let median = round_trips(IDLE, false, || {
        let used = peer.0.try_send(&fence, &[]).expect("there is room");
        used.wait_timeout(None).expect("it settles").expect("it is used");
    });
    peer.end();
    median
}

/// As `link_idle`, but no thread beside the link threads waits: both sides go on in callbacks, as an engine
/// does.
fn link_idle_callback(door: &Door) -> f64 {
    let peer = Peer::start(door, "link-inline");
    let fence = done();
    let (sender, receiver) = std::sync::mpsc::channel();
    let times = (0..IDLE).map(|_| {
        std::thread::sleep(ASLEEP);
        let sender = sender.clone();
        let start = Instant::now();
        let used = peer.0.try_send(&fence, &[]).expect("there is room");
        Reactor::global()
            .when_settled([&used], move |_| sender.send(start.elapsed()).expect("it is received"));
        receiver.recv().expect("it settles")
    });
    let median = median_us(times);
    peer.end();
    median
}

fn link_stream(door: &Door) -> f64 {
    let peer = Peer::start(door, "link-awake");
    pin(0);
    let fence = done();
    let mut window = std::collections::VecDeque::with_capacity(WINDOW);
    let mut times = Vec::new();
    for _ in 0..STREAM / BATCH {
        let start = Instant::now();
        for _ in 0..BATCH {
            if window.len() == WINDOW {
                let oldest: Fence = window.pop_front().expect("it is full");
                while oldest.peek() != Some(true) {
                    std::hint::spin_loop();
                }
            }
            window.push_back(peer.0.try_send(&fence, &[]).expect("there is room"));
        }
        times.push(start.elapsed() / BATCH as u32);
    }
    let per_item = median_us(times);
    unpin();
    peer.end();
    per_item
}

fn bytes(is_awake: bool, input: Stdio, output: Stdio, write: &mut dyn Write, read: &mut dyn Read) -> f64 {
    let mut command = this(&[if is_awake { "bytes-awake" } else { "bytes-idle" }]);
    let mut child = command.stdin(input).stdout(output).spawn().expect("a process");
    drop(command);
    let count = if is_awake { AWAKE } else { IDLE };
    let mut read = read;
    let median = round_trips(count, is_awake, || {
        write.write_all(&[1]).expect("the other process reads");
        assert!(read_byte(&mut read, &mut [0]), "the other process answers");
    });
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    median
}

fn pipe(is_awake: bool) -> f64 {
    let (their_input, mut write) = std::io::pipe().expect("a pipe");
    let (mut read, their_output) = std::io::pipe().expect("a pipe");
    if is_awake {
        set_nonblocking(&read);
    }
    bytes(is_awake, their_input.into(), their_output.into(), &mut write, &mut read)
}

fn socket(is_awake: bool) -> f64 {
    let (mine, theirs) = UnixStream::pair().expect("sockets");
    if is_awake {
        set_nonblocking(&mine);
    }
    let [input, output] =
        [&theirs; 2].map(|socket| Stdio::from(OwnedFd::from(socket.try_clone().expect("a descriptor"))));
    drop(theirs);
    bytes(is_awake, input, output, &mut &mine, &mut &mine)
}

/// Connecting, mapping and the first round trip, to a process whose threads run.
fn first_contact(door: &Door) -> f64 {
    let times = (0..20).map(|_| {
        let start = Instant::now();
        let (far, near) = block_on(async {
            (Link::connect(door.address()).await.expect("a link"), door.accept().await.expect("a link"))
        });
        let used = far.try_send(&done(), &[]).expect("there is room");
        drop(block_on(near.receive()).expect("sent"));
        block_on(used.settled()).expect("it is used");
        start.elapsed()
    });
    median_us(times)
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("a folder of the kernel's").count()
}

/// Milliseconds until a fence says that the peer died, until what the dead process used is free, and how long
/// that is after its end.
fn kill_times(door: &Door, role: &str) -> [f64; 3] {
    let Peer(link, mut child) = Peer::start(door, role);
    let kept = link.try_send(&done(), &[]).expect("there is room");
    let pending = block_on(link.receive()).expect("sent");
    std::thread::sleep(Duration::from_millis(5));
    let start = Instant::now();
    child.kill().expect("it runs");
    assert!(pending.fence().wait_timeout(None).expect("it settles").is_err());
    let lost = start.elapsed();
    let ended = std::thread::spawn(move || {
        child.wait().expect("it ends");
        start.elapsed()
    });
    assert!(kept.wait_timeout(None).expect("it settles").is_err());
    let gone = start.elapsed();
    let late = gone.saturating_sub(ended.join().expect("it does not panic"));
    [lost, gone, late].map(|time| time.as_secs_f64() * 1e3)
}

/// For `cargo xtask links`, where that is asked for.
fn figure(what: &str, unit: &str, figures: &[f64]) {
    if std::env::var_os("ESTAFETTE_FIGURES").is_some() {
        let figures: Vec<_> = figures.iter().map(f64::to_string).collect();
        println!("figure\t{what}\t{}\t{}", unit.replace('µ', "u"), figures.join(" "));
    }
}

fn line(what: &str, unit: &str, figures: Vec<f64>, beside: &[(&str, f64)]) -> f64 {
    figure(what, unit, &figures);
    let Spread { median, min, max } = spread(figures);
    let ratios = beside.iter().map(|(name, theirs)| format!(", {name} / link {:.1}", theirs / median));
    println!("{what:<58} {median:>9.3} {unit} ({min:.3} to {max:.3}){}", ratios.collect::<String>());
    median
}

fn measure() {
    let before = descriptors();
    let door = Door::open().expect("a door");
    let mut all: [Vec<f64>; 9] = Default::default();
    for _ in 0..ROUNDS {
        let round = [
            pipe(true),
            socket(true),
            link_awake(&door),
            link_stream(&door),
            pipe(false),
            socket(false),
            link_idle(&door),
            link_idle_callback(&door),
            first_contact(&door),
        ];
        all.iter_mut().zip(round).for_each(|(figures, figure)| figures.push(figure));
    }
    let [pipe_awake, socket_awake, awake, stream, pipe_idle, socket_idle, idle, callback, contact] = all;
    let pipe = line("pipe, round trip, both awake", "µs", pipe_awake, &[]);
    let socket = line("unix socket, round trip, both awake", "µs", socket_awake, &[]);
    let beside = [("pipe", pipe), ("socket", socket)];
    line("link: send, receive, answer; both awake", "µs", awake, &beside);
    line("link: stream, window 64, per item", "µs", stream, &beside);
    let pipe = line("pipe, round trip, both idle", "µs", pipe_idle, &[]);
    let socket = line("unix socket, round trip, both idle", "µs", socket_idle, &[]);
    let beside = [("pipe", pipe), ("socket", socket)];
    line("link: the same, both idle, threads wait", "µs", idle, &beside);
    line("link: the same, both idle, callbacks", "µs", callback, &beside);
    line("link: first contact, within a process", "µs", contact, &[]);

    let peer = Peer::start(&door, "link-keeps");
    let fence = done();
    let sent: Vec<_> = (0..IN_FLIGHT).map(|_| block_on(peer.0.send(&fence, &[])).expect("sent")).collect();
    drop(block_on(peer.0.receive()).expect("it has them all"));
    assert!(sent.iter().all(|used| used.state().is_pending()));
    println!("descriptors for {IN_FLIGHT} items in flight: {}", descriptors() - before);
    peer.end();

    let mut kill_figures: [Vec<f64>; 3] = Default::default();
    for _ in 0..KILLS {
        kill_figures
            .iter_mut()
            .zip(kill_times(&door, "victim"))
            .for_each(|(figures, figure)| figures.push(figure));
    }
    let [lost, gone, late] = kill_figures;
    line("a waiter is notified of the kill of a large process", "ms", lost, &[]);
    let lost = (0..SMALL_KILLS).map(|_| kill_times(&door, "small-victim")[0]).collect();
    line("a waiter is notified of a kill", "ms", lost, &[]);
    line("what the killed process used is free", "ms", gone, &[]);
    line("what the killed process used is free, after its end", "ms", late, &[]);
}
