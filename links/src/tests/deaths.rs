//! A process dies at each step of the protocol, and the other one goes on.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use estafette_devices::{DeviceError, DeviceErrorKind, Fence, host};

use super::{HUNG, descriptors, door, until};
use crate::steps::{self, STEP};
use crate::{Address, Door, Link, LinkError, Segment};

/// The address that the victim connects to; empty where it opens a door.
const DOOR: &str = "ESTAFETTE_LINKS_DOOR";

/// Rounds with failures. A board has room for the reasons of all of them, however slow the peer is.
const FAILING: u64 = 40;
/// Segments of a process that are not over.
const SEGMENTS: usize = 3;
/// The time that a round waits for the other process.
const PAUSE: Duration = Duration::from_micros(50);

/// The work of both processes, until one of them has done it long enough or the other one ends: promises are
/// kept and broken, and so is what is received used and not. `rounds` are so many of sending, and as many
/// messages of the other process, however late it begins. Returns the fences that wait for the other process.
fn work(link: &Link, rounds: u64) -> Vec<Fence> {
    let fail = || DeviceError::new(DeviceErrorKind::Fault, "on purpose");
    let (mut fences, mut received) = (Vec::new(), Vec::new());
    let mut segments = Vec::new();
    let mut taken = 0;
    for round in 0.. {
        if round >= rounds && taken >= rounds {
            break;
        }
        // The oldest is over.
        if segments.len() > SEGMENTS {
            segments.remove(0);
        }
        let (completer, promise) = host::promise("of a round");
        fences.extend(link.try_send(&promise, &round.to_le_bytes()));
        segments
            .extend(Segment::new(4096).ok().filter(|segment| round % 4 == 0 && link.show(segment).is_ok()));
        if round % 2 == 0 || round >= FAILING {
            completer.complete()
        } else {
            completer.fail(fail())
        }
        // Once for a moment, in which this thread serves the link.
        let mut pause = Some(PAUSE);
        loop {
            let next = match pause.take() {
                None => link.try_receive(),
                pause => link.receive_timeout(pause),
            };
            match next {
                Ok(Some(item)) => {
                    fences.push(item.fence().clone());
                    received.push(item);
                    taken += 1;
                }
                Ok(None) => break,
                Err(LinkError::PeerDied { .. } | LinkError::Closed { .. }) => return fences,
                Err(error) => panic!("the peer does nothing wrong: {error}"),
            }
        }
        if round % 3 == 0 {
            let failed = if round < FAILING { received.pop() } else { None };
            failed.into_iter().for_each(|item| item.fail(fail()));
            received.clear();
        }
    }
    fences
}

fn victim(address: &str) {
    let link = match Address::from_bytes(address.as_bytes()) {
        Ok(address) => futures::executor::block_on(Link::connect(&address)).expect("a link"),
        Err(_) => {
            let door = Door::open().expect("a door");
            // A file, as the output is that of the test program.
            std::fs::write(address.strip_prefix("file ").expect("a path"), door.address().as_bytes())
                .expect("a file");
            futures::executor::block_on(door.accept()).expect("a link")
        }
    };
    let closes = steps::CLOSING.iter().any(|step| std::env::var(STEP).is_ok_and(|it| it.starts_with(step)));
    work(&link, if closes { 40 } else { u64::MAX });
    drop(link);
    // Time for the link thread to leave, once the other one has answered.
    std::thread::sleep(HUNG);
}

fn start(name: &str, step: &str, count: u32, address: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("the path of this test"));
    command.args(["--exact", name, "--nocapture"]).stdout(Stdio::null());
    command.env(STEP, format!("{step}:{count}")).env(DOOR, address).spawn().expect("a process")
}

/// The result of `future`, unless the process ends before. `comes`: the result comes all the same, however
/// late.
fn unless_it_ends<T>(child: &mut Child, comes: bool, future: impl Future<Output = T>) -> Option<T> {
    let deadline = Instant::now() + HUNG;
    let mut future = std::pin::pin!(future);
    loop {
        let has_ended = child.try_wait().expect("a child").is_some();
        // After its end there is one more poll.
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => return Some(result),
            Poll::Pending if has_ended && (!comes || Instant::now() > deadline) => return None,
            Poll::Pending => std::thread::sleep(Duration::from_micros(100)),
        }
    }
}

/// The survivor's part, once there is a link.
fn survive(what: &str, child: &Child, link: Link) {
    let fences = work(&link, u64::MAX);
    for fence in &fences {
        let outcome = fence.wait_timeout(Some(HUNG)).unwrap_or_else(|| panic!("{what}: {fence:?} hangs"));
        let Err(error) = outcome else { continue };
        let process = child.id();
        let expected = match error.kind() {
            DeviceErrorKind::PeerDied => format!("process {process} died"),
            DeviceErrorKind::Cancelled => format!("process {process} closed the link"),
            _ => format!("on purpose (in process {process})"),
        };
        assert_eq!(error.message(), expected, "{what}");
    }
}

#[test]
fn a_death_at_any_step_leaves_the_other_process_whole() {
    if let Ok(address) = std::env::var(DOOR) {
        super::parent::end_with_parent();
        return victim(&address);
    }
    let name = "tests::deaths::a_death_at_any_step_leaves_the_other_process_whole";
    let (door, before, _alone) = door();
    let file = std::env::temp_dir().join(format!("estafette-links-{}", std::process::id()));
    for step in steps::of_links() {
        for count in [0, 5] {
            // A step that comes once on a link is passed once.
            if count > 0 && (steps::GREETING.contains(&step) || steps::CLOSING.contains(&step)) {
                continue;
            }
            let comes = !steps::GREETING.contains(&step);
            for connects in [true, false] {
                let what = format!(
                    "step {step}, number {count}, the one that {}",
                    if connects { "connects" } else { "accepts" }
                );
                let mut child;
                let link = if connects {
                    child = start(name, step, count, &door.address().to_string());
                    unless_it_ends(&mut child, comes, door.accept())
                } else {
                    let _ = std::fs::remove_file(&file);
                    child = start(name, step, count, &format!("file {}", file.display()));
                    let read =
                        || std::fs::read(&file).ok().and_then(|bytes| Address::from_bytes(&bytes).ok());
                    until("the address of the door", || read().is_some());
                    unless_it_ends(&mut child, comes, Link::connect(&read().expect("an address")))
                };
                match link {
                    Some(Ok(link)) => survive(&what, &child, link),
                    Some(Err(LinkError::Refused(_) | LinkError::System { .. })) | None => {
                        assert!(!comes, "{what}: there was a link");
                    }
                    Some(Err(error)) => panic!("{what}: {error}"),
                }
                assert_eq!(
                    child.wait().expect("a child").signal(),
                    Some(libc::SIGKILL),
                    "{what}: it came there"
                );
                until(&format!("{what}: all descriptors are closed"), || {
                    // The link of a process that died in the midst of its greeting may come after the end of
                    // the process.
                    let late = std::pin::pin!(door.accept()).poll(&mut Context::from_waker(Waker::noop()));
                    drop(late);
                    descriptors() <= before
                });
            }
        }
    }
    let _ = std::fs::remove_file(file);
}
