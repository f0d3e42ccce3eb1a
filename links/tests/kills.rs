//! Processes that are killed at random moments, and what is left of them. One test, as it counts what the
//! process has.

#![cfg(not(any(estafette_portable, estafette_loom, estafette_shuttle)))]

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use estafette_devices::{DeviceErrorKind, Fence, host};
use estafette_links::{Address, Door, Link, LinkError, Segment};

use support::{Peer, outcome, role, until, wait};

const ROUNDS: u32 = 60;
/// Longest wait of a round before it kills.
const MOMENTS_US: u64 = 8_000;

/// Threads, descriptors and mappings of boards and segments.
fn counts() -> [usize; 3] {
    let entries = |folder: &str| std::fs::read_dir(folder).expect("a folder of the kernel's").count();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("its mappings");
    let shared = maps.lines().filter(|line| line.contains("memfd:estafette")).count();
    [entries("/proc/self/task"), entries("/proc/self/fd"), shared]
}

/// Sends promises and settles them late, uses what comes, and checks that nothing of the peer is wrong but
/// its death. Returns every fence that waits for the peer.
fn work(link: &Link, until: impl Fn() -> bool) -> Vec<Fence> {
    let segment = Segment::new(1 << 16).expect("memory");
    let mut open = Vec::new();
    let mut fences: Vec<Fence> = Vec::new();
    let mut received = Vec::new();
    let dead = |error: LinkError| matches!(error, LinkError::PeerDied { .. } | LinkError::System { .. });
    for round in 0_u64.. {
        if until() {
            break;
        }
        let (completer, promise) = host::promise("of a round");
        match link.try_send(&promise, &round.to_le_bytes()) {
            Ok(used) => fences.push(used),
            Err(LinkError::Full { .. }) => std::thread::yield_now(),
            Err(error) => assert!(dead(error), "the peer does nothing wrong"),
        }
        open.push(completer);
        if round % 3 == 0 {
            open.drain(..).for_each(host::Completer::complete);
            if let Err(error) = link.show(&segment) {
                assert!(dead(error), "the peer does nothing wrong");
            }
        }
        match link.try_receive() {
            Ok(Some(item)) => {
                fences.push(item.fence().clone());
                received.push(item);
            }
            Ok(None) => std::thread::yield_now(),
            Err(error) => assert!(dead(error), "the peer does nothing wrong"),
        }
        if round % 5 == 0 {
            received.clear();
        }
    }
    fences
}

#[test]
fn nothing_hangs_and_nothing_is_left_when_processes_are_killed_at_random() {
    let name = "nothing_hangs_and_nothing_is_left_when_processes_are_killed_at_random";
    if let Some(address) = role() {
        // Without an address this process opens the door.
        let link = match Address::from_bytes(address.as_bytes()) {
            Ok(address) => wait(Link::connect(&address)).expect("a link"),
            Err(_) => {
                let door = Door::open().expect("a door");
                println!("\ndoor {}", door.address());
                wait(door.accept()).expect("a link")
            }
        };
        work(&link, || false);
    }
    let before = counts();
    assert_eq!(before[2], 0, "a program without links has no shared memory");
    let mut baseline = None;
    for round in 0..ROUNDS {
        let (mut peer, link) = if round % 2 == 0 {
            let door = Door::open().expect("a door");
            let peer = Peer::start(name, &door.address().to_string());
            (peer, wait(door.accept()).expect("a link"))
        } else {
            let mut peer = Peer::start(name, "");
            let address = peer.address();
            (peer, wait(Link::connect(&address)).expect("a link"))
        };
        let process = peer.process();
        let is_dead = AtomicBool::new(false);
        let moment = Duration::from_micros(u64::from(round) * 7_919 % MOMENTS_US);
        let fences = std::thread::scope(|scope| {
            scope.spawn(|| {
                let start = Instant::now();
                while start.elapsed() < moment {
                    std::thread::yield_now();
                }
                peer.kill();
                is_dead.store(true, Ordering::Relaxed);
            });
            work(&link, || {
                is_dead.load(Ordering::Relaxed)
                    && matches!(link.try_receive(), Err(LinkError::PeerDied { .. }))
            })
        });
        for fence in &fences {
            if let Err(error) = outcome(fence) {
                let is_named = error.message() == format!("process {process} died");
                // The peer works like this process, so its own promises may fail when it drops them.
                assert!(is_named && error.kind() == DeviceErrorKind::PeerDied, "round {round}: {error:?}");
            }
        }
        drop((fences, link, peer));
        // The two threads of links and what they wait with stay, once there was a link.
        let baseline = *baseline.get_or_insert([before[0] + 2, before[1] + 2, 0]);
        until(&format!("round {round} is gone: {:?}, and it was {baseline:?}", counts()), || {
            counts() == baseline
        });
    }
}
