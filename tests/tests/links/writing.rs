//! Tensors that another process is lent for writing.

use super::*;
use crate::support::is_pending;

fn writable(engine: &Engine) -> Tensor {
    engine.empty(&[LENGTH], DType::I64, Memory::SharedForWriting).expect("memory")
}

#[test]
fn what_another_process_writes_is_the_next_version() {
    two(
        "writing::what_another_process_writes_is_the_next_version",
        |peer, engine, link| {
            let x = writable(engine);
            for round in 0..50 {
                fill(engine, &x, 2 * round);
                wait(link.lend(&x)).unwrap();
                assert_eq!(value(engine, &x).unwrap(), 2 * round + 1, "it waits for the other process");
            }
            // Read by the other process, and by this one at the same time.
            wait(link.send(&x, &ShareOptions::default())).unwrap();
            assert_eq!(value(engine, &x).unwrap(), 99);
            wait(link.lend(&x)).unwrap();
            heard(&link);
            assert!(!x.is_ready(), "the other process has it for itself");
            let later = engine.op("read").reads([&x]).run(|[_x], []| Ok(())).unwrap();
            std::thread::sleep(Duration::from_millis(30));
            assert!(
                !later.is_done()
                    && engine.diagnose().to_string().contains(&format!("process {}", peer.process()))
            );
            say(engine, &link);
            later.wait().unwrap();
            assert_eq!(value(engine, &x).unwrap(), 5);
            let shared = engine.zeros(&[LENGTH], DType::I64).unwrap();
            assert!(matches!(wait(link.lend(&shared)), Err(Error::NotShared(_))));
            drop(link);
            assert!(peer.0.wait().unwrap().success());
        },
        |engine, link| {
            for _ in 0..50 {
                let x = receive(&link);
                let add = engine.op("add").updates([&x]).run(|[], [], [mut x]| {
                    x.as_mut_slice::<i64>()?.iter_mut().for_each(|x| *x += 1);
                    Ok(())
                });
                drop(add.unwrap());
            }
            let x = receive(&link);
            assert!(x.is_read_only().unwrap());
            assert_eq!(value(engine, &x).unwrap(), 99);
            drop(x);
            let x = receive(&link);
            fill(engine, &x, 5);
            x.wait().unwrap();
            assert!(matches!(wait(link.lend(&x)), Err(Error::NotShared(_))), "it is not passed on");
            say(engine, &link);
            heard(&link);
            drop(x);
            assert!(wait(link.receive()).unwrap().is_none());
        },
    );
}

#[test]
fn a_write_that_fails_or_whose_process_dies_fails_the_version_until_it_is_written_anew() {
    two(
        "writing::a_write_that_fails_or_whose_process_dies_fails_the_version_until_it_is_written_anew",
        |peer, engine, link| {
            let (x, y) = (writable(engine), writable(engine));
            for tensor in [&x, &y] {
                wait(link.lend(tensor)).unwrap();
            }
            let after = engine.zeros(&[1], DType::I64).unwrap();
            engine.op("after").reads([&x]).writes([&after]).run(|[_x], [_y]| Ok(())).unwrap();
            let error = after.wait().unwrap_err().to_string();
            assert!(error.contains("out of paper") && error.contains("in process"), "{error}");
            heard(&link);
            peer.kill();
            let error = value(engine, &y).unwrap_err().to_string();
            assert!(error.contains(&format!("process {} died", peer.process())), "{error}");
            for tensor in [&x, &y] {
                fill(engine, tensor, 4);
                assert_eq!(value(engine, tensor).unwrap(), 4);
            }
        },
        |engine, link| {
            let (x, y) = (receive(&link), receive(&link));
            engine.op("print").updates([&x]).run(|[], [], [_x]| Err("out of paper".into())).unwrap();
            drop(x);
            fill(engine, &y, 7);
            y.wait().unwrap();
            say(engine, &link);
            until_killed();
        },
    );
}

#[test]
fn what_another_process_never_took_for_writing_has_failed() {
    two(
        "writing::what_another_process_never_took_for_writing_has_failed",
        |peer, engine, link| {
            let [refused, unreceived, pending] = [(); 3].map(|()| writable(engine));
            fill(engine, &refused, 4);
            fill(engine, &unreceived, 4);
            let (begin, may_begin) = channel::<()>();
            let slow = engine.op("slow").writes([&pending]).run(move |[], [_x]| Ok(may_begin.recv()?));
            drop(slow.unwrap());
            peer.until_stopped();
            for tensor in [&refused, &unreceived, &pending] {
                wait(link.lend(tensor)).unwrap();
            }
            peer.resume();
            assert!(wait(link.receive()).unwrap().is_none());
            begin.send(()).unwrap();
            for (tensor, why) in
                [(&refused, "shut down"), (&unreceived, "closed the link"), (&pending, "closed the link")]
            {
                let error = value(engine, tensor).unwrap_err().to_string();
                assert!(
                    error.contains(why) && error.contains(&format!("process {}", peer.process())),
                    "{error}"
                );
                fill(engine, tensor, 5);
                assert_eq!(value(engine, tensor).unwrap(), 5);
            }
            peer.kill();
        },
        |engine, link| {
            wait(engine.shutdown());
            // SAFETY: a signal to this process, which goes on once the tensors are there.
            unsafe { libc::raise(libc::SIGSTOP) };
            assert!(matches!(wait(link.receive()), Err(Error::Shutdown)));
            drop(link);
            until_killed();
        },
    );
}

#[test]
fn sends_wait_while_a_stopped_process_takes_no_more_segments() {
    const TENSORS: i64 = 400;
    two(
        "writing::sends_wait_while_a_stopped_process_takes_no_more_segments",
        |peer, engine, link| {
            // Each has a segment of its own.
            let tensors = (0..TENSORS).map(|value| {
                let tensor = engine.empty(&[1], DType::I64, Memory::SharedForWriting).unwrap();
                fill(engine, &tensor, value);
                tensor
            });
            let tensors: Vec<_> = tensors.collect();
            peer.stop();
            let mut sent = Box::pin(async {
                for (tensor, is_lent) in tensors.iter().zip([false, true].into_iter().cycle()) {
                    let sent = if is_lent {
                        link.lend(tensor).await
                    } else {
                        link.send(tensor, &ShareOptions::default()).await
                    };
                    sent.expect("it waits");
                }
            });
            assert!(is_pending(sent.as_mut()), "nothing takes them");
            peer.resume();
            wait(sent);
            drop(link);
            assert!(peer.0.wait().unwrap().success());
        },
        |engine, link| {
            for expected in 0..TENSORS {
                assert_eq!(value(engine, &receive(&link)).unwrap(), expected);
            }
        },
    );
}
