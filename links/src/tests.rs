//! Peers that do not keep to the protocol. Both ends are in this process, so that a test reaches the words of
//! a board.

mod deaths;
mod hostile;
#[path = "../tests/support/parent.rs"]
mod parent;
#[path = "../tests/support/random.rs"]
mod random;
mod reused;
#[path = "../tests/support/until.rs"]
mod until;

use std::os::fd::{AsRawFd, OwnedFd};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{self, Context};
use std::time::Duration;

use estafette_devices::{DeviceError, DeviceErrorKind, Fence, host};
use estafette_sync::sync::{Mutex, MutexGuard};

use crate::board::{
    self, BYTES, CLOSED, HEAD, LEFT, LISTENING, LIVENESS, MISSED_END, OwnBoard, RING, SETTLED, SLOTS,
    SLOTS_AT, TAIL, WORDS,
};
use crate::hub::{GREETING, Hub};
use crate::platform::{Descriptor, Memory, Socket, Waker, own_process};
use crate::ring::Writer;
use crate::{Address, Door, Link, LinkError};

use self::random::Random;
use self::until::HUNG;
pub(crate) use self::until::until;

/// The tests count what the process has, so there is one at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("a folder of the kernel's").count()
}

/// A door in a process whose threads run, with as many descriptors as the process has then.
pub(crate) fn door() -> (Door, usize, MutexGuard<'static, ()>) {
    let alone = ONE_AT_A_TIME.lock();
    let door = Door::open().expect("a door");
    (door, descriptors(), alone)
}

/// Both ends of a link. Another process may have come to the door before.
pub(crate) fn pair(door: &Door) -> (Link, Link) {
    let near = || loop {
        let link = futures::executor::block_on(door.accept()).expect("a link");
        if link.process() == std::process::id() {
            break link;
        }
    };
    let (near, far) = std::thread::scope(|scope| {
        let far = scope.spawn(|| futures::executor::block_on(Link::connect(door.address())));
        (near(), far.join().expect("it does not panic"))
    });
    (near, far.expect("a link"))
}

fn assert_works(door: &Door) {
    let (near, far) = pair(door);
    let (completer, promise) = host::promise("works");
    completer.complete();
    let used = near.try_send(&promise, b"still here").expect("there is room");
    until("a message", || {
        let received = far.try_receive().expect("an honest peer");
        received.is_some_and(|received| received.note() == b"still here")
    });
    assert!(used.wait_timeout(Some(HUNG)).expect("in time").is_ok());
}

#[test]
fn receives_that_end_with_their_time_leave_nothing_at_the_link() {
    let (door, _, _alone) = door();
    let (near, _far) = pair(&door);
    for _ in 0..3 {
        assert!(near.receive_timeout(Some(Duration::ZERO)).expect("it is open").is_none());
        assert!(!near.shared.receivers.has_waiters());
    }
}

#[test]
fn a_thread_that_spins_finds_what_is_waited_for_and_nothing_else() {
    let (door, _, _alone) = door();
    let (_socket, link, board) = peer(&door);
    let own = OwnBoard::new(&board);
    let write = |writer: &mut Writer, generation| writer.write(0, generation, b"a message", &own);
    let mut writer = Writer::default();
    write(&mut writer, 1);
    assert!(!link.shared.has_events(), "no future waits for the message");
    assert!(link.try_receive().expect("an honest peer").is_some());
    let woken = Arc::new(Flag::default());
    let waker = task::Waker::from(Arc::clone(&woken));
    let mut received = pin!(link.receive());
    assert!(received.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    assert!(!link.shared.has_events(), "nothing has come");
    write(&mut writer, 2);
    // The link thread may spin, too.
    until("news", || link.shared.has_events() || woken.0.load(Ordering::Acquire));
    assert!(received.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
    own.store(CLOSED, LEFT);
    until("a last word", || link.shared.has_events() || link.peer().has_ended());
    link.shared.dispatch();
    assert!(!link.shared.has_events(), "that is known");
}

#[derive(Default)]
struct Flag(AtomicBool);

impl task::Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

struct Panics;

impl task::Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a waker of the program");
    }
}

