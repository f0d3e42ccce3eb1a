//! Two processes and the fences between them.

#![cfg(not(any(estafette_portable, estafette_loom, estafette_shuttle)))]

#[path = "../../tests/src/limits.rs"]
mod limits;
mod support;

use std::os::unix::process::ExitStatusExt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use estafette_devices::{DeviceError, DeviceErrorKind, Fence, host};
use estafette_links::{Address, Door, Link, LinkError, Received, Segment};

use support::{
    Peer, assert_names_the_dead, failure, fork_until_the_test_ends, is_pending, outcome, role, two, until,
    wait,
};

fn done() -> Fence {
    let (completer, fence) = host::promise("done");
    completer.complete();
    fence
}

fn receive(link: &Link) -> Received {
    wait(link.receive()).expect("something is received")
}

#[test]
fn a_promise_settles_in_the_other_process_and_its_answer_comes_back() {
    two(
        "a_promise_settles_in_the_other_process_and_its_answer_comes_back",
        |_, link| {
            let (completer, promise) = host::promise("frame");
            let used = link.try_send(&promise, b"frame 7").expect("there is room");
            assert_eq!(receive(&link).note(), b"it is pending");
            assert!(used.state().is_pending());
            completer.complete();
            assert!(outcome(&used).is_ok());
        },
        |link| {
            let frame = receive(&link);
            assert_eq!(frame.note(), b"frame 7");
            assert!(frame.fence().state().is_pending());
            let seen = link.try_send(&done(), b"it is pending").expect("there is room");
            assert!(wait(frame.fence().settled()).is_ok());
            frame.complete();
            assert!(outcome(&seen).is_ok());
            // Closed in good order before this process ends; the first one has what it waits for.
            assert!(matches!(wait(link.receive()), Err(LinkError::Closed { .. })));
        },
    );
}

#[test]
fn threads_that_wait_at_the_same_time_all_go_on() {
    two(
        "threads_that_wait_at_the_same_time_all_go_on",
        |_, link| {
            std::thread::scope(|scope| {
                for thread in 0..4_u64 {
                    let link = &link;
                    scope.spawn(move || {
                        for round in 0..300 {
                            let used = link.try_send(&done(), &(thread + round % 3).to_le_bytes());
                            assert!(outcome(&used.expect("there is room")).is_ok());
                        }
                    });
                }
                let timeout = Duration::from_micros(50);
                let received =
                    (0..100).filter_map(|_| link.receive_timeout(Some(timeout)).expect("it is open"));
                assert_eq!(received.count(), 0, "the other process sends nothing");
            });
        },
        |link| {
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| while link.receive_timeout(None).is_ok() {});
                }
            });
        },
    );
}

#[test]
fn failures_cross_with_their_text_in_both_directions() {
    two(
        "failures_cross_with_their_text_in_both_directions",
        |peer, link| {
            let (completer, promise) = host::promise("frame");
            let used = link.try_send(&promise, &[]).expect("there is room");
            completer.fail(DeviceError::new(DeviceErrorKind::OutOfMemory, "no room for the frame"));
            let error = failure(&used);
            assert_eq!(error.kind(), DeviceErrorKind::Fault);
            assert_eq!(error.message(), format!("the screen broke (in process {})", peer.process()));
            assert!(failure(&used).same_root(&error));
        },
        |link| {
            let frame = receive(&link);
            let error = failure(frame.fence());
            assert_eq!(error.kind(), DeviceErrorKind::OutOfMemory);
            assert_eq!(error.message(), format!("no room for the frame (in process {})", link.process()));
            frame.fail(DeviceError::new(DeviceErrorKind::Fault, "the screen broke"));
            assert!(matches!(wait(link.receive()), Err(LinkError::Closed { .. })));
        },
    );
}

