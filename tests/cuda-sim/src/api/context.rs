//! Contexts: primary ones, others, and what is current on a thread.

use std::ffi::{c_int, c_void};

use super::put;
use crate::codes::*;
use crate::state::{CURRENT, Context, Session};

fn create(session: &mut Session, device: c_int) -> Result<u64, Code> {
    let device = session.device(device)?;
    let handle = session.handle();
    let context =
        Context { handle, device, primary: false, holders: 1, fault: None, peers: Vec::new(), busy: false };
    session.contexts.push(context);
    let place = session.contexts.len() - 1;
    CURRENT.with_borrow_mut(|stack| stack.push(place));
    Ok(handle)
}

driver! {
    fn cuDevicePrimaryCtxRetain(context: *mut u64, device: c_int) |session| {
        let device = session.device(device)?;
        session.revive(device);
        session.sound(device)?;
        session.contexts[device].holders += 1;
        put(context, session.contexts[device].handle)
    }

    fn cuDevicePrimaryCtxRelease_v2(device: c_int) |session| {
        let device = session.device(device)?;
        let holders = &mut session.contexts[device].holders;
        *holders = holders.checked_sub(1).ok_or(INVALID_CONTEXT)?;
        Ok(())
    }

    // As `cudaDeviceReset`: nothing of the context works any more, for any library. Threads that have
    // the context current get the code of a destroyed context, and others that of an invalid one.
    fn cuDevicePrimaryCtxReset_v2(device: c_int) |session| {
        let device = session.device(device)?;
        session.fault(device, CONTEXT_IS_DESTROYED);
        session.contexts[device].holders = 0;
        Ok(())
    }

    fn cuDevicePrimaryCtxGetState(device: c_int, flags: *mut u32, active: *mut c_int) |session| {
        let device = session.device(device)?;
        put(flags, 0)?;
        put(active, c_int::from(session.contexts[device].holders > 0))
    }

    fn cuDevicePrimaryCtxSetFlags_v2(device: c_int, flags: u32) |session| {
        let _ = flags;
        session.device(device)?;
        Ok(())
    }

    fn cuCtxCreate_v2(context: *mut u64, flags: u32, device: c_int) |session| {
        let _ = flags;
        let handle = create(session, device)?;
        put(context, handle)
    }

    fn cuCtxCreate_v3(context: *mut u64, affinity: *mut c_void, count: c_int, flags: u32, device: c_int) |session| {
        let _ = (affinity, count, flags);
        let handle = create(session, device)?;
        put(context, handle)
    }

    fn cuCtxCreate_v4(context: *mut u64, parameters: *mut c_void, flags: u32, device: c_int) |session| {
        let _ = (parameters, flags);
        let handle = create(session, device)?;
        put(context, handle)
    }

    fn cuCtxDestroy_v2(context: u64) |session| {
        let context = session.context(context)?;
        if session.contexts[context].primary {
            return Err(INVALID_CONTEXT);
        }
        session.contexts[context].holders = 0;
        CURRENT.with_borrow_mut(|stack| {
            if stack.last() == Some(&context) {
                stack.pop();
            }
        });
        Ok(())
    }

    fn cuGreenCtxCreate(green: *mut u64, resources: *mut c_void, device: c_int, flags: u32) |session| {
        let _ = (resources, flags);
        let device = session.device(device)?;
        session.contexts[device].holders += 1;
        let handle = session.handle();
        session.green_contexts.insert(handle, device);
        put(green, handle)
    }

    fn cuCtxGetCurrent(context: *mut u64) |session| {
        let current = CURRENT.with_borrow(|stack| stack.last().copied());
        put(context, current.map_or(0, |context| session.contexts[context].handle))
    }

    fn cuCtxSetCurrent(context: u64) |session| {
        let context = if context == 0 { None } else { Some(session.context(context)?) };
        CURRENT.with_borrow_mut(|stack| {
            stack.pop();
            stack.extend(context);
        });
        Ok(())
    }

    fn cuCtxPushCurrent_v2(context: u64) |session| {
        let context = session.context(context)?;
        CURRENT.with_borrow_mut(|stack| stack.push(context));
        Ok(())
    }

    fn cuCtxPopCurrent_v2(context: *mut u64) |session| {
        let popped = CURRENT.with_borrow_mut(Vec::pop).ok_or(INVALID_CONTEXT)?;
        super::put_if_wanted(context, session.contexts[popped].handle);
        Ok(())
    }

    fn cuCtxGetDevice(device: *mut c_int) |session| {
        let context = session.current()?;
        put(device, session.contexts[context].device as c_int)
    }

    fn cuCtxGetApiVersion(context: u64, version: *mut u32) |session| {
        let _ = context;
        put(version, session.script.driver_version as u32)
    }

    fn cuCtxSetFlags(flags: u32) |session| {
        let _ = flags;
        session.current()?;
        Ok(())
    }

    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) |session| {
        session.current()?;
        super::put_if_wanted(least, 0);
        super::put_if_wanted(greatest, -2);
        Ok(())
    }

    fn cuCtxSynchronize() |session| {
        let context = session.current()?;
        session.refuse_captured_context(context)?;
        session.refuse_during_capture()?;
        session.wait_for_context(context)
    }

    fn cuCtxEnablePeerAccess(peer: u64, flags: u32) |session| {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        let context = session.current()?;
        let peer = session.context(peer)?;
        let device = session.contexts[peer].device;
        if !session.script.peer_access {
            return Err(PEER_ACCESS_UNSUPPORTED);
        }
        let peers = &mut session.contexts[context].peers;
        if peers.contains(&device) {
            return Err(PEER_ACCESS_ALREADY_ENABLED);
        }
        peers.push(device);
        Ok(())
    }

    fn cuCtxDisablePeerAccess(peer: u64) |session| {
        let context = session.current()?;
        let peer = session.context(peer)?;
        let device = session.contexts[peer].device;
        let peers = &mut session.contexts[context].peers;
        let place = peers.iter().position(|other| *other == device).ok_or(PEER_ACCESS_NOT_ENABLED)?;
        peers.remove(place);
        Ok(())
    }
}

impl Session {
    /// Makes a primary context anew that was reset: under its old handle, without what it had.
    fn revive(&mut self, device: usize) {
        let context = &mut self.contexts[device];
        if context.holders > 0 || context.fault != Some(CONTEXT_IS_DESTROYED) {
            return;
        }
        context.fault = None;
        context.peers.clear();
        let state = &mut **self;
        let streams = &state.streams;
        state.by_handle.retain(|_, stream| streams[*stream].context != device);
        state.events.retain(|_, event| event.context != device);
        state.memory.forget(device);
        state.pools.retain(|_, pool| pool.device != device);
    }

    /// Waits for all streams of a context, and learns that they are done.
    pub(crate) fn wait_for_context(&mut self, context: usize) -> Result<(), Code> {
        let last = self.last_command;
        self.wait_until(|state| {
            let mut commands = state.commands.iter();
            state.contexts[context].fault.is_some()
                || !commands
                    .any(|(id, command)| *id <= last && state.streams[command.stream].context == context)
        });
        self.sound(context)?;
        self.trim_pools();
        for stream in 0..self.streams.len() {
            if self.streams[stream].context == context {
                // Commands that came meanwhile are not known to be over.
                let waiting = self.streams[stream].queue.len() as u64;
                let known = self.streams[stream].count - waiting;
                self.host.learn(stream, known);
            }
        }
        Ok(())
    }
}
