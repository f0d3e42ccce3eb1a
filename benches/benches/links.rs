//! Cost of a tensor that goes to another process: `cargo bench -p benches --bench links`. `cargo xtask links`
//! makes a table of this, of what links cost without tensors, and of other means.
//!
//! A line is a row, its unit, and a figure for each round, between tabulators. The figure of a round of round
//! trips is their median.

use std::collections::VecDeque;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use benches::median_us;
use estafette::bindings;
use estafette::remote::{Address, Door, Link, ShareOptions, Ticket};
use estafette::{DType, Engine, Tensor};
use futures::executor::block_on;

const ROUNDS: usize = 5;
const AWAKE: usize = 3_000;
const IDLE: usize = 200;
const STREAM: usize = 20_000;
const WINDOW: usize = 64;
const IN_FLIGHT: usize = 10_000;
/// Tensors that the other process keeps, as a cache does.
const HELD: usize = 8_000;
/// In this time a process that waits has gone to sleep.
const ASLEEP: Duration = Duration::from_micros(500);
/// Elements of a small tensor, and of a large one.
const SMALL: i64 = 128;
const LARGE: i64 = 8 << 20;
/// Bytes of a segment of small tensors.
const SEGMENT: usize = 16 << 20;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match &arguments[1..] {
        [role, address] if role.starts_with("consumer") => {
            let engine = engine();
            let address = Address::from_bytes(address.as_bytes()).expect("an address");
            consume(&engine, role, &block_on(engine.connect(&address)).expect("a link"));
        }
        _ => measure(),
    }
}

fn engine() -> Engine {
    Engine::builder().workers(1).shared(true).in_flight_limit(2 * IN_FLIGHT).build().expect("an engine")
}

// The second process.

fn consume(engine: &Engine, role: &str, link: &Link) {
    let receive = || bindings::remote::block_on(engine, link.receive(), None).expect("a link");
    match role {
        "consumer-keeps" => {
            let kept: Vec<_> = (0..IN_FLIGHT).map(|_| receive().expect("sent")).collect();
            block_on(link.send(&number(engine, 0), &ShareOptions::default())).expect("sent");
            drop((receive(), kept));
        }
        "consumer-holds" => {
            let kept: Vec<_> = (0..HELD).map(|_| receive().expect("sent")).collect();
            consume(engine, "consumer", link);
            drop(kept);
        }
        "consumer-tickets" => {
            let bytes = receive().expect("sent");
            bytes.wait().expect("it is written");
            let ticket = Ticket::from_bytes(&bytes.to_vec::<u8>().expect("bytes")).expect("a ticket");
            let redeem = || engine.from_ticket(&ticket).expect("a promise");
            redeem().wait().expect("it is ready");
            let (mut returns, mut ready) = (Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                let times = (0..IDLE).map(|_| {
                    std::thread::sleep(ASLEEP);
                    let start = Instant::now();
                    let promise = redeem();
                    let returned = start.elapsed();
                    promise.wait().expect("it is ready");
                    (returned, start.elapsed())
                });
                let (a, b): (Vec<_>, Vec<_>) = times.unzip();
                returns.push(median_us(a));
                ready.push(median_us(b));
            }
            figure("Rust: from_ticket, returns", "us", &returns);
            figure("Rust: from_ticket, ready", "us", &ready);
        }
        // Uses each; at a negative one says how many pages were given to this process, and whether what it
        // used was another's memory.
        _ => {
            let (mut faults, mut is_shared) = (page_faults(), true);
            while let Some(x) = receive() {
                x.wait().expect("it is ready");
                let data = x.data_ptr().expect("it has memory").cast::<i64>();
                // SAFETY: the version is ready, and it is kept for this process until the tensor is dropped.
                let first = unsafe { data.read_volatile() };
                drop(x);
                if first < 0 {
                    let new = page_faults() - faults;
                    is_shared &= is_of_another(data.addr());
                    for value in [new, is_shared.into()] {
                        block_on(link.send(&number(engine, value), &ShareOptions::default())).expect("sent");
                    }
                    (faults, is_shared) = (page_faults(), true);
                }
            }
        }
    }
}

