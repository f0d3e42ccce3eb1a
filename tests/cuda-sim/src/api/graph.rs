//! Graphs: captured, made executable, launched.

use super::put;
use crate::capture::External;
use crate::codes::*;
use crate::command::{StreamRequest, Work};
use crate::kind::Kind;
use crate::state::{Recorded, Session};

fn instantiate(session: &mut Session, executable: *mut u64, graph: u64) -> Result<(), Code> {
    let graph = session.graphs.get(&graph).ok_or(INVALID_HANDLE)?.clone();
    let handle = session.handle();
    session.executables.insert(handle, graph);
    // SAFETY: the caller of the driver passes a place for the result, or null.
    unsafe { put(executable, handle) }
}

driver! {
    fn cuGraphInstantiateWithFlags(executable: *mut u64, graph: u64, flags: u64) |session| {
        let _ = flags;
        instantiate(session, executable, graph)
    }

    fn cuGraphUpload(executable: u64, stream: u64) |session| {
        session.sound_stream(stream)?;
        session.executables.get(&executable).map(|_| ()).ok_or(INVALID_HANDLE)
    }

    fn cuGraphLaunch(executable: u64, stream: u64) |session| {
        let stream = session.sound_stream(stream)?;
        let graph = session.executables.get(&executable).ok_or(INVALID_HANDLE)?.clone();
        let touches = graph.nodes.iter().flat_map(|node| node.touches.iter().copied()).collect();
        let nodes = graph.launched(|limit| session.script.draw(limit));
        let mut request = StreamRequest::new(Kind::Graph, Work::Graph(nodes), touches);
        for node in &graph.nodes {
            if let Some(External::Wait(event)) = node.external
                && let Recorded::Command { id, clock } = session.event(event)?.recorded.clone()
            {
                if !session.is_over(id) {
                    request.after.push(id);
                }
                request.clock.merge(&clock);
            }
        }
        let Some(id) = session.enqueue(stream, request)? else { return Ok(()) };
        let clock = session.streams[stream].clock.clone();
        for node in &graph.nodes {
            if let Some(External::Record(event)) = node.external {
                session.event(event)?.recorded = Recorded::Command { id, clock: clock.clone() };
            }
        }
        Ok(())
    }

    fn cuGraphExecDestroy(executable: u64) |session| {
        session.executables.remove(&executable).map(|_| ()).ok_or(INVALID_HANDLE)
    }

    fn cuGraphDestroy(graph: u64) |session| {
        session.graphs.remove(&graph).map(|_| ()).ok_or(INVALID_HANDLE)
    }
}
