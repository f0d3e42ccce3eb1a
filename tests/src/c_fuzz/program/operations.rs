//! Calls about operations.

use super::*;

impl Program {
    pub(super) fn body(
        &mut self,
        bytes: &mut Bytes<'_>,
        operand: *mut estafette_tensor,
    ) -> *mut FunctionBody {
        let end = match bytes.below(8) {
            0 => FunctionEnd::Badly,
            1 => FunctionEnd::Cancelled,
            2 => FunctionEnd::Twice,
            3 => FunctionEnd::Elsewhere,
            4 => FunctionEnd::Later,
            _ => FunctionEnd::Well,
        };
        self.body_that_ends(end, operand)
    }

    pub(super) fn body_that_ends(
        &mut self,
        end: FunctionEnd,
        operand: *mut estafette_tensor,
    ) -> *mut FunctionBody {
        // The context holds a count of its operand.
        accepts(estafette_tensor_retain(operand), "retain an operand");
        Shared::count(&self.shared.contexts);
        FunctionBody::new(end, &self.shared, operand)
    }

    /// The context was not given away after all.
    pub(super) fn kept(&self, body: *mut FunctionBody) {
        self.shared.contexts.fetch_sub(1, SeqCst);
        FunctionBody::keep(body);
    }

    pub(super) fn in_flight(&self) -> u64 {
        let mut stats = zeroed!(estafette_stats);
        // SAFETY: as the interface wants it.
        unsafe { accepts(estafette_engine_stats(self.engine, &raw mut stats), "stats") };
        stats.in_flight
    }

    /// True if a submission might have to wait for the program itself.
    pub(super) fn is_full(&self) -> bool {
        self.in_flight() + 4 >= IN_FLIGHT_LIMIT
    }