/// Pages that this process was given so far.
fn page_faults() -> i64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("a file of the kernel's");
    let behind_name = stat.rsplit(')').next().expect("there is a name");
    behind_name.split_whitespace().nth(7).and_then(|word| word.parse().ok()).expect("a count")
}

/// True if an address is in a segment that this process may only read.
fn is_of_another(address: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("its mappings");
    let holds = |line: &&str| {
        let (range, rest) = line.split_once(' ').unwrap_or_default();
        let (begin, end) = range.split_once('-').unwrap_or_default();
        let parse = |word| usize::from_str_radix(word, 16).unwrap_or(0);
        (parse(begin)..parse(end)).contains(&address)
            && rest.starts_with("r--s")
            && rest.contains("estafette-segment")
    };
    maps.lines().any(|line| holds(&line))
}

fn entries(folder: &str) -> usize {
    std::fs::read_dir(folder).expect("a folder of the kernel's").count()
}

fn descriptors() -> usize {
    entries("/proc/self/fd")
}

/// Segments that this process has mapped, its own and others'.
fn segments() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("its mappings");
    maps.lines().filter(|line| line.contains("estafette-segment")).count()
}

// The first process.

fn figure(row: &str, unit: &str, figures: &[f64]) {
    let figures: Vec<_> = figures.iter().map(|figure| format!("{figure:.4}")).collect();
    println!("figure\t{row}\t{unit}\t{}", figures.join(" "));
}

/// Changes the first element, once no other process uses the tensor.
fn write(engine: &Engine, x: &Tensor, value: i64) {
    let written = engine.op("write").writes([x]).run(move |[], [mut x]| {
        x.as_mut_slice::<i64>()?[0] = value;
        Ok(())
    });
    drop(written.expect("submitted"));
}

fn number(engine: &Engine, value: i64) -> Tensor {
    let one = engine.zeros(&[1], DType::I64).expect("memory");
    write(engine, &one, value);
    one
}

/// The number that the other process sent with `number`.
fn receive_number(link: &Link) -> i64 {
    let one = block_on(link.receive()).expect("a link").expect("a number");
    one.wait().expect("it is written");
    one.to_vec::<i64>().expect("elements")[0]
}

struct Peer(Link, Child);

impl Peer {
    fn start(engine: &Engine, door: &Door, role: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("the path of this bench"));
        command.args([role, &door.address().to_string()]).stdin(Stdio::null());
        let child = command.spawn().expect("a process");
        Self(block_on(engine.accept(door)).expect("a link"), child)
    }

    fn end(self) {
        let Self(link, mut child) = self;
        drop(link);
        assert!(child.wait().expect("it ends").success());
    }
}

/// From the send until the tensor may be written again.
fn round_trip(engine: &Engine, link: &Link, x: &Tensor) -> Duration {
    let start = Instant::now();
    block_on(link.send(x, &ShareOptions::default())).expect("sent");
    write(engine, x, 0);
    x.wait().expect("written");
    start.elapsed()
}

fn round_trips(engine: &Engine, link: &Link, elements: i64, count: usize, pause: Option<Duration>) -> f64 {
    let x = engine.zeros(&[elements], DType::I64).expect("memory");
    x.wait().expect("it is there");
    let times = (0..count).map(|_| {
        if let Some(pause) = pause {
            std::thread::sleep(pause);
        }
        round_trip(engine, link, &x)
    });
    median_us(times)
}

