//! Tensors of one process in another. The tests run their own program again as the other process.
//!
//! | part | what it has |
//! |---|---|
//! | here | versions, failures, deaths and tickets, between two processes |
//! | `ending` | waits for links that the end of an engine ends |
//! | `passing` | tensors that one process passes on to another |
//! | `shortage` | a process that lacks descriptors, address space or files |
//! | `staging` | memory that is not shared, and tensors that have no memory yet |
//! | `support` | a test that starts its own program again |
//! | `writing` | tensors that another process is lent for writing |

#![cfg(not(any(estafette_portable, estafette_loom, estafette_shuttle)))]

#[path = "../../links/tests/support/mod.rs"]
mod support;

#[path = "links/ending.rs"]
mod ending;
#[path = "links/passing.rs"]
mod passing;
#[path = "links/shortage.rs"]
mod shortage;
#[path = "links/staging.rs"]
mod staging;
#[path = "links/writing.rs"]
mod writing;

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use estafette::bindings;
use estafette::devices::{DLDevice, host};
use estafette::engine::Memory;
use estafette::remote::{Address, Door, Link, ShareOptions, Ticket};
use estafette::report::model::{Cause, Operation, OperationKind, Trace};
use estafette::report::roots::roots;
use estafette::report::sentences::sentence;
use estafette::report::{html, merge, perfetto, report};
use estafette::trace::{self, Recorder, TraceOptions};
use estafette::{DType, Engine, Error, Produced, Tensor};
use estafette_links::Link as RawLink;
use futures::{FutureExt, StreamExt};

use support::{Peer, failure, role, until, wait};

const LENGTH: i64 = 5_000;

fn engine() -> Engine {
    Engine::builder().workers(2).shared(true).build().expect("an engine")
}

/// Fills a tensor with 7 once the sender has sent.
fn fill_later(engine: &Engine, x: &Tensor) -> Sender<()> {
    let (begin, may_begin) = channel();
    let slow = engine.op("slow").writes([x]).run(move |[], [mut x]| {
        may_begin.recv()?;
        x.as_mut_slice::<i64>()?.fill(7);
        Ok(())
    });
    drop(slow.expect("it is submitted"));
    begin
}

/// Writes `value` to all elements.
fn fill(engine: &Engine, tensor: &Tensor, value: i64) {
    let filled = engine.op("fill").writes([tensor]).run(move |[], [mut tensor]| {
        tensor.as_mut_slice::<i64>()?.fill(value);
        Ok(())
    });
    drop(filled.expect("submitted"));
}

/// The value of all elements.
fn value(engine: &Engine, tensor: &Tensor) -> Result<i64, estafette::Error> {
    let one = engine.zeros(&[1], DType::I64)?;
    engine.op("look").reads([tensor]).writes([&one]).run(|[tensor], [mut one]| {
        let elements = tensor.as_slice::<i64>()?;
        assert!(elements.iter().all(|element| *element == elements[0]), "half of a version");
        one.as_mut_slice::<i64>()?[0] = elements[0];
        Ok(())
    })?;
    one.wait_timeout(Duration::from_secs(60))?;
    Ok(one.to_vec::<i64>()?[0])
}

fn is_send<T: Send>(value: T) -> T {
    value
}

fn receive(link: &Link) -> Tensor {
    wait(link.receive()).expect("a link").expect("a tensor")
}

fn send_ticket(engine: &Engine, link: &Link, ticket: &Ticket) {
    send_bytes(engine, link, &ticket.to_bytes());
}

/// Makes a tensor of `value`, and sends a ticket for it.
fn send_ticket_of(engine: &Engine, link: &Link, value: i64) -> (Tensor, Ticket) {
    let x = engine.zeros(&[LENGTH], DType::I64).expect("memory");
    fill(engine, &x, value);
    let ticket = x.ticket(&ShareOptions::default()).expect("a ticket");
    send_ticket(engine, link, &ticket);
    (x, ticket)
}

fn send_bytes(engine: &Engine, link: &Link, bytes: &[u8]) {
    let bytes = bytes.to_vec();
    let tensor = engine.zeros(&[bytes.len() as i64], DType::U8).expect("memory");
    let written = engine.op("bytes").writes([&tensor]).run(move |[], [mut tensor]| {
        tensor.as_mut_slice::<u8>()?.copy_from_slice(&bytes);
        Ok(())
    });
    drop(written.expect("submitted"));
    wait(link.send(&tensor, &ShareOptions::default())).expect("sent");
}

fn receive_ticket(link: &Link) -> Ticket {
    Ticket::from_bytes(&receive_bytes(link)).expect("a ticket")
}

fn receive_bytes(link: &Link) -> Vec<u8> {
    let tensor = receive(link);
    tensor.wait().expect("bytes");
    tensor.to_vec::<u8>().expect("bytes")
}

/// Sends a word, which the other process waits for with `heard`.
fn say(engine: &Engine, link: &Link) {
    wait(link.send(&engine.zeros(&[1], DType::I64).expect("memory"), &ShareOptions::default()))
        .expect("sent");
}

fn heard(link: &Link) {
    drop(receive(link));
}

/// Never ends by itself.
fn until_killed() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(600));
    }
}

/// Runs `owner` here and `consumer` in another process, each with an engine and a link.
fn two(name: &str, owner: impl FnOnce(&mut Peer, &Engine, Link), consumer: impl FnOnce(&Engine, Link)) {
    let engine = engine();
    if let Some(door) = role() {
        let address = Address::from_bytes(door.as_bytes()).expect("an address");
        let link = wait(engine.connect(&address)).expect("a link");
        return consumer(&engine, link);
    }
    let door = Door::open().expect("a door");
    let mut peer = Peer::start(name, &door.address().to_string());
    let link = wait(engine.accept(&door)).expect("a link");
    owner(&mut peer, &engine, link);
}

