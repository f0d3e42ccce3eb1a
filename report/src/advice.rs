//! The changes that would help most, each with the time that it would save at most.

use std::collections::HashMap;

use crate::Recording;
use crate::model::{Cause, Culprit, Nanos};
use crate::sentences;
use crate::summary::Advice;
use crate::walk::{Step, What};

/// Changes that are told.
const TOLD: usize = 3;

/// What of the walk could be shorter, sorted by how much it takes of it. A change cannot save more than that, and saves less where
/// something else then becomes the longest way.
pub(crate) fn advice(recording: &Recording, steps: &[Step]) -> Vec<Advice> {
    let mut by_change: HashMap<String, Nanos> = HashMap::new();
    for step in steps {
        if let Some(change) = change(recording, step.what) {
            *by_change.entry(change).or_default() += step.to - step.from;
        }
    }
    let mut advice: Vec<Advice> =
        by_change.into_iter().map(|(change, saves_ns)| Advice { change, saves_ns }).collect();
    advice.sort_by(|a, b| b.saves_ns.cmp(&a.saves_ns).then_with(|| a.change.cmp(&b.change)));
    advice.truncate(TOLD);
    advice
}

fn change(recording: &Recording, what: What) -> Option<String> {
    Some(match what {
        What::Run(id) => format!("make {} faster", sentences::name(recording, id)),
        What::Program => "submit earlier: nothing was under way while the program did something else".into(),
        What::Stall(Cause::Leased, Culprit::Lease(id)) => {
            format!("give back sooner: {}", sentences::lease(recording, id))
        }
        What::Stall(Cause::NoWorker, Culprit::Queue(_)) => "use more queues of the device".into(),
        What::Stall(Cause::NoWorker, _) => "use more workers".into(),
        What::Stall(Cause::NotResumed, Culprit::Interpreter) => {
            "hold the Python lock for less time, or let go of it in long calls".into()
        }
        What::Stall(Cause::NotResumed, Culprit::EventLoop) => {
            "keep the event loop free: move what blocks it to an operation or a thread".into()
        }
        What::Stall(Cause::NotResumed, _) => {
            "wake fewer sleeping threads: await, or wait for more at once".into()
        }
        What::Stall(Cause::NotObserved, _) => {
            "have ends observed sooner: a device that pushes, or fewer fences".into()
        }
        What::Stall(Cause::Computing | Cause::Queued | Cause::Leased, _) => return None,
    })
}
