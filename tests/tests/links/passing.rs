//! Tensors that one process passes on to another. The owner, which is this process, and two others:
//!
//! ```text
//! owner ──link──► between ──link──► consumer
//!   └───────────────link───────────────┘
//! ```

use super::*;

/// Roles of the second process of a test.
const BETWEEN: i64 = 0;
const CONSUMER: i64 = 1;

/// Runs the roles of the owner here, and of the two others in processes of their own. Those are joined by a
/// link.
fn three(
    name: &str,
    owner: impl FnOnce(&Engine, (&mut Peer, Link), (&mut Peer, Link)),
    between: impl FnOnce(&Engine, Link, Link),
    consumer: impl FnOnce(&Engine, Link, Link),
) {
    let engine = engine();
    if let Some(door) = role() {
        let link =
            wait(engine.connect(&Address::from_bytes(door.as_bytes()).expect("an address"))).expect("a link");
        if value(&engine, &receive(&link)).expect("a role") == BETWEEN {
            let door = Door::open().expect("a door");
            send_bytes(&engine, &link, door.address().as_bytes());
            let next = wait(engine.accept(&door)).expect("a link");
            return between(&engine, link, next);
        }
        let address = Address::from_bytes(&receive_bytes(&link)).expect("an address");
        let before = wait(engine.connect(&address)).expect("a link");
        return consumer(&engine, link, before);
    }
    let door = Door::open().expect("a door");
    let address = door.address().to_string();
    let [mut first, mut second] = [(); 2].map(|()| Peer::start(name, &address));
    let one = wait(engine.accept(&door)).expect("a link");
    let two = wait(engine.accept(&door)).expect("a link");
    if one.process() != first.process() {
        std::mem::swap(&mut first, &mut second);
    }
    for (link, role) in [(&one, BETWEEN), (&two, CONSUMER)] {
        let word = engine.zeros(&[1], DType::I64).expect("memory");
        fill(&engine, &word, role);
        wait(link.send(&word, &ShareOptions::default())).expect("sent");
    }
    send_bytes(&engine, &two, &receive_bytes(&one));
    owner(&engine, (&mut first, one), (&mut second, two));
}

#[test]
fn a_tensor_that_was_passed_on_outlives_the_process_between() {
    three(
        "passing::a_tensor_that_was_passed_on_outlives_the_process_between",
        |engine, (between, to_between), (consumer, to_consumer)| {
            let x = engine.zeros(&[LENGTH], DType::I64).unwrap();
            fill(engine, &x, 1);
            wait(to_between.send(&x, &ShareOptions::default())).unwrap();
            let ticket = x.ticket(&ShareOptions::default()).unwrap();
            send_ticket(engine, &to_between, &ticket);
            // The consumer has three: by a link, by a ticket, and by a ticket of what was made with one.
            heard(&to_consumer);
            drop(ticket);
            fill(engine, &x, 2);
            between.kill();
            between.0.wait().unwrap();
            say(engine, &to_consumer);
            heard(&to_consumer);
            std::thread::sleep(Duration::from_millis(30));
            assert!(!x.is_ready(), "the write waits for the consumer");
            say(engine, &to_consumer);
            assert_eq!(value(engine, &x).unwrap(), 2);
            assert!(consumer.0.wait().unwrap().success());
        },
        |engine, link, next| {
            let x = receive(&link);
            wait(next.send(&x, &ShareOptions::default())).unwrap();
            let own = x.ticket(&ShareOptions::default()).unwrap();
            send_ticket(engine, &next, &own);
            // Not there yet when it is passed on.
            let y = engine.from_ticket(&receive_ticket(&link)).unwrap();
            wait(next.send(&y, &ShareOptions::default())).unwrap();
            assert_eq!(engine.stats().copied_for_processes, 0);
            until_killed();
        },
        |engine, link, before| {
            let x = receive(&before);
            let y = engine.from_ticket(&receive_ticket(&before)).unwrap();
            let z = receive(&before);
            for tensor in [&x, &y, &z] {
                assert_eq!(value(engine, tensor).unwrap(), 1);
            }
            assert_eq!(engine.stats().copied_for_processes, 0);
            say(engine, &link);
            heard(&link);
            for tensor in [&x, &y, &z] {
                assert_eq!(value(engine, tensor).unwrap(), 1, "the process between is dead");
            }
            say(engine, &link);
            heard(&link);
            drop((x, y, z));
        },
    );
}

#[test]
fn a_pending_tensor_that_was_passed_on_is_kept_by_its_owner_alone() {
    three(
        "passing::a_pending_tensor_that_was_passed_on_is_kept_by_its_owner_alone",
        |engine, (between, to_between), (consumer, to_consumer)| {
            let x = engine.zeros(&[LENGTH], DType::I64).unwrap();
            let begin = fill_later(engine, &x);
            wait(to_between.send(&x, &ShareOptions::default())).unwrap();
            heard(&to_consumer);
            between.kill();
            between.0.wait().unwrap();
            begin.send(()).unwrap();
            fill(engine, &x, 8);
            heard(&to_consumer);
            assert_eq!(value(engine, &x).unwrap(), 8);
            assert!(consumer.0.wait().unwrap().success());
        },
        |_, link, next| {
            wait(next.send(&receive(&link), &ShareOptions::default())).unwrap();
            until_killed();
        },
        |engine, link, before| {
            let x = receive(&before);
            until("it is there, and pending", || estafette::bindings::tensor::is_defined(&x));
            assert!(!x.is_ready());
            say(engine, &link);
            assert_eq!(value(engine, &x).unwrap(), 7);
            drop(x);
            say(engine, &link);
        },
    );
}