/// Both ends of a link of one engine.
fn pair(engine: &Engine) -> (Link, Link) {
    let door = Door::open().expect("a door");
    let far = wait(engine.connect(door.address())).expect("a link");
    (wait(engine.accept(&door)).expect("a link"), far)
}

#[test]
fn bodies_that_wait_for_another_process_leave_the_engine_to_others() {
    // More than an engine with one worker has threads.
    let bodies = std::thread::available_parallelism().map_or(1, usize::from) + 20;
    let engine = Engine::builder().workers(1).build().expect("an engine");
    let (near, far) = pair(&engine);
    let (near, far) = (std::sync::Arc::new(near), std::sync::Arc::new(far));
    let ops: Vec<_> = (0..bodies)
        .map(|_| {
            let (inside, far) = (engine.clone(), std::sync::Arc::clone(&far));
            let waits = engine.op("waits").run(move |[], []| {
                let x = bindings::remote::block_on(&inside, far.receive(), Some(Duration::from_secs(60)))?
                    .ok_or("closed")?;
                drop(x);
                Ok(())
            });
            waits.expect("submitted")
        })
        .collect();
    let inside = engine.clone();
    let sends = engine.op("sends").run(move |[], []| {
        for _ in 0..bodies {
            bindings::remote::block_on(
                &inside,
                near.send(
                    &inside.empty(&[1], DType::I64, Memory::Shared(DLDevice::CPU))?,
                    &ShareOptions::default(),
                ),
                None,
            )?;
        }
        Ok(())
    });
    sends.expect("submitted").wait_timeout(Some(Duration::from_secs(30))).expect("a thread is left for it");
    ops.iter().for_each(|op| op.wait_timeout(Some(Duration::from_secs(30))).expect("a tensor has come"));
}

#[test]
fn each_version_is_seen_whole_and_writes_wait_for_its_readers() {
    const ROUNDS: i64 = 200;
    two(
        "each_version_is_seen_whole_and_writes_wait_for_its_readers",
        |peer, engine, link| {
            let x = engine.zeros(&[LENGTH], DType::I64).unwrap();
            for round in 0..ROUNDS {
                // Neither the send nor the next write waits here.
                fill(engine, &x, round);
                wait(is_send(link.send(&x, &ShareOptions::default()))).unwrap();
            }
            fill(engine, &x, -1);
            for round in 0..ROUNDS {
                let doubled = wait(is_send(link.receive())).unwrap().unwrap();
                assert_eq!(value(engine, &doubled).unwrap(), 2 * round);
            }
            assert_eq!(value(engine, &x).unwrap(), -1);
            drop(link);
            assert!(peer.0.wait().unwrap().success());
        },
        |engine, link| {
            for round in 0..ROUNDS {
                let x = receive(&link);
                assert_eq!(x.shape().unwrap()[..], [LENGTH]);
                let y = engine.zeros(&[LENGTH], DType::I64).unwrap();
                engine
                    .op("double")
                    .reads([&x])
                    .writes([&y])
                    .run(|[x], [mut y]| {
                        for (y, x) in y.as_mut_slice::<i64>()?.iter_mut().zip(x.as_slice::<i64>()?) {
                            *y = 2 * x;
                        }
                        Ok(())
                    })
                    .unwrap();
                drop(x);
                wait(link.send(&y, &ShareOptions::default())).unwrap();
                assert_eq!(value(engine, &y).unwrap(), 2 * round);
            }
            assert!(wait(link.receive()).unwrap().is_none(), "the other process has closed the link");
        },
    );
}

#[test]
fn each_of_many_failures_that_are_kept_has_its_reason() {
    const FAILURES: usize = 300;
    two(
        "each_of_many_failures_that_are_kept_has_its_reason",
        |peer, engine, link| {
            for failure in 0..FAILURES {
                let x = engine.zeros(&[1], DType::I64).unwrap();
                let fails = engine.op("fails").writes([&x]);
                fails.run(move |[], [_x]| Err(format!("reason {failure}").into())).unwrap();
                wait(link.send(&x, &ShareOptions::default())).unwrap();
            }
            assert!(peer.0.wait().unwrap().success());
        },
        |_, link| {
            let kept: Vec<_> = (0..FAILURES).map(|_| receive(&link)).collect();
            for (failure, tensor) in kept.iter().enumerate() {
                let error = tensor.wait_timeout(Duration::from_secs(60)).unwrap_err().to_string();
                assert!(error.contains(&format!("reason {failure} ")), "{failure}: {error}");
            }
        },
    );
}

#[test]
fn failures_follow_the_data_into_another_process() {
    two(
        "failures_follow_the_data_into_another_process",
        |peer, engine, link| {
            let x = engine.zeros(&[LENGTH], DType::I64).unwrap();
            engine.op("print").writes([&x]).run(|[], [_x]| Err("out of paper".into())).unwrap();
            wait(link.send(&x, &ShareOptions::default())).unwrap();
            fill(engine, &x, 7);
            wait(link.send(&x, &ShareOptions::default())).unwrap();
            let private = Engine::builder().workers(1).build().unwrap();
            wait(link.send(
                &private.empty(&[LENGTH], DType::I64, Memory::Shared(DLDevice::CPU)).unwrap(),
                &ShareOptions::default(),
            ))
            .unwrap();
            assert!(peer.0.wait().unwrap().success());
            assert!(x.wait().is_ok());
        },
        |engine, link| {
            let failed = receive(&link);
            let error = failed.wait().unwrap_err().to_string();
            let where_ = format!("failed: out of paper (in process {})", link.process());
            assert!(error.starts_with("operation `print` (") && error.ends_with(&where_), "{error}");
            let after = engine.op("after").reads([&failed]).run(|[_x], []| Ok(())).unwrap();
            let error = after.wait().unwrap_err().to_string();
            assert!(error.starts_with("operation `print` (") && error.ends_with(&where_), "{error}");
            drop(failed);
            let healed = receive(&link);
            assert_eq!(value(engine, &healed).unwrap(), 7);
            let refused = engine.op("write").writes([&healed]).run(|[], [_x]| Ok(()));
            assert!(refused.is_err(), "it is lent for reading");
            assert_eq!(value(engine, &receive(&link)).unwrap(), 0);
        },
    );
}