#[test]
fn a_link_that_is_closed_in_good_order_is_no_death() {
    two(
        "a_link_that_is_closed_in_good_order_is_no_death",
        |peer, link| {
            let kept = link.try_send(&done(), b"kept").expect("there is room");
            let [never, late, ready] = [(); 3].map(|()| receive(&link));
            let [(settle, first), (end, second)] = [(); 2].map(|()| host::promise("a word"));
            let used = [&first, &second].map(|word| link.try_send(word, &[]).expect("there is room"));
            assert!(outcome(ready.fence()).is_ok(), "what was ready stays ready");
            assert!(matches!(wait(link.receive()), Err(LinkError::Closed { .. })));
            assert!(matches!(link.try_send(&done(), &[]), Err(LinkError::Closed { .. })));
            assert!(outcome(&kept).is_ok());
            assert!(late.fence().state().is_pending(), "its process lives");
            settle.complete();
            assert!(outcome(late.fence()).is_ok(), "what was sent before the end settles after it");
            assert!(never.fence().state().is_pending());
            end.complete();
            assert_names_the_dead(never.fence(), peer.process());
            assert!(used.iter().all(|used| outcome(used).is_ok()));
        },
        |link| {
            let kept = receive(&link);
            let [(never, unkept), (promise, late)] =
                [(); 2].map(|()| host::promise("of a link that is closed"));
            for fence in [&unkept, &late, &done()] {
                link.try_send(fence, &[]).expect("there is room");
            }
            let [settle, end] = [(); 2].map(|()| receive(&link));
            drop(link);
            // A received tensor outlives the handle.
            assert!(outcome(kept.fence()).is_ok());
            drop(kept);
            assert!(outcome(settle.fence()).is_ok());
            promise.complete();
            drop(settle);
            assert!(outcome(end.fence()).is_ok());
            drop(end);
            std::mem::forget(never);
        },
    );
}

/// The peer uses a fence, and then neither settles nor answers anything. It is killed while a child of it
/// lives on.
#[test]
fn the_dead_are_named_although_a_forked_child_of_them_lives() {
    if let Some(door) = role() {
        let link = wait(Link::connect(&Address::from_bytes(door.as_bytes()).unwrap())).unwrap();
        let (_promise, pending) = host::promise("never kept");
        link.try_send(&pending, &[]).unwrap();
        link.try_send(&done(), &[]).unwrap();
        let _kept = receive(&link);
        let child = fork_until_the_test_ends();
        link.try_send(&done(), &child.to_le_bytes()).unwrap();
        std::thread::sleep(Duration::from_secs(600));
    }
    let door = Door::open().unwrap();
    let mut peer =
        Peer::start("the_dead_are_named_although_a_forked_child_of_them_lives", &door.address().to_string());
    let link = wait(door.accept()).unwrap();
    let kept = link.try_send(&done(), &[]).unwrap();
    let (_promise, open) = host::promise("of the survivor");
    let unused = link.try_send(&open, &[]).unwrap();
    let [pending, ready, last] = [(); 3].map(|()| receive(&link));
    let child = i32::from_le_bytes(last.note().try_into().unwrap());
    let process = peer.process();
    peer.kill();
    for fence in [pending.fence(), &kept, &unused] {
        assert_names_the_dead(fence, process);
    }
    assert!(matches!(link.receive_timeout(None), Err(LinkError::PeerDied { .. })));
    // SAFETY: a signal to that child.
    assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0, "told before the child ends");
    assert!(outcome(ready.fence()).is_ok(), "what was ready stays ready");
    assert!(matches!(wait(link.receive()), Err(LinkError::PeerDied { process: its }) if its == process));
    assert!(matches!(link.try_send(&done(), &[]), Err(LinkError::PeerDied { .. })));
}

