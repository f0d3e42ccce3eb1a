//! Calls about programs of the library: operations that are recorded once and replayed.

use super::*;

/// Kinds of calls here.
pub(super) const CALLS: usize = 6;

pub(super) struct Recorded {
    handle: *mut estafette_program,
    stage: ProgramStage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ProgramStage {
    Recording,
    Finished,
    /// It could not be finished as it was asked to.
    Broken,
}

/// The context of a node, which any number of replays use, several at once.
struct NodeContext {
    end: FunctionEnd,
    shared: Arc<Shared>,
}

unsafe extern "C" fn call_node(context: *mut c_void, op: *mut estafette_op) {
    // SAFETY: the library calls this with its context, before the context is dropped; nothing uses the
    // context after the end is reported.
    let (end, shared) = unsafe {
        let node = &*context.cast::<NodeContext>();
        (node.end, node.shared.clone())
    };
    let complete = |status: i32| {
        // SAFETY: no text.
        let got = unsafe { estafette_op_complete(op, status, ptr::null()) };
        accepts(got, "complete a node");
    };
    match end {
        FunctionEnd::Later => shared.open.lock().expect("no panic under this lock").push(OpenHandle(op)),
        FunctionEnd::Badly => {
            Shared::count(&shared.failures);
            complete(-2);
        }
        _ => complete(0),
    }
}

unsafe extern "C" fn drop_node(context: *mut c_void) {
    // SAFETY: made by `Box::into_raw`, and given away once.
    let node = unsafe { Box::from_raw(context.cast::<NodeContext>()) };
    node.shared.dropped.fetch_add(1, SeqCst);
}

impl Program {
    /// Takes one of the steps. Returns the step, unless it had no effect.
    pub(super) fn recorded(&mut self, bytes: &mut Bytes<'_>) -> Option<usize> {
        let call = bytes.below(CALLS);
        match call {
            0 => self.begin_recording(bytes),
            1 | 2 => self.record_node(bytes),
            3 => self.finish_recording(bytes),
            4 => self.replay(bytes),
            _ => self.destroy_recording(bytes),
        }
        .map(|()| call)
    }

    fn begin_recording(&mut self, bytes: &mut Bytes<'_>) -> Option<()> {
        if self.recorded_programs.len() >= HELD_MAX {
            return None;
        }
        let name = [ptr::null(), c"recorded".as_ptr(), c"\xff".as_ptr()];
        let which = bytes.below(name.len());
        let (name, is_text) = (name[which], which < 2);
        let mut handle = ptr::null_mut();
        // SAFETY: as the interface wants it, or wrong in a way that it promises to see.
        unsafe {
            let got = estafette_program_begin(self.engine, name, ptr::null_mut());
            refuses(got, "a program to nowhere");
            let got = estafette_program_begin(self.engine, name, &raw mut handle);
            accepts_if(is_text, got, "begin");
        }
        if is_text {
            self.recorded_programs.push(Recorded { handle, stage: ProgramStage::Recording });
        }
        Some(())
    }