/// Microseconds for each of many small tensors, of which so many are on their way at once.
fn stream(engine: &Engine, link: &Link) -> f64 {
    let ring: Vec<_> = (0..WINDOW).map(|_| engine.zeros(&[SMALL], DType::I64).expect("memory")).collect();
    let mut written: VecDeque<Tensor> = VecDeque::new();
    let start = Instant::now();
    for x in ring.iter().cycle().take(STREAM) {
        // Waits until the other process is done with the version before.
        if written.len() == WINDOW {
            written.pop_front().expect("it is full").wait().expect("written");
        }
        block_on(link.send(x, &ShareOptions::default())).expect("sent");
        write(engine, x, 0);
        written.push_back(x.clone());
    }
    start.elapsed().as_secs_f64() * 1e6 / STREAM as f64
}

/// Page faults of both processes for each tensor, and bytes that were copied of each.
fn steady(engine: &Engine, link: &Link) -> [f64; 2] {
    const TENSORS: usize = 500;
    let x = engine.zeros(&[LARGE], DType::I64).expect("memory");
    let marked = || {
        write(engine, &x, -1);
        x.wait().expect("written");
        block_on(link.send(&x, &ShareOptions::default())).expect("sent");
        write(engine, &x, 0);
        let found = [(); 2].map(|()| receive_number(link));
        x.wait().expect("written");
        found
    };
    marked();
    let before = page_faults();
    for _ in 0..TENSORS {
        round_trip(engine, link, &x);
    }
    let own = page_faults() - before;
    let [theirs, is_shared] = marked();
    let copied = if is_shared == 1 { 0 } else { LARGE * 8 };
    [(own + theirs) as f64 / TENSORS as f64, copied as f64]
}

/// Connecting, mapping and the first tensor, to a process whose threads run.
fn first_contact(engine: &Engine, door: &Door, x: &Tensor) -> f64 {
    let times = (0..20).map(|_| {
        // The process unmaps meanwhile what the contact before has mapped.
        std::thread::sleep(8 * ASLEEP);
        let start = Instant::now();
        let (far, near) = block_on(async {
            let far = engine.connect(door.address()).await.expect("a link");
            (far, engine.accept(door).await.expect("a link"))
        });
        block_on(near.send(x, &ShareOptions::default())).expect("sent");
        let received = block_on(far.receive()).expect("a link").expect("a tensor");
        received.wait().expect("it is ready");
        start.elapsed()
    });
    median_us(times)
}

/// Time in which the kernel maps every page of a segment that is in memory, as each first contact does.
fn populate() -> f64 {
    let map = |descriptor: i32, protection, advice| {
        let start = Instant::now();
        // SAFETY: a new mapping, of which no address is used but for its end.
        unsafe {
            let at = libc::mmap(std::ptr::null_mut(), SEGMENT, protection, libc::MAP_SHARED, descriptor, 0);
            assert!(at != libc::MAP_FAILED && libc::madvise(at, SEGMENT, advice) == 0, "memory");
            let took = start.elapsed();
            libc::munmap(at, SEGMENT);
            took
        }
    };
    // SAFETY: a name of C, and a descriptor that is this function's.
    unsafe {
        let descriptor = libc::memfd_create(c"populate".as_ptr(), 0);
        assert_eq!(libc::ftruncate(descriptor, SEGMENT as libc::off_t), 0, "memory");
        map(descriptor, libc::PROT_READ | libc::PROT_WRITE, libc::MADV_POPULATE_WRITE);
        let times: Vec<_> =
            (0..20).map(|_| map(descriptor, libc::PROT_READ, libc::MADV_POPULATE_READ)).collect();
        libc::close(descriptor);
        median_us(times)
    }
}

fn tickets(engine: &Engine, door: &Door) {
    let peer = Peer::start(engine, door, "consumer-tickets");
    let x = engine.zeros(&[SMALL], DType::I64).expect("memory");
    let ticket = x.ticket(&ShareOptions::default()).expect("a ticket");
    let bytes = ticket.to_bytes();
    let tensor = engine.zeros(&[bytes.len() as i64], DType::U8).expect("memory");
    let written = engine.op("ticket").writes([&tensor]).run(move |[], [mut tensor]| {
        tensor.as_mut_slice::<u8>()?.copy_from_slice(&bytes);
        Ok(())
    });
    written.expect("submitted").wait().expect("written");
    block_on(peer.0.send(&tensor, &ShareOptions::default())).expect("sent");
    peer.end();
}

