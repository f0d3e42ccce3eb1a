//! Tensors whose memory is not shared, and tensors that have no memory yet, in another process.

use estafette::BodyResult;
use estafette::bindings;
use estafette::devices::Device;
use estafette::devices::sim::{SimDevice, SimOptions};

use super::*;

fn private() -> Engine {
    Engine::builder().workers(2).build().expect("an engine")
}

fn copied(engine: &Engine) -> u64 {
    engine.stats().copied_for_processes
}

/// A result whose type and shape are not known before the other end of the channel releases it.
fn late(
    engine: &Engine,
    make: impl FnOnce() -> BodyResult<Produced> + Send + 'static,
) -> (Tensor, Sender<()>) {
    let (resume, may_go_on): (Sender<()>, Receiver<()>) = channel();
    let tensor = engine.op("late").produce(move |[]| {
        may_go_on.recv()?;
        make()
    });
    (tensor.expect("submitted"), resume)
}

const BYTES: u64 = 8 * LENGTH as u64;

/// The counter is of the process, so the owner is the other process here, which runs this test alone.
#[test]
fn memory_that_is_not_shared_is_copied_once_it_is_ready_and_every_byte_is_counted() {
    two(
        "staging::memory_that_is_not_shared_is_copied_once_it_is_ready_and_every_byte_is_counted",
        |peer, engine, link| {
            let x = receive(&link);
            assert_eq!(x.shape().unwrap()[..], [LENGTH]);
            say(engine, &link);
            assert_eq!(value(engine, &x).unwrap(), 7);
            say(engine, &link);
            let (held, copy) = (receive(&link), receive(&link));
            assert_eq!(value(engine, &held).unwrap(), 1);
            assert_eq!(value(engine, &copy).unwrap(), 1);
            say(engine, &link);
            let y = engine.from_ticket(&receive_ticket(&link)).unwrap();
            assert_eq!(value(engine, &y).unwrap(), 8);
            say(engine, &link);
            assert!(peer.0.wait().unwrap().success());
        },
        |engine, link| {
            let private = private();
            let x = private.from_vec(vec![0_i64; LENGTH as usize], &[LENGTH]).unwrap();
            let begin = fill_later(&private, &x);
            wait(link.send(&x, &ShareOptions::default())).unwrap();
            fill(&private, &x, 8);
            heard(&link);
            assert_eq!(copied(&private), 0, "it is not ready");
            begin.send(()).unwrap();
            // The other process has it, and this one writes on.
            heard(&link);
            assert_eq!(value(&private, &x).unwrap(), 8);
            assert_eq!(copied(&private), BYTES);

            let shared = engine.zeros(&[LENGTH], DType::I64).unwrap();
            fill(engine, &shared, 1);
            wait(link.send(&shared, &ShareOptions::default())).unwrap();
            wait(link.send(&shared, &ShareOptions { copy: Some(true), ..Default::default() })).unwrap();
            heard(&link);
            assert_eq!(
                copied(engine),
                2 * BYTES,
                "memory that is shared is copied only where that is asked for"
            );
            let never = ShareOptions { copy: Some(false), ..Default::default() };
            assert!(matches!(wait(link.send(&x, &never)), Err(Error::NotShared(_))));
            assert!(matches!(x.ticket(&never), Err(Error::NotShared(_))));
            send_ticket(
                engine,
                &link,
                &x.ticket(&ShareOptions { once: true, ..ShareOptions::default() }).unwrap(),
            );
            heard(&link);
            assert_eq!(copied(engine), 3 * BYTES);
        },
    );
}

/// Both workers run other operations. What is counted is of the process, so the owner is the other one.
#[test]
fn a_ticket_of_memory_that_is_not_shared_takes_no_memory_itself_and_waits_for_no_copy() {
    const MUCH: i64 = 4 << 20;
    two(
        "staging::a_ticket_of_memory_that_is_not_shared_takes_no_memory_itself_and_waits_for_no_copy",
        |peer, engine, link| {
            let x = engine.from_ticket(&receive_ticket(&link)).unwrap();
            until("the shape is known", || bindings::tensor::is_defined(&x));
            assert_eq!(x.shape().unwrap()[..], [MUCH]);
            assert!(!x.is_ready());
            say(engine, &link);
            assert_eq!(value(engine, &x).unwrap(), 7);
            say(engine, &link);
            assert!(peer.0.wait().unwrap().success());
        },
        |engine, link| {
            let private = private();
            let x = private.from_vec(vec![0_i64; MUCH as usize], &[MUCH]).unwrap();
            let begin = fill_later(&private, &x);
            let (end, may_end) = channel::<()>();
            drop(private.op("other").run(move |[], []| Ok(may_end.recv()?)).unwrap());
            let segments = || {
                let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
                maps.lines().filter(|line| line.contains("memfd:estafette-segment")).count()
            };
            let before = segments();
            let ticket = x.ticket(&ShareOptions::default()).unwrap();
            assert_eq!(segments(), before);
            // A ticket that is dropped before its memory is taken takes none, and nothing is copied for it.
            let unused = private.from_vec(vec![0_i64; MUCH as usize], &[MUCH]).unwrap();
            drop(unused.ticket(&ShareOptions::default()).unwrap());
            send_ticket(engine, &link, &ticket);
            end.send(()).unwrap();
            heard(&link);
            assert_eq!(copied(&private), 0, "it is not ready");
            begin.send(()).unwrap();
            heard(&link);
            assert_eq!(copied(&private), 8 * MUCH as u64);
        },
    );
}