    fn record_node(&mut self, bytes: &mut Bytes<'_>) -> Option<()> {
        let at = bytes.below(self.recorded_programs.len());
        let &Recorded { handle, stage } = self.recorded_programs.get(at)?;
        let end =
            [FunctionEnd::Well, FunctionEnd::Well, FunctionEnd::Badly, FunctionEnd::Later][bytes.below(4)];
        let reads: Vec<_> = pick(&self.tensors, bytes).into_iter().take(bytes.below(2)).collect();
        let mut writes: Vec<_> = pick(&self.tensors, bytes).into_iter().take(bytes.below(2)).collect();
        let mut wrong = stage != ProgramStage::Recording;
        if bytes.one_in(10) {
            writes.push(ptr::null_mut());
            wrong = true;
        }
        let mut options = zeroed!(estafette_submit_options);
        options.priority = i32::from(bytes.one_in(8));
        options.nonblocking = i32::from(bytes.one_in(8));
        wrong |= options.priority != 0 || options.nonblocking != 0;
        let node = Box::into_raw(Box::new(NodeContext { end, shared: self.shared.clone() }));
        Shared::count(&self.shared.contexts);
        // SAFETY: as the interface wants it, or wrong in a way that it promises to see.
        let got = unsafe {
            estafette_program_add(
                handle,
                &raw const options,
                Some(call_node),
                node.cast(),
                Some(drop_node),
                reads.as_ptr(),
                reads.len(),
                writes.as_ptr(),
                writes.len(),
            )
        };
        allowed(got, &[ESTAFETTE_OK, ESTAFETTE_INVALID, ESTAFETTE_CONFLICT], "add");
        assert!(!(wrong && got == ESTAFETTE_OK), "a wrong node was accepted");
        if got != ESTAFETTE_OK {
            self.shared.contexts.fetch_sub(1, SeqCst);
            // SAFETY: made above, and not taken.
            drop(unsafe { Box::from_raw(node) });
        }
        (got == ESTAFETTE_OK).then_some(())
    }

    fn finish_recording(&mut self, bytes: &mut Bytes<'_>) -> Option<()> {
        let at = bytes.below(self.recorded_programs.len());
        let recorded = self.recorded_programs.get_mut(at)?;
        let graph = [0, 0, 0, 1, 2, -1][bytes.below(6)];
        let got = estafette_program_finish(recorded.handle, graph);
        allowed(got, &[ESTAFETTE_OK, ESTAFETTE_INVALID], "finish");
        let legal = recorded.stage == ProgramStage::Recording && matches!(graph, 0 | 1);
        assert!(legal || got == ESTAFETTE_INVALID, "finished in a wrong way");
        assert!(!(legal && graph == 0) || got == ESTAFETTE_OK, "not finished: {}", last_error());
        if legal {
            recorded.stage = if got == ESTAFETTE_OK { ProgramStage::Finished } else { ProgramStage::Broken };
        }
        (got == ESTAFETTE_OK).then_some(())
    }

    fn replay(&mut self, bytes: &mut Bytes<'_>) -> Option<()> {
        let at = bytes.below(self.recorded_programs.len());
        let &Recorded { handle, stage } = self.recorded_programs.get(at)?;
        if self.ops.len() >= HELD_MAX || self.is_full() {
            return None;
        }
        let mut op = ptr::null_mut();
        let out = if bytes.one_in(3) { ptr::null_mut() } else { &raw mut op };
        // SAFETY: as the interface wants it.
        let got = unsafe { estafette_program_replay(handle, bytes.below(2) as i32, out) };
        let mut legal = vec![ESTAFETTE_OK];
        if stage == ProgramStage::Finished {
            legal.extend([
                ESTAFETTE_CONFLICT,
                ESTAFETTE_IN_FLIGHT_LIMIT,
                ESTAFETTE_LEASE_HELD,
                ESTAFETTE_WOULD_DEADLOCK,
            ]);
        } else {
            legal = vec![ESTAFETTE_INVALID];
        }
        allowed(got, &legal, "replay");
        if !op.is_null() {
            self.ops.push(op);
        }
        (got == ESTAFETTE_OK).then_some(())
    }

    fn destroy_recording(&mut self, bytes: &mut Bytes<'_>) -> Option<()> {
        let recorded = take(&mut self.recorded_programs, bytes)?;
        recorded.destroy();
        accepts(estafette_program_destroy(ptr::null_mut()), "no program");
        Some(())
    }
}

impl Recorded {
    pub(super) fn destroy(self) {
        accepts(estafette_program_destroy(self.handle), "destroy a program");
        let again = estafette_program_destroy(self.handle);
        refuses(again, "a program that is over");
        refuses(estafette_program_finish(self.handle, 0), "a program that is over");
    }
}
