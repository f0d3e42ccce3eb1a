//! A process that says and shows anything: random greetings, words, messages and descriptors. Suite
//! `links-asan` runs this with the honest process under AddressSanitizer.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker as TaskWaker};

use estafette_devices::{DeviceError, DeviceErrorKind, Fence, host};

use super::{HUNG, Random, assert_works, descriptors, door, scribble, shows, unsealed_memory, until};
use crate::board::{self, BYTES, OwnBoard};
use crate::hub::GREETING;
use crate::platform::{Memory, Socket, own_process};
use crate::ring::NOTE_BYTES;
use crate::{Address, Door, Link, PeerMemory, Received};

/// The door of the honest process, and the seed of the hostile one.
const HOSTILE: &str = "ESTAFETTE_LINKS_HOSTILE";
/// Hostile processes, one after the other.
const PROCESSES: u64 = 4;
const CONNECTIONS: usize = 30;
/// The greatest number of acts of a hostile process on one connection.
const ACTS: usize = 1500;
/// The honest process reads this many segments of each link.
const SEGMENTS: u32 = 6;

/// Everything that a hostile process shows, and a file that it cuts and lets grow.
struct Things {
    all: Vec<OwnedFd>,
    file: std::fs::File,
    _memory: Vec<Memory>,
}

impl Things {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("estafette-links-hostile-{}", std::process::id()));
        let file = std::fs::File::options().read(true).write(true).create(true).truncate(true).open(&path);
        let mut file = file.expect("a file");
        // It has no name any more, in whatever way this process ends.
        std::fs::remove_file(path).expect("it was made");
        file.write_all(&[7; 8192]).expect("a file can be written");
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let (socket, other) = std::os::unix::net::UnixStream::pair().expect("sockets");
        let (board, its_descriptor) = board::create().expect("memory");
        let (segment, shared) = Memory::create("a segment", 8192, 8192, false).expect("memory");
        segment.words().iter().for_each(|word| word.store(7, Ordering::Relaxed));
        let open = |path| OwnedFd::from(std::fs::File::open(path).expect("a file of the system's"));
        let all = vec![
            its_descriptor.try_clone().expect("a descriptor"),
            shared.try_clone().expect("a descriptor"),
            own_process().expect("a descriptor"),
            unsealed_memory(8192),
            unsealed_memory(BYTES),
            file.try_clone().expect("a descriptor").into(),
            reader.into(),
            writer.into(),
            socket.into(),
            other.into(),
            open("/"),
            open("/dev/zero"),
            open("/proc/self/maps"),
        ];
        Self { all, file, _memory: vec![board, segment] }
    }

    fn some(&self, random: &mut Random) -> Vec<&OwnedFd> {
        (0..random.below(4)).map(|_| &self.all[random.below(self.all.len())]).collect()
    }
}

fn attack(address: &Address, seed: u64) {
    let (mut random, things) = (Random(seed), Things::new());
    let mut open = Vec::new();
    for _ in 0..CONNECTIONS {
        let Ok(socket) = Socket::connect(address.as_bytes()) else { continue };
        let (memory, board) = board::create().expect("memory");
        let end = own_process().expect("a descriptor");
        let greets = match random.below(8) {
            0 => {
                let bytes: Vec<u8> = (0..random.below(40)).map(|_| random.next() as u8).collect();
                socket.send(&bytes, &things.some(&mut random))
            }
            1 => socket.send(&GREETING, &things.some(&mut random)),
            // A board of its own, and an end of something else, or the other way round.
            2 => socket.send(&GREETING, &[&board, things.some(&mut random).first().unwrap_or(&&*board)]),
            _ => socket.send(&GREETING, &[&board, &end]),
        };
        let _ = greets;
        let own = OwnBoard::new(&memory);
        for _ in 0..random.below(ACTS) {
            match random.below(64) {
                0..4 => {
                    let lengths = [0, 1, 4096, 8192, 8200, BYTES as u64, u64::MAX, random.next()];
                    let mut message = [0; 36];
                    message[..16].copy_from_slice(&shows(
                        random.below(SEGMENTS as usize) as u32,
                        lengths[random.below(8)],
                    ));
                    // Memory of the host, for writing, of a device, and the end of one.
                    message[0] += random.below(4) as u8;
                    let length = [16, 36, 8, random.below(37)][random.below(4)];
                    let _ = socket.send(&message[..length], &things.some(&mut random));
                }
                // The one good segment.
                4..8 => {
                    let message = shows(random.below(SEGMENTS as usize) as u32, 8192);
                    let _ = socket.send(&message, &[&things.all[1]]);
                }
                8 => {
                    let length = [0, 1, 4096, 8192, 1 << 20][random.below(5)];
                    things.file.set_len(length).expect("a file can be cut and grow");
                }
                9 => drop(socket.receive(&mut [0; 64])),
                _ => scribble(&own, || drop(socket.send(&[1], &[])), &mut random),
            }
        }
        match random.below(3) {
            0 => drop((socket, memory)),
            1 => memory.half_word(crate::board::LIVENESS).store(0x4000_0000, Ordering::Relaxed),
            _ => open.push((socket, memory)),
        }
    }
}