/// The kernel marks the liveness locks of a thread when that ends.
#[test]
fn a_thread_that_has_made_a_link_may_end() {
    let name = "a_thread_that_has_made_a_link_may_end";
    if let Some(door) = role() {
        let address = Address::from_bytes(door.as_bytes()).unwrap();
        let link = std::thread::spawn(move || wait(Link::connect(&address)).unwrap()).join().unwrap();
        let (completer, promise) = host::promise("kept");
        link.try_send(&promise, &[]).unwrap();
        assert_eq!(receive(&link).note(), b"now");
        completer.complete();
        assert!(matches!(wait(link.receive()), Err(LinkError::Closed { .. })));
        return;
    }
    let door = Door::open().unwrap();
    let peer = Peer::start(name, &door.address().to_string());
    let link = wait(door.accept()).unwrap();
    let received = receive(&link);
    // A process whose thread has taken its liveness lock along is found to be lost within this time.
    let lost = received.fence().wait_timeout(Some(Duration::from_millis(500)));
    assert!(lost.is_none(), "the process lives: {lost:?}");
    link.try_send(&done(), b"now").unwrap();
    assert!(outcome(received.fence()).is_ok());
    drop((received, link));
    assert!(peer.end().success());
}

/// A child of the dead process keeps its door open, and no thread greets there.
#[test]
fn who_connects_to_the_door_of_the_dead_hears_it_although_a_forked_child_of_them_lives() {
    let name = "who_connects_to_the_door_of_the_dead_hears_it_although_a_forked_child_of_them_lives";
    if let Some(door) = role() {
        let link = wait(Link::connect(&Address::from_bytes(door.as_bytes()).unwrap())).unwrap();
        let door = Door::open().unwrap();
        let note = [&fork_until_the_test_ends().to_le_bytes(), door.address().as_bytes()].concat();
        link.try_send(&done(), &note).unwrap();
        std::thread::sleep(Duration::from_secs(600));
    }
    let door = Door::open().unwrap();
    let mut peer = Peer::start(name, &door.address().to_string());
    let link = wait(door.accept()).unwrap();
    let received = receive(&link);
    let (child, address) = received.note().split_first_chunk().unwrap();
    let address = Address::from_bytes(address).unwrap();
    peer.stop();
    let mut before = pin!(Link::connect(&address));
    assert!(is_pending(before.as_mut()), "a stopped process is not dead");
    let process = peer.process();
    let hears = |link| assert!(matches!(link, Err(LinkError::PeerDied { process: its }) if its == process));
    peer.kill();
    hears(wait(before));
    peer.0.wait().unwrap();
    hears(wait(Link::connect(&address)));
    // SAFETY: a signal to that child.
    let told = unsafe { libc::kill(i32::from_le_bytes(*child), libc::SIGKILL) };
    assert_eq!(told, 0, "heard before the child ends");
}

/// The process becomes another program: its threads have ended, and it has not. A child keeps its socket
/// open.
#[test]
fn a_process_that_is_lost_and_not_gone_keeps_what_it_uses() {
    let name = "a_process_that_is_lost_and_not_gone_keeps_what_it_uses";
    if let Some(door) = role() {
        use std::os::unix::process::CommandExt;
        let link = wait(Link::connect(&Address::from_bytes(door.as_bytes()).unwrap())).unwrap();
        let (_promise, pending) = host::promise("never kept");
        link.try_send(&pending, &[]).unwrap();
        let _kept = receive(&link);
        fork_until_the_test_ends();
        panic!("{}", std::process::Command::new("sleep").arg("600").exec());
    }
    let door = Door::open().unwrap();
    let mut peer = Peer::start(name, &door.address().to_string());
    let link = wait(door.accept()).unwrap();
    let kept = link.try_send(&done(), &[]).unwrap();
    let pending = receive(&link);
    assert_names_the_dead(pending.fence(), peer.process());
    assert!(kept.wait_timeout(Some(Duration::from_millis(50))).is_none(), "it may use it still");
    peer.kill();
    assert_names_the_dead(&kept, peer.process());
}

