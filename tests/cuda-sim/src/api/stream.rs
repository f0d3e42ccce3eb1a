//! Streams, what they may wait for, and captures.

use std::ffi::{c_int, c_void};

use super::{put, put_if_wanted};
use crate::capture::{External, Mode, THREAD_MODE};
use crate::codes::*;
use crate::command::{Comparison, StreamRequest, Touch, Work};
use crate::kind::Kind;
use crate::state::{DriverState, Recorded, Session};
use crate::stream::Origin;

/// `CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1`, which the second generation of the calls has no other of
/// here.
const CAN_USE_MEMORY_OPERATIONS: c_int = 92;
/// `CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS`.
const CAN_USE_64_BIT_MEMORY_OPERATIONS: c_int = 122;

impl Session {
    /// Waits for all that a stream holds now.
    pub(super) fn wait_for_stream(&mut self, stream: usize) -> Result<(), Code> {
        let context = self.streams[stream].context;
        let last = self.streams[stream].queue.back().copied();
        let clock = self.streams[stream].clock.clone();
        self.wait_until(|state| {
            state.contexts[context].fault.is_some() || last.is_none_or(|last| state.is_over(last))
        });
        self.sound(context)?;
        self.host.merge(&clock);
        self.trim_pools();
        Ok(())
    }
}

impl DriverState {
    fn context_of_stream(&self, stream: usize) -> Result<u64, Code> {
        let context = &self.contexts[self.streams[stream].context];
        if context.holders == 0 { Err(CONTEXT_IS_DESTROYED) } else { Ok(context.handle) }
    }
}

driver! {
    fn cuStreamCreate(stream: *mut u64, flags: u32) |session| {
        let context = session.current()?;
        session.wait_for_setup()?;
        let place = session.add_stream(context, Origin::Created, flags);
        put(stream, session.streams[place].handle)
    }

    fn cuStreamCreateWithPriority(stream: *mut u64, flags: u32, priority: c_int) |session| {
        let _ = priority;
        let context = session.current()?;
        session.wait_for_setup()?;
        let place = session.add_stream(context, Origin::Created, flags);
        put(stream, session.streams[place].handle)
    }

    fn cuStreamDestroy_v2(stream: u64) |session| {
        let stream = session.stream(stream)?;
        if session.streams[stream].origin != Origin::Created {
            return Err(INVALID_HANDLE);
        }
        if let Some(capture) = session.streams[stream].capture {
            session.invalidate(capture);
        }
        // Its commands still happen.
        let this = &mut session.streams[stream];
        this.destroyed = true;
        this.condvar.notify_one();
        let handle = this.handle;
        session.by_handle.remove(&handle);
        Ok(())
    }

    fn cuStreamQuery(stream: u64) |session| {
        let stream = session.stream(stream)?;
        session.sound(session.streams[stream].context)?;
        session.refuse_captured_stream(stream)?;
        session.refuse_during_capture()?;
        if !session.streams[stream].queue.is_empty() {
            return Err(NOT_READY);
        }
        let clock = session.streams[stream].clock.clone();
        session.host.merge(&clock);
        Ok(())
    }

    fn cuStreamSynchronize(stream: u64) |session| {
        let stream = session.stream(stream)?;
        session.sound(session.streams[stream].context)?;
        session.refuse_captured_stream(stream)?;
        session.refuse_during_capture()?;
        session.wait_for_stream(stream)
    }

    fn cuStreamWaitEvent(stream: u64, event: u64, flags: u32) |session| {
        let stream = session.sound_stream(stream)?;
        let recorded = session.event(event)?.recorded.clone();
        let own = session.streams[stream].capture;
        match recorded {
            Recorded::Captured { capture, after } => {
                if !session.captures.contains_key(&capture) {
                    return Err(CAPTURED_EVENT);
                }
                if session.streams[stream].origin == Origin::Legacy {
                    session.invalidate(capture);
                    return Err(STREAM_CAPTURE_IMPLICIT);
                }
                if own.is_some_and(|own| own != capture) {
                    session.invalidate(capture);
                    own.into_iter().for_each(|own| session.invalidate(own));
                    return Err(STREAM_CAPTURE_MERGE);
                }
                let this = &mut session.streams[stream];
                this.capture = Some(capture);
                this.tail.extend(after);
                this.tail.sort_unstable();
                this.tail.dedup();
            }
            Recorded::Never | Recorded::Command { .. } if own.is_some() => {
                let capture = own.expect("just looked at");
                if flags & 1 == 0 {
                    session.invalidate(capture);
                    return Err(STREAM_CAPTURE_ISOLATION);
                }
                let request = StreamRequest::new(Kind::Wait, Work::Nothing, Vec::new());
                session.add_node(capture, stream, request, Some(External::Wait(event)));
            }
            Recorded::Never => {}
            Recorded::Command { id, clock } => {
                let mut request = StreamRequest::new(Kind::Wait, Work::Nothing, Vec::new());
                if !session.is_over(id) {
                    request.after.push(id);
                }
                request.clock = clock;
                session.enqueue(stream, request)?;
            }
        }
        Ok(())
    }

    fn cuStreamGetCtx(stream: u64, context: *mut u64) |session| {
        let stream = session.stream(stream)?;
        let own = session.context_of_stream(stream)?;
        // A green context stands for itself here.
        let green = session.streams[stream].green;
        put(context, if green == 0 { own } else { green })
    }

    fn cuStreamGetCtx_v2(stream: u64, context: *mut u64, green: *mut u64) |session| {
        let stream = session.stream(stream)?;
        let own = session.context_of_stream(stream)?;
        put_if_wanted(green, session.streams[stream].green);
        put(context, own)
    }

    fn cuGreenCtxStreamCreate(stream: *mut u64, green: u64, flags: u32, priority: c_int) |session| {
        let _ = priority;
        let context = *session.green_contexts.get(&green).ok_or(INVALID_CONTEXT)?;
        let place = session.add_stream(context, Origin::Created, flags);
        session.streams[place].green = green;
        put(stream, session.streams[place].handle)
    }

    fn cuStreamGetId(stream: u64, id: *mut u64) |session| {
        let stream = session.stream(stream)?;
        // As an H100's driver was seen to do.
        session.refuse_captured_stream(stream)?;
        put(id, stream as u64 + 1)
    }

    fn cuLaunchHostFunc(stream: u64, function: Option<unsafe extern "C" fn(*mut c_void)>, data: *mut c_void) |session| {
        let stream = session.sound_stream(stream)?;
        let function = function.ok_or(INVALID_VALUE)?;
        let work = Work::HostFunction { function, data: data as usize };
        session.enqueue(stream, StreamRequest::new(Kind::HostFunction, work, Vec::new()))?;
        Ok(())
    }

    fn cuStreamWriteValue32_v2(stream: u64, address: u64, value: u32, flags: u32) |session| {
        let _ = flags;
        write_value(session, stream, address, u64::from(value), false)
    }

    fn cuStreamWriteValue64_v2(stream: u64, address: u64, value: u64, flags: u32) |session| {
        let _ = flags;
        write_value(session, stream, address, value, true)
    }

    fn cuStreamWaitValue32_v2(stream: u64, address: u64, value: u32, flags: u32) |session| {
        wait_value(session, stream, address, u64::from(value), flags, false)
    }

    fn cuStreamWaitValue64_v2(stream: u64, address: u64, value: u64, flags: u32) |session| {
        wait_value(session, stream, address, value, flags, true)
    }

    fn cuStreamBeginCapture_v2(stream: u64, mode: u32) |session| {
        let stream = session.sound_stream(stream)?;
        session.begin_capture(stream, Mode::numbered(mode)?)
    }

    fn cuStreamEndCapture(stream: u64, graph: *mut u64) |session| {
        let stream = session.stream(stream)?;
        put(graph, 0)?;
        let captured = session.end_capture(stream)?;
        let handle = session.handle();
        session.graphs.insert(handle, captured);
        put(graph, handle)
    }

    fn cuStreamIsCapturing(stream: u64, status: *mut u32) |session| {
        let stream = session.stream(stream)?;
        session.not_beside_a_capture(stream)?;
        put(status, capture_status(session, stream).0)
    }

    fn cuStreamGetCaptureInfo_v2(
        stream: u64, status: *mut u32, id: *mut u64, graph: *mut u64, dependencies: *mut *const u64, count: *mut usize,
    ) |session| {
        let stream = session.stream(stream)?;
        session.not_beside_a_capture(stream)?;
        let (now, capture) = capture_status(session, stream);
        put_if_wanted(id, capture);
        put_if_wanted(graph, capture);
        put_if_wanted(dependencies, std::ptr::null());
        put_if_wanted(count, session.streams[stream].tail.len());
        put(status, now)
    }

    fn cuThreadExchangeStreamCaptureMode(mode: *mut u32) |session| {
        let _ = session;
        if mode.is_null() {
            return Err(INVALID_VALUE);
        }
        let old = THREAD_MODE.replace(Mode::numbered(*mode)?);
        put(mode, old as u32)
    }
}

