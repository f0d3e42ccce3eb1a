//! What the recorder notes, as events and spans of the crate `tracing` at the level *debug*.
//!
//! Names of targets and fields are stable; `docs/report.md` lists them. They are emitted after
//! [`emit_events`]`(true)`, which sets a bit of the recorder's switch: while both are off, an operation costs no more.

use std::sync::atomic::Ordering;

use tracing::span::EnteredSpan;
use tracing::{debug, debug_span};

use super::{EVENTS, OPEN};
use crate::core::lease_info::LeaseOwner;
use crate::core::operation::OpGranted;

/// Has the engines of the process emit `tracing` events and spans of what their operations do, or stop it. Returns the setting
/// before. Operations that were described earlier keep the setting of that time.
///
/// An operation's body runs in a span `operation` (target `estafette::op`); what the operation does asynchronously or on a device has
/// events alone.
pub fn emit_events(on: bool) -> bool {
    let before =
        if on { OPEN.fetch_or(EVENTS, Ordering::AcqRel) } else { OPEN.fetch_and(!EVENTS, Ordering::AcqRel) };
    before & EVENTS != 0
}

#[inline]
fn are_emitted() -> bool {
    OPEN.load(Ordering::Relaxed) & EVENTS != 0
}

pub(super) fn submitted(id: u64, name: &str, accesses: usize) {
    if are_emitted() {
        debug!(target: "estafette::op", id, operation = name, accesses, "submitted");
    }
}

pub(super) fn ready(id: u64) {
    if are_emitted() {
        debug!(target: "estafette::op", id, "ready");
    }
}

/// The span that a body runs in.
pub(super) fn body(granted: &OpGranted) -> Option<EnteredSpan> {
    are_emitted().then(|| {
        debug_span!(target: "estafette::op", "operation", id = granted.id().get(), operation = granted.payload().name.as_str())
            .entered()
    })
}

pub(super) fn ended(id: u64, outcome: &str, why: Option<&str>) {
    if are_emitted() {
        debug!(target: "estafette::op", id, outcome, why, "ended");
    }
}

pub(super) fn device_done(id: u64, why: Option<&str>) {
    if are_emitted() {
        debug!(target: "estafette::op", id, why, "device work done");
    }
}

pub(super) fn taken(id: u64, owner: &LeaseOwner) {
    if are_emitted() {
        let library = owner.library();
        debug!(target: "estafette::exchange", id, owner = &**owner, library, "lease asked for");
    }
}

pub(super) fn held(id: u64) {
    if are_emitted() {
        debug!(target: "estafette::exchange", id, "lease held");
    }
}

pub(super) fn imported(variable: u64, library: &str) {
    if are_emitted() {
        debug!(target: "estafette::exchange", variable, library, "imported");
    }
}

pub(super) fn resumed(id: u64, blocking: bool) {
    if are_emitted() {
        debug!(target: "estafette::stall", id, blocking, "resumed");
    }
}

pub(super) fn waits_for(id: u64, what: &str, operation: u64) {
    if are_emitted() {
        debug!(target: "estafette::stall", id, what, operation, "waits");
    }
}
