//! The recorder's notes as events and spans of the crate `tracing` at the level *debug*.
//!
//! Names of targets and fields are stable; `docs/report.md` lists them. They are emitted after
//! [`emit_events`]`(true)`, which sets a bit of the recorder's switch: while both are off, an operation costs
//! no more.
//!
//! The span of a body is made when the operation is submitted, so that it can say which span it follows from:
//! that one may be closed when the body begins.

use std::collections::BTreeMap;
use std::sync::Once;
use std::sync::atomic::Ordering;

use estafette_sync::sync::Mutex;
use tracing::span::EnteredSpan;
use tracing::{Span, debug, debug_span};

use super::{EVENTS, OPEN};
use crate::core::lease_info::LeaseOwner;
use crate::core::operation::OpGranted;

/// Has the engines of the process emit `tracing` events and spans of what their operations do, or stop it.
/// Returns the setting before. Operations that were described earlier keep the setting of that time.
///
/// An operation's body runs in a span `operation` (target `estafette::op`); what the operation does
/// asynchronously or on a device has events alone.
pub fn emit_events(on: bool) -> bool {
    let before =
        if on { OPEN.fetch_or(EVENTS, Ordering::AcqRel) } else { OPEN.fetch_and(!EVENTS, Ordering::AcqRel) };
    if !on {
        // Outside of the lock: a subscriber is called.
        let spans = std::mem::take(&mut *SPANS.lock());
        drop(spans);
    }
    before & EVENTS != 0
}

estafette_sync::per_process! {
    /// Spans of bodies that have not begun, by operation.
    static SPANS: Mutex<BTreeMap<u64, Span>> = Mutex::new(BTreeMap::new());
}

/// Emits events from the first engine on if the environment asks for them.
pub(crate) fn begin_from_environment() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if events_asked_for() {
            emit_events(true);
        }
    });
}

/// True if `RUST_LOG` names the target `estafette`, or a part of it, with the level *debug* or *trace*, or
/// without a level. A level for all targets does not count, since events have a cost.
pub fn events_asked_for() -> bool {
    std::env::var("RUST_LOG").is_ok_and(|directives| enable_events(&directives))
}

fn enable_events(directives: &str) -> bool {
    directives.split(',').any(|directive| {
        let (target, level) = directive.trim().rsplit_once('=').unwrap_or((directive.trim(), "trace"));
        let target = target.split('[').next().unwrap_or_default();
        let is_own = target == "estafette" || target.starts_with("estafette::");
        is_own && ["debug", "trace"].contains(&level.to_ascii_lowercase().as_str())
    })
}

#[inline]
pub(super) fn are_emitted() -> bool {
    OPEN.load(Ordering::Relaxed) & EVENTS != 0
}

/// Emits an event, with the arguments of `tracing::debug!`, while events are emitted.
macro_rules! emit {
    ($($event:tt)*) => {
        if $crate::trace::events::are_emitted() {
            tracing::debug!($($event)*);
        }
    };
}
pub(super) use emit;

pub(super) fn submitted(id: u64, name: &str, accesses: usize) {
    emit!(target: "estafette::op", id, operation = name, accesses, "submitted");
}

pub(super) fn ready(id: u64) {
    emit!(target: "estafette::op", id, "ready");
}

pub(super) fn taken(id: u64, owner: &LeaseOwner) {
    emit!(target: "estafette::exchange", id, owner = &**owner, library = owner.library(), "lease asked for");
}

pub(super) fn held(id: u64) {
    emit!(target: "estafette::exchange", id, "lease held");
}

/// An operation with a body is about to be submitted.
pub(super) fn body_follows(id: u64, name: &str) {
    if are_emitted() {
        let span = debug_span!(target: "estafette::op", parent: None, "operation", id, operation = name);
        span.follows_from(Span::current());
        SPANS.lock().insert(id, span);
    }
}

/// The span that a body runs in.
pub(super) fn body(granted: &OpGranted) -> Option<EnteredSpan> {
    if !are_emitted() {
        return None;
    }
    let id = granted.id().get();
    let made = SPANS.lock().remove(&id);
    let name = granted.payload().name.as_str();
    let span = made.unwrap_or_else(
        || debug_span!(target: "estafette::op", parent: None, "operation", id, operation = name),
    );
    Some(span.entered())
}

pub(super) fn ended(id: u64, outcome: &str, why: Option<&str>) {
    if are_emitted() {
        // Of a body that was skipped. Dropped under no lock: a subscriber is called.
        let skipped = SPANS.lock().remove(&id);
        drop(skipped);
        debug!(target: "estafette::op", id, outcome, why, "ended");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_asks_by_the_name_of_the_engine() {
        let asking = [
            "estafette=debug",
            "warn, estafette::op=TRACE",
            "estafette",
            "estafette[operation{id=1}]=debug,info",
        ];
        let others = ["", "debug", "estafette=info", "estafettes=debug", "other=trace,estafette=off"];
        assert!(asking.into_iter().all(enable_events));
        assert!(!others.into_iter().any(enable_events));
    }
}
