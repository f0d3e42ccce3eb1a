//! Tensors of one process in another.

#![cfg(not(any(estafette_portable, estafette_loom, estafette_shuttle)))]

#[path = "../../links/tests/support/mod.rs"]
mod support;

use estafette::remote::{Address, Door, Link};
use estafette::{DType, Engine, Tensor};

use support::{Peer, role, until, wait};

const LENGTH: i64 = 5_000;

fn engine() -> Engine {
    Engine::builder().workers(2).shared(true).build().expect("an engine")
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
    one.wait()?;
    Ok(one.to_vec::<i64>()?[0])
}

fn is_send<T: Send>(value: T) -> T {
    value
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
                wait(is_send(link.send(&x))).unwrap();
            }
            fill(engine, &x, -1);
            for round in 0..ROUNDS {
                let doubled = wait(is_send(link.receive())).unwrap();
                assert_eq!(value(engine, &doubled).unwrap(), 2 * round);
            }
            assert_eq!(value(engine, &x).unwrap(), -1);
            drop(link);
            assert!(peer.0.wait().unwrap().success());
        },
        |engine, link| {
            for round in 0..ROUNDS {
                let x = wait(link.receive()).unwrap();
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
                wait(link.send(&y)).unwrap();
                assert_eq!(value(engine, &y).unwrap(), 2 * round);
            }
            assert!(wait(link.receive()).unwrap_err().to_string().contains("closed the link"));
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
            wait(link.send(&x)).unwrap();
            fill(engine, &x, 7);
            wait(link.send(&x)).unwrap();
            let private = Engine::builder().workers(1).build().unwrap();
            let y = private.zeros(&[LENGTH], DType::I64).unwrap();
            assert!(wait(link.send(&y)).unwrap_err().to_string().contains("not shared"));
            assert!(peer.0.wait().unwrap().success());
            assert!(x.wait().is_ok());
        },
        |engine, link| {
            let failed = wait(link.receive()).unwrap();
            let error = failed.wait().unwrap_err().to_string();
            assert!(error.contains("out of paper") && error.contains("in process"), "{error}");
            drop(failed);
            let healed = wait(link.receive()).unwrap();
            assert_eq!(value(engine, &healed).unwrap(), 7);
            let refused = engine.op("write").writes([&healed]).run(|[], [_x]| Ok(()));
            assert!(refused.is_err(), "it is lent for reading");
        },
    );
}

#[test]
fn a_consumer_that_dies_gives_back_what_it_read() {
    two(
        "a_consumer_that_dies_gives_back_what_it_read",
        |peer, engine, link| {
            let x = engine.zeros(&[LENGTH], DType::I64).unwrap();
            fill(engine, &x, 1);
            wait(link.send(&x)).unwrap();
            drop(wait(link.receive()).unwrap());
            fill(engine, &x, 2);
            std::thread::sleep(std::time::Duration::from_millis(30));
            assert!(!x.is_ready(), "the write waits for the lease");
            peer.kill();
            assert_eq!(value(engine, &x).unwrap(), 2);
        },
        |engine, link| {
            let x = wait(link.receive()).unwrap();
            assert_eq!(value(engine, &x).unwrap(), 1);
            wait(link.send(&engine.zeros(&[1], DType::I64).unwrap())).unwrap();
            std::thread::sleep(std::time::Duration::from_secs(600));
        },
    );
}

#[test]
fn what_an_owner_had_finished_when_it_died_stays_readable() {
    two(
        "what_an_owner_had_finished_when_it_died_stays_readable",
        |peer, engine, link| {
            // The roles are reversed here: the other process is the owner.
            let ready = wait(link.receive()).unwrap();
            let pending = wait(link.receive()).unwrap();
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
            wait(link.send(&ready)).unwrap();
            engine
                .op("endless")
                .writes([&pending])
                .run(|[], [_x]| {
                    std::thread::sleep(std::time::Duration::from_secs(600));
                    Ok(())
                })
                .unwrap();
            wait(link.send(&pending)).unwrap();
            std::thread::sleep(std::time::Duration::from_secs(600));
        },
    );
}