/// The honest process's state of one link.
struct Honest {
    link: Link,
    received: Vec<Received>,
    fences: Vec<Fence>,
    /// Messages that it has taken, and looks at settled fences.
    taken: u64,
    settled: u64,
}

impl Honest {
    fn of(link: Link) -> Self {
        Self { link, received: Vec::new(), fences: Vec::new(), taken: 0, settled: 0 }
    }

    fn use_it(&mut self, random: &mut Random) -> u64 {
        let (completer, promise) = host::promise("of the honest side");
        self.fences.extend(self.link.try_send(&promise, &[1; 100][..random.below(100)]));
        match random.below(3) {
            0 => completer.complete(),
            1 => completer.fail(DeviceError::new(DeviceErrorKind::Fault, "on purpose")),
            _ => drop(completer),
        }
        if let Ok(Some(item)) = self.link.try_receive() {
            assert!(item.note().len() <= NOTE_BYTES);
            self.fences.push(item.fence().clone());
            self.received.push(item);
            self.taken += 1;
        }
        if random.below(4) == 0 {
            self.received.clear();
        }
        if let Some(fence) = self.fences.get(random.below(self.fences.len().max(1))) {
            let state = fence.state();
            let _ = fence.wait_timeout(Some(std::time::Duration::from_micros(10)));
            self.settled += u64::from(!state.is_pending());
            assert!(state.is_pending() || format!("{state:?}") == format!("{:?}", fence.state()));
        }
        if random.below(16) > 0 { 0 } else { (0..SEGMENTS).map(|number| self.read(number)).sum() }
    }

    /// The sum of all bytes of a segment, if the peer has shown one.
    fn read(&self, number: u32) -> u64 {
        let Some(segment) = self.link.segment(number).ok().and_then(PeerMemory::host) else { return 0 };
        let start = segment.start().as_ptr();
        // SAFETY: mapped for as long as the segment is held; its owner may write, so each byte is read once.
        (0..segment.bytes()).map(|at| u64::from(unsafe { start.add(at).read_volatile() })).sum()
    }
}

fn start(address: &Address, seed: u64) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("the path of this test"));
    let name = "tests::hostile::a_process_that_shows_anything_neither_harms_nor_hangs_another";
    command.args(["--exact", name, "--nocapture"]).stdout(Stdio::null());
    command.env(HOSTILE, format!("{address} {seed}")).spawn().expect("a process")
}

fn arrived(door: &Door) -> Option<Link> {
    let mut accept = std::pin::pin!(door.accept());
    match accept.as_mut().poll(&mut Context::from_waker(TaskWaker::noop())) {
        Poll::Ready(link) => Some(link.expect("the system refuses nothing")),
        Poll::Pending => None,
    }
}

#[test]
fn a_process_that_shows_anything_neither_harms_nor_hangs_another() {
    if let Ok(given) = std::env::var(HOSTILE) {
        super::parent::end_with_parent();
        let (address, seed) = given.split_once(' ').expect("an address and a seed");
        let address = Address::from_bytes(address.as_bytes()).expect("an address");
        return attack(&address, seed.parse().expect("a number"));
    }
    let (door, before, _alone) = door();
    let (mut links, mut sums, mut kept, mut taken, mut settled) = (0, 0, 0, 0, 0);
    for seed in 0..PROCESSES {
        let mut child = start(door.address(), seed);
        let (mut random, mut honest) = (Random(!seed), Vec::<Honest>::new());
        while child.try_wait().expect("a child").is_none() {
            if let Some(link) = arrived(&door) {
                links += 1;
                honest.push(Honest::of(link));
            }
            honest.iter_mut().for_each(|honest| sums += u64::from(honest.use_it(&mut random) > 0));
        }
        while let Some(link) = arrived(&door) {
            honest.push(Honest::of(link));
        }
        for (at, Honest { link, received, fences, taken: took, settled: saw }) in
            honest.into_iter().enumerate()
        {
            (taken, settled) = (taken + took, settled + saw);
            // The peer has ended; of every other link, the honest side drops its end first.
            let link = (at % 2 == 0).then_some(link);
            drop(received);
            for fence in &fences {
                kept += 1;
                assert!(fence.wait_timeout(Some(HUNG)).is_some(), "seed {seed}: {fence:?} hangs");
            }
            drop(link);
        }
        assert!(child.wait().expect("a child").success(), "seed {seed}: the hostile process has failed");
    }
    assert!(links > 0 && sums > 0 && kept > 0, "{links} links, {sums} reads of segments, {kept} fences");
    assert!(taken > 0 && settled > 0, "{taken} messages, {settled} looks at settled fences");
    assert_works(&door);
    until("all descriptors are closed", || descriptors() <= before);
}