#[test]
fn a_peer_that_is_stopped_is_waited_for() {
    two(
        "a_peer_that_is_stopped_is_waited_for",
        |peer, link| {
            let used = link.try_send(&done(), b"first").unwrap();
            assert!(outcome(&used).is_ok());
            peer.stop();
            let used = link.try_send(&done(), b"second").unwrap();
            assert!(used.wait_timeout(Some(Duration::from_millis(50))).is_none(), "neither used nor failed");
            peer.resume();
            assert!(outcome(&used).is_ok());
        },
        |link| while wait(link.receive()).is_ok() {},
    );
}

#[test]
fn a_full_link_makes_its_sender_wait() {
    two(
        "a_full_link_makes_its_sender_wait",
        |_, link| {
            let mut sent = Vec::new();
            loop {
                match link.try_send(&done(), &[7; 1088]) {
                    Ok(used) => sent.push(used),
                    Err(LinkError::Full { .. }) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            assert!(sent.len() >= 59, "{} notes of the greatest length", sent.len());
            for _ in 0..20_000 {
                sent.push(wait(link.send(&done(), b"go on")).expect("it is sent"));
            }
            assert!(sent.iter().all(|used| outcome(used).is_ok()));
            assert!(matches!(link.try_send(&done(), &[7; 1089]), Err(LinkError::Invalid(_))));
        },
        |link| {
            // Not before the ring is full: the peer stops there.
            std::thread::sleep(Duration::from_millis(50));
            let mut count = 0;
            while let Ok(received) = wait(link.receive()) {
                assert!(outcome(received.fence()).is_ok());
                count += 1;
            }
            assert!(count > 20_000, "{count}");
        },
    );
}

#[test]
fn a_full_socket_makes_who_shows_segments_wait() {
    // More than a socket holds.
    const SEGMENTS: u32 = 400;
    two(
        "a_full_socket_makes_who_shows_segments_wait",
        |peer, link| {
            let segments: Vec<_> = (0..SEGMENTS).map(|_| Segment::new(4096).expect("memory")).collect();
            peer.stop();
            let mut shown = pin!(async {
                for (segment, expected) in segments.iter().zip(0..) {
                    let number = link.when_room(|| link.show(segment)).await;
                    assert_eq!(number.expect("it is shown"), expected);
                }
            });
            assert!(is_pending(shown.as_mut()), "nothing takes them");
            peer.resume();
            wait(shown);
            assert!(outcome(&wait(link.send(&done(), &[])).expect("it is sent")).is_ok());
        },
        |link| {
            let received = receive(&link);
            for number in 0..SEGMENTS {
                assert_eq!(link.segment(number).expect("it is there").host().unwrap().bytes(), 4096);
            }
            drop(received);
            assert!(wait(link.receive()).is_err());
        },
    );
}

/// A page of numbers that follow from the first one.
fn page(round: u64) -> impl Iterator<Item = u64> {
    (0..512).map(move |at| round.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(at))
}

#[test]
fn a_segment_is_seen_as_it_was_when_its_fence_settled() {
    const ROUNDS: u64 = 300;
    two(
        "a_segment_is_seen_as_it_was_when_its_fence_settled",
        |_, link| {
            let segment = Segment::new(512 * 8).expect("memory");
            let number = link.show(&segment).expect("it is shown");
            assert_eq!(link.show(&segment).expect("it is known"), number);
            for round in 0..ROUNDS {
                let (completer, promise) = host::promise("a page");
                let used = link.try_send(&promise, &number.to_le_bytes()).expect("there is room");
                for (at, value) in page(round).enumerate() {
                    // SAFETY: inside of the segment, which the peer reads only between the promise and its
                    // answer.
                    unsafe { segment.start().cast::<u64>().add(at).write(value) };
                }
                completer.complete();
                assert!(outcome(&used).is_ok(), "round {round}");
            }
        },
        |link| {
            for round in 0..ROUNDS {
                let received = receive(&link);
                let number = u32::from_le_bytes(received.note().try_into().expect("a number"));
                let segment = link.segment(number).expect("it is shown").host().expect("of the host");
                assert_eq!(segment.bytes(), 512 * 8);
                assert!(outcome(received.fence()).is_ok());
                // SAFETY: all of the segment, which its owner leaves alone until the answer.
                let seen = unsafe { std::slice::from_raw_parts(segment.start().cast::<u64>().as_ptr(), 512) };
                assert!(page(round).eq(seen.iter().copied()), "round {round}");
                received.complete();
            }
            assert!(matches!(link.segment(77), Err(LinkError::Invalid(_))));
            assert!(matches!(wait(link.receive()), Err(LinkError::Closed { .. })));
        },
    );
}

/// Segments that this process has mapped.
fn mapped() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("a file of the kernel's");
    maps.lines().filter(|line| line.contains("estafette-segment")).count()
}

#[test]
fn segments_that_are_over_are_mapped_nowhere_and_make_room_for_others() {
    // More than a link shows at a time, and than a socket holds.
    const SEGMENTS: u32 = 3_000;
    two(
        "segments_that_are_over_are_mapped_nowhere_and_make_room_for_others",
        |_, link| {
            let mut used = Vec::new();
            for round in 0..SEGMENTS {
                let (segment, is_for_writing) =
                    (Segment::new_writable(4096).expect("memory"), round.is_multiple_of(2));
                let show =
                    || if is_for_writing { link.show_for_writing(&segment) } else { link.show(&segment) };
                let number = wait(link.when_room(show)).expect("it is shown");
                used.push((wait(link.send(&done(), &number.to_le_bytes())).expect("it is sent"), segment));
                if used.len() == 100 {
                    used.drain(..).for_each(|(used, segment)| {
                        assert!(outcome(&used).is_ok());
                        drop(segment);
                    });
                }
            }
            let _ = wait(link.send(&done(), b"the end")).expect("it is sent");
            assert_eq!(receive(&link).note(), b"nothing is left");
        },
        |link| {
            for round in 0..SEGMENTS {
                let received = receive(&link);
                let number = u32::from_le_bytes(received.note().try_into().expect("a number"));
                let segment = link.segment(number).expect("it is shown").host().expect("of the host");
                assert_eq!(segment.is_writable(), round.is_multiple_of(2));
                drop(segment);
                received.complete();
            }
            assert_eq!(receive(&link).note(), b"the end");
            until("nothing is mapped", || mapped() == 0);
            let _ = wait(link.send(&done(), b"nothing is left")).expect("it is sent");
            assert!(matches!(wait(link.receive()), Err(LinkError::Closed { .. })));
        },
    );
}

#[test]
fn segments_that_are_over_while_the_socket_is_full_are_mapped_nowhere_once_it_has_room() {
    // More than a socket holds.
    const SEGMENTS: u32 = 1_000;
    two(
        "segments_that_are_over_while_the_socket_is_full_are_mapped_nowhere_once_it_has_room",
        |peer, link| {
            let segments: Vec<_> = (0..SEGMENTS).map(|_| Segment::new(4096).expect("memory")).collect();
            for segment in &segments {
                wait(link.when_room(|| link.show(segment))).expect("it is shown");
            }
            assert!(outcome(&wait(link.send(&done(), &[])).expect("it is sent")).is_ok());
            peer.stop();
            drop(segments);
            peer.resume();
            assert_eq!(receive(&link).note(), b"nothing is left");
        },
        |link| {
            let received = receive(&link);
            for number in 0..SEGMENTS {
                drop(link.segment(number).expect("it is there"));
            }
            received.complete();
            until("nothing is mapped", || mapped() == 0);
            let _ = wait(link.send(&done(), b"nothing is left")).expect("it is sent");
            assert!(matches!(wait(link.receive()), Err(LinkError::Closed { .. })));
        },
    );
}

#[test]
fn more_memory_than_there_is_is_refused_and_ends_no_process() {
    let error = Segment::new(1 << 50).expect_err("no machine has as much");
    assert!(error.to_string().contains("Cannot allocate memory"), "{error}");
}

#[test]
fn a_peer_that_writes_to_a_segment_faults_and_changes_nothing() {
    let name = "a_peer_that_writes_to_a_segment_faults_and_changes_nothing";
    if let Some(door) = role() {
        let link = wait(Link::connect(&Address::from_bytes(door.as_bytes()).unwrap())).unwrap();
        let received = receive(&link);
        let segment = link.segment(0).unwrap().host().unwrap();
        assert!(outcome(received.fence()).is_ok());
        // The way round the mapping is closed as well.
        let descriptor = std::str::from_utf8(received.note()).unwrap();
        let path = format!("/proc/{}/fd/{descriptor}", link.process());
        let again = std::fs::OpenOptions::new().read(true).write(true).open(path);
        if let Ok(again) = again {
            use std::io::Write;
            assert!((&again).write(&[1]).is_err(), "sealed against writes");
        }
        // SAFETY: it is not: the processor refuses this.
        unsafe { segment.start().write_volatile(1) };
        unreachable!("the write has no effect");
    }
    let door = Door::open().unwrap();
    let mut peer = Peer::start(name, &door.address().to_string());
    let link = wait(door.accept()).unwrap();
    // No segment of another test has that size.
    let segment = Segment::new(7 * 4096).unwrap();
    link.show(&segment).unwrap();
    let descriptor = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .flatten()
        .find(|entry| {
            std::fs::read_link(entry.path())
                .is_ok_and(|to| to.to_string_lossy().contains("estafette-segment"))
                && std::fs::metadata(entry.path()).is_ok_and(|its| its.len() == 7 * 4096)
        })
        .expect("the segment has a descriptor");
    let used = link.try_send(&done(), descriptor.file_name().as_encoded_bytes()).unwrap();
    assert_names_the_dead(&used, peer.process());
    assert_eq!(peer.0.wait().unwrap().signal(), Some(libc::SIGSEGV));
    // SAFETY: the first byte of the segment.
    assert_eq!(unsafe { segment.start().read_volatile() }, 0);
}

#[test]
fn a_segment_whose_number_was_missed_twice_is_shown_again() {
    two(
        "a_segment_whose_number_was_missed_twice_is_shown_again",
        |peer, link| {
            let segment = Segment::new(4096).unwrap();
            receive(&link).complete();
            peer.stop();
            // The other process misses both. The second one has the place of the first one on its board.
            link.show(&Segment::new(4096).unwrap()).unwrap();
            let number = link.show(&segment).unwrap();
            let used = link.try_send(&done(), &number.to_le_bytes()).unwrap();
            peer.resume();
            assert!(failure(&used).message().contains("Too many open files"));
            assert_eq!(link.show(&segment).unwrap(), number);
            assert!(outcome(&link.try_send(&done(), &number.to_le_bytes()).unwrap()).is_ok());
        },
        |link| {
            let before = limits::limit(libc::RLIMIT_NOFILE, 3);
            link.try_send(&done(), b"short").unwrap();
            for _ in 0..2 {
                let received = receive(&link);
                match link.segment(u32::from_le_bytes(received.note().try_into().unwrap())) {
                    Ok(_) => received.complete(),
                    Err(error) => {
                        limits::limit(libc::RLIMIT_NOFILE, before);
                        received.fail(DeviceError::new(DeviceErrorKind::Other, error.to_string()));
                    }
                }
            }
            assert!(matches!(wait(link.receive()), Err(LinkError::Closed { .. })));
        },
    );
}

/// True if this process has mapped no memory of links for writing.
fn writes_no_shared_memory() -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut lines = maps.lines();
    !maps.is_empty() && !lines.any(|line| line.contains("rw-s") && line.contains("memfd:estafette"))
}

