//! A process that lacks descriptors, address space or files: while memory is shown to it, while another one
//! comes with a ticket, or as it makes memory itself.

use tests::limits::limit;

use super::*;

/// Larger than what the consumer has of address space.
const LARGE: i64 = 4 << 20;

/// Gives this process no more than it has.
fn run_short(what: libc::__rlimit_resource_t) -> u64 {
    if what == libc::RLIMIT_NOFILE {
        return limit(what, 3);
    }
    let statm = std::fs::read_to_string("/proc/self/statm").expect("a file of the kernel's");
    let pages: u64 = statm.split(' ').next().and_then(|word| word.parse().ok()).expect("a count");
    limit(what, pages * 4096 + (8 << 20))
}

fn names_the_shortage(error: &Error, shortage: &str) {
    let error = error.to_string();
    assert!(error.contains(shortage) && !error.contains("protocol"), "{error}");
}

#[test]
fn a_consumer_that_runs_short_says_so_and_its_links_go_on() {
    let shortages =
        [(libc::RLIMIT_NOFILE, "Too many open files"), (libc::RLIMIT_AS, "Cannot allocate memory")];
    two(
        "shortage::a_consumer_that_runs_short_says_so_and_its_links_go_on",
        |peer, engine, link| {
            // The consumer has a link to the door for tickets before it runs short.
            let first = engine.zeros(&[LENGTH], DType::I64).unwrap();
            let first = first.ticket(&ShareOptions::default()).unwrap();
            send_ticket(engine, &link, &first);
            for round in 0..2 {
                // Each has a segment of its own, which the consumer has not seen.
                let [x, y] = [0, 1].map(|at| {
                    let tensor = engine.empty(&[LARGE], DType::I64, Memory::SharedForWriting).unwrap();
                    fill(engine, &tensor, 10 * round + at);
                    tensor
                });
                let ticket = y.ticket(&ShareOptions::default()).unwrap();
                send_ticket(engine, &link, &ticket);
                heard(&link);
                wait(link.send(&x, &ShareOptions::default())).unwrap();
                wait(link.send(&x, &ShareOptions::default())).unwrap();
                heard(&link);
                wait(link.send(&x, &ShareOptions::default())).unwrap();
                heard(&link);
                // Nothing of what failed is held.
                fill(engine, &x, 7);
                assert_eq!(value(engine, &x).unwrap(), 7);
            }
            drop(link);
            assert!(peer.0.wait().unwrap().success());
        },
        |engine, link| {
            engine.from_ticket(&receive_ticket(&link)).unwrap().wait().unwrap();
            // From now on there is shared memory, which words are made in.
            let _word = engine.zeros(&[1], DType::I64).unwrap();
            for (round, (what, shortage)) in shortages.into_iter().enumerate() {
                let ticket = receive_ticket(&link);
                let before = run_short(what);
                say(engine, &link);
                for _ in 0..2 {
                    names_the_shortage(&wait(link.receive()).unwrap_err(), shortage);
                    names_the_shortage(&engine.from_ticket(&ticket).unwrap().wait().unwrap_err(), shortage);
                }
                limit(what, before);
                say(engine, &link);
                let x = receive(&link);
                let y = engine.from_ticket(&ticket).unwrap();
                let round = 10 * round as i64;
                assert_eq!([&x, &y].map(|tensor| value(engine, tensor).unwrap()), [round, round + 1]);
                drop((x, y));
                say(engine, &link);
            }
            assert!(wait(link.receive()).unwrap().is_none());
        },
    );
}

#[test]
fn a_process_that_was_short_when_another_came_with_a_ticket_serves_it_later() {
    two(
        "shortage::a_process_that_was_short_when_another_came_with_a_ticket_serves_it_later",
        |peer, engine, link| {
            let ticket = receive_ticket(&link);
            say(engine, &link);
            heard(&link);
            let x = engine.from_ticket(&ticket).unwrap();
            say(engine, &link);
            assert_eq!(value(engine, &x).unwrap(), 7);
            drop((x, link));
            assert!(peer.0.wait().unwrap().success());
        },
        |engine, link| {
            let x = engine.zeros(&[LENGTH], DType::I64).unwrap();
            fill(engine, &x, 7);
            let ticket = x.ticket(&ShareOptions::default()).unwrap();
            send_ticket(engine, &link, &ticket);
            heard(&link);
            let before = run_short(libc::RLIMIT_NOFILE);
            say(engine, &link);
            heard(&link);
            // Time for the door to be refused the connection. From then on nothing is asked of it.
            std::thread::sleep(Duration::from_millis(50));
            limit(libc::RLIMIT_NOFILE, before);
            assert!(wait(link.receive()).unwrap().is_none());
        },
    );
}