#[test]
fn a_waker_that_panics_ends_no_thread_and_holds_up_no_other_one() {
    let (door, _, _alone) = door();
    let (near, far) = pair(&door);
    let woken = Arc::new(Flag::default());
    let wakers = [task::Waker::from(Arc::new(Panics)), task::Waker::from(Arc::clone(&woken))];
    let mut waits = wakers.each_ref().map(|_| Box::pin(near.receive()));
    for (future, waker) in waits.iter_mut().zip(&wakers) {
        assert!(future.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
    }
    drop(far);
    until("the other one is woken", || woken.0.load(Ordering::Acquire));
    assert_works(&door);
}

/// Words that come close to sense, and words that do not.
fn scribble(own: &OwnBoard<&Memory>, wake_peer: impl FnOnce(), random: &mut Random) {
    let small = random.next() % 5;
    let sensible = small << 32 | (random.next() % 9) << 16 | (random.next() % 40);
    match random.below(20_000) {
        0 => own.words.half_word(LIVENESS).store(random.next() as u32, Ordering::Relaxed),
        1..4 => own.store([HEAD, TAIL, CLOSED, SETTLED][random.below(4)], random.next()),
        4..7 => own.store(random.below(MISSED_END), random.next()),
        7 => own.store(random.below(WORDS), random.next()),
        8..4_000 => wake_peer(),
        4_000..6_000 => own.store(HEAD, own.load(HEAD) + small),
        6_000..8_000 => own.store(TAIL, own.load(TAIL) + small % 2),
        8_000..9_000 => own.store(LISTENING, small),
        9_000..10_000 => own.store(SETTLED, own.load(SETTLED) + small),
        10_000..14_000 => own.set_ring(random.next(), sensible),
        _ => own.store(
            SLOTS_AT + random.below(8) + random.below(2) * SLOTS,
            small << 32 | (random.next() & 0x00ff_ff03),
        ),
    }
}

/// Memory that its owner could shrink under a reader, until it is sealed, and that has no pages.
fn unsealed_memory(bytes: usize) -> OwnedFd {
    use std::os::fd::FromRawFd;
    // SAFETY: the name ends with a zero byte; the descriptor is new, and nothing else has it.
    let file = unsafe {
        let descriptor =
            libc::memfd_create(c"unsealed".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        std::fs::File::from_raw_fd(descriptor)
    };
    file.set_len(bytes as u64).expect("memory");
    file.into()
}

fn process(number: u32) -> OwnedFd {
    use std::os::fd::FromRawFd;
    // SAFETY: takes two integers; the descriptor is new, and nothing else has it.
    unsafe {
        let descriptor = libc::syscall(libc::SYS_pidfd_open, number, 0);
        assert!(descriptor >= 0, "the process lives");
        OwnedFd::from_raw_fd(descriptor as i32)
    }
}

/// A connection to a door that greets with these descriptors.
fn greets(door: &Door, greeting: &[u8], descriptors: &[&Descriptor]) -> Socket {
    let socket = Socket::connect(door.address().as_bytes()).expect("a connection");
    socket.send(greeting, descriptors).expect("it is sent");
    socket
}

#[test]
fn a_door_goes_on_after_greetings_that_are_none() {
    let (door, before, _alone) = door();
    let folder: OwnedFd = std::fs::File::open("/").expect("a folder").into();
    let event = Waker::new().expect("an event");
    let (_board, board) = board::create().expect("memory");
    let (_small, small) = Memory::create("a small board", 4096, 4096, false).expect("memory");
    let own = own_process().expect("a descriptor");
    let event = event.descriptor();
    let unsealed = unsealed_memory(BYTES);
    let parent = process(std::os::unix::process::parent_id());
    let wrong: [(&[u8], &[&OwnedFd]); 13] = [
        (b"", &[]),
        (b"estafette link 1", &[&board, &own]),
        (b"GET / HTTP/1.1\r\n\r\n", &[]),
        (&GREETING, &[]),
        (&GREETING, &[&board]),
        (&GREETING, &[&board, &own, &own]),
        (&GREETING, &[&folder, &own]),
        (&GREETING, &[event, &own]),
        (&GREETING, &[&small, &own]),
        (&GREETING, &[&unsealed, &own]),
        // The end of something else would never come.
        (&GREETING, &[&board, &folder]),
        (&GREETING, &[&board, event]),
        (&GREETING, &[&board, &parent]),
    ];
    let mut sockets: Vec<_> = wrong.iter().map(|(greeting, with)| greets(&door, greeting, with)).collect();
    // Connections that send nothing. The oldest ones are dropped.
    sockets.extend((0..100).map(|_| Socket::connect(door.address().as_bytes()).expect("a connection")));
    // Connections that hang up before the door accepts.
    (0..200).for_each(|_| drop(Socket::connect(door.address().as_bytes())));
    for socket in &sockets[..20] {
        until("the door has hung up", || {
            loop {
                match socket.receive(&mut [0; 64]) {
                    Ok(Some((0, _))) | Err(_) => return true,
                    // Its greeting, which came first.
                    Ok(Some(_)) => {}
                    Ok(None) => return false,
                }
            }
        });
    }
    assert_works(&door);
    drop((sockets, folder, board, small, unsealed, own, parent));
    until("all descriptors are closed", || descriptors() <= before + 1);
}

/// A forked child that does nothing. It ends with this value, and with the thread that has made it.
struct Forked(i32);

impl Forked {
    fn new() -> Self {
        // SAFETY: the child does nothing until it is ended.
        let child = unsafe { libc::fork() };
        if child == 0 {
            parent::end_with_parent();
            loop {
                // SAFETY: sleeps.
                unsafe { libc::pause() };
            }
        }
        Self(child)
    }
}

impl Drop for Forked {
    fn drop(&mut self) {
        // SAFETY: a child of this process.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

/// A child has the connection too, so that closing it here does not end it.
#[test]
fn a_connection_that_gives_way_leaves_the_link_thread_alone_although_a_forked_child_has_it() {
    let (door, _, _alone) = door();
    let connect = || {
        let socket = Socket::connect(door.address().as_bytes()).expect("a connection");
        until("the door has greeted", || socket.receive(&mut [0; 64]).expect("a connection").is_some());
        socket
    };
    let oldest = connect();
    let _child = Forked::new();
    let _others: Vec<_> = (0..100).map(|_| connect()).collect();
    oldest.send(b"late", &[]).expect("the child has the other end");
    let hub = crate::hub::Hub::get().expect("it runs");
    until("nothing is to be done", || hub.poll.wait(Some(Duration::ZERO)).expect("a set").is_empty());
    assert_works(&door);
}

#[test]
fn connections_that_are_given_up_leave_nothing() {
    let (door, before, _alone) = door();
    let address = Address::from_bytes(format!("estafette-{:032x}", std::process::id()).as_bytes());
    let address = address.expect("an address");
    // No process greets there.
    let _silent = Socket::listen(address.as_bytes()).expect("a name of its own");
    for _ in 0..3 {
        let connecting = pin!(Link::connect(&address));
        assert!(connecting.poll(&mut Context::from_waker(task::Waker::noop())).is_pending());
    }
    until("all descriptors are closed", || descriptors() <= before + 1);
    assert_works(&door);
}

/// A peer that has greeted well.
fn peer(door: &Door) -> (Socket, Link, Memory) {
    let (memory, board) = board::create().expect("memory");
    let own = own_process().expect("a descriptor");
    let socket = greets(door, &GREETING, &[&board, &own]);
    (socket, futures::executor::block_on(door.accept()).expect("a link"), memory)
}

fn shows(number: u32, bytes: u64) -> [u8; 16] {
    let mut message = [2; 16];
    message[4..8].copy_from_slice(&number.to_le_bytes());
    message[8..].copy_from_slice(&bytes.to_le_bytes());
    message
}

#[test]
fn messages_that_are_none_end_the_link_and_say_why() {
    let (door, _, _alone) = door();
    let (_memory, segment) = Memory::create("a segment", 4096, 4096, false).expect("memory");
    let event = Waker::new().expect("an event");
    let sparse = unsealed_memory(1 << 20);
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    // SAFETY: takes integers.
    assert_eq!(unsafe { libc::fcntl(sparse.as_raw_fd(), libc::F_ADD_SEALS, seals) }, 0);
    let wrong: [(&[u8], &[&OwnedFd], &str); 7] = [
        (&[9], &[], "an unknown message"),
        (&[1], &[&segment], "an unknown message"),
        (&[2; 16], &[], "an unknown message"),
        (&shows(0, 8192), &[&segment], "a segment that is none"),
        (&shows(0, u64::MAX), &[&segment], "a segment that is none"),
        (&shows(0, 1 << 20), &[&sparse], "a segment that is none"),
        (&shows(0, 8), &[event.descriptor()], "a segment that is none"),
    ];
    for (message, with, why) in wrong {
        let (socket, link, _board) = peer(&door);
        let (_completer, promise) = host::promise("pending");
        let used = link.try_send(&promise, &[]).expect("there is room");
        socket.send(message, with).expect("it is sent");
        let process = link.process();
        let error = futures::executor::block_on(link.receive()).expect_err("the link is broken");
        assert_eq!(error.to_string(), format!("process {process} broke the protocol of links: {why}"));
        assert!(matches!(link.try_send(&promise, &[]), Err(LinkError::Protocol { .. })));
        // It may use the promise still: this process.
        assert!(used.state().is_pending());
    }
}

#[test]
fn words_that_make_no_sense_end_the_link_and_say_why() {
    let (door, _, _alone) = door();
    let [long, foreign] = ["a message is longer than what was written", "a message names what there is not"];
    let wrong = [
        (1, 9, long),
        (RING + 1, 0, long),
        (u64::MAX, 0, long),
        (1, (SLOTS as u64) << 16, foreign),
        (RING, 2_000, foreign),
    ];
    for (head, message, why) in wrong {
        let (_socket, link, board) = peer(&door);
        OwnBoard::new(&board).set_ring(0, message);
        board.words()[HEAD].store(head, Ordering::Release);
        let error = link.try_receive().expect_err("the link is broken");
        assert_eq!(
            error.to_string(),
            format!("process {} broke the protocol of links: {why}", link.process())
        );
    }
}

#[test]
fn a_closed_link_ends_with_the_answer_to_what_it_used() {
    let (door, before, _alone) = door();
    let (near, far) = pair(&door);
    let (_completer, promise) = host::promise("of the other side");
    let used = far.try_send(&promise, &[]).expect("there is room");
    let received = futures::executor::block_on(near.receive()).expect("a message");
    let open = descriptors();
    drop(near);
    assert!(used.wait_timeout(Some(Duration::from_millis(20))).is_none(), "it is in use");
    drop((_completer, received));
    assert!(used.wait_timeout(Some(HUNG)).expect("in time").is_ok());
    until("one end of the link is closed", || descriptors() < open);
    drop((used, far));
    until("all descriptors are closed", || descriptors() <= before);
}

#[test]
fn a_use_ends_once_and_as_it_ended_first() {
    let (door, _, _alone) = door();
    let (near, far) = pair(&door);
    let (completer, promise) = host::promise("of the other side");
    completer.complete();
    let used = far.try_send(&promise, &[]).expect("there is room");
    futures::executor::block_on(near.receive())
        .expect("a message")
        .fail(DeviceError::new(DeviceErrorKind::Fault, "out of paper"));
    let error = used.wait_timeout(Some(HUNG)).expect("in time").expect_err("its use has failed");
    assert_eq!(error.kind(), DeviceErrorKind::Fault);
}

#[test]
fn a_link_can_be_closed_while_futures_have_it() {
    let (door, before, _alone) = door();
    let (near, far) = pair(&door);
    let (completer, promise) = host::promise("of the other side");
    let mut receiving = Box::pin(near.receive());
    let waker = std::task::Waker::noop();
    assert!(receiving.as_mut().poll(&mut std::task::Context::from_waker(waker)).is_pending());
    near.close();
    near.close();
    // The link that is closed answers this.
    let _ = far.try_send(&promise, &[]);
    let error = futures::executor::block_on(far.receive()).expect_err("it is closed");
    assert!(matches!(error, LinkError::Closed { .. }), "{error}");
    let refused = [
        futures::executor::block_on(&mut receiving).map(drop),
        near.try_receive().map(drop),
        near.try_send(&promise, &[]).map(drop),
    ];
    for error in refused.map(Result::unwrap_err) {
        assert_eq!(error.to_string(), "the link is closed");
    }
    drop(far);
    // Both have left, though the handle is still there.
    until("nothing waits for the other end", || near.shared.own.load(CLOSED) == crate::board::LEFT);
    drop(receiving);
    drop(near);
    // A pending promise keeps the link on which it was sent.
    drop(completer);
    until("all descriptors are closed", || descriptors() <= before);
}

#[test]
fn a_door_that_the_kernel_does_not_watch_leaves_nothing() {
    let (_door, before, _alone) = door();
    let hub = Hub::get().expect("it is there");
    let (_memory, file) = Memory::create("estafette-test", 4096, 4096, false).expect("memory");
    // `epoll` takes no files.
    let error = hub
        .add_door(Socket::of(file.try_clone().expect("a descriptor")), Arc::default())
        .expect_err("it is no socket");
    assert!(error.to_string().starts_with("waiting at a door: "), "{error}");
    // Links of other tests may be closed later.
    until("only the other door is there", || format!("{hub:?}") == "Hub { sources: 1, .. }");
    drop(file);
    until("the copy of the file is closed", || descriptors() <= before);
}

#[test]
fn a_door_that_a_forked_child_has_too_is_closed_all_the_same() {
    let (door, _, _alone) = door();
    let mut waits = Box::pin(Link::connect(door.address()));
    let _child = Forked::new();
    door.close();
    let waker = std::task::Waker::noop();
    let refused = waits.as_mut().poll(&mut Context::from_waker(waker));
    assert!(matches!(refused, task::Poll::Ready(Err(_))), "{refused:?}");
}

#[test]
fn a_door_can_be_closed_while_futures_wait_at_it() {
    let (door, before, _alone) = door();
    let mut accepting = Box::pin(door.accept());
    let waker = std::task::Waker::noop();
    assert!(accepting.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
    let unaccepted = futures::executor::block_on(Link::connect(door.address())).expect("a link");
    door.close();
    door.close();
    let error = futures::executor::block_on(Link::connect(door.address())).expect_err("nothing is there");
    assert!(error.to_string().starts_with("connecting to the door at "), "{error}");
    let error = futures::executor::block_on(unaccepted.receive()).expect_err("it is closed");
    assert!(matches!(error, LinkError::Closed { .. }), "{error}");
    for refused in [futures::executor::block_on(accepting), futures::executor::block_on(door.accept())] {
        assert_eq!(refused.expect_err("it is closed").to_string(), "the door is closed");
    }
    drop(unaccepted);
    until("the descriptors of the door and the link are closed", || descriptors() < before);
}

#[test]
fn what_a_closed_link_never_received_is_not_in_use() {
    let (door, _, _alone) = door();
    let (near, far) = pair(&door);
    let (_completer, promise) = host::promise("of the other side");
    let _used = far.try_send(&promise, &[]).expect("there is room");
    let received = futures::executor::block_on(near.receive()).expect("a message");
    let before = far.try_send(&promise, &[]).expect("there is room");
    drop(near);
    let closed = format!("process {} closed the link", far.process());
    let is_refused = |used: Fence| {
        let error = used.wait_timeout(Some(HUNG)).expect("in time").expect_err("it was not received");
        assert_eq!((error.kind(), error.message()), (DeviceErrorKind::Cancelled, &*closed));
    };
    is_refused(before);
    // An end of the link that does not know of the close yet.
    if let Ok(after) = far.try_send(&promise, &[]) {
        is_refused(after);
    }
    drop(received);
}

#[test]
fn both_ends_close_with_messages_that_neither_has_received() {
    let (door, before, _alone) = door();
    let (near, far) = pair(&door);
    let (completer, promise) = host::promise("of each side");
    let used = [&near, &far].map(|link| link.try_send(&promise, &[]).expect("there is room"));
    drop((near, far));
    for used in used {
        assert!(used.wait_timeout(Some(HUNG)).expect("in time").is_err());
    }
    // A pending promise keeps the link on which it was sent.
    drop(completer);
    until("all descriptors are closed", || descriptors() <= before);
}

#[test]
fn a_peer_that_hangs_up_without_a_word_is_lost() {
    let (door, _, _alone) = door();
    let (socket, link, board) = peer(&door);
    let (completer, promise) = host::promise("done");
    completer.complete();
    let used = link.try_send(&promise, &[]).expect("there is room");
    // A message of a slot that stays pending.
    board.words()[HEAD].store(1, Ordering::Release);
    let received = futures::executor::block_on(link.receive()).expect("a message");
    drop(socket);
    let error = received.fence().wait_timeout(Some(HUNG)).expect("in time").expect_err("it fails");
    assert_eq!(error.kind(), DeviceErrorKind::PeerDied);
    // The peer holds a promise that it uses until the peer has ended.
    assert!(used.state().is_pending());
}
