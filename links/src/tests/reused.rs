//! A process with the number and the address of a dead one is another process.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use estafette_devices::{DeviceErrorKind, Fence, host};
use futures::executor::block_on;

use super::{HUNG, ONE_AT_A_TIME, parent};
use crate::hub::Hub;
use crate::mailbox::Mailbox;
use crate::platform::Socket;
use crate::{Address, Link, LinkError};

const NAME: &str = "tests::reused::a_process_with_the_number_and_the_address_of_a_dead_one_is_another_one";
/// The address of the process that was started; empty for one that is the first of a namespace of process
/// numbers.
const DOOR: &str = "ESTAFETTE_LINKS_REUSED";

/// Has a door at the given address, keeps what it receives, and owes the other process a promise.
fn owe(address: &str) -> ! {
    parent::end_with_parent();
    let hub = Hub::get().expect("its threads");
    let arrived = Arc::<Mailbox<_>>::default();
    let socket = Socket::listen(address.as_bytes()).expect("no other process has the address");
    hub.add_door(socket, Arc::clone(&arrived)).expect("a door");
    let link = block_on(arrived.take()).expect("it is open").expect("a link");
    let (_completer, promise) = host::promise("never kept");
    let _answer = link.try_send(&promise, &[]).expect("there is room");
    let mut kept = Vec::new();
    while let Ok(received) = link.receive_timeout(None) {
        kept.push(received);
    }
    std::process::exit(0);
}

fn command(starter: &[&str], door: &str) -> Command {
    let this = std::env::current_exe().expect("the path of this test");
    let this = [this.to_str().expect("a path"), "--exact", NAME, "--nocapture"];
    let words = [starter, &this].concat();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).env(DOOR, door).stdout(Stdio::null());
    command
}

/// A process that owes, and the link to it. Killed when dropped.
struct Owing(Child, Link);

impl Owing {
    fn new(address: &Address, child: Child) -> Self {
        let deadline = Instant::now() + HUNG;
        let link = loop {
            match block_on(Link::connect(address)) {
                Ok(link) => break link,
                Err(error) => assert!(Instant::now() < deadline, "its door is not open: {error}"),
            }
        };
        assert_eq!(link.process(), child.id());
        Self(child, link)
    }

    /// Fences of what it keeps, and of what it owes.
    fn fences(&self) -> [Fence; 2] {
        let (completer, promise) = host::promise("done");
        completer.complete();
        let used = self.1.try_send(&promise, &[]).expect("there is room");
        [used, block_on(self.1.receive()).expect("a promise").fence().clone()]
    }
}

impl Drop for Owing {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a process with this number, where this process may choose it.
fn start_as(number: u32, address: &Address) -> Child {
    let start = || command(&[], &address.to_string()).spawn().expect("a process");
    for _ in 0..20 {
        let last = number - 1;
        if std::fs::write("/proc/sys/kernel/ns_last_pid", last.to_string()).is_err() {
            break;
        }
        let mut child = start();
        if child.id() == number {
            return child;
        }
        child.kill().expect("it runs");
        child.wait().expect("a child");
    }
    start()
}

fn check(chooses_numbers: bool) {
    let secret = crate::secret().expect("random bytes");
    let address = format!("estafette-{:032x}", u128::from_le_bytes(secret));
    let address = Address::from_bytes(address.as_bytes()).expect("an address");
    let mut first = Owing::new(&address, command(&[], &address.to_string()).spawn().expect("a process"));
    let (process, fences) = (first.0.id(), first.fences());
    first.0.kill().expect("it runs");
    first.0.wait().expect("a child");
    let second = Owing::new(&address, start_as(process, &address));
    assert!(!chooses_numbers || second.0.id() == process, "it has the number of the dead one");
    for fence in &fences {
        let error = fence.wait_timeout(Some(HUNG)).expect("in time").expect_err("the first one is dead");
        assert_eq!(error.kind(), DeviceErrorKind::PeerDied);
        assert_eq!(error.message(), format!("process {process} died"));
    }
    assert!(matches!(block_on(first.1.receive()), Err(LinkError::PeerDied { .. })));
    let alive = second.fences();
    assert!(alive.iter().all(|fence| fence.state().is_pending()), "the second one lives");
    assert!(!second.1.peer().has_ended());
}

/// If the system refuses a namespace, the second process has the address of the first one, and not its
/// number.
#[test]
fn a_process_with_the_number_and_the_address_of_a_dead_one_is_another_one() {
    const ALONE: [&str; 3] = ["unshare", "-rpf", "--mount-proc"];
    match std::env::var(DOOR).as_deref() {
        Ok("") => return check(true),
        Ok(address) => owe(address),
        Err(_) => {}
    }
    let _alone = ONE_AT_A_TIME.lock();
    let is_permitted = Command::new(ALONE[0]).args(&ALONE[1..]).arg("true").status();
    if is_permitted.is_ok_and(|status| status.success()) {
        assert!(command(&ALONE, "").status().expect("it runs").success(), "see above");
    } else {
        check(false);
    }
}
