//! A process on another machine dies. All that the other machine sees of it are the bytes that it has sent
//! before the connection ends, so each process dies here after each byte.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use estafette_devices::{DeviceError, DeviceErrorKind};
use estafette_sync::time::{Duration, Instant};

use super::consumer::Consumer;
use super::owner::{Over, Owner, Request};
use super::thread::{Deferred, Network};
use super::wire::{Kind, Wire};
use super::{DEADLINE_MIN, Fetched, GREETING, Offer, Reach};
use crate::Segment;
use crate::nixl::tests as double;
use crate::platform::CloseOnFork;

pub(super) const KEY: [u8; 16] = [3; 16];
const PROCESS: u32 = 7;
/// Nothing takes so long.
const HUNG: Duration = Duration::from_secs(60);

pub(super) fn pair() -> (CloseOnFork<TcpStream>, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let near = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
    (CloseOnFork::new(near), listener.accept().expect("a connection").0)
}

/// A process at a port of this machine.
pub(super) fn reach(port: u16, deadline: Duration) -> Reach {
    Reach { host: "127.0.0.1".to_owned(), port, key: KEY, deadline }
}

/// The messages of a process as bytes.
fn bytes(messages: &[(Kind, &[&[u8]])]) -> Vec<u8> {
    let (near, mut far) = pair();
    let mut wire = Wire::new(near).expect("a wire");
    messages.iter().for_each(|(kind, parts)| wire.send(*kind, parts));
    drop(wire);
    let mut bytes = Vec::new();
    far.read_to_end(&mut bytes).expect("what was sent");
    bytes
}

/// Calls `step` until it gives something.
fn until<T>(mut step: impl FnMut(&mut Deferred) -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        let mut deferred = Vec::new();
        let result = step(&mut deferred);
        deferred.into_iter().for_each(|end| end());
        if let Some(result) = result {
            return result;
        }
        assert!(began.elapsed() < HUNG, "the end is not seen");
    }
}

fn request(owner: &mut Owner, kept: Arc<()>) -> Receiver<Result<Fetched, DeviceError>> {
    let (done, fetched) = channel();
    let done = Box::new(move |what| done.send(what).expect("awaited"));
    owner.request(Request { secret: [1; 16], until_kept: Some(Box::new(kept)), done }, Instant::now());
    fetched
}

#[test]
fn an_owner_that_dies_after_any_byte_fails_what_has_not_come_and_nothing_else() {
    double::install();
    let offer = |number: u64, bytes: u64| [number, 1 << 20, bytes, 8].map(u64::to_le_bytes).concat();
    let (kept, own) = (1_u64.to_le_bytes(), PROCESS.to_le_bytes());
    let messages: [(Kind, &[&[u8]]); 6] = [
        (Kind::Welcome, &[&own, b"a clock"]),
        (Kind::Kept, &[&kept]),
        (Kind::Offer, &[&offer(1, 4096), b"metadata", b"a note"]),
        (Kind::Heartbeat, &[]),
        // An offer of no bytes comes at once.
        (Kind::Offer, &[&offer(2, 0), b"metadata"]),
        (Kind::Replace, &[]),
    ];
    let sent = bytes(&messages);
    let has_come = bytes(&messages[..5]).len();
    for cut in 0..=sent.len() {
        let mut owner = Owner::new(reach(1, DEADLINE_MIN), PROCESS, Instant::now());
        let (near, mut far) = pair();
        assert!(owner.connected(Ok(near)).is_ok());
        let until_kept = Arc::new(());
        let [first, second] = [(); 2].map(|()| request(&mut owner, Arc::clone(&until_kept)));
        far.write_all(&sent[..cut]).expect("a connection");
        drop(far);
        let error = until(|deferred| match owner.receive(Instant::now(), deferred) {
            Err(Over::Failed(error)) => Some(error),
            _ => None,
        });
        assert!(cut > 0 || error.message().contains("without a greeting"), "{error}");
        let mut deferred = Vec::new();
        owner.end(&error, &mut deferred);
        deferred.into_iter().for_each(|end| end());
        for (number, fetched) in [first, second].into_iter().enumerate() {
            let fetched: Vec<_> = fetched.into_iter().collect();
            assert_eq!(fetched.len(), 1, "byte {cut}: it ends once");
            match &fetched[0] {
                Ok(_) => assert!(number == 1 && cut >= has_come, "byte {cut}: nothing has come"),
                Err(error) => {
                    assert_eq!((error.kind(), error.process()), (DeviceErrorKind::PeerDied, Some(PROCESS)));
                    assert!(number == 0 || cut < has_come, "byte {cut}: it has come");
                }
            }
        }
        assert_eq!(Arc::strong_count(&until_kept), 1, "byte {cut}: nothing is kept");
    }
}

#[test]
fn a_consumer_that_dies_after_any_byte_returns_its_leases() {
    double::install();
    let (own, deadline) = (PROCESS.to_le_bytes(), 5_000_u32.to_le_bytes());
    let [first, second] = [1_u64, 2].map(u64::to_le_bytes);
    let messages: [(Kind, &[&[u8]]); 5] = [
        (Kind::Hello, &[&GREETING, &KEY, &own, &deadline]),
        (Kind::Request, &[&first, &[1; 16]]),
        (Kind::Heartbeat, &[]),
        (Kind::Request, &[&second, &[2; 16]]),
        (Kind::Return, &[&first]),
    ];
    let sent = bytes(&messages);
    let asked = [2, 4].map(|messages_sent| bytes(&messages[..messages_sent]).len());
    let network = Network::get().expect("a thread");
    let segment = Arc::new(Segment::new(4096).expect("a segment"));
    for cut in 0..=sent.len() {
        let (near, mut far) = pair();
        let wire = Wire::new(near).expect("a wire");
        // The thread of the network knows no such consumer: the answers are given below.
        let mut consumer = Consumer::new(wire, "127.0.0.1".to_owned(), u64::MAX, KEY, |_, _| ());
        let (before, after) = sent[..cut].split_at(asked[1].min(cut));
        let kept = Arc::new(());
        let step = |consumer: &mut Consumer, deferred: &mut Deferred| {
            consumer.receive(network, Instant::now(), deferred)
        };
        far.write_all(before).expect("a connection");
        let requests = asked.iter().filter(|asked| **asked <= cut).count();
        until(|deferred| {
            assert!(!step(&mut consumer, deferred), "byte {cut}: it lives");
            (consumer.requests() == requests).then_some(())
        });
        for number in 1..=requests as u64 {
            let keeper = Box::new(Arc::clone(&kept));
            let (segment, remark) = (Arc::clone(&segment), Box::new(|_: &str, _: Option<&str>| ()));
            let offer = Offer { segment, offset: 0, bytes: 8, note: Vec::new(), keeper, remark };
            let mut deferred = Vec::new();
            consumer.reply(number, Ok(offer), &mut deferred);
            assert!(deferred.is_empty(), "byte {cut}: it is offered");
        }
        assert_eq!(Arc::strong_count(&kept), 1 + requests, "byte {cut}: it is lent");
        far.write_all(after).expect("a connection");
        drop(far);
        until(|deferred| step(&mut consumer, deferred).then_some(()));
        let mut deferred = Vec::new();
        consumer.end(&mut deferred);
        deferred.into_iter().for_each(|end| end());
        assert_eq!(Arc::strong_count(&kept), 1, "byte {cut}: nothing is lent");
    }
}