/// The thread that makes the tensor known may be that of links.
#[test]
fn much_memory_for_a_copy_of_what_comes_later_is_taken_by_an_operation() {
    const MUCH: i64 = 1 << 20;
    let private = private();
    let (near, far) = pair(&private);
    let recorder = Recorder::open(TraceOptions::default()).unwrap();
    let (x, may_come) = late(&private, || Ok(Produced::from_vec(vec![5_i64; MUCH as usize], &[MUCH])?));
    wait(near.send(&x, &ShareOptions::default())).unwrap();
    let received = receive(&far);
    may_come.send(()).unwrap();
    assert_eq!(received.to_vec::<i64>().unwrap()[MUCH as usize - 1], 5);
    assert_eq!(named(&recorder.finish(), "memory for another process").kind, OperationKind::Operation);
}

#[test]
fn memory_of_a_device_is_copied_to_the_host_and_a_failure_follows() {
    two(
        "staging::memory_of_a_device_is_copied_to_the_host_and_a_failure_follows",
        |peer, engine, link| {
            assert_eq!(value(engine, &receive(&link)).unwrap(), 5);
            let error = receive(&link).wait().unwrap_err().to_string();
            assert!(error.contains("out of paper") && error.contains("in process"), "{error}");
            say(engine, &link);
            assert!(peer.0.wait().unwrap().success());
        },
        |_engine, link| {
            let device = SimDevice::new(SimOptions::default()).unwrap();
            let engine = Engine::builder().workers(2).device(device.clone()).build().unwrap();
            let x = engine.empty(&[LENGTH], DType::I64, device.id()).unwrap();
            fill(&engine, &x, 5);
            wait(link.send(&x, &ShareOptions::default())).unwrap();
            let failed = engine.from_vec(vec![0_i64; LENGTH as usize], &[LENGTH]).unwrap();
            engine.op("print").writes([&failed]).run(|[], [_x]| Err("out of paper".into())).unwrap();
            wait(link.send(&failed, &ShareOptions::default())).unwrap();
            heard(&link);
            assert_eq!(copied(&engine), BYTES, "what failed is not copied");
            assert!(failed.wait().is_err());
        },
    );
}

#[test]
fn what_an_engine_at_its_limit_or_shut_down_has_sent_is_copied() {
    two(
        "staging::what_an_engine_at_its_limit_or_shut_down_has_sent_is_copied",
        |peer, _engine, link| {
            let full = Engine::builder().workers(2).in_flight_limit(1).build().unwrap();
            let x = full.from_vec(vec![3_i64; LENGTH as usize], &[LENGTH]).unwrap();
            let (end, may_end) = channel::<()>();
            drop(full.op("endless").run(move |[], []| Ok(may_end.recv()?)).unwrap());
            wait(link.send(&x, &ShareOptions::default())).unwrap();
            heard(&link);
            end.send(()).unwrap();
            wait(full.shutdown());
            wait(link.send(&x, &ShareOptions::default())).unwrap();
            assert!(peer.0.wait().unwrap().success());
        },
        |engine, link| {
            assert_eq!(value(engine, &receive(&link)).unwrap(), 3);
            say(engine, &link);
            assert_eq!(value(engine, &receive(&link)).unwrap(), 3);
        },
    );
}

