//! Facts about an operator.

use std::fmt;
use std::sync::Arc;

use estafette_devices::{DLDevice, Fence, FenceSet, FenceState, Queue, Reactor};
use estafette_report::shown::shown;
use estafette_sync::process::{Generation, count_leak};
use estafette_sync::sync::Mutex;
use smallvec::SmallVec;

use crate::core::error::Error;
use crate::core::var_state::has;
use crate::exchange::{Storage, reaper};

use super::invocation::Invocation;

/// Outputs that an operator may have at most: a call whose function infers makes room for the shape of each,
/// 512 bytes, before it knows how many dimensions they have.
pub const OUTPUTS_MAX: usize = 1 << 16;

/// The side that decides where the results of an operator go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OperatorKind {
    /// The caller: it passes tensors for the operator to write.
    Destination,
    /// The operator says what its results look like, the engine allocates them. A caller may pass tensors all
    /// the same, and they must look like that.
    Inferred,
    /// The operator allocates its results itself.
    Allocating,
}

impl fmt::Display for OperatorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Destination => "destination",
            Self::Inferred => "inferred",
            Self::Allocating => "allocating",
        })
    }
}

/// The signature of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signature {
    /// The side that decides where the results go.
    pub kind: OperatorKind,
    /// The number of inputs; `None` for any number.
    pub inputs: Option<usize>,
    /// The number of outputs, from 1 to [`OUTPUTS_MAX`].
    pub outputs: usize,
    /// True if outputs may be inputs as well, or overlap them.
    pub in_place: bool,
}

impl Signature {
    pub(crate) fn check(&self, name: &str) -> Result<(), Error> {
        if name.is_empty() {
            return Err(Error::invalid("the name of an operator is empty"));
        }
        if self.outputs == 0 {
            return Err(Error::invalid(format!("operator `{}` has no outputs", shown(name))));
        }
        if self.outputs > OUTPUTS_MAX {
            return Err(Error::invalid(format!(
                "operator `{}` has {} outputs, more than {OUTPUTS_MAX}",
                shown(name),
                self.outputs
            )));
        }
        Ok(())
    }
}

/// The function behind an operator.
pub trait Implementation: Send + Sync + 'static {
    /// Runs the function, or sends it where it runs, and sees to it that the invocation is
    /// [finished](Invocation::finish). Called on a worker once the inputs are there; a panic fails the call.
    fn start(&self, invocation: Invocation);

    /// True if it needs a lock of its own world, such as the Python lock: then a thread that waits does not
    /// run it.
    #[doc(hidden)]
    fn takes_a_lock(&self) -> bool {
        false
    }

    /// True if the function can enqueue on `queue`, instead of working on the host.
    #[doc(hidden)]
    fn can_enqueue_on(&self, queue: &dyn Queue) -> bool {
        let _ = queue;
        true
    }

    /// Called when registration fails: what the implementation was given stays with the registrant, and is
    /// not dropped.
    #[doc(hidden)]
    fn disown(&mut self) {}
}

/// A named function in the registry.
pub struct Operator {
    /// Its name.
    pub name: Arc<str>,
    /// Its signature.
    pub signature: Signature,
    /// Its origin, in words: a language, the path of a library, the full name of a function.
    pub origin: String,
    held: Held,
}

/// An implementation, which stays until the work that calls have left on queues is over.
struct Held {
    /// `None` only during the drop.
    implementation: Option<Box<dyn Implementation>>,
    left: Arc<Mutex<LeftWork>>,
    generation: Generation,
}

/// The work that calls have left on queues, which may run code of the implementation and use its context.
#[derive(Default)]
struct LeftWork {
    fences: FenceSet,
    /// A failed fence of each device that has one: its work may go on. They are not queried again.
    broken: SmallVec<[(DLDevice, Fence); 1]>,
    /// The reactor watches a fence of `fences`, or a sweep runs.
    is_watched: bool,
}

/// When `fence`, which is in `left`, has settled, the settled fences of `left` go, and with them the queues
/// that they keep. Then a pending fence is watched, so that each operator has one fence at the reactor.
fn sweep_after(left: &Arc<Mutex<LeftWork>>, fence: &Fence) {
    let (left, watched) = (Arc::downgrade(left), fence.clone());
    Reactor::global().when_settled([fence], move |outcome| {
        let Some(left) = left.upgrade() else { return };
        if outcome.is_err() && watched.state().is_pending() {
            // The reactor cannot watch the fence: the next call tries again.
            left.lock().is_watched = false;
        } else {
            sweep(&left);
        }
    });
}

