//! The end of an engine ends its waits for other processes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures::TryFutureExt;
use futures::future::BoxFuture;

use super::*;

/// A door whose process does not greet: a connection waits.
struct MuteDoor(i32);

impl MuteDoor {
    fn open(address: &Address) -> Self {
        // SAFETY: the calls take numbers, and an address with its length.
        unsafe {
            let socket = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
            let mut place: libc::sockaddr_un = std::mem::zeroed();
            place.sun_family = libc::AF_UNIX as u16;
            let name = address.as_bytes();
            for (to, from) in place.sun_path[1..].iter_mut().zip(name) {
                *to = from.cast_signed();
            }
            let length = std::mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len();
            assert_eq!(libc::bind(socket, (&raw const place).cast(), length as u32), 0);
            assert_eq!(libc::listen(socket, 1), 0);
            Self(socket)
        }
    }
}

impl Drop for MuteDoor {
    fn drop(&mut self) {
        // SAFETY: its own descriptor.
        unsafe { libc::close(self.0) };
    }
}

/// A task that notes that it was woken.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn the_end_of_an_engine_ends_its_waits_for_links_and_doors() {
    let (ending, other) = (engine(), engine());
    let door = Door::open().expect("a door");
    let address = Address::from_bytes(format!("estafette-{:032x}", std::process::id()).as_bytes()).unwrap();
    let _mute = MuteDoor::open(&address);
    let (receiving, _alive) = pair(&ending);
    let (streaming, far) = pair(&ending);
    let (sending, _alive_too) = pair(&ending);
    let x = ending.zeros(&[1], DType::I64).unwrap();
    let options = ShareOptions::default();
    while sending.send(&x, &options).now_or_never().is_some() {}
    let mut stream = streaming.stream();
    let mut waits = [
        ("receive", receiving.receive().map_ok(drop).boxed()),
        ("accept", ending.accept(&door).map_ok(drop).boxed()),
        ("connect", ending.connect(&address).map_ok(drop).boxed()),
        ("send", sending.send(&x, &options).boxed()),
        ("stream", stream.next().map(|item| item.expect("an item").map(drop)).boxed()),
    ]
    .map(|(what, future)| (what, future, Arc::<Woken>::default()));
    let poll = |future: &mut BoxFuture<'_, _>, woken: &Arc<Woken>| {
        future.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(woken))))
    };
    for (what, future, woken) in &mut waits {
        assert!(poll(future, woken).is_pending(), "{what}");
    }
    wait(ending.shutdown());
    for (what, future, woken) in &mut waits {
        until(what, || woken.0.load(Ordering::Relaxed));
        assert!(matches!(poll(future, woken), Poll::Ready(Err(Error::Shutdown))), "{what}");
    }
    drop(waits);
    assert!(wait(stream.next()).is_none());
    // What comes later is refused.
    wait(far.send(&other.zeros(&[1], DType::I64).unwrap(), &options)).unwrap();
    assert!(matches!(wait(streaming.receive()), Err(Error::Shutdown)));
}

#[test]
fn an_operation_of_an_engine_that_ends_still_waits_for_its_link() {
    let (ending, engine) = (engine(), engine());
    let (near, far) = pair(&ending);
    let (inside, begins) = (ending.clone(), channel());
    let received = ending.op("receives").run(move |[], []| {
        begins.0.send(()).expect("the test waits");
        let x = bindings::remote::block_on(&inside, near.receive(), None)?.ok_or("closed")?;
        assert_eq!(x.shape()?[..], [3]);
        Ok(())
    });
    let received = received.expect("submitted");
    begins.1.recv().expect("it begins");
    std::thread::scope(|scope| {
        let ends = scope.spawn(|| ending.shutdown_timeout(Duration::from_secs(60)));
        until("the engine takes no operation", || {
            matches!(ending.op("late").run(|[], []| Ok(())), Err(Error::Shutdown))
        });
        let x = engine.zeros(&[3], DType::I64).unwrap();
        wait(far.send(&x, &ShareOptions::default())).expect("sent");
        received.wait_timeout(Some(Duration::from_secs(60))).expect("it has received");
        assert!(ends.join().unwrap().drained);
    });
}