/// The owner is the other process here, for the sake of its counter.
#[test]
fn a_result_of_unknown_shape_crosses_before_it_is_there() {
    two(
        "staging::a_result_of_unknown_shape_crosses_before_it_is_there",
        |peer, engine, link| {
            let (x, y) = (receive(&link), receive(&link));
            let ticket = receive_ticket(&link);
            let (z, held) = bindings::remote::from_ticket_held(engine, &ticket, None).unwrap();
            assert!(!bindings::tensor::is_defined(&x) && matches!(x.shape(), Err(Error::NotDefined(_))));
            until("the ticket may be dropped", || !held.state().is_pending());
            assert!(!bindings::tensor::is_defined(&z));
            say(engine, &link);
            for (tensor, expected) in [(&x, 4), (&y, 0), (&z, 4)] {
                tensor.wait().unwrap();
                assert_eq!(tensor.shape().unwrap()[..], [LENGTH]);
                assert_eq!(value(engine, tensor).unwrap(), expected);
            }
            assert!(y.is_read_only().unwrap());
            say(engine, &link);
            heard(&link);
            drop((x, y, z));
            assert!(peer.0.wait().unwrap().success());
        },
        |_engine, link| {
            // Three of them are blocked.
            let engine = &Engine::builder().workers(4).shared(true).build().unwrap();
            let in_vector = || Ok(Produced::from_vec(vec![4_i64; LENGTH as usize], &[LENGTH])?);
            let maker = engine.clone();
            let in_segment = move || Ok(Produced::from(maker.zeros(&[LENGTH], DType::I64)?));
            let (x, x_may_come) = late(engine, in_vector);
            let (y, y_may_come) = late(engine, in_segment);
            let (z, z_may_come) = late(engine, in_vector);
            for tensor in [&x, &y] {
                assert!(!bindings::tensor::is_defined(tensor));
                wait(link.send(tensor, &ShareOptions::default())).unwrap();
            }
            let ticket = z.ticket(&ShareOptions::default()).unwrap();
            send_ticket(engine, &link, &ticket);
            // The ticket was used, and may be dropped before the value is there.
            heard(&link);
            drop(ticket);
            for may_come in [&x_may_come, &y_may_come, &z_may_come] {
                may_come.send(()).unwrap();
            }
            heard(&link);
            assert_eq!(copied(engine), 2 * BYTES, "a result in shared memory is not copied");
            // The other process holds the version of the one in shared memory, and not those of the others.
            fill(engine, &x, 9);
            fill(engine, &y, 9);
            assert_eq!(value(engine, &x).unwrap(), 9);
            std::thread::sleep(Duration::from_millis(30));
            assert!(!y.is_ready(), "the write waits for the other process");
            say(engine, &link);
            assert_eq!(value(engine, &y).unwrap(), 9);
        },
    );
}

#[test]
fn a_result_that_never_comes_fails_with_its_cause_or_the_death_of_its_process() {
    two(
        "staging::a_result_that_never_comes_fails_with_its_cause_or_the_death_of_its_process",
        |peer, engine, link| {
            // The roles are reversed here: the other process is the owner.
            let [failed, refused, pending] = [(); 3].map(|()| receive(&link));
            let by_ticket = engine.from_ticket(&receive_ticket(&link)).unwrap();
            let error = failed.wait().unwrap_err().to_string();
            assert!(error.contains("out of paper") && error.contains("in process"), "{error}");
            let error = refused.wait().unwrap_err().to_string();
            assert!(error.contains("a copy was refused"), "{error}");
            assert!(!pending.is_ready() && !by_ticket.is_ready());
            peer.kill();
            let died = format!("process {} died", peer.process());
            for tensor in [pending, by_ticket] {
                let error = tensor.wait().unwrap_err().to_string();
                assert!(error.contains(&died), "{error}");
            }
        },
        |engine, link| {
            let vector = || Ok(Produced::from_vec(vec![1_i64; 4], &[4])?);
            let (failed, may_fail) = late(engine, || Err("out of paper".into()));
            let (refused, may_come) = late(engine, vector);
            let (pending, _never) = late(engine, vector);
            wait(link.send(&failed, &ShareOptions::default())).unwrap();
            let never = ShareOptions { copy: Some(false), ..Default::default() };
            wait(link.send(&refused, &never)).unwrap();
            wait(link.send(&pending, &ShareOptions::default())).unwrap();
            let ticket = pending.ticket(&ShareOptions::default()).unwrap();
            send_ticket(engine, &link, &ticket);
            may_fail.send(()).unwrap();
            may_come.send(()).unwrap();
            until_killed();
        },
    );
}

#[test]
fn a_consumer_that_dies_before_a_result_is_there_leaves_it_to_its_owner() {
    two(
        "staging::a_consumer_that_dies_before_a_result_is_there_leaves_it_to_its_owner",
        |peer, engine, link| {
            let maker = engine.clone();
            let (x, may_come) = late(engine, move || Ok(maker.zeros(&[LENGTH], DType::I64)?.into()));
            wait(link.send(&x, &ShareOptions::default())).unwrap();
            heard(&link);
            peer.kill();
            fill(engine, &x, 2);
            may_come.send(()).unwrap();
            assert_eq!(value(engine, &x).unwrap(), 2);
        },
        |engine, link| {
            let x = receive(&link);
            say(engine, &link);
            let _ = x.wait();
            until_killed();
        },
    );
}
