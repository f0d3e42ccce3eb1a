//! The bodies of operations: closures that own the operands, run the user's code, and complete the operation.

use std::future::Future;

use estafette_devices::CurrentGuard;

use crate::core::context::{self, Current, RunAs};
use crate::core::error::BodyResult;
use crate::core::operation::contain_panic;
use crate::exchange::releasing;
use crate::lease::check_writable;
use crate::operation::body::Body;
use crate::operation::completion::{self, Completion, Given, Prepared, Promised};
use crate::operation::guards::OpenOperation;
use crate::operation::import::{Copying, Produced};
use crate::operation::operands::{Declared, Grant, OpenRef, Operands, with_modes};
use crate::operation::run::Running;
use crate::tensor::handle::Tensor;

/// The body of an operation that ends elsewhere. The scope is allocated here, where the operands are at hand,
/// so the closure holds one pointer and `start`.
pub(crate) fn external_body<R: Operands, W: Operands, U: Operands, F>(
    (reads, writes, updates): (R, W, U),
    produced: Promised,
    start: F,
) -> Body
where
    F: FnOnce(Completion) + Send + 'static,
{
    let prepared = Prepared::new(with_modes(reads, writes, updates), produced);
    Body::new(move |running: Running| {
        prepared.start(running, start);
        None
    })
}

/// Runs `body` if all tensors of `promised` are there by then, and those writable that it writes. They were
/// promises when the operation was submitted. Otherwise skips the body: a tensor has no memory, because its
/// producer failed, or is read-only; and where the device of the operation's queue cannot be made current.
/// What would be called then is dropped before the body runs.
pub(crate) fn if_usable(promised: Declared, body: Body) -> Body {
    Body::new(move |running: Running| {
        let wrong = promised.iter().find_map(|(tensor, mode)| {
            if !tensor.is_defined() {
                return Some(tensor.inner.why_undefined(&running.tag()));
            }
            let written = mode.is_exclusive().then(|| check_writable(tensor));
            written?.err().map(|error| running.tag().body_failure(Box::new(error)))
        });
        // The body has them too.
        drop(promised);
        match wrong {
            None => {
                let queue = running.op().payload().queue().cloned();
                // The body itself would find that out without what is to be called.
                let current = match queue.as_deref().map(CurrentGuard::queue).transpose() {
                    Ok(current) => current,
                    Err(error) => {
                        let cause = running.tag().device_failure(error);
                        return running.skip_without(cause, body);
                    }
                };
                let _ = contain_panic(|| drop(running.op().payload().take_on_skip()));
                let next = body.run(running);
                drop(current);
                next
            }
            Some(cause) => running.skip_without(cause, body),
        }
    })
}

#[inline]
pub(crate) fn sync_body<R: Operands, W: Operands, U: Operands, F>(
    (reads, writes, updates): (R, W, U),
    body: F,
) -> Body
where
    F: for<'a> FnOnce(R::Views<'a>, W::ViewsMut<'a>, U::ViewsMut<'a>) -> BodyResult + Send + 'static,
{
    Body::new(move |running: Running| {
        let grant = &Grant::OF_BODY;
        let result = running
            .call(|| body(reads.defined()?.views(grant), writes.views_mut(grant), updates.views_mut(grant)));
        // Without tensors, nothing is left to release.
        let _releasing = std::mem::needs_drop::<(R, W, U)>().then(releasing);
        let next = running.finish(result);
        // Drops the operands last: if a handle is the last of its memory, the drop must see what the
        // operation left on the variables.
        drop((reads, writes, updates));
        next
    })
}

pub(crate) fn future_body<R, W, U, F, Fut>(
    reads: R,
    writes: W,
    updates: U,
    produced: Option<(Tensor, Copying)>,
    body: F,
) -> Body
where
    R: Operands,
    W: Operands,
    U: Operands,
    F: FnOnce(&OpenRef, R::Guards, &W, &U) -> Fut + Send + 'static,
    Fut: Future<Output = BodyResult<Option<Produced>>> + Send + 'static,
{
    Body::new(move |running: Running| {
        if let Err(error) = reads.defined() {
            let cause = running.tag().result_failure(error);
            return running.skip_without(cause, (reads, writes, updates, produced, body));
        }
        let core = running.op().payload().core.clone();
        let (tag, current) = (running.tag(), Current::of(running.op()));
        let kept = reads.tensors().iter().chain(writes.tensors()).chain(updates.tensors()).cloned().collect();
        let open = OpenRef(OpenOperation::new(running, kept));
        let guards = reads.guards(&open);
        let entered = context::make_current(current);
        let make = || core.within_runtime(|| body(&open, guards, &writes, &updates));
        let started = contain_panic(make).map_err(|panic| tag.panic_failure(panic));
        drop((entered, reads, writes, updates));
        let future = match started.and_then(|made| made.map_err(|error| tag.result_failure(error))) {
            Ok(future) => future,
            Err(failure) => {
                open.0.conclude(Err(failure));
                return None;
            }
        };
        let (task_open, task_tag) = (open.clone(), tag.clone());
        let task = RunAs::new(current, async move {
            let outcome = completion::catch(future).await;
            let held = |tensor: &Tensor| task_open.0.holds(tensor);
            let given = outcome.map(|result| result.map(Given::from_iter));
            let (_, ended) = completion::define_result(&task_tag, given, produced.as_slice(), &held, None);
            let releasing = releasing();
            task_open.0.conclude(ended);
            drop((task_open, produced));
            drop(releasing);
        });
        if let Err(error) = core.spawn(task) {
            open.0.conclude(Err(tag.result_failure(error)));
        }
        None
    })
}