#[test]
fn a_child_that_is_forked_while_memory_is_mapped_cannot_write_it() {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                drop(Segment::new(4096).expect("memory"));
            }
        });
        let forks =
            (0..200).all(|_| estafette_sync::platform::child::in_forked_child(writes_no_shared_memory));
        is_over.store(true, Ordering::Relaxed);
        assert!(forks);
    });
}

/// True if this process can link with itself.
fn own_links_work() -> bool {
    let door = Door::open().expect("a door");
    let address = door.address().clone();
    let connecting = std::thread::spawn(move || wait(Link::connect(&address)));
    let accepted = wait(door.accept()).expect("a link");
    let connected = connecting.join().expect("no panic").expect("a link");
    let (completer, promise) = host::promise("its own");
    let used = connected.try_send(&promise, &[]).expect("there is room");
    completer.complete();
    let received = receive(&accepted);
    let is_done = outcome(received.fence()).is_ok();
    received.complete();
    is_done && outcome(&used).is_ok()
}

#[test]
fn a_forked_child_has_links_of_its_own_alone_and_its_end_is_not_noticed() {
    two(
        "a_forked_child_has_links_of_its_own_alone_and_its_end_is_not_noticed",
        |_, link| {
            let (completer, promise) = host::promise("after the fork");
            let used = link.try_send(&promise, &[]).unwrap();
            let received = receive(&link);
            assert!(estafette_sync::platform::child::in_forked_child(|| {
                // SAFETY: the child's copies; it gives each up once.
                let (link, received) = unsafe { (std::ptr::read(&link), std::ptr::read(&received)) };
                let is_refused = matches!(link.try_receive(), Err(LinkError::Forked))
                    && matches!(link.try_send(received.fence(), &[]), Err(LinkError::Forked));
                drop((link, received));
                is_refused && writes_no_shared_memory() && own_links_work()
            }));
            completer.complete();
            assert!(outcome(&used).is_ok());
            received.complete();
        },
        |link| {
            let sent = link.try_send(&done(), &[]).unwrap();
            let received = receive(&link);
            assert!(outcome(received.fence()).is_ok(), "the child has neither closed nor failed it");
            assert!(sent.state().is_pending(), "nor answered");
            received.complete();
            assert!(outcome(&sent).is_ok());
            assert!(matches!(wait(link.receive()), Err(LinkError::Closed { .. })));
        },
    );
}

