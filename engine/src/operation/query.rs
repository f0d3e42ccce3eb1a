//! Readiness queries that are granted.

use std::sync::Arc;

use estafette_devices::{FenceSet, Reactor};

use crate::core::one_shot::ReadySignal;
use crate::core::operation::OpGranted;
use crate::core::var_state::{Ending, FAILED, WRITE_FENCES, device_failure};
use crate::operation::cancellation;
use crate::operation::run::{self, ReadyList};
use crate::trace::hooks;

/// Handles a granted readiness query: takes the version's failure or fences along and leaves the graph.
pub(crate) fn query_granted(granted: OpGranted, ready: &mut ReadyList) {
    let state = granted.payload();
    let one_shot = state.query().cloned().expect("every query is submitted with its signal");
    cancellation::query_leaves();
    let mut fences = FenceSet::default();
    let mut failure = None;
    for access in granted.accesses() {
        if access.flags() & (FAILED | WRITE_FENCES) == 0 {
            continue;
        }
        let (writers, found) = access.with_state(|state, _| (state.writers(), state.failure().cloned()));
        fences.merge(&writers);
        failure = failure.or(found);
    }
    let writers: Vec<_> =
        granted.accesses().filter_map(|access| access.with_state(|s, _| s.writer_tag())).collect();
    let noted = state.noted.then(|| granted.id());
    run::complete(granted, &Ending::Polled, None, ready);
    let tell = move |one_shot: &ReadySignal, outcome| {
        if let Some(id) = noted {
            hooks::observed(id);
        }
        one_shot.set(outcome);
    };
    match failure {
        Some(failure) => tell(&one_shot, Err(failure.into_error())),
        None if fences.is_empty() => tell(&one_shot, Ok(())),
        None => {
            // The one-shot goes with its last waiter. A subscription without a waiter leaves the reactor's
            // lists, too.
            let (one_shot, wanted) = (Arc::downgrade(&one_shot), Arc::downgrade(&one_shot));
            let wanted = move || wanted.strong_count() > 0;
            Reactor::global().when_settled_if(&fences, wanted, move |settled| {
                let Some(one_shot) = one_shot.upgrade() else { return };
                let outcome = settled.map_err(|error| device_failure(writers.first(), error).into_error());
                tell(&one_shot, outcome);
            });
        }
    }
}