#[test]
fn the_name_of_an_operation_that_failed_elsewhere_comes_whole() {
    const NAME: &str = "load` (twice) of `é";
    two(
        "the_name_of_an_operation_that_failed_elsewhere_comes_whole",
        |peer, engine, link| {
            let x = engine.zeros(&[LENGTH], DType::I64).unwrap();
            drop(engine.op(NAME).writes([&x]).run(|[], [_x]| Err("no data".into())).unwrap());
            wait(link.send(&x, &ShareOptions::default())).unwrap();
            let ticket = x.ticket(&ShareOptions::default()).unwrap();
            send_ticket(engine, &link, &ticket);
            assert!(peer.0.wait().unwrap().success());
        },
        |engine, link| {
            let by_link = receive(&link);
            let by_ticket = engine.from_ticket(&receive_ticket(&link)).unwrap();
            for x in [by_link, by_ticket] {
                let error = x.wait().unwrap_err();
                assert_eq!(error.operation().expect("it names one").operation(), NAME, "{error}");
            }
        },
    );
}

#[test]
fn a_consumer_that_dies_releases_what_it_read() {
    two(
        "a_consumer_that_dies_releases_what_it_read",
        |peer, engine, link| {
            let x = engine.zeros(&[LENGTH], DType::I64).unwrap();
            fill(engine, &x, 1);
            wait(link.send(&x, &ShareOptions::default())).unwrap();
            drop(receive(&link));
            fill(engine, &x, 2);
            std::thread::sleep(Duration::from_millis(30));
            assert!(!x.is_ready(), "the write waits for the lease");
            peer.kill();
            assert_eq!(value(engine, &x).unwrap(), 2);
        },
        |engine, link| {
            let x = receive(&link);
            assert_eq!(value(engine, &x).unwrap(), 1);
            say(engine, &link);
            until_killed();
        },
    );
}

#[test]
fn what_an_owner_had_finished_when_it_died_stays_readable() {
    two(
        "what_an_owner_had_finished_when_it_died_stays_readable",
        |peer, engine, link| {
            // The roles are reversed here: the other process is the owner.
            let ready = receive(&link);
            let pending = receive(&link);
            let after = engine.zeros(&[LENGTH], DType::I64).unwrap();
            engine.op("copy").reads([&pending]).writes([&after]).run(|[_x], [_y]| Ok(())).unwrap();
            until("the first is ready", || ready.is_ready());
            peer.kill();
            let died = format!("process {} died", peer.process());
            assert!(pending.wait().unwrap_err().to_string().contains(&died));
            assert!(after.wait().unwrap_err().to_string().contains(&died), "and so did what depends on it");
            assert_eq!(value(engine, &ready).unwrap(), 5);
        },
        |engine, link| {
            let [ready, pending] = [(); 2].map(|()| engine.zeros(&[LENGTH], DType::I64).unwrap());
            fill(engine, &ready, 5);
            wait(link.send(&ready, &ShareOptions::default())).unwrap();
            engine
                .op("endless")
                .writes([&pending])
                .run(|[], [_x]| {
                    std::thread::sleep(Duration::from_secs(600));
                    Ok(())
                })
                .unwrap();
            wait(link.send(&pending, &ShareOptions::default())).unwrap();
            until_killed();
        },
    );
}

/// The owner writes the memory of the first version again once the consumer is done with it, and not before:
/// the second version is pending until then.
#[test]
fn a_version_can_be_used_while_a_later_one_of_the_same_memory_is_pending() {
    two(
        "a_version_can_be_used_while_a_later_one_of_the_same_memory_is_pending",
        |peer, engine, link| {
            let x = engine.zeros(&[LENGTH], DType::I64).unwrap();
            for version in 1..=3 {
                fill(engine, &x, version);
                wait(link.send(&x, &ShareOptions::default())).unwrap();
            }
            assert!(peer.0.wait().unwrap().success());
        },
        |engine, link| {
            let [first, second, third] = [(); 3].map(|()| receive(&link));
            assert_eq!(value(engine, &first).unwrap(), 1);
            assert!(!second.is_ready());
            drop(first);
            assert_eq!(value(engine, &second).unwrap(), 2);
            drop(second);
            assert_eq!(value(engine, &third).unwrap(), 3);
        },
    );
}