#[test]
fn a_door_takes_several_links_and_refuses_what_is_none() {
    let door = Door::open().unwrap();
    let links: Vec<_> = (0..5)
        .map(|_| {
            let (near, far) = std::thread::scope(|scope| {
                let far = scope.spawn(|| wait(Link::connect(door.address())).unwrap());
                (wait(door.accept()).unwrap(), far.join().unwrap())
            });
            (near, far)
        })
        .collect();
    for (near, far) in &links {
        let used = near.try_send(&done(), b"to itself").unwrap();
        assert_eq!(receive(far).note(), b"to itself");
        assert!(outcome(&used).is_ok());
    }
    let address = door.address().clone();
    drop(door);
    until("the door is gone", || {
        matches!(wait(Link::connect(&address)), Err(LinkError::System { .. } | LinkError::Refused(_)))
    });
    assert!(Address::from_bytes(b"estafette-7").is_err() && Address::from_bytes(address.as_bytes()).is_ok());
}

#[test]
fn many_processes_wait_at_the_door_of_a_stopped_one() {
    // More than a door once held.
    const LINKS: usize = 200;
    two(
        "many_processes_wait_at_the_door_of_a_stopped_one",
        |peer, link| {
            let address = Address::from_bytes(receive(&link).note()).unwrap();
            peer.stop();
            let mut connecting: Vec<_> = (0..LINKS).map(|_| Box::pin(Link::connect(&address))).collect();
            assert!(connecting.iter_mut().all(|link| is_pending(link.as_mut())));
            let all_came = link.try_send(&done(), &[]).unwrap();
            peer.resume();
            assert!(connecting.into_iter().all(|link| wait(link).is_ok()));
            assert!(outcome(&all_came).is_ok());
        },
        |link| {
            let door = Door::open().unwrap();
            link.try_send(&done(), door.address().as_bytes()).unwrap();
            let all_came = receive(&link);
            // Time for more links than a door keeps for who accepts them.
            std::thread::sleep(Duration::from_millis(200));
            let _links: Vec<_> = (0..LINKS).map(|_| wait(door.accept()).unwrap()).collect();
            all_came.complete();
            assert!(wait(link.receive()).is_err());
        },
    );
}