    pub(super) fn submit(&mut self, bytes: &mut Bytes<'_>) {
        if self.ops.len() >= HELD_MAX || self.is_full() {
            return;
        }
        let choose = |bytes: &mut Bytes<'_>, tensors: &[*mut estafette_tensor]| -> Vec<_> {
            (0..bytes.below(3)).filter_map(|_| pick(tensors, bytes)).collect()
        };
        let mut reads = choose(bytes, &self.tensors);
        let writes = choose(bytes, &self.tensors);
        let spoiled = bytes.one_in(12);
        if spoiled {
            reads.push(ptr::null_mut());
        }
        let operand =
            if bytes.one_in(3) { reads.first().copied().unwrap_or(ptr::null_mut()) } else { ptr::null_mut() };
        let body = self.body(bytes, operand);
        let mut options = estafette_submit_options {
            priority: bytes.below(3) as i32 - 1,
            name: [c"fuzzed".as_ptr(), ptr::null(), c"\xff".as_ptr()][bytes.below(16).saturating_sub(13)],
            nonblocking: bytes.below(2) as i32,
            ..zeroed!(estafette_submit_options)
        };
        if options.priority < 0 {
            options.on_skip = Some(skipped);
        }
        let mut op = ptr::null_mut();
        let out = if bytes.one_in(3) { ptr::null_mut() } else { &raw mut op };
        // SAFETY: as the interface wants it, or wrong in a way that it promises to see.
        let got = unsafe {
            estafette_submit_with(
                self.engine,
                &raw const options,
                Some(call),
                body.cast(),
                Some(drop_body),
                reads.as_ptr(),
                reads.len(),
                writes.as_ptr(),
                writes.len(),
                out,
            )
        };
        allowed(
            got,
            &[
                ESTAFETTE_OK,
                ESTAFETTE_INVALID,
                ESTAFETTE_CONFLICT,
                ESTAFETTE_IN_FLIGHT_LIMIT,
                ESTAFETTE_LEASE_HELD,
                ESTAFETTE_WOULD_DEADLOCK,
            ],
            "submit",
        );
        assert!(!(spoiled && got == ESTAFETTE_OK), "a NULL tensor was accepted");
        if got != ESTAFETTE_OK {
            self.kept(body);
        } else if !op.is_null() {
            self.ops.push(op);
        }
    }

    pub(super) fn produce(&mut self, bytes: &mut Bytes<'_>) {
        if self.tensors.len() >= HELD_MAX || self.is_full() {
            return;
        }
        let read = pick(&self.tensors, bytes);
        let end = if bytes.one_in(4) { FunctionEnd::Badly } else { FunctionEnd::With };
        let body = self.body_that_ends(end, ptr::null_mut());
        let (mut tensor, mut op) = (ptr::null_mut(), ptr::null_mut());
        let (reads, count) = (read.as_ref().map_or(ptr::null(), ptr::from_ref), usize::from(read.is_some()));
        let (call, body_of, drop_body) = (Some(call as _), body.cast(), Some(drop_body as _));
        let (engine, none) = (self.engine, ptr::null());
        // SAFETY: as the interface wants it.
        let got = unsafe {
            if self.tensors.len().is_multiple_of(2) {
                estafette_produce(engine, none, call, body_of, drop_body, reads, count, &raw mut tensor)
            } else {
                let (tensor, op) = (&raw mut tensor, &raw mut op);
                estafette_produce_with(engine, none, call, body_of, drop_body, reads, count, tensor, op)
            }
        };
        inspect_handle(op);
        allowed(got, &[ESTAFETTE_OK, ESTAFETTE_LEASE_HELD, ESTAFETTE_WOULD_DEADLOCK], "produce");
        if got == ESTAFETTE_OK {
            self.tensors.push(tensor);
        } else {
            self.kept(body);
        }
    }

    pub(super) fn complete_open(&mut self, bytes: &mut Bytes<'_>) {
        let Some(op) = self.shared.take_open(bytes.below(255)) else { return };
        let fence = self.any_fence(bytes);
        let fence = fence.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: as the interface wants it, or wrong in a way that it promises to see.
        unsafe {
            if bytes.one_in(4) {
                let mut wrong: DLFence = std::mem::zeroed();
                wrong.version = 1;
                refuses(estafette_op_complete_after(op, &raw const wrong), "a broken fence");
            }
            accepts(estafette_op_complete_after(op, fence), "complete after");
            refuses(estafette_op_complete_after(op, fence), "complete twice");
        }
    }

    pub(super) fn op_calls(&mut self, bytes: &mut Bytes<'_>) {
        let stale = bytes.one_in(3);
        let op = if stale { pick(&self.over, bytes) } else { pick(&self.ops, bytes) };
        let Some(op) = op else { return };
        let got = match bytes.below(4) {
            0 => estafette_op_query(op),
            1 if self.ops.len().is_multiple_of(2) => estafette_op_wait(op, SHORT_NS),
            1 => {
                let mut first = usize::MAX;
                // SAFETY: as the interface wants it, or with a handle that is over.
                unsafe { estafette_wait_any(&raw const op, 1, ptr::null(), 0, SHORT_NS, &raw mut first) }
            }
            2 => {
                let got = estafette_op_cancel(op);
                if got == ESTAFETTE_OK {
                    Shared::count(&self.shared.failures);
                }
                got
            }
            _ => {
                let got = estafette_op_retain(op);
                if got == ESTAFETTE_OK {
                    accepts(estafette_op_release(op), "release what was retained");
                }
                got
            }
        };
        if stale {
            refuses(got, "a handle that is over");
        } else {
            let mut legal = vec![ESTAFETTE_CONFLICT];
            legal.extend(WAITED);
            allowed(got, &legal, "an operation's call");
        }
    }

    pub(super) fn release_op(&mut self, bytes: &mut Bytes<'_>) {
        let Some(op) = take(&mut self.ops, bytes) else { return };
        let ended = !matches!(estafette_op_query(op), ESTAFETTE_PENDING);
        accepts(estafette_op_release(op), "release an operation");
        // An operation that is under way still holds its own handle, and so may an operation that has just
        // ended.
        if ended && self.over.len() < HELD_MAX && estafette_op_query(op) == ESTAFETTE_INVALID {
            self.over.push(op);
        }
    }
}

/// Queries the handle of an operation and gives it up; NULL was not written.
pub(super) fn inspect_handle(op: *mut estafette_op) {
    if !op.is_null() {
        allowed(estafette_op_query(op), &WAITED, "an operation with a handle");
        accepts(estafette_op_release(op), "release an operation");
    }
}