#[test]
fn what_was_lent_for_writing_to_a_consumer_that_runs_short_has_failed() {
    two(
        "shortage::what_was_lent_for_writing_to_a_consumer_that_runs_short_has_failed",
        |peer, engine, link| {
            let x = engine.empty(&[LENGTH], DType::I64, Memory::SharedForWriting).unwrap();
            fill(engine, &x, 1);
            heard(&link);
            wait(link.lend(&x)).unwrap();
            names_the_shortage(&value(engine, &x).unwrap_err(), "Too many open files");
            // The whole is written anew, and the consumer has room again.
            fill(engine, &x, 2);
            heard(&link);
            wait(link.lend(&x)).unwrap();
            assert_eq!(value(engine, &x).unwrap(), 3);
            drop(link);
            assert!(peer.0.wait().unwrap().success());
        },
        |engine, link| {
            let _word = engine.zeros(&[1], DType::I64).unwrap();
            let before = run_short(libc::RLIMIT_NOFILE);
            say(engine, &link);
            names_the_shortage(&wait(link.receive()).unwrap_err(), "Too many open files");
            limit(libc::RLIMIT_NOFILE, before);
            say(engine, &link);
            fill(engine, &receive(&link), 3);
            assert!(wait(link.receive()).unwrap().is_none());
        },
    );
}

#[test]
fn a_process_whose_files_may_not_be_as_large_has_an_error_for_shared_memory_and_lives() {
    two(
        "shortage::a_process_whose_files_may_not_be_as_large_has_an_error_for_shared_memory_and_lives",
        |peer, engine, link| {
            assert_eq!(value(engine, &receive(&link)).unwrap(), 7);
            drop(link);
            assert!(peer.0.wait().unwrap().success());
        },
        |engine, link| {
            let private = Engine::builder().workers(1).build().unwrap();
            let large = private.from_vec(vec![7_i64; LARGE as usize], &[LARGE]).unwrap();
            let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
            // The door for tickets, of which the first tensor tells the other process, takes some.
            let small = private.from_vec(vec![7_i64], &[1]).unwrap();
            drop(small.ticket(&ShareOptions::default()).unwrap());
            let open = descriptors();
            // No link is made meanwhile, which needs files of 17 MiB.
            let before = limit(libc::RLIMIT_FSIZE, 1 << 20);
            for error in [
                engine.empty(&[LARGE], DType::I64, Memory::SharedForWriting).map(drop).unwrap_err(),
                engine.empty(&[16 * LARGE], DType::I64, Memory::Shared(DLDevice::CPU)).map(drop).unwrap_err(),
            ] {
                names_the_shortage(&error, "File too large");
            }
            assert_eq!(descriptors(), open);
            limit(libc::RLIMIT_FSIZE, before);
            wait(link.send(&large, &ShareOptions::default())).unwrap();
            assert!(wait(link.receive()).unwrap().is_none());
        },
    );
}

/// Shared memory has no name in any file system: neither in `/dev/shm`, which containers often limit to 64
/// MB, nor in a folder for temporary files. Where the system refuses a mount namespace, the process has both,
/// and must leave them alone.
#[test]
fn a_process_without_a_writable_file_system_shares_memory() {
    const SMALL: &str = "mount -t tmpfs -o size=64m none /dev/shm";
    const READ_ONLY: &str =
        "for folder in /dev/shm /tmp /var/tmp /run; do mount -t tmpfs -o ro none $folder || exit 1; done";
    /// More than fits in a small `/dev/shm`.
    const VAST: i64 = 9 << 20;
    let name = "shortage::a_process_without_a_writable_file_system_shares_memory";
    if let Some(door) = role() {
        let engine = engine();
        let door = Address::from_bytes(door.as_bytes()).unwrap();
        let link = wait(engine.connect(&door)).unwrap();
        let x = engine.empty(&[VAST], DType::I64, Memory::Shared(DLDevice::CPU)).unwrap();
        fill(&engine, &x, 7);
        wait(link.send(&x, &ShareOptions::default())).unwrap();
        let ticket = x.ticket(&ShareOptions::default()).unwrap();
        send_ticket(&engine, &link, &ticket);
        heard(&link);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let files = std::fs::read_dir("/proc/self/fd").unwrap();
        let files =
            files.filter_map(|file| Some(std::fs::read_link(file.ok()?.path()).ok()?.display().to_string()));
        for place in maps.lines().map(str::to_owned).chain(files) {
            assert!(!["/dev/shm/", "/tmp/", "/run/"].iter().any(|folder| place.contains(folder)), "{place}");
        }
        return;
    }
    let engine = engine();
    let door = Door::open().unwrap();
    let is_permitted = std::process::Command::new("unshare").args(["-rm", "true"]).status();
    let is_permitted = is_permitted.is_ok_and(|status| status.success());
    for folders in [READ_ONLY, SMALL] {
        let script = format!("{folders}; exec \"$0\" \"$@\"");
        let alone = ["unshare", "-rm", "sh", "-c", &script];
        let starter = if is_permitted { &alone[..] } else { &[] };
        let mut peer = Peer::start_by(starter, name, &door.address().to_string());
        let link = wait(engine.accept(&door)).unwrap();
        let x = receive(&link);
        let y = engine.from_ticket(&receive_ticket(&link)).unwrap();
        assert_eq!([x, y].map(|tensor| value(&engine, &tensor).unwrap()), [7, 7]);
        say(&engine, &link);
        assert!(peer.0.wait().unwrap().success());
    }
}
