//! One program: its calls, and what must have come back at its end.

use std::ffi::{c_char, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use estafette_c::estafette_status as status;
use estafette_c::*;

use super::bytes::Bytes;
use super::foreign_fence::ForeignFence;
use super::function::{Body, End, call, delete, drop_body, expect, last_error};
use super::managed::Managed;
use super::shared::Shared;

/// Things of one kind that are held at once.
const HELD_MAX: usize = 12;
/// Operations that may be in flight.
const WINDOW: u64 = 64;
/// Elements of each tensor.
const LENGTH: usize = 8;
/// No wait of a program takes longer.
const SHORT_NS: u64 = 200_000;
/// How long the end may take.
const END: Duration = Duration::from_secs(20);

/// Runs the program that `bytes` are.
///
/// # Panics
/// When anything does not hold.
pub fn run(bytes: &[u8]) {
    let mut bytes = Bytes::new(bytes);
    let mut program = Program::begin(&mut bytes);
    while !bytes.is_over() {
        program.step(&mut bytes);
    }
    program.end();
}

struct Program {
    shared: Arc<Shared>,
    engine: *mut estafette_engine,
    tensors: Vec<*mut estafette_tensor>,
    ops: Vec<*mut estafette_op>,
    /// Handles whose last holder has gone.
    over: Vec<*mut estafette_op>,
    leases: Vec<*mut estafette_lease>,
    views: Vec<*mut DLManagedTensorVersioned>,
    promises: Vec<*mut estafette_promise>,
    /// Of promises; each is one count.
    fences: Vec<estafette_fence>,
    /// Of tensors, operations and leases. They are not given back to the library: something that ends after its own end
    /// would never end.
    derived: Vec<estafette_fence>,
    foreign: Vec<(*const ForeignFence, estafette_fence)>,
}

fn pick<T: Copy>(from: &[T], bytes: &mut Bytes<'_>) -> Option<T> {
    let at = bytes.below(from.len());
    from.get(at).copied()
}

fn take<T>(from: &mut Vec<T>, bytes: &mut Bytes<'_>) -> Option<T> {
    let at = bytes.below(from.len());
    (at < from.len()).then(|| from.swap_remove(at))
}

fn allowed(got: status, legal: &[status], what: &str) {
    assert!(legal.contains(&got), "{what} returned {got:?}: {}", last_error());
}

unsafe extern "C" fn told(context: *mut c_void, status: status, _message: *const c_char) {
    // SAFETY: given away with a count of the context, which `drop_shared` gives up.
    let shared = unsafe { &*context.cast::<Shared>() };
    assert_ne!(status, status::ESTAFETTE_PENDING, "a callback was told nothing");
    shared.told.fetch_add(1, SeqCst);
}

unsafe extern "C" fn drop_shared(context: *mut c_void) {
    // SAFETY: made by `Arc::into_raw` for this one call.
    let shared = unsafe { Arc::from_raw(context.cast::<Shared>()) };
    shared.dropped.fetch_add(1, SeqCst);
}

/// What a wait of a tensor or an operation may end with.
const WAITED: [status; 6] = [
    status::ESTAFETTE_OK,
    status::ESTAFETTE_PENDING,
    status::ESTAFETTE_TIMEOUT,
    status::ESTAFETTE_FAILED,
    status::ESTAFETTE_CANCELLED,
    status::ESTAFETTE_LEASE_HELD,
];

impl Program {
    fn begin(bytes: &mut Bytes<'_>) -> Self {
        let options = estafette_engine_options {
            size: size_of::<estafette_engine_options>() as u32,
            workers: [1, 2, -1][bytes.below(3)],
            window: WINDOW,
            lease_timeout_ns: 1_000_000,
        };
        let mut engine = ptr::null_mut();
        // SAFETY: everything is as the interface wants it.
        unsafe {
            let mut wrong = options;
            wrong.workers = -7;
            expect(
                estafette_engine_create(&raw const wrong, &raw mut engine),
                status::ESTAFETTE_INVALID,
                "workers",
            );
            wrong = options;
            wrong.size = 3;
            expect(
                estafette_engine_create(&raw const wrong, &raw mut engine),
                status::ESTAFETTE_INVALID,
                "size",
            );
            expect(estafette_engine_create(ptr::null(), ptr::null_mut()), status::ESTAFETTE_INVALID, "out");
            expect(
                estafette_engine_create(&raw const options, &raw mut engine),
                status::ESTAFETTE_OK,
                "create",
            );
        }
        Self {
            shared: Arc::default(),
            engine,
            tensors: Vec::new(),
            ops: Vec::new(),
            over: Vec::new(),
            leases: Vec::new(),
            views: Vec::new(),
            promises: Vec::new(),
            fences: Vec::new(),
            derived: Vec::new(),
            foreign: Vec::new(),
        }
    }

    fn step(&mut self, bytes: &mut Bytes<'_>) {
        match bytes.below(24) {
            0 => self.import(bytes),
            1 => self.zeros(bytes),
            2..=4 => self.submit(bytes),
            5 => self.produce(bytes),
            6 => self.complete_open(bytes),
            7 => self.query_or_wait(bytes),
            8 => self.export(bytes),
            9 => self.let_view_go(bytes),
            10 => self.order_on(bytes),
            11 => self.release_lease(bytes),
            12 => self.release_tensor(bytes),
            13 => self.op_calls(bytes),
            14 => self.release_op(bytes),
            15 => self.on_ready(bytes),
            16 => self.new_foreign(bytes),
            17 => self.settle_foreign(bytes),
            18 => self.promise(bytes),
            19 => self.settle_promise(bytes),
            20 => self.own_fence(bytes),
            21 => self.use_own_fence(bytes),
            22 => self.describe(bytes),
            _ => self.nonsense(bytes),
        }
    }

    /// Any fence there is, as a caller passes it.
    fn any_fence(&self, bytes: &mut Bytes<'_>) -> Option<estafette_fence> {
        match bytes.below(3) {
            0 => None,
            1 => pick(&self.foreign, bytes).map(|(_, raw)| raw),
            _ => pick(&self.fences, bytes),
        }
    }

    fn import(&mut self, bytes: &mut Bytes<'_>) {
        if self.tensors.len() >= HELD_MAX {
            return;
        }
        let managed = Managed::new(&self.shared, LENGTH, bytes.one_in(6));
        let mut valid = true;
        // SAFETY: the tensor is the program's until it was taken.
        unsafe {
            match bytes.below(12) {
                1 => (*managed).version = [2, 0],
                2 => (*managed).ndim = -1,
                3 => (*managed).shape = ptr::null_mut(),
                4 => (*managed).lanes = 0,
                5 => (*managed).device = [2, 7],
                6 => (*managed).data = ptr::null_mut(),
                _ => {}
            }
            let spoiled = &*managed;
            valid &= spoiled.version == [1, 3]
                && spoiled.ndim == 1
                && !spoiled.shape.is_null()
                && spoiled.lanes == 1
                && spoiled.device == [1, 0]
                && !spoiled.data.is_null();
        }
        let mut ready = self.any_fence(bytes);
        if let Some(fence) = &mut ready {
            match bytes.below(10) {
                1 => fence.version = 9,
                2 => fence.size = 8,
                3 => fence.query = None,
                4 => fence.release = None,
                5 => fence.flags = 1,
                _ => {}
            }
            valid &= fence.version == 1
                && fence.size as usize == size_of::<estafette_fence>()
                && fence.query.is_some()
                && fence.release.is_some()
                && fence.flags == 0;
        }
        let ready = ready.as_ref().map_or(ptr::null(), ptr::from_ref);
        let mut tensor = ptr::null_mut();
        if valid {
            Shared::count(&self.shared.imported);
        }
        // SAFETY: as the interface wants it, or wrong in a way that it promises to see.
        unsafe {
            let got = estafette_import(self.engine, Managed::raw(managed), ready, &raw mut tensor);
            expect(got, if valid { status::ESTAFETTE_OK } else { status::ESTAFETTE_INVALID }, "import");
            if valid {
                self.tensors.push(tensor);
            } else {
                Managed::free(managed);
            }
        }
    }

    fn zeros(&mut self, bytes: &mut Bytes<'_>) {
        if self.tensors.len() >= HELD_MAX {
            return;
        }
        let shape = [[LENGTH as i64, 1], [0, 3], [2, -1], [i64::MAX, i64::MAX]][bytes.below(4)];
        let dtype = DLDataType { code: 2, bits: [32, 64][bytes.below(2)], lanes: 1 };
        let mut tensor = ptr::null_mut();
        // SAFETY: as the interface wants it, or wrong in a way that it promises to see.
        unsafe {
            let got = estafette_zeros(self.engine, shape.as_ptr(), 2, dtype, &raw mut tensor);
            let valid = shape[1] >= 0 && shape[0] <= LENGTH as i64;
            expect(got, if valid { status::ESTAFETTE_OK } else { status::ESTAFETTE_INVALID }, "zeros");
            if valid {
                self.tensors.push(tensor);
            }
        }
    }

    fn body(&mut self, bytes: &mut Bytes<'_>, operand: *mut estafette_tensor) -> *mut Body {
        let end = match bytes.below(8) {
            0 => End::Badly,
            1 => End::Cancelled,
            2 => End::Twice,
            3 => End::Elsewhere,
            4 => End::Later,
            _ => End::Well,
        };
        self.body_that_ends(end, operand)
    }

    fn body_that_ends(&mut self, end: End, operand: *mut estafette_tensor) -> *mut Body {
        // SAFETY: the context holds a count of its operand.
        unsafe { estafette_tensor_retain(operand) };
        Shared::count(&self.shared.contexts);
        Body::new(end, &self.shared, operand)
    }

    /// The context was not given away after all.
    fn kept(&self, body: *mut Body) {
        self.shared.contexts.fetch_sub(1, SeqCst);
        Body::keep(body);
    }

    fn in_flight(&self) -> u64 {
        let mut stats = estafette_stats {
            size: size_of::<estafette_stats>() as u32,
            reserved: 0,
            in_flight: 0,
            window: 0,
            deleters: 0,
            leaked: 0,
            releasing: 0,
        };
        // SAFETY: as the interface wants it.
        unsafe { expect(estafette_engine_stats(self.engine, &raw mut stats), status::ESTAFETTE_OK, "stats") };
        stats.in_flight
    }

    /// Whether a submission might have to wait for the program itself.
    fn is_full(&self) -> bool {
        self.in_flight() + 4 >= WINDOW
    }

    fn submit(&mut self, bytes: &mut Bytes<'_>) {
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
        let options = estafette_submit_options {
            size: size_of::<estafette_submit_options>() as u32,
            priority: bytes.below(3) as i32 - 1,
            name: [c"fuzzed".as_ptr(), ptr::null(), c"\xff".as_ptr()][bytes.below(16).saturating_sub(13)],
            nonblocking: bytes.below(2) as i32,
            reserved: 0,
        };
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
                status::ESTAFETTE_OK,
                status::ESTAFETTE_INVALID,
                status::ESTAFETTE_CONFLICT,
                status::ESTAFETTE_WINDOW_FULL,
                status::ESTAFETTE_LEASE_HELD,
                status::ESTAFETTE_WOULD_DEADLOCK,
            ],
            "submit",
        );
        assert!(!(spoiled && got == status::ESTAFETTE_OK), "a NULL tensor was accepted");
        if got != status::ESTAFETTE_OK {
            self.kept(body);
        } else if !op.is_null() {
            self.ops.push(op);
        }
    }

    fn produce(&mut self, bytes: &mut Bytes<'_>) {
        if self.tensors.len() >= HELD_MAX || self.is_full() {
            return;
        }
        let read = pick(&self.tensors, bytes);
        let end = if bytes.one_in(4) { End::Badly } else { End::With };
        let body = self.body_that_ends(end, ptr::null_mut());
        let mut tensor = ptr::null_mut();
        // SAFETY: as the interface wants it.
        let got = unsafe {
            estafette_produce(
                self.engine,
                ptr::null(),
                Some(call),
                body.cast(),
                Some(drop_body),
                read.as_ref().map_or(ptr::null(), ptr::from_ref),
                usize::from(read.is_some()),
                &raw mut tensor,
            )
        };
        allowed(
            got,
            &[status::ESTAFETTE_OK, status::ESTAFETTE_LEASE_HELD, status::ESTAFETTE_WOULD_DEADLOCK],
            "produce",
        );
        if got == status::ESTAFETTE_OK {
            self.tensors.push(tensor);
        } else {
            self.kept(body);
        }
    }

    fn complete_open(&mut self, bytes: &mut Bytes<'_>) {
        let Some(op) = self.shared.take_open(bytes.below(255)) else { return };
        let fence = self.any_fence(bytes);
        let fence = fence.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: as the interface wants it, or wrong in a way that it promises to see.
        unsafe {
            if bytes.one_in(4) {
                let mut wrong: estafette_fence = std::mem::zeroed();
                wrong.version = 1;
                expect(
                    estafette_op_complete_after(op, &raw const wrong),
                    status::ESTAFETTE_INVALID,
                    "a broken fence",
                );
            }
            expect(estafette_op_complete_after(op, fence), status::ESTAFETTE_OK, "complete after");
            expect(estafette_op_complete_after(op, fence), status::ESTAFETTE_INVALID, "complete twice");
        }
    }

    fn query_or_wait(&mut self, bytes: &mut Bytes<'_>) {
        let Some(tensor) = pick(&self.tensors, bytes) else { return };
        // SAFETY: the tensor is held.
        let got = unsafe {
            match bytes.below(2) {
                0 => estafette_query(tensor),
                _ => estafette_wait(tensor, SHORT_NS),
            }
        };
        allowed(got, &WAITED, "wait");
    }

    fn export(&mut self, bytes: &mut Bytes<'_>) {
        if self.views.len() >= HELD_MAX {
            return;
        }
        let Some(tensor) = pick(&self.tensors, bytes) else { return };
        let mut options: estafette_export_options =
            // SAFETY: all zero is the default.
            unsafe { std::mem::zeroed() };
        options.size = size_of::<estafette_export_options>() as u32;
        options.access = bytes.below(4) as i32;
        options.copy = bytes.below(4) as i32 - 1;
        options.nonblocking = bytes.below(2) as i32;
        options.timeout_ns = SHORT_NS;
        if bytes.one_in(8) {
            options.stream = ptr::dangling_mut();
        }
        let valid = options.access < 3 && options.copy < 2 && options.stream.is_null();
        let mut view = ptr::null_mut();
        // SAFETY: as the interface wants it, or wrong in a way that it promises to see.
        let got = unsafe { estafette_export(tensor, &raw const options, &raw mut view) };
        let mut legal = vec![status::ESTAFETTE_CONFLICT, status::ESTAFETTE_INVALID];
        legal.extend(WAITED);
        allowed(got, &legal, "export");
        assert!(valid || got != status::ESTAFETTE_OK, "wrong options were accepted");
        if got == status::ESTAFETTE_OK {
            self.views.push(view);
        }
    }

    fn let_view_go(&mut self, bytes: &mut Bytes<'_>) {
        if let Some(view) = take(&mut self.views, bytes) {
            // SAFETY: exported, and deleted once.
            unsafe { delete(view) };
        }
    }

    fn order_on(&mut self, bytes: &mut Bytes<'_>) {
        if self.leases.len() >= HELD_MAX {
            return;
        }
        let Some(tensor) = pick(&self.tensors, bytes) else { return };
        // A lease that would have to wait is waited for by somebody who does not let go of the others: only of tensors
        // that are ready.
        // SAFETY: the tensor is held.
        if unsafe { estafette_query(tensor) } != status::ESTAFETTE_OK {
            return;
        }
        let (access, mut lease) = (bytes.below(4) as i32, ptr::null_mut());
        // And a writer's waits for readers too, which may wait for what the program has yet to settle.
        let unsettled = !self.promises.is_empty() || !self.foreign.is_empty() || self.in_flight() > 0;
        if access == 1 && unsettled {
            return;
        }
        let cpu = estafette::devices::DLDevice::CPU;
        // SAFETY: as the interface wants it, or wrong in a way that it promises to see.
        let got = unsafe { estafette_order_on(tensor, access, cpu, ptr::null_mut(), &raw mut lease) };
        allowed(
            got,
            &[
                status::ESTAFETTE_OK,
                status::ESTAFETTE_INVALID,
                status::ESTAFETTE_CONFLICT,
                status::ESTAFETTE_LEASE_HELD,
                status::ESTAFETTE_FAILED,
                status::ESTAFETTE_CANCELLED,
            ],
            "order_on",
        );
        if got == status::ESTAFETTE_OK {
            assert!(access < 3, "an unknown access was accepted");
            self.leases.push(lease);
        }
    }

    fn release_lease(&mut self, bytes: &mut Bytes<'_>) {
        let Some(lease) = take(&mut self.leases, bytes) else { return };
        let done = self.any_fence(bytes);
        let done = done.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: as the interface wants it.
        unsafe { expect(estafette_lease_release(lease, done), status::ESTAFETTE_OK, "release a lease") };
    }

    fn release_tensor(&mut self, bytes: &mut Bytes<'_>) {
        let Some(tensor) = take(&mut self.tensors, bytes) else { return };
        let fence = self.any_fence(bytes);
        // SAFETY: as the interface wants it.
        unsafe {
            match fence {
                None => estafette_tensor_release(tensor),
                Some(fence) => {
                    let got = estafette_tensor_release_after(tensor, &raw const fence);
                    expect(got, status::ESTAFETTE_OK, "release after");
                }
            }
        }
    }

    fn op_calls(&mut self, bytes: &mut Bytes<'_>) {
        let stale = bytes.one_in(3);
        let op = if stale { pick(&self.over, bytes) } else { pick(&self.ops, bytes) };
        let Some(op) = op else { return };
        let got = match bytes.below(4) {
            0 => estafette_op_query(op),
            1 => estafette_op_wait(op, SHORT_NS),
            2 => {
                let got = estafette_op_cancel(op);
                if got == status::ESTAFETTE_OK {
                    Shared::count(&self.shared.failures);
                }
                got
            }
            _ => {
                let got = estafette_op_retain(op);
                if got == status::ESTAFETTE_OK {
                    expect(estafette_op_release(op), status::ESTAFETTE_OK, "release what was retained");
                }
                got
            }
        };
        if stale {
            expect(got, status::ESTAFETTE_INVALID, "a handle that is over");
        } else {
            let mut legal = vec![status::ESTAFETTE_CONFLICT];
            legal.extend(WAITED);
            allowed(got, &legal, "an operation's call");
        }
    }

    fn release_op(&mut self, bytes: &mut Bytes<'_>) {
        let Some(op) = take(&mut self.ops, bytes) else { return };
        let ended = !matches!(estafette_op_query(op), status::ESTAFETTE_PENDING);
        expect(estafette_op_release(op), status::ESTAFETTE_OK, "release an operation");
        // One that is under way still holds its own handle, and so may one that has just ended.
        if ended && self.over.len() < HELD_MAX && estafette_op_query(op) == status::ESTAFETTE_INVALID {
            self.over.push(op);
        }
    }

    fn on_ready(&mut self, bytes: &mut Bytes<'_>) {
        let Some(tensor) = pick(&self.tensors, bytes) else { return };
        Shared::count(&self.shared.contexts);
        Shared::count(&self.shared.to_tell);
        let context = Arc::into_raw(self.shared.clone()).cast_mut().cast();
        // SAFETY: as the interface wants it.
        unsafe {
            expect(
                estafette_on_ready(tensor, None, context, Some(drop_shared)),
                status::ESTAFETTE_INVALID,
                "no callback",
            );
            let got = estafette_on_ready(tensor, Some(told), context, Some(drop_shared));
            expect(got, status::ESTAFETTE_OK, "on_ready");
        }
    }

    fn new_foreign(&mut self, bytes: &mut Bytes<'_>) {
        if self.foreign.len() < HELD_MAX {
            self.foreign.push(ForeignFence::new(&self.shared, bytes));
        }
    }

    fn settle_foreign(&mut self, bytes: &mut Bytes<'_>) {
        let Some((fence, _)) = pick(&self.foreign, bytes) else { return };
        let how = [0, 0, -2, -4][bytes.below(4)];
        // SAFETY: the program holds it.
        unsafe { &*fence }.settle(how, bytes.one_in(3));
        if bytes.one_in(2) {
            self.foreign.retain(|(known, _)| *known != fence);
            ForeignFence::release(fence);
        }
    }

    fn promise(&mut self, bytes: &mut Bytes<'_>) {
        if self.promises.len() >= HELD_MAX || self.fences.len() >= HELD_MAX {
            return;
        }
        let (mut promise, mut fence) = (ptr::null_mut(), std::mem::MaybeUninit::uninit());
        let name = if bytes.one_in(2) { ptr::null() } else { c"fuzzed".as_ptr() };
        // SAFETY: as the interface wants it; the fence is written on success.
        unsafe {
            let got = estafette_promise_create(name, &raw mut promise, fence.as_mut_ptr());
            expect(got, status::ESTAFETTE_OK, "promise");
            self.fences.push(fence.assume_init());
        }
        self.promises.push(promise);
    }

    fn settle_promise(&mut self, bytes: &mut Bytes<'_>) {
        let Some(promise) = take(&mut self.promises, bytes) else { return };
        let how = [0, 0, -2, -4, 1, 77][bytes.below(6)];
        if how < 0 {
            Shared::count(&self.shared.failures);
        }
        // SAFETY: as the interface wants it, or wrong in a way that it promises to see.
        unsafe {
            let got = estafette_promise_settle(promise, how, ptr::null());
            expect(got, if how <= 0 { status::ESTAFETTE_OK } else { status::ESTAFETTE_INVALID }, "settle");
            if how > 0 {
                Shared::count(&self.shared.failures);
                estafette_promise_drop(promise);
            }
        }
    }

    fn own_fence(&mut self, bytes: &mut Bytes<'_>) {
        if self.derived.len() >= HELD_MAX {
            return;
        }
        let mut fence = std::mem::MaybeUninit::uninit();
        // SAFETY: as the interface wants it; the fence is written on success.
        unsafe {
            let got = match bytes.below(4) {
                0 => pick(&self.ops, bytes).map(|op| estafette_op_fence(op, fence.as_mut_ptr())),
                1 => pick(&self.leases, bytes).map(|lease| estafette_lease_fence(lease, fence.as_mut_ptr())),
                2 => pick(&self.tensors, bytes)
                    .map(|tensor| estafette_writable_fence(tensor, fence.as_mut_ptr())),
                _ => pick(&self.tensors, bytes)
                    .map(|tensor| estafette_tensor_fence(tensor, fence.as_mut_ptr())),
            };
            if let Some(got) = got {
                expect(got, status::ESTAFETTE_OK, "a fence of ours");
                self.derived.push(fence.assume_init());
            }
        }
    }

    fn use_own_fence(&mut self, bytes: &mut Bytes<'_>) {
        let list = if bytes.one_in(2) { &mut self.fences } else { &mut self.derived };
        let Some(fence) = pick(list, bytes) else { return };
        // SAFETY: the program holds a count of it; every function is there.
        unsafe {
            let context = fence.context;
            match bytes.below(4) {
                0 => assert!(
                    fence.query.is_some_and(|query| query(context) <= 1),
                    "a fence says what it cannot"
                ),
                1 => assert!(
                    fence.wait.is_some_and(|wait| wait(context, SHORT_NS) <= 2),
                    "a wait says what it cannot"
                ),
                2 => {
                    let failed = fence.query.is_some_and(|query| query(context) < 0);
                    let text = fence.error.map_or(ptr::null(), |error| error(context));
                    assert!(!failed || !text.is_null(), "a failed fence says nothing");
                }
                _ => {
                    list.retain(|known| known.context != context);
                    if let Some(release) = fence.release {
                        release(context);
                    }
                }
            }
        }
    }

    fn describe(&mut self, bytes: &mut Bytes<'_>) {
        let Some(tensor) = pick(&self.tensors, bytes) else { return };
        let legal = [status::ESTAFETTE_OK, status::ESTAFETTE_NOT_DEFINED];
        let (mut ndim, mut shape, mut data, mut flag) = (0, [0; 4], ptr::null_mut(), 0);
        // SAFETY: as the interface wants it.
        unsafe {
            let got = match bytes.below(4) {
                0 => estafette_tensor_shape(tensor, shape.as_mut_ptr(), 4, &raw mut ndim),
                1 => estafette_tensor_data(tensor, &raw mut data),
                2 => estafette_tensor_read_only(tensor, &raw mut flag),
                _ => estafette_tensor_shape(tensor, ptr::null_mut(), 0, &raw mut ndim),
            };
            allowed(got, &legal, "describe");
        }
    }

    /// Calls that must be refused whatever the state is.
    fn nonsense(&mut self, bytes: &mut Bytes<'_>) {
        let null = ptr::null_mut::<c_void>();
        let strange =
            (usize::from(bytes.byte()) << 33 | usize::from(bytes.byte()) << 20) as *mut estafette_op;
        // SAFETY: wrong in ways that the interface promises to see.
        let got = unsafe {
            match bytes.below(12) {
                0 => estafette_import(null.cast(), null.cast(), ptr::null(), null.cast()),
                1 => estafette_import(self.engine, null.cast(), ptr::null(), (&raw mut self.engine).cast()),
                2 => estafette_query(ptr::null()),
                3 => estafette_wait(ptr::null(), 0),
                4 => estafette_op_complete(ptr::null_mut(), 0, ptr::null()),
                5 => estafette_op_complete(strange, 0, ptr::null()),
                6 => estafette_op_wait(strange, 0),
                7 => estafette_submit(
                    null.cast(),
                    ptr::null(),
                    None,
                    null,
                    None,
                    ptr::null(),
                    0,
                    ptr::null(),
                    0,
                ),
                8 => estafette_submit(
                    self.engine,
                    ptr::null(),
                    Some(call),
                    null,
                    None,
                    ptr::null(),
                    7,
                    ptr::null(),
                    0,
                ),
                9 => estafette_export(ptr::null(), ptr::null(), null.cast()),
                10 => estafette_diagnose(self.engine, ptr::null_mut()),
                _ => estafette_zeros(
                    self.engine,
                    ptr::null(),
                    3,
                    DLDataType { code: 2, bits: 32, lanes: 1 },
                    null.cast(),
                ),
            }
        };
        expect(got, status::ESTAFETTE_INVALID, "nonsense");
        assert!(!last_error().is_empty(), "an error without a text");
        // SAFETY: NULL is legal here.
        unsafe {
            estafette_tensor_release(ptr::null_mut());
            estafette_promise_drop(ptr::null_mut());
            expect(estafette_lease_release(ptr::null_mut(), ptr::null()), status::ESTAFETTE_OK, "no lease");
            expect(
                estafette_tensor_release_after(ptr::null_mut(), ptr::null()),
                status::ESTAFETTE_OK,
                "no tensor",
            );
        }
        expect(estafette_op_release(ptr::null_mut()), status::ESTAFETTE_OK, "no operation");
    }

    /// Lets everything go, and checks that all of it came back.
    fn end(mut self) {
        // SAFETY: everything here is held, and let go once.
        unsafe {
            for promise in self.promises.drain(..) {
                expect(
                    estafette_promise_settle(promise, 0, ptr::null()),
                    status::ESTAFETTE_OK,
                    "settle at the end",
                );
            }
            for (fence, _) in self.foreign.drain(..) {
                (*fence).settle(0, true);
                ForeignFence::release(fence);
            }
            self.views.drain(..).for_each(|view| delete(view));
            for lease in self.leases.drain(..) {
                expect(
                    estafette_lease_release(lease, ptr::null()),
                    status::ESTAFETTE_OK,
                    "release at the end",
                );
            }
        }
        self.drain();
        let failures = self.shared.failures.load(SeqCst) > 0;
        for tensor in self.tensors.drain(..) {
            // SAFETY: held, and let go once.
            unsafe {
                let got = estafette_wait(tensor, END.as_nanos() as u64);
                allowed(
                    got,
                    &[status::ESTAFETTE_OK, status::ESTAFETTE_FAILED, status::ESTAFETTE_CANCELLED],
                    "the last wait",
                );
                assert!(failures || got == status::ESTAFETTE_OK, "poisoned by nothing: {}", last_error());
                estafette_tensor_release(tensor);
            }
        }
        for op in self.ops.drain(..) {
            allowed(
                estafette_op_wait(op, END.as_nanos() as u64),
                &[status::ESTAFETTE_OK, status::ESTAFETTE_FAILED, status::ESTAFETTE_CANCELLED],
                "the last wait of an operation",
            );
            expect(estafette_op_release(op), status::ESTAFETTE_OK, "release at the end");
        }
        for fence in self.fences.drain(..).chain(self.derived.drain(..)) {
            // SAFETY: held, and let go once.
            unsafe {
                let settled = fence.wait.is_some_and(|wait| wait(fence.context, END.as_nanos() as u64) <= 0);
                assert!(settled, "a fence of ours never settles");
                if let Some(release) = fence.release {
                    release(fence.context);
                }
            }
        }
        // SAFETY: made at the beginning.
        unsafe { estafette_engine_destroy(self.engine) };
        let deadline = Instant::now() + END;
        while let Some(missing) = missing(&self.shared) {
            assert!(Instant::now() < deadline, "at the end {missing}");
            expect(estafette_flush_deleters(END.as_nanos() as u64), status::ESTAFETTE_OK, "flush");
            std::thread::yield_now();
        }
    }

    /// Ends every operation whose function is called now or later.
    fn drain(&self) {
        let deadline = Instant::now() + END;
        loop {
            while let Some(op) = self.shared.take_open(0) {
                // SAFETY: no text.
                expect(
                    unsafe { estafette_op_complete(op, 0, ptr::null()) },
                    status::ESTAFETTE_OK,
                    "complete at the end",
                );
            }
            // SAFETY: the engine is there.
            let got = unsafe { estafette_wait_all(self.engine, SHORT_NS * 10) };
            if got == status::ESTAFETTE_OK {
                return;
            }
            allowed(got, &[status::ESTAFETTE_TIMEOUT], "the last wait for all");
            assert!(Instant::now() < deadline, "operations do not end: {}", self.diagnosis());
        }
    }

    fn diagnosis(&self) -> String {
        let mut text = ptr::null_mut();
        // SAFETY: as the interface wants it.
        unsafe {
            expect(estafette_diagnose(self.engine, &raw mut text), status::ESTAFETTE_OK, "diagnose");
            let words = std::ffi::CStr::from_ptr(text).to_string_lossy().into_owned();
            estafette_string_free(text);
            words
        }
    }
}

/// What has not come back.
fn missing(shared: &Shared) -> Option<String> {
    let pairs = [
        ("deleters", shared.imported.load(SeqCst), shared.deleted.load(SeqCst)),
        ("contexts", shared.contexts.load(SeqCst), shared.dropped.load(SeqCst)),
        ("callbacks", shared.to_tell.load(SeqCst), shared.told.load(SeqCst)),
    ];
    for (what, given, back) in pairs {
        assert!(back <= given, "{what}: {back} came back of {given}");
        if back < given {
            return Some(format!("{what}: only {back} of {given} came back"));
        }
    }
    let holders = shared.fence_holders.load(SeqCst);
    assert!(holders >= 0, "a fence was released more often than retained");
    (holders != 0).then(|| format!("foreign fences have {holders} holders"))
}