#[test]
fn a_process_with_as_many_links_as_it_may_have_says_so_and_who_comes_waits() {
    /// Doors and links of a process.
    const MOST: usize = 4096;
    let is_full = |error: &LinkError| {
        error.to_string().contains("4096 doors and links of this process are open or in use")
    };
    two(
        "a_process_with_as_many_links_as_it_may_have_says_so_and_who_comes_waits",
        |_, link| {
            let address = Address::from_bytes(receive(&link).note()).unwrap();
            let new = wait(Link::connect(&address)).expect("it waits");
            assert!(outcome(&new.try_send(&done(), b"come").unwrap()).is_ok());
        },
        |link| {
            limits::limit(libc::RLIMIT_NOFILE, 2 * MOST as u64);
            let door = Door::open().unwrap();
            let mut doors = vec![];
            let error = loop {
                match Door::open() {
                    Ok(more) => doors.push(more),
                    Err(error) => break error,
                }
            };
            assert!(is_full(&error) && doors.len() == MOST - 2, "{} doors: {error}", doors.len());
            let error = wait(Link::connect(door.address())).unwrap_err();
            assert!(is_full(&error), "{error}");
            link.try_send(&done(), door.address().as_bytes()).unwrap();
            let error = wait(door.accept()).unwrap_err();
            assert!(is_full(&error), "{error}");
            assert!(is_pending(pin!(door.accept())), "it is said once");
            doors.truncate(MOST / 2);
            assert_eq!(receive(&wait(door.accept()).unwrap()).note(), b"come");
        },
    );
}

