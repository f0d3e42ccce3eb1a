//! Findings of fuzzing, in every plain test run: the kept inputs of each target, without an instrumented
//! build.

use std::panic;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tests::c_fuzz::{self, Taken};
use tests::counting::{Counting, overwrite_freed};
use tests::fuzz::TARGETS;
use tests::ops::exclusive;
use tests::watchdog::Watchdog;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Far more than any input takes on a loaded machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Panics of any thread: no target has a body that panics, and what the engine contains is a failure here, as
/// it is under libFuzzer.
static PANICS: AtomicUsize = AtomicUsize::new(0);

fn count_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            PANICS.fetch_add(1, Ordering::SeqCst);
            before(info);
        }));
    });
}

fn replay(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name).expect("a target of that name");
    replay_by(name, |input| (target.run)(input));
}

fn replay_by(name: &str, mut run: impl FnMut(&[u8])) {
    let _alone = exclusive();
    count_panics();
    overwrite_freed();
    let target = TARGETS.iter().find(|target| target.name == name).expect("a target of that name");
    let corpus = target.corpus();
    assert!(!corpus.is_empty(), "`cargo xtask fuzz {name} --keep` finds inputs");
    for (path, input) in corpus {
        // The harness shows this line where the input fails.
        println!("{}", path.display());
        let words = path.display().to_string();
        let watchdog = Watchdog::with(LIMIT, move || words);
        run(&input);
        assert_eq!(PANICS.load(Ordering::SeqCst), 0, "a thread has panicked at {}", path.display());
        assert!(watchdog.still_watches());
    }
}

#[test]
fn kept_programs_of_calls_of_the_c_interface_are_as_the_model_says_and_take_every_step() {
    let mut taken = Taken::new();
    replay_by("c-abi", |input| taken.append(&mut c_fuzz::run(input)));
    let missing: Vec<_> = c_fuzz::every_step().difference(&taken).copied().collect();
    assert!(missing.is_empty(), "`cargo xtask fuzz c-abi --keep` finds programs for {missing:?}");
}

#[test]
fn kept_files_of_traces_are_read_within_their_budget() {
    replay("traces");
}

#[test]
fn kept_arrow_structs_are_refused_or_taken_and_released_once() {
    replay("arrow");
}

#[test]
fn kept_operators_are_refused_or_called_as_they_say() {
    replay("operators");
}

#[test]
fn every_target_has_a_test_here() {
    let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    assert_eq!(names, ["c-abi", "traces", "arrow", "operators"]);
}