#[test]
fn a_version_that_is_cancelled_behind_a_lease_fails_at_once_in_the_process_that_has_the_lease() {
    two(
        "a_version_that_is_cancelled_behind_a_lease_fails_at_once_in_the_process_that_has_the_lease",
        |peer, engine, link| {
            let x = engine.zeros(&[LENGTH], DType::I64).unwrap();
            wait(link.send(&x, &ShareOptions::default())).unwrap();
            let waits = engine.op("waits").writes([&x]).run(|[], [_x]| Ok(())).unwrap();
            wait(link.send(&x, &ShareOptions::default())).unwrap();
            let ticket = x.ticket(&ShareOptions::default()).unwrap();
            send_ticket(engine, &link, &ticket);
            heard(&link);
            assert!(waits.cancel());
            assert!(peer.0.wait().unwrap().success());
        },
        |engine, link| {
            let former = receive(&link);
            let cancelled = [receive(&link), engine.from_ticket(&receive_ticket(&link)).unwrap()];
            say(engine, &link);
            for version in cancelled {
                let failure = version.wait_timeout(Duration::from_secs(60)).unwrap_err().to_string();
                assert!(failure.contains("`waits`") && failure.contains("cancelled"), "{failure}");
            }
            assert_eq!(value(engine, &former).unwrap(), 0);
        },
    );
}

#[test]
fn a_ticket_is_a_promise_in_a_process_without_a_link() {
    two(
        "a_ticket_is_a_promise_in_a_process_without_a_link",
        |peer, engine, link| {
            let x = engine.zeros(&[LENGTH], DType::I64).unwrap();
            let (begin, began) = std::sync::mpsc::channel();
            let slow = engine.op("slow").writes([&x]).run(move |[], [mut x]| {
                began.recv()?;
                x.as_mut_slice::<i64>()?.fill(7);
                Ok(())
            });
            drop(slow.unwrap());
            let ticket = x.ticket(&ShareOptions::default()).unwrap();
            fill(engine, &x, 8);
            send_ticket(engine, &link, &ticket);
            heard(&link);
            begin.send(()).unwrap();
            heard(&link);
            // Its uses are over, and the ticket is not.
            assert!(!x.is_ready(), "the write waits for the ticket");
            drop(ticket);
            assert_eq!(value(engine, &x).unwrap(), 8);
            say(engine, &link);
            assert!(peer.0.wait().unwrap().success());
        },
        |engine, link| {
            let ticket = receive_ticket(&link);
            let [first, second] = [(); 2].map(|()| engine.from_ticket(&ticket).unwrap());
            until("the first is defined", || bindings::tensor::is_defined(&first));
            assert!(!first.is_ready());
            say(engine, &link);
            assert_eq!(value(engine, &first).unwrap(), 7);
            assert_eq!(value(engine, &second).unwrap(), 7);
            drop((first, second));
            say(engine, &link);
            heard(&link);
            let late = engine.from_ticket(&ticket).unwrap();
            let error = late.wait().unwrap_err().to_string();
            assert!(error.contains("not valid any more"), "{error}");
        },
    );
}

#[test]
fn a_lost_ticket_for_one_use_holds_its_version_until_it_is_revoked() {
    let engine = engine();
    let x = engine.zeros(&[LENGTH], DType::I64).unwrap();
    let once = ShareOptions { once: true, ..ShareOptions::default() };
    let ticket = x.ticket(&once).unwrap();
    fill(&engine, &x, 4);
    std::thread::sleep(Duration::from_millis(30));
    assert!(!x.is_ready(), "the write waits for the ticket");
    ticket.revoke();
    assert_eq!(value(&engine, &x).unwrap(), 4);
    let error = engine.from_ticket(&ticket).unwrap().wait().unwrap_err().to_string();
    assert!(error.contains("not valid any more"), "{error}");
    let bytes = x.ticket(&once).unwrap().to_bytes();
    let kept = engine.from_ticket(&Ticket::from_bytes(&bytes).unwrap()).unwrap();
    assert_eq!(value(&engine, &kept).unwrap(), 4, "its drop leaves it valid");
}

#[test]
fn a_writer_that_waits_for_a_ticket_is_not_held_up_by_those_who_go_on_using_it() {
    two(
        "a_writer_that_waits_for_a_ticket_is_not_held_up_by_those_who_go_on_using_it",
        |peer, engine, link| {
            let (x, ticket) = send_ticket_of(engine, &link, 1);
            heard(&link);
            fill(engine, &x, 2);
            std::thread::sleep(Duration::from_millis(30));
            assert!(!x.is_ready(), "the write waits for the ticket");
            drop(ticket);
            assert_eq!(value(engine, &x).unwrap(), 2);
            assert!(peer.0.wait().unwrap().success());
        },
        |engine, link| {
            let ticket = receive_ticket(&link);
            let mut used = engine.from_ticket(&ticket).unwrap();
            assert_eq!(value(engine, &used).unwrap(), 1);
            say(engine, &link);
            // Each use begins before the last one ends.
            let error = loop {
                let next = engine.from_ticket(&ticket).unwrap();
                match next.wait() {
                    Ok(()) => used = next,
                    Err(error) => break error.to_string(),
                }
            };
            assert!(error.contains("not valid any more"), "{error}");
            drop(used);
        },
    );
}

#[test]
fn a_tensor_of_as_many_dimensions_as_there_can_be_crosses_by_link_and_by_ticket() {
    let engine = engine();
    let (near, far) = pair(&engine);
    for ndim in 61..=64 {
        let x = engine.zeros(&vec![1; ndim], DType::I64).unwrap();
        wait(near.send(&x, &ShareOptions::default())).unwrap();
        let by_link = receive(&far);
        let ticket = x.ticket(&ShareOptions::default()).unwrap();
        let by_ticket = engine.from_ticket(&ticket).unwrap();
        for tensor in [by_link, by_ticket] {
            tensor.wait().unwrap();
            assert_eq!(tensor.shape().unwrap()[..], vec![1; ndim]);
        }
    }
}

