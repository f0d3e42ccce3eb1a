//! Copies and memory set to a value.

use std::ffi::c_void;

use crate::codes::*;
use crate::command::{StreamRequest, Touch, Work};
use crate::kind::Kind;
use crate::memory::MemoryKind;
use crate::state::Session;

/// Counted, among the calls: copies on a stream that may hold up their caller.
const MAY_BLOCK: &str = "copies that may block";

/// End of a copy: memory that the driver has to know, or any.
#[derive(Clone, Copy, PartialEq)]
enum CopyEnd {
    Known,
    Any,
}

fn copy(
    session: &mut Session,
    to: (u64, CopyEnd),
    from: (u64, CopyEnd),
    bytes: usize,
    stream: u64,
) -> Result<usize, Code> {
    let stream = session.sound_stream(stream)?;
    let bytes = bytes as u64;
    for (address, end) in [to, from] {
        match end {
            CopyEnd::Known => session.check_known(address, bytes)?,
            CopyEnd::Any => session.check_range(address, bytes)?,
        }
    }
    let touches = vec![Touch::read(from.0, bytes), Touch::write(to.0, bytes)];
    let work = Work::Copy { to: to.0, from: from.0, bytes };
    let command = session.enqueue(stream, StreamRequest::new(Kind::Copy, work, touches))?;
    // "API synchronization behavior" in the driver's manual: what goes to pageable memory, or from host to
    // host, is over when the call returns. What comes from pageable memory may be staged first, for which the
    // driver "may synchronize with the stream", or not; here it is not, but code that must not block has to
    // expect it.
    let place = |session: &Session, address| session.memory.live(address).map(|allocation| allocation.place);
    let (source, target) = (place(session, from.0), place(session, to.0));
    if command.is_some() && bytes > 0 && (source.is_none() || target.is_none()) {
        *session.calls.entry(MAY_BLOCK).or_default() += 1;
    }
    let on_host = |place| matches!(place, None | Some(MemoryKind::Pinned | MemoryKind::Registered));
    if command.is_some() && bytes > 0 && (target.is_none() || (on_host(source) && on_host(target))) {
        session.wait_for_stream(stream)?;
    }
    Ok(stream)
}

/// A copy on the legacy stream. The host waits for it, unless it goes from device memory to device memory:
/// then the manual promises "no host-side synchronization".
fn copy_now(
    session: &mut Session,
    to: (u64, CopyEnd),
    from: (u64, CopyEnd),
    bytes: usize,
) -> Result<(), Code> {
    session.refuse_during_capture()?;
    let stream = copy(session, to, from, bytes, 0)?;
    if [to.0, from.0].into_iter().all(|address| session.is_device_memory(address)) {
        return Ok(());
    }
    session.wait_for_stream(stream)
}

/// Sets memory on the legacy stream. The host waits for that only of pinned and managed memory.
fn set_now(session: &mut Session, to: u64, value: u32, width: u64, count: usize) -> Result<(), Code> {
    session.refuse_during_capture()?;
    let stream = set(session, to, value, width, count, 0)?;
    if session.is_device_memory(to) {
        return Ok(());
    }
    session.wait_for_stream(stream)
}

impl Session {
    fn is_device_memory(&self, address: u64) -> bool {
        self.memory.live(address).is_some_and(|allocation| allocation.place == MemoryKind::Device)
    }
}

fn set(
    session: &mut Session,
    to: u64,
    value: u32,
    width: u64,
    count: usize,
    stream: u64,
) -> Result<usize, Code> {
    let stream = session.sound_stream(stream)?;
    let bytes = width * count as u64;
    session.check_known(to, bytes)?;
    if !to.is_multiple_of(width) {
        return Err(INVALID_VALUE);
    }
    let work = Work::Set { to, value, width, count: count as u64 };
    session.enqueue(stream, StreamRequest::new(Kind::Set, work, vec![Touch::write(to, bytes)]))?;
    Ok(stream)
}

driver! {
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: u64) |session| {
        copy(session, (to, CopyEnd::Known), (from as u64, CopyEnd::Any), bytes, stream).map(|_| ())
    }

    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: u64) |session| {
        copy(session, (to as u64, CopyEnd::Any), (from, CopyEnd::Known), bytes, stream).map(|_| ())
    }

    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: u64) |session| {
        copy(session, (to, CopyEnd::Known), (from, CopyEnd::Known), bytes, stream).map(|_| ())
    }

    fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: u64) |session| {
        copy(session, (to, CopyEnd::Any), (from, CopyEnd::Any), bytes, stream).map(|_| ())
    }

    fn cuMemcpyPeerAsync(
        to: u64, to_context: u64, from: u64, from_context: u64, bytes: usize, stream: u64,
    ) |session| {
        session.context(to_context)?;
        session.context(from_context)?;
        copy(session, (to, CopyEnd::Known), (from, CopyEnd::Known), bytes, stream).map(|_| ())
    }

    fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) |session| {
        copy_now(session, (to, CopyEnd::Known), (from as u64, CopyEnd::Any), bytes)
    }

    fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) |session| {
        copy_now(session, (to as u64, CopyEnd::Any), (from, CopyEnd::Known), bytes)
    }

    fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) |session| {
        copy_now(session, (to, CopyEnd::Known), (from, CopyEnd::Known), bytes)
    }

    fn cuMemcpy(to: u64, from: u64, bytes: usize) |session| {
        copy_now(session, (to, CopyEnd::Any), (from, CopyEnd::Any), bytes)
    }

    fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: u64) |session| {
        set(session, to, u32::from(value), 1, count, stream).map(|_| ())
    }

    fn cuMemsetD8_v2(to: u64, value: u8, count: usize) |session| {
        set_now(session, to, u32::from(value), 1, count)
    }
}
