//! Other contexts that work waits for: a wait for work of a broken context never ends.

use std::any::Any;
use std::ptr;
use std::sync::Arc;

use crate::{Fence, FenceSet};

use super::context::Context;
use super::events::{EventCore, EventFence};
use super::stream::Stream;

/// The source of a fence of CUDA.
enum CudaFence<'a> {
    Stream(&'a Stream),
    Event(&'a EventFence),
    Core(&'a EventCore),
}

fn source(fence: &Fence) -> Option<CudaFence<'_>> {
    if let Some((timeline, _)) = fence.as_point() {
        let any: &dyn Any = &**timeline;
        return any.downcast_ref().map(CudaFence::Stream);
    }
    let any: &dyn Any = &**fence.as_event()?;
    any.downcast_ref().map(CudaFence::Event).or_else(|| any.downcast_ref().map(CudaFence::Core))
}

pub(super) fn context_of(fence: &Fence) -> Option<&Arc<Context>> {
    source(fence).map(|source| match source {
        CudaFence::Stream(stream) => &stream.context,
        CudaFence::Event(event) => event.context(),
        CudaFence::Core(event) => event.context(),
    })
}

pub(super) fn is_of(fence: &Fence, context: &Context) -> bool {
    context_of(fence).is_some_and(|of| ptr::eq(&raw const **of, context))
}

/// Unfinished work of other contexts than `context` that a wait for `fence` waits for, as far as it is known.
pub(super) fn beyond(fence: &Fence, context: &Context) -> FenceSet {
    let mut fences = match source(fence) {
        Some(CudaFence::Stream(stream)) => stream.depends.lock().clone(),
        Some(CudaFence::Event(event)) => event.depends.lock().clone(),
        Some(CudaFence::Core(_)) | None => FenceSet::default(),
    };
    fences.insert(fence.clone());
    let is_left_out =
        |fence: &Fence| fence.observed_done() || is_of(fence, context) || context_of(fence).is_none();
    fences.take_out(is_left_out, &mut Vec::new());
    fences
}