#[test]
fn a_link_is_a_stream_of_what_it_receives() {
    const COUNT: i64 = 100;
    two(
        "a_link_is_a_stream_of_what_it_receives",
        |peer, engine, link| {
            let mut sent = Vec::new();
            for number in 0..COUNT {
                let x = engine.zeros(&[LENGTH], DType::I64).unwrap();
                fill(engine, &x, number);
                wait(link.send(&x, &ShareOptions::default())).unwrap();
                sent.push(x);
            }
            // A tensor that is not ready yet comes after this end.
            drop(link);
            assert!(peer.0.wait().unwrap().success());
        },
        |engine, link| {
            let mut tensors = link.stream();
            for number in 0..COUNT {
                let tensor = wait(tensors.next()).expect("a tensor").unwrap();
                assert_eq!(value(engine, &tensor).unwrap(), number);
            }
            assert!(wait(tensors.next()).is_none() && wait(tensors.next()).is_none());
        },
    );
}

#[test]
fn a_stream_of_what_a_link_receives_ends_after_the_death_of_the_other_process() {
    two(
        "a_stream_of_what_a_link_receives_ends_after_the_death_of_the_other_process",
        |peer, _, link| {
            let mut tensors = link.stream();
            assert!(wait(tensors.next()).is_some_and(|tensor| tensor.is_ok()));
            peer.kill();
            let error = wait(tensors.next()).expect("an error").unwrap_err().to_string();
            assert!(error.contains(&format!("process {} died", peer.process())), "{error}");
            assert!(wait(tensors.next()).is_none());
        },
        |engine, link| {
            say(engine, &link);
            until_killed();
        },
    );
}

/// Starts a process until it has the number of one that has ended. An error where the system lets no process
/// choose the number.
fn start_as(number: u32, start: impl Fn() -> Peer) -> Result<Peer, String> {
    for _ in 0..200 {
        std::fs::write("/proc/sys/kernel/ns_last_pid", (number - 1).to_string())
            .map_err(|error| format!("the system chooses the numbers of processes: {error}"))?;
        let peer = start();
        if peer.process() == number {
            return Ok(peer);
        }
    }
    panic!("none of 200 processes got the number {number}")
}

#[test]
fn a_process_with_the_number_of_a_dead_one_is_not_taken_for_it() {
    let name = "a_process_with_the_number_of_a_dead_one_is_not_taken_for_it";
    let engine = engine();
    if let Some(door) = role() {
        let link = wait(engine.connect(&Address::from_bytes(door.as_bytes()).unwrap())).unwrap();
        let own = Door::open().unwrap();
        send_bytes(&engine, &link, own.address().as_bytes());
        let x = engine.zeros(&[LENGTH], DType::I64).unwrap();
        fill(&engine, &x, 5);
        let ticket = x.ticket(&ShareOptions::default()).unwrap();
        send_ticket(&engine, &link, &ticket);
        until_killed();
    }
    let door = Door::open().unwrap();
    let start = || Peer::start(name, &door.address().to_string());
    let meet = |peer: &Peer| {
        // Processes with other numbers may have come before.
        let mut links = std::iter::repeat_with(|| wait(engine.accept(&door)).unwrap());
        let link = links.find(|link| link.process() == peer.process()).unwrap();
        let address = Address::from_bytes(&receive_bytes(&link)).unwrap();
        let ticket = receive_ticket(&link);
        (link, address, ticket)
    };
    let mut dead = start();
    let (old_link, old_address, old_ticket) = meet(&dead);
    let number = dead.process();
    dead.kill();
    dead.0.wait().unwrap();
    let mut peer = match start_as(number, start) {
        Ok(peer) => peer,
        Err(why) => return println!("not tested: {why}"),
    };
    let (link, _, ticket) = meet(&peer);
    let error = engine.from_ticket(&old_ticket).unwrap().wait().unwrap_err().to_string();
    assert!(error.contains(&format!("process {number} died")), "{error}");
    assert!(wait(engine.connect(&old_address)).is_err());
    assert!(matches!(wait(old_link.receive()), Err(Error::Device(_))));
    let x = engine.from_ticket(&ticket).unwrap();
    assert_eq!(value(&engine, &x).unwrap(), 5);
    assert!(link.receive().now_or_never().is_none(), "it lives");
    peer.kill();
    assert!(matches!(wait(link.receive()), Err(Error::Device(_))));
}

#[test]
fn thousands_of_tickets_are_redeemed_at_once() {
    const TICKETS: i64 = 5_000;
    two(
        "thousands_of_tickets_are_redeemed_at_once",
        |peer, engine, link| {
            let (x, ticket) = send_ticket_of(engine, &link, 3);
            assert!(peer.0.wait().unwrap().success());
            drop(ticket);
            fill(engine, &x, 4);
            assert_eq!(value(engine, &x).unwrap(), 4);
        },
        |_, link| {
            let engine = Engine::builder().in_flight_limit(2 * TICKETS as usize).build().unwrap();
            let ticket = receive_ticket(&link);
            let tensors: Vec<_> = (0..TICKETS).map(|_| engine.from_ticket(&ticket).unwrap()).collect();
            tensors.iter().for_each(|tensor| tensor.wait().unwrap());
            assert_eq!(value(&engine, &tensors[77]).unwrap(), 3);
        },
    );
}