fn sweep(left: &Arc<Mutex<LeftWork>>) {
    loop {
        let known = left.lock().fences.clone();
        // Fences may be a user's: they are queried and dropped under no lock.
        let [mut pending, mut settled] = <[FenceSet; 2]>::default();
        let mut failed: SmallVec<[(DLDevice, Fence); 1]> = SmallVec::new();
        for fence in &known {
            let state = fence.state();
            let of_state = if state.is_pending() { &mut pending } else { &mut settled };
            of_state.insert(fence.clone());
            if let FenceState::Failed(_) = state {
                failed.push((fence.device(), fence.clone()));
            }
        }
        let next = pending.iter().next();
        let mut gone: SmallVec<[Fence; 2]> = SmallVec::new();
        let mut work = left.lock();
        work.fences.take_out(|fence| has(&settled, fence), &mut gone);
        for (device, fence) in failed {
            let is_known = work.broken.iter().any(|(known, _)| *known == device);
            if is_known { gone.push(fence) } else { work.broken.push((device, fence)) }
        }
        let is_new = work.fences.iter().any(|fence| !has(&known, fence));
        work.is_watched = next.is_some() || is_new;
        drop(work);
        match next {
            Some(next) => return sweep_after(left, next),
            None if is_new => {}
            None => return,
        }
    }
}

impl Operator {
    pub(super) fn new(
        name: Arc<str>,
        signature: Signature,
        origin: String,
        implementation: impl Implementation,
    ) -> Self {
        let implementation = Some(Box::new(implementation) as Box<dyn Implementation>);
        let held = Held { implementation, left: Arc::default(), generation: Generation::current() };
        Self { name, signature, origin, held }
    }

    pub(super) fn implementation(&self) -> &dyn Implementation {
        self.held.implementation.as_deref().expect("present until dropped")
    }

    /// See [`Implementation::disown`].
    pub(crate) fn disown(&mut self) {
        if let Some(implementation) = &mut self.held.implementation {
            implementation.disown();
        }
    }

    /// Keeps the implementation until `fence` has settled, and for ever where the end of the work cannot be
    /// known.
    pub(super) fn keep_until(&self, fence: Fence) {
        if fence.observed_done() {
            return;
        }
        let mut left = self.held.left.lock();
        let replaced = left.fences.insert_replacing(fence.clone());
        let is_watched = std::mem::replace(&mut left.is_watched, true);
        drop(left);
        // Dropping a fence may run a user's code: no lock is held here.
        drop(replaced);
        if !is_watched {
            sweep_after(&self.held.left, &fence);
        }
    }

    /// Checks the number of inputs of a call, and of outputs if the call passes any.
    pub(super) fn check_arity(&self, inputs: usize, outputs: Option<usize>) -> Result<(), Error> {
        let (name, signature) = (&self.name, &self.signature);
        if let Some(takes) = signature.inputs
            && takes != inputs
        {
            return Err(Error::invalid(format!(
                "operator `{}` takes {takes} inputs, not {inputs}",
                shown(name)
            )));
        }
        match (outputs, signature.kind) {
            (Some(_), OperatorKind::Allocating) => Err(Error::invalid(format!(
                "operator `{name}` allocates its results itself, so it cannot be given outputs to write"
            ))),
            (None, OperatorKind::Destination) => Err(Error::invalid(format!(
                "operator `{name}` writes to outputs that it is given, and was given none"
            ))),
            (Some(given), _) if given != signature.outputs => Err(Error::invalid(format!(
                "operator `{name}` has {} outputs, not {given}",
                signature.outputs
            ))),
            _ => Ok(()),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // The reactor shares the lock: in a forked child it may be held for ever.
        let is_inherited = self.generation.is_inherited();
        let left = if is_inherited { self.left.try_lock() } else { Some(self.left.lock()) };
        let left = left.map(|mut left| std::mem::take(&mut *left));
        if is_inherited && left.as_ref().is_none_or(|left| !left.fences.is_empty() || !left.broken.is_empty())
        {
            // The work and its fences are the parent's. A set whose lock is held may be half changed.
            count_leak();
            return std::mem::forget((left, Arc::clone(&self.left), self.implementation.take()));
        }
        let LeftWork { mut fences, broken, .. } = left.unwrap_or_default();
        fences.prune();
        fences.extend(broken.into_iter().map(|(_, fence)| fence));
        if !fences.is_empty() {
            let implementation = Storage::owned(Box::new(self.implementation.take()), std::ptr::null_mut());
            reaper().release(fences, implementation);
        }
    }
}

impl fmt::Debug for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operator")
            .field("name", &self.name)
            .field("signature", &self.signature)
            .field("origin", &self.origin)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use estafette_devices::{DeviceError, DeviceErrorKind, host};

    use super::*;

    #[test]
    fn settled_fences_leave_and_one_that_has_failed_stays_for_the_release() {
        let left: Arc<Mutex<LeftWork>> = Arc::default();
        for number in 0..8 {
            let (completer, fence) = host::promise("work of a call");
            left.lock().fences.insert(fence);
            match number % 2 {
                0 => completer.complete(),
                _ => completer.fail(DeviceError::new(DeviceErrorKind::Other, "it broke")),
            }
        }
        sweep(&left);
        let left = left.lock();
        assert!(left.fences.is_empty() && !left.is_watched);
        assert_eq!(left.broken.len(), 1);
    }
}
