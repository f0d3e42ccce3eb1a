//! Two processes: a test starts its own program again, with the name of the test and the address of a door.

#![allow(dead_code, unused_imports, reason = "each test program uses a part")]

mod parent;
mod until;

use std::ffi::OsStr;
use std::future::Future;
use std::io::{BufRead, BufReader};
use std::pin::{Pin, pin};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Instant;

use estafette_devices::{DeviceError, DeviceErrorKind, Fence, Outcome};
use estafette_links::{Address, Door, Link};

use self::until::HUNG;

pub use self::until::until;

/// The address of the door, for the process that was started.
const DOOR: &str = "ESTAFETTE_LINKS_DOOR";

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread. One that hangs fails the test.
pub fn wait<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let deadline = Instant::now() + HUNG;
    loop {
        if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return result;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "a future hangs");
        std::thread::park_timeout(left);
    }
}

/// Polls a future once.
pub fn is_pending(future: Pin<&mut impl Future>) -> bool {
    future.poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

/// Outcome of a fence. One that hangs fails the test.
pub fn outcome(fence: &Fence) -> Outcome {
    fence.wait_timeout(Some(HUNG)).unwrap_or_else(|| panic!("{fence:?} hangs"))
}

/// The failure of a fence.
pub fn failure(fence: &Fence) -> DeviceError {
    outcome(fence).expect_err("the fence fails")
}

/// Asserts that `fence` says that process `process` died.
pub fn assert_names_the_dead(fence: &Fence, process: u32) {
    let error = failure(fence);
    assert_eq!(
        (error.kind(), error.message()),
        (DeviceErrorKind::PeerDied, &*format!("process {process} died"))
    );
}

/// A process that runs a role of this test program. It ends with this value.
pub struct Peer(pub Child);

impl Peer {
    /// Starts the test `name` in a process of its own, with a door to come to, or an empty address.
    pub fn start(name: &str, door: &str) -> Self {
        Self::start_by(&[], name, door)
    }

    /// As [`start`](Self::start), by a command that becomes the program that follows it.
    pub fn start_by(starter: &[&str], name: &str, door: &str) -> Self {
        let this = std::env::current_exe().expect("the path of this test");
        let words = starter.iter().map(OsStr::new).chain([this.as_os_str()]).collect::<Vec<_>>();
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .args(["--exact", name, "--nocapture"])
            .env(DOOR, door)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        Self(command.spawn().expect("a process"))
    }

    pub fn process(&self) -> u32 {
        self.0.id()
    }

    /// The address that it printed.
    pub fn address(&mut self) -> Address {
        let output = BufReader::new(self.0.stdout.take().expect("a pipe"));
        let mut lines = output.lines().map(|line| line.expect("text"));
        let line = lines.find_map(|line| line.split_once("door ").map(|(_, address)| address.to_owned()));
        Address::from_bytes(line.expect("an address").as_bytes()).expect("the address of a door")
    }

    /// Returns once it has stopped.
    pub fn stop(&self) {
        // SAFETY: a signal to a child of this process, which is not reaped.
        unsafe { libc::kill(self.process().cast_signed(), libc::SIGSTOP) };
        self.until_stopped();
    }

    /// Returns once it has stopped, as by itself.
    pub fn until_stopped(&self) {
        // SAFETY: waits until a child of this process has stopped; it is not reaped.
        unsafe { libc::waitpid(self.process().cast_signed(), std::ptr::null_mut(), libc::WUNTRACED) };
    }

    pub fn resume(&self) {
        // SAFETY: a signal to a child of this process, which is not reaped.
        unsafe { libc::kill(self.process().cast_signed(), libc::SIGCONT) };
    }

    pub fn kill(&mut self) {
        self.0.kill().expect("it runs");
    }

    pub fn end(mut self) -> ExitStatus {
        self.0.wait().expect("it ends")
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The address that this process was started with, if it is the second process of a test. It ends with the
/// first one.
pub fn role() -> Option<String> {
    let door = std::env::var(DOOR).ok()?;
    parent::end_with_parent();
    Some(door)
}

/// Forks a child that does nothing, and outlives this process, for as long as the test has the other end of
/// its output. Returns the child's number.
pub fn fork_until_the_test_ends() -> i32 {
    // SAFETY: the child only waits and leaves.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            let mut output = libc::pollfd { fd: libc::STDOUT_FILENO, events: 0, revents: 0 };
            libc::poll(&raw mut output, 1, -1);
            libc::_exit(0);
        }
        child
    }
}

/// Runs `second` in a process of its own with a link to this one, and `first` here. The second one ends well.
pub fn two(name: &str, first: impl FnOnce(&Peer, Link), second: impl FnOnce(Link)) {
    if let Some(door) = role() {
        let address = Address::from_bytes(door.as_bytes()).expect("the address of a door");
        return second(wait(Link::connect(&address)).expect("a link"));
    }
    let door = Door::open().expect("a door");
    let peer = Peer::start(name, &door.address().to_string());
    let link = wait(door.accept()).expect("a link");
    assert_eq!(link.process(), peer.process());
    first(&peer, link);
    let status = peer.end();
    assert!(status.success(), "the other process: {status}");
}