#[test]
fn the_death_of_an_owner_fails_what_its_tickets_promised() {
    two(
        "the_death_of_an_owner_fails_what_its_tickets_promised",
        |peer, engine, link| {
            // The roles are reversed here: the other process is the owner.
            let [ready, pending] = [(); 2].map(|()| receive_ticket(&link));
            let [x, y] = [&ready, &pending].map(|ticket| engine.from_ticket(ticket).unwrap());
            assert_eq!(value(engine, &x).unwrap(), 5);
            until("the second is defined", || bindings::tensor::is_defined(&y));
            peer.kill();
            let died = format!("process {} died", peer.process());
            assert!(y.wait().unwrap_err().to_string().contains(&died));
            assert_eq!(value(engine, &x).unwrap(), 5, "what was ready stays readable");
            until("its end is known", || {
                let late = engine.from_ticket(&ready).unwrap();
                late.wait().is_err_and(|error| error.to_string().contains(&died))
            });
        },
        |engine, link| {
            let [ready, pending] = [(); 2].map(|()| engine.zeros(&[LENGTH], DType::I64).unwrap());
            fill(engine, &ready, 5);
            drop(engine.op("endless").writes([&pending]).run(|[], [_x]| until_killed()).unwrap());
            let tickets = [&ready, &pending].map(|tensor| tensor.ticket(&ShareOptions::default()).unwrap());
            tickets.iter().for_each(|ticket| send_ticket(engine, &link, ticket));
            until_killed();
        },
    );
}

#[test]
fn a_consumer_that_dies_releases_what_its_tickets_gave_it() {
    two(
        "a_consumer_that_dies_releases_what_its_tickets_gave_it",
        |peer, engine, link| {
            let (x, ticket) = send_ticket_of(engine, &link, 1);
            heard(&link);
            drop(ticket);
            fill(engine, &x, 2);
            std::thread::sleep(Duration::from_millis(30));
            assert!(!x.is_ready(), "the write waits for the other process");
            peer.kill();
            assert_eq!(value(engine, &x).unwrap(), 2);
        },
        |engine, link| {
            let ticket = receive_ticket(&link);
            let x = engine.from_ticket(&ticket).unwrap();
            assert_eq!(value(engine, &x).unwrap(), 1);
            say(engine, &link);
            until_killed();
        },
    );
}

#[test]
fn bytes_that_are_no_ticket_are_refused_and_a_process_may_use_its_own_tickets() {
    let engine = engine();
    let x = engine.zeros(&[LENGTH], DType::I64).unwrap();
    fill(&engine, &x, 6);
    let ticket = x.ticket(&ShareOptions::default()).unwrap();
    let bytes = ticket.to_bytes();
    for wrong in [&bytes[1..], &bytes[..bytes.len() - 1], b"", &[0; 70]] {
        assert!(matches!(Ticket::from_bytes(wrong), Err(Error::Invalid(_))), "{wrong:?}");
    }
    let y = engine.from_ticket(&Ticket::from_bytes(&bytes).unwrap()).unwrap();
    assert_eq!(value(&engine, &y).unwrap(), 6);
    let passed_on = y.ticket(&ShareOptions::default()).unwrap();
    let again = engine.from_ticket(&passed_on).unwrap();
    assert_eq!(value(&engine, &again).unwrap(), 6);
}

#[test]
fn a_ticket_of_another_machine_or_network_namespace_says_so_and_names_no_death() {
    let engine = engine();
    let x = engine.zeros(&[1], DType::I64).unwrap();
    let mut bytes = x.ticket(&ShareOptions::default()).unwrap().to_bytes();
    let failure_of = |bytes: &[u8]| {
        let y = engine.from_ticket(&Ticket::from_bytes(bytes).unwrap()).unwrap();
        y.wait_timeout(Duration::from_secs(60)).unwrap_err()
    };
    // No door has this address.
    bytes[Address::BYTES - 1] = if bytes[Address::BYTES - 1] == b'0' { b'1' } else { b'0' };
    let died = failure_of(&bytes);
    assert!(died.to_string().contains(&format!("process {} died or ended", std::process::id())), "{died}");
    bytes[Address::BYTES + 4] ^= 1;
    let elsewhere = failure_of(&bytes).to_string();
    assert!(elsewhere.contains("another machine or in another network namespace"), "{elsewhere}");
    assert!(!elsewhere.contains("died"), "{elsewhere}");
}

/// Where the system refuses a network namespace, there is none to come from.
#[test]
fn a_ticket_that_is_opened_in_another_network_namespace_names_no_death() {
    const NAME: &str = "a_ticket_that_is_opened_in_another_network_namespace_names_no_death";
    let engine = engine();
    if let Some(digits) = role() {
        let bytes: Vec<u8> = (0..digits.len() / 2)
            .map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).expect("a byte"))
            .collect();
        let x = engine.from_ticket(&Ticket::from_bytes(&bytes).unwrap()).unwrap();
        let error = x.wait_timeout(Duration::from_secs(60)).unwrap_err().to_string();
        assert!(error.contains("another network namespace") && !error.contains("died"), "{error}");
        return;
    }
    let alone = ["unshare", "-rn"];
    let is_permitted = std::process::Command::new(alone[0]).args([alone[1], "true"]).status();
    if !is_permitted.is_ok_and(|status| status.success()) {
        assert!(std::env::var_os("CI").is_none(), "this machine permits no network namespace");
        return println!("skipped: this machine permits no network namespace");
    }
    let x = engine.zeros(&[1], DType::I64).unwrap();
    let ticket = x.ticket(&ShareOptions::default()).unwrap();
    let digits: String = ticket.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(Peer::start_by(&alone, NAME, &digits).end().success());
}

