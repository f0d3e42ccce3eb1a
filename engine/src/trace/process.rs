//! Facts about this process in traces, so that those of several can be put on one time axis.

use std::hash::{BuildHasher, RandomState};
// Outside of every protocol, as the name of the program.
use std::sync::OnceLock;

use estafette_report::model::Process;
use estafette_sync::platform::clock;
use estafette_sync::process::Generation;

/// A number drawn at random for this process. The lease with the number `id` has the key `process_key() + id`
/// in other processes.
pub(crate) fn process_key() -> u64 {
    static DRAWN: OnceLock<(Generation, RandomState, u64)> = OnceLock::new();
    let draw = |random: &RandomState| random.hash_one(std::process::id());
    let (generation, random, key) = DRAWN.get_or_init(|| {
        let random = RandomState::new();
        let key = draw(&random);
        (Generation::current(), random, key)
    });
    // A forked child has the state of its parent, and another number.
    if generation.is_current() { *key } else { draw(random) }
}

/// This process, in a trace that began at `started_ns` of the host's monotonic clock; `None` if the trace has
/// another clock. For bindings.
pub fn this_process(started_ns: Option<u64>) -> Process {
    Process {
        number: std::process::id(),
        key: process_key(),
        started_ns: started_ns.unwrap_or(0),
        clock: started_ns.and_then(|_| clock::monotonic_name()).unwrap_or_default().into(),
    }
}
