//! Wake-ups of the link thread: one test, as they count for the whole process.

#![cfg(not(any(estafette_portable, estafette_loom, estafette_shuttle)))]

mod support;

use estafette_devices::{Fence, host};
use estafette_links::LinkError;

use support::{outcome, two};

fn done() -> Fence {
    let (completer, fence) = host::promise("done");
    completer.complete();
    fence
}

/// Number of times that the link thread of this process was woken and slept again.
fn sleeps_of_the_link_thread() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("the threads of this process");
    let status = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("status")).ok());
    let of_links = status.filter(|status| status.starts_with("Name:\testafette-links\n"));
    let count = |status: String| {
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse::<u64>().ok()
    };
    of_links.filter_map(count).sum()
}

#[test]
fn a_thread_that_waits_is_woken_by_the_other_process_itself() {
    const ROUNDS: u64 = 300;
    let check = |before| {
        let woken = sleeps_of_the_link_thread() - before;
        assert!(woken < ROUNDS / 2, "the link thread was woken {woken} times in {ROUNDS} rounds");
    };
    two(
        "a_thread_that_waits_is_woken_by_the_other_process_itself",
        |_, link| {
            let before = sleeps_of_the_link_thread();
            for round in 0..ROUNDS {
                let used = link.try_send(&done(), &round.to_le_bytes()).expect("there is room");
                assert!(outcome(&used).is_ok());
            }
            check(before);
        },
        |link| {
            let before = sleeps_of_the_link_thread();
            for round in 0..ROUNDS {
                let received =
                    link.receive_timeout(None).expect("the link is open").expect("it waits for ever");
                assert_eq!(received.note(), round.to_le_bytes());
            }
            check(before);
            assert!(matches!(link.receive_timeout(None), Err(LinkError::Closed { .. })));
        },
    );
}