#[test]
fn a_void_ticket_is_refused_although_the_link_has_room_for_no_more_tensors() {
    const ROOM: usize = 16_384;
    let engine = engine();
    let x = engine.zeros(&[LENGTH], DType::I64).unwrap();
    let ticket = x.ticket(&ShareOptions::default()).unwrap();
    let bytes = ticket.to_bytes();
    let (address, rest) = bytes.split_at(Address::BYTES);
    let link = wait(RawLink::connect(&Address::from_bytes(address).unwrap())).unwrap();
    let (completer, done) = host::promise("a message");
    completer.complete();
    let ask = |number: usize, secret: &[u8]| {
        wait(link.send(&done, &[&(number as u64).to_le_bytes(), secret].concat())).unwrap();
    };
    let receive = || link.receive_timeout(Some(Duration::from_secs(60))).unwrap().expect("an answer");
    let mut in_use = Vec::new();
    for first in (0..ROOM - 64).step_by(64) {
        (first..first + 64).for_each(|number| ask(number, &rest[12..28]));
        in_use.extend((0..64).map(|_| receive()));
    }
    // The last of these wait for room.
    (ROOM - 64..ROOM + 8).for_each(|number| ask(number, &rest[12..28]));
    ask(ROOM + 8, &[0; 16]);
    let refused = loop {
        match receive() {
            answer if answer.note().len() > 8 => in_use.push(answer),
            answer => break answer,
        }
    };
    assert_eq!(refused.note(), (ROOM as u64 + 8).to_le_bytes());
    assert!(failure(refused.fence()).message().contains("not valid any more"));
    let waited = ROOM + 8 - in_use.len();
    assert!(waited > 0, "it was not full");
    drop(in_use);
    (0..waited).for_each(|_| drop(receive()));
}

fn recorder(path: &Path) -> Recorder {
    Recorder::open(TraceOptions::default()).expect("a recorder").to_file(path).expect("a file")
}

/// Files of the traces of both processes of a test; `owner` is the number of the first.
fn traces_of(owner: u32) -> [PathBuf; 2] {
    let folder = std::env::temp_dir().join(format!("estafette-links-{owner}"));
    std::fs::create_dir_all(&folder).expect("a folder");
    ["owner.pftrace", "consumer.pftrace"].map(|name| folder.join(name))
}

fn named<'t>(trace: &'t Trace, name: &str) -> &'t Operation {
    let found = trace.operations.iter().find(|operation| *operation.name == *name);
    found.unwrap_or_else(|| panic!("no operation is called {name}"))
}

/// The waits of an operation for this cause, as sentences; and all of the time that it waited is in the
/// roots.
fn sentences(trace: &Trace, name: &str, cause: Cause) -> Vec<String> {
    let waiter = named(trace, name).id;
    let roots = roots(trace).into_iter().filter(|root| root.waiter == waiter && root.cause == cause);
    roots.map(|root| sentence(trace, &root, "long")).collect()
}

#[test]
fn a_trace_has_a_wait_on_a_link_as_a_threads_while_it_lasts_and_then_what_its_ticket_named() {
    // A tensor that is not ready yet, and is copied then, is sent as a ticket.
    let private = Engine::builder().workers(2).build().expect("an engine");
    let (near, far) = pair(&private);
    let recorder = Recorder::open(TraceOptions::default()).expect("a recorder");
    let path = std::env::temp_dir().join(format!("estafette-link-wait-{}.pftrace", std::process::id()));
    std::thread::scope(|scope| {
        let received = scope
            .spawn(|| bindings::remote::block_on(&private, far.receive(), Some(Duration::from_secs(60))));
        let now = || {
            recorder.snapshot(&path).unwrap();
            trace::read(&path).unwrap()
        };
        until("a wait is in the trace", || {
            now().operations.iter().any(|operation| *operation.name == *"receive")
        });
        assert_eq!(named(&now(), "receive").kind, OperationKind::Wait);
        let (resume, may_go_on) = channel();
        let x = private.zeros(&[1], DType::I64).unwrap();
        let slow = private.op("slow").writes([&x]).run(move |[], [_x]| Ok(may_go_on.recv()?));
        drop(slow.unwrap());
        wait(near.send(&x, &ShareOptions::default())).unwrap();
        let received = received.join().unwrap().unwrap().expect("a tensor");
        resume.send(()).unwrap();
        received.wait().unwrap();
    });
    std::fs::remove_file(path).unwrap();
    let trace = recorder.finish();
    let receive = named(&trace, "receive");
    let brought = receive.waits_for.and_then(|id| trace.operation(id)).expect("what was waited for");
    assert!(receive.submitted < brought.submitted && brought.kind == OperationKind::Import, "{brought:?}");
}