/// Descriptors of this process beyond its segments, with so many tensors in another one.
fn in_flight(engine: &Engine, door: &Door) -> f64 {
    let before = (descriptors(), segments());
    let peer = Peer::start(engine, door, "consumer-keeps");
    let tensors: Vec<_> =
        (0..IN_FLIGHT).map(|_| engine.zeros(&[SMALL], DType::I64).expect("memory")).collect();
    tensors.iter().for_each(|x| block_on(peer.0.send(x, &ShareOptions::default())).expect("sent"));
    receive_number(&peer.0);
    let now = (descriptors(), segments());
    block_on(peer.0.send(&tensors[0], &ShareOptions::default())).expect("sent");
    peer.end();
    (now.0 - before.0) as f64 - (now.1 - before.1) as f64
}

/// Round trips while the other process holds many tensors.
fn beside_held(engine: &Engine, door: &Door) -> Vec<f64> {
    let peer = Peer::start(engine, door, "consumer-holds");
    let held: Vec<_> = (0..HELD).map(|_| engine.zeros(&[SMALL], DType::I64).expect("memory")).collect();
    held.iter().for_each(|x| block_on(peer.0.send(x, &ShareOptions::default())).expect("sent"));
    let trips = (0..ROUNDS).map(|_| round_trips(engine, &peer.0, SMALL, AWAKE, None)).collect();
    peer.end();
    trips
}

/// An engine that has nothing to do with links: threads of theirs, and descriptors.
fn without_links() {
    let before = descriptors();
    let engine = Engine::builder().workers(1).build().expect("an engine");
    let x = number(&engine, 1);
    x.wait().expect("written");
    let threads = std::fs::read_dir("/proc/self/task").expect("a folder of the kernel's").flatten();
    let names = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok());
    let of_links = names.filter(|name| ["estafette-links", "estafette-alive"].contains(&name.trim()));
    figure("one engine, no link: threads of links", "", &[of_links.count() as f64]);
    figure("one engine, no link: descriptors", "", &[(descriptors() - before) as f64]);
}

fn measure() {
    without_links();
    let engine = engine();
    let x = number(&engine, 1);
    x.wait().expect("written");
    let door = Door::open().expect("a door");
    let mut all: [Vec<f64>; 8] = Default::default();
    for _ in 0..ROUNDS {
        let peer = Peer::start(&engine, &door, "consumer");
        let [faults, copied] = steady(&engine, &peer.0);
        let round = [
            round_trips(&engine, &peer.0, SMALL, AWAKE, None),
            round_trips(&engine, &peer.0, SMALL, IDLE, Some(ASLEEP)),
            round_trips(&engine, &peer.0, LARGE, IDLE, Some(ASLEEP)),
            stream(&engine, &peer.0),
            first_contact(&engine, &door, &x),
            populate(),
            faults,
            copied,
        ];
        all.iter_mut().zip(round).for_each(|(figures, figure)| figures.push(figure));
        peer.end();
    }
    let [awake, idle, large, per_item, contact, populate, faults, copied] = all;
    figure("Rust: tensor, both awake", "us", &awake);
    figure("Rust: tensor, both idle", "us", &idle);
    figure("Rust: tensor of 64 MB, both idle", "us", &large);
    figure("Rust: stream of tensors, window 64", "us", &per_item);
    figure("Rust: first contact", "us", &contact);
    figure("all pages of a segment are mapped", "us", &populate);
    figure("page faults for a tensor", "", &faults);
    figure("bytes copied for a tensor", "B", &copied);
    figure("Rust: tensor, both awake, beside 8,000 that are held", "us", &beside_held(&engine, &door));
    tickets(&engine, &door);
    figure("descriptors for 10,000 tensors, beyond segments", "", &[in_flight(&engine, &door)]);
}