#[test]
fn a_process_without_room_for_another_ticket_refuses_to_pass_on_and_does_so_once_it_has_room() {
    // The owner is the third process here, since other tests of this one have tickets.
    three(
        "passing::a_process_without_room_for_another_ticket_refuses_to_pass_on_and_does_so_once_it_has_room",
        |engine, (between, to_between), (owner, to_owner)| {
            let ticket = receive_ticket(&to_between);
            heard(&to_owner);
            for _ in 0..2 {
                let error = engine.from_ticket(&ticket).unwrap().wait().unwrap_err().to_string();
                assert!(error.contains("65536 tickets are alive, which is the most"), "{error}");
            }
            say(engine, &to_owner);
            heard(&to_owner);
            assert_eq!(value(engine, &engine.from_ticket(&ticket).unwrap()).unwrap(), 4);
            say(engine, &to_owner);
            assert!(owner.0.wait().unwrap().success());
            between.kill();
        },
        |engine, link, next| {
            let ticket = receive(&next).ticket(&ShareOptions::default()).unwrap();
            send_ticket(engine, &link, &ticket);
            until_killed();
        },
        |engine, link, before| {
            let x = engine.zeros(&[LENGTH], DType::I64).unwrap();
            fill(engine, &x, 4);
            wait(before.send(&x, &ShareOptions::default())).unwrap();
            let mut tickets: Vec<_> =
                (0..1 << 16).map(|_| x.ticket(&ShareOptions::default()).unwrap()).collect();
            let error = x.ticket(&ShareOptions::default()).unwrap_err().to_string();
            assert!(error.contains("65536 tickets are alive"), "{error}");
            say(engine, &link);
            heard(&link);
            tickets.pop();
            say(engine, &link);
            heard(&link);
        },
    );
}

#[test]
fn a_ticket_of_a_process_between_fails_with_that_process_or_once_it_is_dropped() {
    three(
        "passing::a_ticket_of_a_process_between_fails_with_that_process_or_once_it_is_dropped",
        |engine, (between, to_between), (consumer, to_consumer)| {
            let x = engine.zeros(&[LENGTH], DType::I64).unwrap();
            wait(to_between.send(&x, &ShareOptions::default())).unwrap();
            heard(&to_consumer);
            between.kill();
            between.0.wait().unwrap();
            // Nothing of it holds the version any more.
            fill(engine, &x, 3);
            assert_eq!(value(engine, &x).unwrap(), 3);
            say(engine, &to_consumer);
            assert!(consumer.0.wait().unwrap().success());
        },
        |engine, link, next| {
            let x = receive(&link);
            let (kept, dropped) =
                (x.ticket(&ShareOptions::default()).unwrap(), x.ticket(&ShareOptions::default()).unwrap());
            send_ticket(engine, &next, &kept);
            send_ticket(engine, &next, &dropped);
            drop(dropped);
            say(engine, &next);
            until_killed();
        },
        |engine, link, before| {
            let (kept, dropped) = (receive_ticket(&before), receive_ticket(&before));
            heard(&before);
            let error = engine.from_ticket(&dropped).unwrap().wait().unwrap_err().to_string();
            assert!(error.contains("not valid any more"), "{error}");
            say(engine, &link);
            heard(&link);
            let died = format!("process {} died", before.process());
            until("its end is known", || {
                let late = engine.from_ticket(&kept).unwrap();
                late.wait().is_err_and(|error| error.to_string().contains(&died))
            });
        },
    );
}

#[test]
fn a_ticket_of_a_tensor_whose_owner_has_died_since_gives_a_copy_if_it_was_ready() {
    two(
        "passing::a_ticket_of_a_tensor_whose_owner_has_died_since_gives_a_copy_if_it_was_ready",
        |peer, engine, link| {
            let (ready, pending) = (receive(&link), receive(&link));
            ready.wait().unwrap();
            let copied_before = engine.stats().copied_for_processes;
            let [kept, lost] = [&ready, &pending].map(|x| x.ticket(&ShareOptions::default()).unwrap());
            let (near, far) = pair(engine);
            wait(near.send(&ready, &ShareOptions::default())).unwrap();
            peer.kill();
            assert!(wait(link.receive()).is_err(), "its end is known");
            for copy in [engine.from_ticket(&kept).unwrap(), receive(&far)] {
                assert_eq!(value(engine, &copy).unwrap(), 6);
            }
            assert_eq!(engine.stats().copied_for_processes - copied_before, 2 * 8 * LENGTH as u64);
            let error = engine.from_ticket(&lost).unwrap().wait().unwrap_err().to_string();
            assert!(error.contains(&format!("process {} died", peer.process())), "{error}");
        },
        |engine, link| {
            let [ready, pending] = [(); 2].map(|()| engine.zeros(&[LENGTH], DType::I64).unwrap());
            fill(engine, &ready, 6);
            let never = engine.op("never").writes([&pending]).run(|[], [_x]| until_killed());
            drop(never.unwrap());
            for x in [&ready, &pending] {
                wait(link.send(x, &ShareOptions::default())).unwrap();
            }
            until_killed();
        },
    );
}