/// ```text
/// owner      produce ───────────────┐ (until the other process waits)      overwrite ···waits for the lease···█
/// consumer       receive   consume ·│··waits··█                                             release ──┘
/// ```
#[test]
fn a_report_of_both_processes_names_the_operation_and_the_lease_of_the_other() {
    two(
        "a_report_of_both_processes_names_the_operation_and_the_lease_of_the_other",
        |peer, engine, link| {
            let paths = traces_of(std::process::id());
            let recorder = recorder(&paths[0]);
            let x = engine.zeros(&[LENGTH], DType::I64).unwrap();
            let ([began, resume], [has_begun, may_go_on]) = {
                let ((a, b), (c, d)) = (channel(), channel());
                ([a, c], [b, d])
            };
            let produce = engine.op("produce").writes([&x]).run(move |[], [_x]| {
                began.send(())?;
                may_go_on.recv()?;
                Ok(())
            });
            drop(produce.unwrap());
            has_begun.recv().unwrap();
            // The other process waits for the tensor already.
            heard(&link);
            wait(link.send(&x, &ShareOptions::default())).unwrap();
            let line = value(engine, &receive(&link)).unwrap();
            resume.send(()).unwrap();
            heard(&link);
            drop(engine.op("overwrite").writes([&x]).run(|[], [_x]| Ok(())).unwrap());
            say(engine, &link);
            x.wait().unwrap();
            assert!(peer.0.wait().unwrap().success());
            recorder.save().unwrap();

            let [own, others] = [0, 1].map(|at| trace::read(&paths[at]).unwrap());
            let (here, there) = (std::process::id(), peer.process());
            let alone = sentences(&others, "consume", Cause::Computing).join("\n");
            assert!(alone.contains(&format!("in another process (process {here})")), "{alone}");
            let alone = sentences(&own, "overwrite", Cause::Leased).join("\n");
            assert!(alone.contains(&format!("a lease taken by process {there} was still open")), "{alone}");

            let waited = [&own, &others].map(|trace| report(trace).totals.waited_ns);
            let again = merge(vec![own.clone(), own.clone()]).unwrap_err();
            assert!(again.contains(&format!("two traces are of process {here}")), "{again}");
            let both = merge(vec![own, others]).unwrap();
            let consume = sentences(&both, &format!("consume @{there}"), Cause::Computing).join("\n");
            assert!(consume.contains(&format!("because `produce @{here}` was still computing")), "{consume}");
            let overwrite = sentences(&both, &format!("overwrite @{here}"), Cause::Leased).join("\n");
            let holder = format!("@{there} at links.rs:{line} was still open");
            assert!(overwrite.contains(&holder), "{overwrite}");
            // The import is what was waited for, and its owner had not sent it yet.
            let import =
                named(&both, &format!("receive @{there}")).waits_for.and_then(|id| both.operation(id));
            assert_eq!(import.map(|import| import.kind), Some(OperationKind::Import));
            let receive = sentences(&both, &format!("receive @{there}"), Cause::Computing).join("\n");
            let from = format!("computed in another process (process {here})");
            assert!(receive.contains(" in `receive` waited long") && receive.contains(&from), "{receive}");
            let both_report = report(&both);
            assert_eq!(both_report.totals.waited_ns, waited.into_iter().sum::<u64>());
            // On one axis: the value was received while it was made, and released before it was made anew.
            let [produce, overwrite] =
                ["produce", "overwrite"].map(|name| named(&both, &format!("{name} @{here}")));
            // Other tests of this process may receive tensors, too.
            let is_there = |it: &Operation| it.site.as_ref().is_some_and(|site| i64::from(site.line) == line);
            let is_import = |it: &&Operation| it.kind == OperationKind::Import && is_there(it);
            let import = both.operations.iter().find(is_import).unwrap();
            assert!(produce.began < Some(import.submitted) && Some(import.submitted) < produce.done);
            assert!(named(&both, &format!("consume @{there}")).done < overwrite.began);

            let files = paths.each_ref().map(|path| std::fs::read(path).unwrap());
            assert_eq!(perfetto::read(&files.concat()), both, "one file behind the other is read as both");
            let mut page = Vec::new();
            html::write(&both, &report(&both), &mut page).unwrap();
            assert!(!page.is_empty());
            std::fs::remove_dir_all(paths[0].parent().unwrap()).unwrap();
        },
        |engine, link| {
            let recorder = recorder(&traces_of(link.process())[1]);
            let (mut x, line) = (Box::pin(link.receive()), line!());
            assert!((&mut x).now_or_never().is_none());
            say(engine, &link);
            let x = wait(x).unwrap().unwrap();
            drop(engine.op("consume").reads([&x]).run(|[_x], []| Ok(())).unwrap());
            let word = engine.zeros(&[1], DType::I64).unwrap();
            fill(engine, &word, line.into());
            wait(link.send(&word, &ShareOptions::default())).unwrap();
            x.wait().unwrap();
            engine.wait_all(None).unwrap();
            say(engine, &link);
            heard(&link);
            drop(x);
            recorder.save().unwrap();
        },
    );
}

/// One in shared memory, one that is copied, one without a shape, which goes by a ticket, and one that is
/// lent.
#[test]
fn what_could_not_be_sent_is_held_by_nothing() {
    let (engine, private) = (engine(), Engine::builder().workers(1).build().expect("an engine"));
    let door = Door::open().expect("a door");
    let (near, far) = std::thread::scope(|scope| {
        let far = scope.spawn(|| wait(engine.connect(door.address())).expect("a link"));
        (wait(engine.accept(&door)).expect("a link"), far.join().expect("it does not panic"))
    });
    drop(far);
    assert!(wait(near.receive()).expect("it was closed").is_none());
    let shared = engine.zeros(&[LENGTH], DType::I64).expect("memory");
    let copied = private.zeros(&[LENGTH], DType::I64).expect("memory");
    let lent = engine.empty(&[LENGTH], DType::I64, Memory::SharedForWriting).expect("memory");
    let (come, may_come) = channel::<()>();
    let result = engine.zeros(&[LENGTH], DType::I64).expect("memory");
    let undefined = engine.op("late").produce(move |[]| {
        may_come.recv()?;
        Ok(Produced::from(result))
    });
    let undefined = undefined.expect("submitted");
    for tensor in [&shared, &copied, &undefined] {
        let error = wait(near.send(tensor, &ShareOptions::default())).expect_err("the other end is closed");
        assert!(error.to_string().contains("closed the link"), "{error}");
    }
    wait(near.lend(&lent)).expect_err("the other end is closed");
    come.send(()).expect("it waits for that");
    for (engine, tensor) in [(&engine, &shared), (&private, &copied), (&engine, &undefined), (&engine, &lent)]
    {
        fill(engine, tensor, 7);
        assert_eq!(value(engine, tensor).expect("its lease has ended"), 7);
    }
}
