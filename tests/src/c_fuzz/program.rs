//! One program: its calls, and what must have come back at its end.

use std::collections::BTreeSet;
use std::ffi::{c_char, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use estafette_c::estafette_status as status;
use estafette_c::estafette_status::*;
use estafette_c::*;

use super::bytes::Bytes;
use super::foreign_fence::ForeignFence;
use super::function::{
    FunctionBody, FunctionEnd, accepts, accepts_if, call, delete, delete_legacy, drop_body, expect,
    last_error, refuses, skipped,
};
use super::managed::Managed;
use super::shared::{OpenHandle, Shared};
use misuse::Over;
use others::Registration;
use recorded::Recorded;
use registered::Registered;
use remote::Remote;

mod fences;
mod misuse;
mod nonsense;
mod operations;
mod others;
mod recorded;
mod registered;
mod remote;
mod tensors;

/// Things of one kind that are held at once.
const HELD_MAX: usize = 12;
/// Operations that may be in flight.
const IN_FLIGHT_LIMIT: u64 = 64;
const LENGTH: usize = 8;
/// No wait of a program takes longer.
const SHORT_NS: u64 = 200_000;
/// After this pause a fence that has not called is first queried; later pauses are twice as long each.
const OVERDUE: Duration = Duration::from_millis(1);
/// Limit of the time until the end.
const END: Duration = Duration::from_secs(20);

const STEPS: usize = 32;

/// The steps that a program has taken: their kind, and for kinds that consist of several calls which one.
pub type Taken = BTreeSet<(usize, usize)>;

/// Every step that a program can take.
pub fn every_step() -> Taken {
    let calls = [recorded::CALLS, remote::CALLS, registered::CALLS, others::CALLS];
    let several = [24, 26, 27, 30].into_iter().zip(calls);
    let several = several.flat_map(|(kind, calls)| (0..calls).map(move |call| (kind, call)));
    (0..24).chain([31]).map(|kind| (kind, 0)).chain(several).collect()
}

/// Runs the program in `bytes`. Returns the steps taken.
pub fn run(bytes: &[u8]) -> Taken {
    // A fence that never calls is queried while the program runs.
    estafette::bindings::exchange::query_overdue_after(OVERDUE);
    let mut bytes = Bytes::new(bytes);
    let mut program = Program::begin(&mut bytes);
    let mut taken = Taken::new();
    while !bytes.is_over() {
        taken.extend(program.step(&mut bytes));
    }
    program.end();
    taken
}

struct Program {
    shared: Arc<Shared>,
    engine: *mut estafette_engine,
    tensors: Vec<*mut estafette_tensor>,
    ops: Vec<*mut estafette_op>,
    /// Handles whose last holder has gone.
    over: Vec<*mut estafette_op>,
    /// Handles of all other kinds that are over.
    released: Vec<Over>,
    leases: Vec<*mut estafette_lease>,
    views: Vec<*mut DLManagedTensorVersioned>,
    promises: Vec<*mut estafette_promise>,
    /// Of promises; each is one count.
    fences: Vec<DLFence>,
    /// Of tensors, operations and leases. They are not returned to the library: something that ends after
    /// its own end would never end.
    derived: Vec<DLFence>,
    foreign: Vec<(*const ForeignFence, DLFence)>,
    recorded_programs: Vec<Recorded>,
    operators: Vec<Registered>,
    contexts: Vec<Registration>,
    remote: Remote,
    /// The log events of the process come here.
    logs: bool,
    /// The engine is shut down before it is destroyed.
    shuts_down: bool,
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

unsafe extern "C" fn notified(context: *mut c_void, status: status, _message: *const c_char) {
    // SAFETY: given away with a count of the context, which `drop_shared` gives up.
    let shared = unsafe { &*context.cast::<Shared>() };
    assert_ne!(status, ESTAFETTE_PENDING, "a callback was notified nothing");
    shared.notified.fetch_add(1, SeqCst);
}

unsafe extern "C" fn drop_shared(context: *mut c_void) {
    // SAFETY: made by `Arc::into_raw` for this one call.
    let shared = unsafe { Arc::from_raw(context.cast::<Shared>()) };
    shared.dropped.fetch_add(1, SeqCst);
}

/// Results of a wait of a tensor or an operation.
const WAITED: [status; 6] = [
    ESTAFETTE_OK,
    ESTAFETTE_PENDING,
    ESTAFETTE_TIMEOUT,
    ESTAFETTE_FAILED,
    ESTAFETTE_CANCELLED,
    ESTAFETTE_LEASE_HELD,
];

impl Program {
    fn begin(bytes: &mut Bytes<'_>) -> Self {
        let kind = usize::from(bytes.byte());
        let options = estafette_engine_options {
            workers: [1, 2, -1][kind % 3],
            in_flight_limit: IN_FLIGHT_LIMIT,
            lease_timeout_ns: 1_000_000,
            shared: u64::from(kind / 3 % 2 == 1),
            ..zeroed!(estafette_engine_options)
        };
        let mut engine = ptr::null_mut();
        // SAFETY: everything is as the interface wants it.
        unsafe {
            let mut wrong = options;
            wrong.workers = -7;
            refuses(estafette_engine_create(&raw const wrong, &raw mut engine), "workers");
            wrong = options;
            wrong.size = 3;
            refuses(estafette_engine_create(&raw const wrong, &raw mut engine), "size");
            refuses(estafette_engine_create(ptr::null(), ptr::null_mut()), "out");
            accepts(estafette_engine_create(&raw const options, &raw mut engine), "create");
        }
        Self {
            shared: Arc::default(),
            engine,
            tensors: Vec::new(),
            ops: Vec::new(),
            over: Vec::new(),
            released: Vec::new(),
            leases: Vec::new(),
            views: Vec::new(),
            promises: Vec::new(),
            fences: Vec::new(),
            derived: Vec::new(),
            foreign: Vec::new(),
            recorded_programs: Vec::new(),
            operators: Vec::new(),
            contexts: Vec::new(),
            remote: Remote::default(),
            logs: false,
            shuts_down: false,
        }
    }

    fn step(&mut self, bytes: &mut Bytes<'_>) -> Option<(usize, usize)> {
        let kind = bytes.below(STEPS);
        match kind {
            0 => self.import(bytes),
            1 => self.zeros(bytes),
            2..=4 => self.submit(bytes),
            5 => self.produce(bytes),
            6 => self.complete_open(bytes),
            7 => self.query_or_wait(bytes),
            8 => self.export(bytes),
            9 => self.release_view(bytes),
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
            23 => self.nonsense(bytes),
            24..=25 => return self.recorded(bytes).map(|call| (24, call)),
            26 => return self.remote(bytes).map(|call| (26, call)),
            27..=29 => return self.registered(bytes).map(|call| (27, call)),
            30 => return self.others(bytes).map(|call| (30, call)),
            _ => self.shuts_down |= bytes.one_in(3),
        }
        Some((kind, 0))
    }

    /// Any fence there is, as a caller passes it.
    fn any_fence(&self, bytes: &mut Bytes<'_>) -> Option<DLFence> {
        match bytes.below(3) {
            0 => None,
            1 => pick(&self.foreign, bytes).map(|(_, raw)| raw),
            _ => pick(&self.fences, bytes),
        }
    }

    /// Lets everything go, and checks that all of it came back.
    fn end(mut self) {
        // SAFETY: every handle here is held, and released once.
        unsafe {
            for promise in self.promises.drain(..) {
                accepts(estafette_promise_settle(promise, 0, ptr::null()), "settle at the end");
            }
            for (fence, _) in self.foreign.drain(..) {
                (*fence).settle(0, true);
                ForeignFence::release(fence);
            }
            self.views.drain(..).for_each(|view| delete(view));
            for lease in self.leases.drain(..) {
                accepts(estafette_lease_release(lease, ptr::null()), "release at the end");
            }
        }
        self.end_of_remote();
        self.operators.drain(..).for_each(Registered::unregister);
        self.recorded_programs.drain(..).for_each(Recorded::destroy);
        self.drain();
        let failures = self.shared.failures.load(SeqCst) > 0;
        for tensor in self.tensors.drain(..) {
            let got = estafette_wait(tensor, END.as_nanos() as u64);
            allowed(got, &[ESTAFETTE_OK, ESTAFETTE_FAILED, ESTAFETTE_CANCELLED], "the last wait");
            assert!(failures || got == ESTAFETTE_OK, "poisoned by nothing: {}", last_error());
            accepts(estafette_tensor_release(tensor), "release at the end");
        }
        for op in self.ops.drain(..) {
            allowed(
                estafette_op_wait(op, END.as_nanos() as u64),
                &[ESTAFETTE_OK, ESTAFETTE_FAILED, ESTAFETTE_CANCELLED],
                "the last wait of an operation",
            );
            accepts(estafette_op_release(op), "release at the end");
        }
        for fence in self.fences.drain(..).chain(self.derived.drain(..)) {
            // SAFETY: held, and released once.
            unsafe {
                let settled = fence.wait.is_some_and(|wait| wait(fence.context, END.as_nanos() as u64) <= 0);
                assert!(settled, "a fence of Estafette never settles");
                if let Some(release) = fence.release {
                    release(fence.context);
                }
            }
        }
        if self.shuts_down {
            self.shut_down();
        }
        self.end_of_others();
        accepts(estafette_engine_destroy(self.engine), "destroy");
        self.released.push(Over::Engine(self.engine));
        self.released.iter().for_each(|over| over.is_refused(0));
        let deadline = Instant::now() + END;
        while let Some(missing) = missing(&self.shared) {
            assert!(Instant::now() < deadline, "at the end {missing}");
            accepts(estafette_flush_deleters(END.as_nanos() as u64), "flush");
            std::thread::yield_now();
        }
    }

    /// Nothing is in flight any more.
    fn shut_down(&self) {
        let end = END.as_nanos() as u64;
        accepts(estafette_engine_shutdown(self.engine, end), "shut down");
        accepts(estafette_engine_shutdown(self.engine, 0), "shut down twice");
        refuses(estafette_engine_shutdown(ptr::null_mut(), 0), "no engine");
        // SAFETY: as the interface wants it; nothing is taken.
        let got = unsafe {
            let (none, call) = (ptr::null(), Some(call as _));
            estafette_submit(self.engine, ptr::null(), call, ptr::null_mut(), None, none, 0, none, 0)
        };
        expect(got, ESTAFETTE_SHUTDOWN, "submit after the end");
    }

    /// Ends every operation whose function is called now or later.
    fn drain(&self) {
        let deadline = Instant::now() + END;
        loop {
            while let Some(op) = self.shared.take_open(0) {
                // SAFETY: no text.
                accepts(unsafe { estafette_op_complete(op, 0, ptr::null()) }, "complete at the end");
            }
            let got = estafette_wait_all(self.engine, SHORT_NS * 10);
            if got == ESTAFETTE_OK {
                return;
            }
            allowed(got, &[ESTAFETTE_TIMEOUT], "the last wait for all");
            assert!(Instant::now() < deadline, "operations do not end: {}", self.diagnosis());
        }
    }

    fn diagnosis(&self) -> String {
        let mut text = ptr::null_mut();
        // SAFETY: as the interface wants it.
        unsafe {
            accepts(estafette_diagnose(self.engine, &raw mut text), "diagnose");
            let words = std::ffi::CStr::from_ptr(text).to_string_lossy().into_owned();
            estafette_string_free(text);
            words
        }
    }
}

/// Values that the library has not returned.
fn missing(shared: &Shared) -> Option<String> {
    let pairs = [
        ("deleters", shared.imported.load(SeqCst), shared.deleted.load(SeqCst)),
        ("contexts", shared.contexts.load(SeqCst), shared.dropped.load(SeqCst)),
        ("callbacks", shared.to_notify.load(SeqCst), shared.notified.load(SeqCst)),
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
