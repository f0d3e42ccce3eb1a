//! Graphs: work of one queue, recorded once and launched often, with one call of the driver each.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::{Arc, PoisonError};

use cudarc::driver::sys::{CUgraph, CUgraphExec, CUstreamCaptureMode};
use estafette_sync::abandoned::is_abandoned;
use estafette_sync::sync::Mutex;

use crate::{DeviceError, DeviceErrorKind, Fence, Queue, Reactor};

use super::context::Context;
use super::handle::Handle;
use super::queue::CudaQueue;

/// Work that was recorded on a queue, ready to be launched.
///
/// Its launches run one after the other, on whatever queues. The memory that it uses has to live for as long as it is launched.
/// When it is dropped, launches that are under way end in peace.
pub struct CudaGraph {
    context: Arc<Context>,
    executable: Handle<CUgraphExec>,
    /// The end of the last launch.
    last: Mutex<Option<Fence>>,
}

impl CudaQueue {
    /// Records what `enqueue` enqueues on this queue, instead of running it.
    ///
    /// `enqueue` gets the `CUstream`, and enqueues there, or with this queue's own methods, from this thread alone; work of other
    /// queues has to be joined before it returns. While it runs the queue can wait for nothing outside of the recording: whatever
    /// the work needs is waited for before a launch. Other threads must not use the queue meanwhile.
    ///
    /// # Errors
    /// The queue is not ours, has failed, or is recording already; the driver has no graphs or refused the recording; or what
    /// `enqueue` says. The queue is as it was before.
    pub fn capture(
        &self,
        enqueue: impl FnOnce(usize) -> Result<(), DeviceError>,
    ) -> Result<CudaGraph, DeviceError> {
        let context = self.context();
        let api = context.api;
        let refused = |message: &str| Err(DeviceError::new(DeviceErrorKind::Invalid, message));
        let Some(stream) = self.stream() else {
            return refused("graphs are recorded on queues of our own");
        };
        let (Some(begin), Some(end), Some(instantiate), Some(destroy)) =
            (api.capture_begin, api.capture_end, api.graph_instantiate, api.graph_destroy)
        else {
            return refused("the driver has no graphs");
        };
        stream.begin_recording(|raw| {
            let _entered = context.enter()?;
            // SAFETY: a live stream.
            let code = unsafe { begin(raw, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) };
            context.check(code, "cannot begin to record a graph")
        })?;
        let enqueued = catch_unwind(AssertUnwindSafe(|| enqueue(stream.raw().expose_provenance())));
        let mut graph: CUgraph = ptr::null_mut();
        let ended = stream.end_recording(|raw| {
            let _entered = context.enter()?;
            // SAFETY: the recording that was begun above, on this thread.
            let code = unsafe { end(raw, &raw mut graph) };
            context.check(code, "cannot end the recording of a graph")
        });
        let enqueued = match enqueued {
            Ok(enqueued) => enqueued.and(ended),
            Err(panic) => {
                discard(context, graph, destroy);
                resume_unwind(panic)
            }
        };
        if let Err(error) = enqueued {
            discard(context, graph, destroy);
            return Err(error);
        }
        let mut executable: CUgraphExec = ptr::null_mut();
        let instantiated = context.enter_relaxed().and_then(|_entered| {
            // SAFETY: a graph of ours; writes one handle.
            let code = unsafe { instantiate(&raw mut executable, graph, 0) };
            context.check(code, "cannot make the graph ready")
        });
        discard(context, graph, destroy);
        instantiated?;
        Ok(CudaGraph {
            context: Arc::clone(context),
            executable: Handle::new(executable),
            last: Mutex::new(None),
        })
    }
}

/// Destroys a graph that was recorded; what was made ready of it stays.
fn discard(context: &Context, graph: CUgraph, destroy: unsafe extern "C" fn(CUgraph) -> i32) {
    if graph.is_null() {
        return;
    }
    if let Ok(_entered) = context.enter_relaxed() {
        // SAFETY: ours, destroyed this once.
        let _ = unsafe { destroy(graph) };
    }
}

impl CudaGraph {
    /// Enqueues all of it on `queue`, and gives the fence of it.
    ///
    /// # Errors
    /// The queue is of another device or is recording, the context is broken, or the driver refused it.
    pub fn launch(&self, queue: &CudaQueue) -> Result<Fence, DeviceError> {
        if !Arc::ptr_eq(queue.context(), &self.context) {
            let message = format!("the graph is of {}, the queue of {}", self.context.id, queue.device());
            return Err(DeviceError::new(DeviceErrorKind::Invalid, message));
        }
        let Some(launch) = self.context.api.graph_launch else {
            return Err(DeviceError::new(DeviceErrorKind::Invalid, "the driver has no graphs"));
        };
        // Launches of one graph may not be made by two threads at once.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: both are live and of one context.
        queue.enqueue("cannot launch a graph", |stream| unsafe { launch(self.executable.get(), stream) })?;
        self.context.counters.graph_launches.one();
        let fence = queue.record()?;
        *last = Some(fence.clone());
        Ok(fence)
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        if is_abandoned() {
            return;
        }
        let (context, executable) = (Arc::clone(&self.context), self.executable);
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A launch that is under way uses it still. Of a broken context it is leaked with the rest.
        Reactor::global().when_settled(&last, move |outcome| {
            if let (Ok(()), Some(destroy), Ok(_entered)) =
                (outcome, context.api.executable_destroy, context.enter_relaxed())
            {
                // SAFETY: ours, destroyed this once, and not running.
                let _ = unsafe { destroy(executable.get()) };
            }
        });
    }
}

impl fmt::Debug for CudaGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaGraph(of {})", self.context.id)
    }
}
