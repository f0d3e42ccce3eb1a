//! Graphs: work of one queue or several, captured once and launched often, with one call of the driver per
//! launch.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::{iter, ptr};

use cudarc::driver::sys::{CUgraph, CUgraphExec, CUstreamCaptureMode};
use estafette_sync::sync::Mutex;

use crate::{DeviceError, Fence, LaunchGraph, Queue, Reactor, Recorded};

use super::context::Context;
use super::driver::{DRIVER, Handle};
use super::memory;
use super::queue::{CudaQueue, not_ours};

/// Work that was captured on a queue, ready to be launched.
///
/// Launches of one graph run one after the other, whatever queues they are on. The memory that the graph uses
/// must live for as long as the graph is launched. Launches that are under way when the graph is dropped
/// complete.
pub struct CudaGraph {
    context: Arc<Context>,
    executable: Handle<CUgraphExec>,
    /// The end of the last launch.
    last: Mutex<Option<Fence>>,
}

impl CudaQueue {
    /// Captures the work that `enqueue` enqueues on this queue, instead of running it. `others` are queues of
    /// the same device that take part from the beginning to the end.
    ///
    /// `enqueue` gets this queue's `CUstream`. It enqueues there, or with the methods of these queues, from
    /// this thread alone, and may order the queues by their fences. Work of queues that are not named has to
    /// be joined before it returns. While `enqueue` runs, the queues cannot wait for work outside of the
    /// capture: callers wait for such work before a launch. Other threads must not use the queues meanwhile.
    ///
    /// # Errors
    /// A queue is foreign, has failed, is capturing already or is of another device; the driver has no graphs
    /// or refused the capture; errors of `enqueue`. The queues are as they were before.
    pub fn capture(
        &self,
        others: &[&Self],
        enqueue: impl FnOnce(usize) -> Result<(), DeviceError>,
    ) -> Result<CudaGraph, DeviceError> {
        let context = self.context();
        let api = context.api;
        let refused = |message: &str| Err(DeviceError::invalid(message));
        let Some(stream) = self.stream() else {
            return refused("graphs are captured on queues of our own");
        };
        let of_one_device = |other: &&&Self| Arc::ptr_eq(other.context(), context);
        let joined: Vec<_> = others.iter().filter(of_one_device).filter_map(|other| other.stream()).collect();
        if joined.len() < others.len() {
            return refused("one graph is captured on queues of our own, all of one device");
        }
        let (Some(begin), Some(end), Some(instantiate), Some(destroy)) =
            (api.capture_begin, api.capture_end, api.graph_instantiate, api.graph_destroy)
        else {
            return refused("the driver has no graphs");
        };
        stream.begin_capture(|raw| {
            let _current = context.make_current()?;
            // SAFETY: a live stream.
            let code = unsafe { begin(raw, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) };
            context.check(code, "cannot begin to capture a graph")
        })?;
        let mut taking_part = 0;
        // No `contain_panic`: the panic goes on, with its payload, once the capture has ended.
        let enqueued = catch_unwind(AssertUnwindSafe(|| {
            for other in &joined {
                other.join_capture(stream)?;
                taking_part += 1;
            }
            enqueue(stream.raw().expose_provenance())?;
            joined.iter().try_for_each(|other| other.rejoin(stream))
        }));
        let mut graph = CapturedGraph { context, raw: ptr::null_mut(), destroy };
        let ended = stream.end_capture(|raw| {
            let _current = context.make_current()?;
            // SAFETY: the capture that was begun above, on this thread.
            let code = unsafe { end(raw, &raw mut graph.raw) };
            context.check(code, "cannot end the capture of a graph")
        });
        joined[..taking_part].iter().for_each(|other| drop(other.end_capture(|_| Ok(()))));
        // A capturing stream does not wait for memory that is allocated meanwhile.
        let mut streams = iter::once(&stream).chain(&joined[..taking_part]);
        let pending = memory::pending();
        let awaited = streams
            .try_for_each(|stream| pending.iter().try_for_each(|event| stream.await_memory(event).map(drop)));
        enqueued.unwrap_or_else(|panic| resume_unwind(panic)).and(ended).and(awaited)?;
        let mut executable: CUgraphExec = ptr::null_mut();
        context.make_current_relaxed().and_then(|_current| {
            // Not uploaded (`cuGraphUpload`): the first launch pays for that, once. An upload comes after all
            // that is on its stream by then, and each launch on any stream comes after the upload.
            // SAFETY: an own graph; writes one handle.
            let code = unsafe { instantiate(&raw mut executable, graph.raw, 0) };
            context.check(code, "cannot make the graph ready")
        })?;
        Ok(CudaGraph {
            context: Arc::clone(context),
            executable: Handle::new(executable),
            last: Mutex::new(None),
        })
    }
}

/// A captured graph, destroyed on drop. Its executable stays.
struct CapturedGraph<'a> {
    context: &'a Context,
    raw: CUgraph,
    destroy: unsafe extern "C" fn(CUgraph) -> i32,
}

impl Drop for CapturedGraph<'_> {
    fn drop(&mut self) {
        if !self.raw.is_null()
            && let Ok(_current) = self.context.make_current_relaxed()
        {
            // SAFETY: ours, destroyed this once.
            let _ = unsafe { (self.destroy)(self.raw) };
        }
    }
}

/// [`Queue::capture_graph`] on an own queue.
pub(super) fn record(
    queue: &CudaQueue,
    queues: usize,
    enqueue: Recorded<'_>,
) -> Result<Arc<dyn LaunchGraph>, DeviceError> {
    if queue.is_foreign() {
        return Err(DeviceError::invalid("graphs are captured on queues of our own"));
    }
    let made: Vec<_> =
        (0..queues.max(1)).map(|_| CudaQueue::own(queue.context())).collect::<Result<_, _>>()?;
    let queues: Vec<Arc<dyn Queue>> = made.iter().map(|queue| Arc::clone(queue) as Arc<dyn Queue>).collect();
    let others: Vec<&CudaQueue> = made[1..].iter().map(|queue| &**queue).collect();
    let graph = made[0].capture(&others, |_| enqueue(&queues))?;
    Ok(Arc::new(graph))
}

impl LaunchGraph for CudaGraph {
    fn launch(&self, queue: &dyn Queue) -> Result<Fence, DeviceError> {
        let queue = CudaQueue::from_queue(queue).ok_or_else(|| not_ours(queue, self.context.id))?;
        if !Arc::ptr_eq(queue.context(), &self.context) {
            let message = format!("the graph is of {}, the queue of {}", self.context.id, queue.device());
            return Err(DeviceError::invalid(message));
        }
        let Some(launch) = self.context.api.graph_launch else {
            return Err(DeviceError::invalid("the driver has no graphs"));
        };
        // Launches of one graph may not be made by two threads at once.
        let mut last = self.last.lock();
        // Queues that are captured do not wait for memory.
        queue.await_memory()?;
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
        if DRIVER.is_driver_gone() {
            return;
        }
        let (context, executable) = (Arc::clone(&self.context), self.executable);
        let last = self.last.lock().take();
        // A launch that is under way still uses the executable. In a broken context it is leaked with
        // everything else.
        Reactor::global().when_settled(&last, move |outcome| {
            if let (Ok(()), Some(destroy), Ok(_current)) =
                (outcome, context.api.executable_destroy, context.make_current_relaxed())
            {
                // SAFETY: ours, destroyed this once, and not running.
                let _ = unsafe { destroy(executable.get()) };
            }
        });
    }
}

debug_as!(graph: CudaGraph, "CudaGraph(of {})", graph.context.id);