fn capture_status(session: &Session, stream: usize) -> (u32, u64) {
    match session.streams[stream].capture {
        None => (0, 0),
        Some(capture) if session.captures[&capture].invalid => (2, capture),
        Some(capture) => (1, capture),
    }
}

/// Refuses what the device says that it cannot do.
fn can_use_memory_operations(session: &Session, stream: usize, wide: bool) -> Result<(), Code> {
    let device = session.contexts[session.streams[stream].context].device;
    let attribute = if wide { CAN_USE_64_BIT_MEMORY_OPERATIONS } else { CAN_USE_MEMORY_OPERATIONS };
    if session.attribute(device, attribute) == 0 { Err(NOT_SUPPORTED) } else { Ok(()) }
}

fn write_value(session: &mut Session, stream: u64, address: u64, value: u64, wide: bool) -> Result<(), Code> {
    let stream = session.sound_stream(stream)?;
    can_use_memory_operations(session, stream, wide)?;
    let bytes = if wide { 8 } else { 4 };
    session.check_known(address, bytes)?;
    if !address.is_multiple_of(bytes) {
        return Err(INVALID_VALUE);
    }
    // Its word is a signal: others read it while it is written, on purpose.
    let work = Work::WriteValue { address, value, wide };
    session.enqueue(stream, StreamRequest::new(Kind::WriteValue, work, Vec::new()))?;
    Ok(())
}

fn wait_value(
    session: &mut Session,
    stream: u64,
    address: u64,
    value: u64,
    flags: u32,
    wide: bool,
) -> Result<(), Code> {
    let stream = session.sound_stream(stream)?;
    can_use_memory_operations(session, stream, wide)?;
    let bytes = if wide { 8 } else { 4 };
    session.check_known(address, bytes)?;
    if !address.is_multiple_of(bytes) {
        return Err(INVALID_VALUE);
    }
    let until = match flags & 3 {
        0 => Comparison::GreaterOrEqual,
        1 => Comparison::Equal,
        2 => Comparison::And,
        _ => Comparison::Nor,
    };
    let work = Work::WaitValue { address, value, wide, until };
    session.enqueue(stream, StreamRequest::new(Kind::WaitValue, work, Vec::<Touch>::new()))?;
    Ok(())
}
