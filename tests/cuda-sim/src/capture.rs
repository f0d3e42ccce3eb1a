//! Captures: streams whose commands become nodes of a graph instead of happening.

use std::thread::ThreadId;

use crate::codes::*;
use crate::command::{StreamRequest, Touch, Work};
use crate::kind::Kind;
use crate::state::{DriverState, Graph};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mode {
    Global,
    ThreadLocal,
    Relaxed,
}

impl Mode {
    pub(crate) fn numbered(number: u32) -> Result<Self, Code> {
        match number {
            0 => Ok(Self::Global),
            1 => Ok(Self::ThreadLocal),
            2 => Ok(Self::Relaxed),
            _ => Err(INVALID_VALUE),
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct GraphNode {
    pub(crate) kind: Kind,
    pub(crate) work: Work,
    pub(crate) touches: Vec<Touch>,
    pub(crate) after: Vec<usize>,
    /// The event that it waits for, or records, each time the graph is launched.
    pub(crate) external: Option<External>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum External {
    Wait(u64),
    Record(u64),
}

#[derive(Debug)]
pub(crate) struct Capture {
    pub(crate) origin: usize,
    pub(crate) mode: Mode,
    pub(crate) thread: ThreadId,
    pub(crate) invalid: bool,
    pub(crate) graph: Graph,
}

thread_local! {
    /// Calls that captures forbid this thread: `cuThreadExchangeStreamCaptureMode`.
    pub(crate) static THREAD_MODE: std::cell::Cell<Mode> = const { std::cell::Cell::new(Mode::Global) };
}

impl DriverState {
    pub(crate) fn invalidate(&mut self, capture: u64) {
        if let Some(capture) = self.captures.get_mut(&capture) {
            capture.invalid = true;
        }
    }

    /// Refuses a call that may not happen on this thread while captures are under way, and spoils them, as
    /// the driver does with calls that it cannot know to be harmless.
    pub(crate) fn refuse_during_capture(&mut self) -> Result<(), Code> {
        let thread = std::thread::current().id();
        let forbids = |capture: &Capture| match THREAD_MODE.get() {
            Mode::Relaxed => false,
            Mode::ThreadLocal => capture.thread == thread && capture.mode != Mode::Relaxed,
            Mode::Global => {
                capture.mode == Mode::Global || (capture.thread == thread && capture.mode != Mode::Relaxed)
            }
        };
        let caught: Vec<u64> =
            self.captures.iter().filter(|(_, capture)| forbids(capture)).map(|(id, _)| *id).collect();
        caught.iter().for_each(|capture| self.invalidate(*capture));
        if caught.is_empty() { Ok(()) } else { Err(STREAM_CAPTURE_UNSUPPORTED) }
    }

    pub(crate) fn refuse_captured_stream(&mut self, stream: usize) -> Result<(), Code> {
        self.refuse_implicit_capture(stream)?;
        let Some(capture) = self.streams[stream].capture else { return Ok(()) };
        self.invalidate(capture);
        let name = self.stream_name(stream);
        self.violation(format!("{name} is asked or waited for while it is captured"));
        Err(STREAM_CAPTURE_UNSUPPORTED)
    }

    /// Refuses to ask or wait for a context of which a stream is captured, in whatever mode, and spoils those
    /// captures (CUDA C++ Programming Guide, "Prohibited and Unhandled Operations"; `cuCtxRecordEvent` in the
    /// driver's manual).
    pub(crate) fn refuse_captured_context(&mut self, context: usize) -> Result<(), Code> {
        let streams = self.streams.iter().filter(|stream| stream.context == context);
        let captures: Vec<u64> = streams.filter_map(|stream| stream.capture).collect();
        captures.iter().for_each(|capture| self.invalidate(*capture));
        if captures.is_empty() { Ok(()) } else { Err(STREAM_CAPTURE_UNSUPPORTED) }
    }

    pub(crate) fn add_node(
        &mut self,
        capture: u64,
        stream: usize,
        request: StreamRequest,
        external: Option<External>,
    ) {
        let after = std::mem::take(&mut self.streams[stream].tail);
        let nodes = &mut self.captures.get_mut(&capture).expect("a stream is captured to it").graph.nodes;
        nodes.push(GraphNode {
            kind: request.kind,
            work: request.work,
            touches: request.touches,
            after,
            external,
        });
        self.streams[stream].tail = vec![nodes.len() - 1];
    }

    pub(crate) fn begin_capture(&mut self, stream: usize, mode: Mode) -> Result<(), Code> {
        if self.streams[stream].origin == crate::stream::Origin::Legacy {
            return Err(STREAM_CAPTURE_UNSUPPORTED);
        }
        if self.streams[stream].capture.is_some() {
            return Err(ILLEGAL_STATE);
        }
        let id = self.handle();
        let thread = std::thread::current().id();
        let capture = Capture { origin: stream, mode, thread, invalid: false, graph: Graph::default() };
        self.captures.insert(id, capture);
        self.streams[stream].capture = Some(id);
        self.streams[stream].tail.clear();
        Ok(())
    }

    /// Ends the capture that began on `stream`; all that took part leave it.
    pub(crate) fn end_capture(&mut self, stream: usize) -> Result<Graph, Code> {
        let id = self.streams[stream].capture.ok_or(ILLEGAL_STATE)?;
        let capture = &self.captures[&id];
        if capture.mode != Mode::Relaxed && capture.thread != std::thread::current().id() {
            return Err(STREAM_CAPTURE_WRONG_THREAD);
        }
        if capture.origin != stream {
            self.invalidate(id);
            return Err(STREAM_CAPTURE_UNMATCHED);
        }
        let joined = capture.graph.before(&self.streams[stream].tail);
        let mut left_behind = false;
        for other in self.streams.iter_mut().filter(|other| other.capture == Some(id)) {
            left_behind |= !other.tail.iter().all(|node| joined.contains(node));
            other.capture = None;
            other.tail.clear();
        }
        let capture = self.captures.remove(&id).expect("looked at above");
        if capture.invalid {
            return Err(STREAM_CAPTURE_INVALIDATED);
        }
        if left_behind {
            return Err(STREAM_CAPTURE_UNJOINED);
        }
        self.detect_within(&capture.graph);
        Ok(capture.graph)
    }

    /// Nodes of a graph that touch the same memory and are not ordered are a race in every launch.
    fn detect_within(&mut self, graph: &Graph) {
        for (later, node) in graph.nodes.iter().enumerate() {
            let before = graph.before(&node.after);
            for (earlier, other) in graph.nodes[..later].iter().enumerate() {
                let conflict =
                    node.touches.iter().any(|touch| other.touches.iter().any(|its| its.conflicts(touch)));
                if conflict && !before.contains(&earlier) {
                    self.violation(format!(
                        "race: nodes {earlier} ({:?}) and {later} ({:?}) of a captured graph touch the same memory \
                         and nothing orders them",
                        other.kind, node.kind
                    ));
                }
            }
        }
    }
}

impl Graph {
    /// The work of one launch. What no dependence orders is in an order that `draw`, a number below its
    /// argument, decides: a device may run it in any.
    pub(crate) fn launched(&self, mut draw: impl FnMut(u64) -> u64) -> Vec<(Work, Vec<usize>)> {
        let mut places = vec![None; self.nodes.len()];
        let mut launched = Vec::with_capacity(self.nodes.len());
        let mut left: Vec<usize> = (0..self.nodes.len()).collect();
        while !left.is_empty() {
            let is_free =
                |node: &usize| self.nodes[*node].after.iter().all(|before| places[*before].is_some());
            let free: Vec<usize> = (0..left.len()).filter(|at| is_free(&left[*at])).collect();
            let node = left.remove(free[draw(free.len() as u64) as usize]);
            let after = self.nodes[node].after.iter().filter_map(|before| places[*before]).collect();
            places[node] = Some(launched.len());
            launched.push((self.nodes[node].work.clone(), after));
        }
        launched
    }

    /// These nodes and all that come before them.
    pub(crate) fn before(&self, last: &[usize]) -> std::collections::HashSet<usize> {
        let mut found = std::collections::HashSet::new();
        let mut open = last.to_vec();
        while let Some(node) = open.pop() {
            if found.insert(node) {
                open.extend(&self.nodes[node].after);
            }
        }
        found
    }
}