#[test]
fn who_waits_at_a_door_hears_what_this_process_lacks_and_the_door_goes_on() {
    /// Descriptors that a link takes, and more.
    const ENOUGH: u64 = 16;
    let say = |link: &Link, what: &[u8]| drop(link.try_send(&done(), what).expect("there is room"));
    two(
        "who_waits_at_a_door_hears_what_this_process_lacks_and_the_door_goes_on",
        |_, link| {
            let address = Address::from_bytes(receive(&link).note()).expect("an address");
            while wait(link.receive()).is_ok() {
                // The other process does not hang up while it is short.
                let new = wait(Link::connect(&address)).expect("it waits");
                drop(receive(&new));
                say(&link, b"connected");
            }
        },
        |link| {
            let door = Door::open().expect("a door");
            say(&link, door.address().as_bytes());
            let open = std::fs::read_dir("/proc/self/fd").expect("a folder of the kernel's").count() as u64;
            let mut heard = Vec::new();
            // Short of one descriptor after the other: of those of a connection and its greeting, of those of
            // the peer's.
            for most in 3..open + ENOUGH {
                let before = limits::limit(libc::RLIMIT_NOFILE, most);
                say(&link, b"short");
                let mut accepted = wait(door.accept());
                limits::limit(libc::RLIMIT_NOFILE, before);
                while let Err(error) = accepted {
                    heard.push(error.to_string());
                    accepted = wait(door.accept());
                }
                say(&accepted.expect("no error is left"), b"welcome");
                drop(receive(&link));
            }
            assert!(heard.iter().all(|error| error.contains("Too many open files")), "{heard:?}");
            for stage in ["accepting a connection", "meeting another process"] {
                assert!(heard.iter().any(|error| error.contains(stage)), "{stage}: {heard:?}");
            }
        },
    );
}
