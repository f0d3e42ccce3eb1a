//! Readiness queries that are granted.

use std::sync::Arc;

use estafette_devices::{DeviceError, FenceSet, Reactor};
use smallvec::SmallVec;

use crate::core::error::Error;
use crate::core::one_shot::ReadyOneShot;
use crate::core::operation::{OpGranted, OpTag};
use crate::core::var_state::{Ending, FAILED, Queried, WRITE_FENCES, device_failure};
use crate::operation::cancellation;
use crate::operation::run::{self, ReadyList};
use crate::trace::hooks;

/// The fences of each variable, and the operation that has issued their work.
type Issued = SmallVec<[(FenceSet, Option<OpTag>); 1]>;

/// Handles a granted readiness query: takes the version's failure or fences along and leaves the graph.
pub(crate) fn query_granted(granted: OpGranted, ready: &mut ReadyList) {
    let state = granted.payload();
    let one_shot = state.query().cloned().expect("every query is submitted with its one-shot");
    cancellation::uncount_query();
    let mut fences = FenceSet::default();
    let mut issued = Issued::new();
    let mut failure = None;
    for access in granted.accesses() {
        if access.flags() & (FAILED | WRITE_FENCES) == 0 {
            continue;
        }
        let (writers, tag, found) =
            access.with_state(|state, _| (state.writers(), state.writer_tag(), state.failure().cloned()));
        fences.merge(&writers);
        issued.push((writers, tag));
        failure = failure.or(found);
    }
    let noted = state.noted.then(|| granted.id());
    run::complete(granted, &Ending::Polled, None, ready);
    let notify = move |one_shot: &ReadyOneShot, outcome| {
        if let Some(id) = noted {
            hooks::observed(id);
        }
        one_shot.set(outcome);
    };
    match failure {
        Some(failure) => notify(&one_shot, Err(failure.into())),
        None if fences.is_empty() => notify(&one_shot, Ok(())),
        None => {
            // The one-shot goes with its last waiter. A subscription without a waiter leaves the reactor's
            // lists, too.
            let (one_shot, wanted) = (Arc::downgrade(&one_shot), Arc::downgrade(&one_shot));
            let wanted = move || wanted.strong_count() > 0;
            Reactor::global().when_settled_if(&fences, wanted, move |settled| {
                let Some(one_shot) = one_shot.upgrade() else { return };
                notify(&one_shot, settled.map_err(|error| failure_of(&issued, error)));
            });
        }
    }
}

/// The failure of the first variable one of whose fences has failed; `error` is the failure of any of them.
fn failure_of(issued: &Issued, error: DeviceError) -> Error {
    let failed =
        issued.iter().find_map(|(fences, writer)| Some((Queried::query(fences).failed?, writer.as_ref())));
    let (error, writer) =
        failed.unwrap_or_else(|| (error, issued.iter().find_map(|(_, writer)| writer.as_ref())));
    device_failure(writer, error).into()
}
