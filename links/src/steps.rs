//! The steps of the protocol, at each of which a test can have a process end.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::platform::end_or_stop;

/// The variable with the name of a step, how often it is passed before the process ends there, and `stop` if
/// it only stops: `send 4:2`.
pub const STEP: &str = "ESTAFETTE_LINKS_STEP";

/// While a link is made.
pub const GREETING: [&str; 6] = ["greet 1", "greet 2", "greet 3", "greet 4", "greet 5", "greet 6"];
/// While it is open.
pub const OPEN: [&str; 23] = [
    "send 1",
    "send 2",
    "send 3",
    "send 4, ring",
    "send 4",
    "send 5",
    "settle, text",
    "settle, slot",
    "settle",
    "settle, notified",
    "receive 1",
    "receive 2, copied",
    "receive 2",
    "answer",
    "answer, notified",
    "segment",
    "segment, mapped",
    "listen",
    "dispatch",
    "serve 1",
    "serve 2",
    "serve 3",
    "serve 4",
];
/// Steps at the end of a segment: its owner has said so, and the other process has released it.
pub const RELEASING: [&str; 2] = ["release", "released"];
/// At its end.
pub const CLOSING: [&str; 2] = ["close", "left"];

/// Of an engine that hands tensors over, which passes them by [`pass_step`](crate::pass_step).
pub const TENSORS: [&str; 9] =
    ["ticket", "redeem", "later", "granted", "staged", "copied", "share", "adopt", "pass on"];

/// Every step of a link.
pub fn of_links() -> impl Iterator<Item = &'static str> {
    GREETING.into_iter().chain(OPEN).chain(RELEASING).chain(CLOSING)
}

/// Every step.
pub fn all() -> impl Iterator<Item = &'static str> {
    of_links().chain(TENSORS)
}

/// Ends or stops this process if it is the one that does so at this step.
pub(crate) fn at(step: &str) {
    static WANTED: OnceLock<Option<(String, u32, bool)>> = OnceLock::new();
    static PASSED: AtomicU32 = AtomicU32::new(0);
    let wanted = WANTED.get_or_init(|| {
        let wanted = std::env::var(STEP).ok()?;
        let (name, count, only_stops) = match wanted.split(':').collect::<Vec<_>>()[..] {
            [name, count] => (name, count, false),
            [name, count, "stop"] => (name, count, true),
            _ => panic!("`{wanted}` is not a step, a number, and perhaps `stop`"),
        };
        assert!(all().any(|step| step == name), "`{name}` is no step");
        Some((name.to_owned(), count.parse().expect("a number"), only_stops))
    });
    let Some((name, count, only_stops)) = wanted else { return };
    if name == step && PASSED.fetch_add(1, Ordering::Relaxed) == *count {
        end_or_stop(*only_stops);
    }
}
