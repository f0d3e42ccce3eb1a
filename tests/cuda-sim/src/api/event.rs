//! Events.

use super::put;
use crate::capture::External;
use crate::codes::*;
use crate::command::{StreamRequest, Work};
use crate::kind::Kind;
use crate::state::{Event, Recorded, Session};

driver! {
    fn cuEventCreate(event: *mut u64, flags: u32) |session| {
        let context = session.current()?;
        let handle = session.handle();
        let timing = flags & 2 == 0;
        session.events.insert(handle, Event { context, timing, recorded: Recorded::Never, reached: None });
        put(event, handle)
    }

    fn cuEventDestroy_v2(event: u64) |session| {
        session.event(event)?;
        session.events.remove(&event);
        Ok(())
    }

    fn cuEventRecord(event: u64, stream: u64) |session| {
        record(session, event, stream, 0)
    }

    fn cuCtxRecordEvent(context: u64, event: u64) |session| {
        let context = session.context(context)?;
        session.sound(context)?;
        if session.event(event)?.context != context {
            return Err(INVALID_HANDLE);
        }
        let members = |session: &Session| {
            (0..session.streams.len()).filter(|stream| session.streams[*stream].context == context).collect::<Vec<_>>()
        };
        session.refuse_captured_context(context)?;
        // A stream of its own that orders no other stream, and waits for all others.
        let recorder = session.stream_for_records(context);
        let mut request = StreamRequest::new(Kind::Record, Work::Record { event }, Vec::new());
        for stream in members(session) {
            request.after.extend(session.streams[stream].queue.back());
            request.clock.merge(&session.streams[stream].clock.clone());
        }
        let id = session.enqueue(recorder, request)?.expect("that stream is never captured");
        let clock = session.streams[recorder].clock.clone();
        let event = session.event(event)?;
        event.recorded = Recorded::Command { id, clock };
        event.reached = None;
        Ok(())
    }

    fn cuEventQuery(event: u64) |session| {
        let context = refuse_captured(session, event)?;
        let Recorded::Command { id, clock } = session.event(event)?.recorded.clone() else { return Ok(()) };
        session.sound(context)?;
        if !session.is_over(id) {
            return Err(NOT_READY);
        }
        session.host.merge(&clock);
        Ok(())
    }

    fn cuEventSynchronize(event: u64) |session| {
        let context = refuse_captured(session, event)?;
        let Recorded::Command { id, clock } = session.event(event)?.recorded.clone() else { return Ok(()) };
        session.wait_until(|state| state.contexts[context].fault.is_some() || state.is_over(id));
        session.sound(context)?;
        session.host.merge(&clock);
        Ok(())
    }

    fn cuEventElapsedTime(milliseconds: *mut f32, start: u64, end: u64) |session| {
        elapsed(session, milliseconds, start, end)
    }

    fn cuEventElapsedTime_v2(milliseconds: *mut f32, start: u64, end: u64) |session| {
        elapsed(session, milliseconds, start, end)
    }
}

fn record(session: &mut Session, event: u64, stream: u64, flags: u32) -> Result<(), Code> {
    let stream = session.sound_stream(stream)?;
    if session.event(event)?.context != session.streams[stream].context {
        return Err(INVALID_HANDLE);
    }
    if let Some(capture) = session.streams[stream].capture {
        if session.captures[&capture].invalid {
            return Err(STREAM_CAPTURE_INVALIDATED);
        }
        if flags & 1 != 0 {
            let request = StreamRequest::new(Kind::Record, Work::Nothing, Vec::new());
            session.add_node(capture, stream, request, Some(External::Record(event)));
        } else {
            let after = session.streams[stream].tail.clone();
            session.event(event)?.recorded = Recorded::Captured { capture, after };
        }
        return Ok(());
    }
    let request = StreamRequest::new(Kind::Record, Work::Record { event }, Vec::new());
    let id = session.enqueue(stream, request)?.expect("the stream is not captured");
    let clock = session.streams[stream].clock.clone();
    let event = session.event(event)?;
    event.recorded = Recorded::Command { id, clock };
    event.reached = None;
    Ok(())
}

/// Asking for an event that is part of a capture spoils the capture. Returns the event's context.
fn refuse_captured(session: &mut Session, event: u64) -> Result<usize, Code> {
    let found = session.event(event)?;
    let context = found.context;
    if let Recorded::Captured { capture, .. } = found.recorded {
        session.invalidate(capture);
        session.violation(format!("event {event:#x} is asked or waited for, and was recorded in a capture"));
        return Err(CAPTURED_EVENT);
    }
    session.sound(context)?;
    session.refuse_during_capture()?;
    Ok(context)
}

fn elapsed(session: &mut Session, milliseconds: *mut f32, start: u64, end: u64) -> Result<(), Code> {
    let mut reached = |event: u64| {
        let event = session.event(event)?;
        match (event.timing, &event.recorded) {
            (true, Recorded::Command { .. }) => event.reached.ok_or(NOT_READY),
            _ => Err(INVALID_HANDLE),
        }
    };
    let (start, end) = (reached(start)?, reached(end)?);
    // SAFETY: the caller of the driver passes a place for the result, or null.
    unsafe { put(milliseconds, (end as f64 - start as f64) as f32 / 1e6) }
}
