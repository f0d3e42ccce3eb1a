//! Hooks: the engine and the bindings call one for each event that the recorder notes.
//!
//! Hooks are out of line. Callers test the operation's flag first; while tracing is off, callers do nothing
//! more.
//!
//! An event has one hook, for the recorder and for `tracing`. An observer that both implement was tried and
//! lost: they share no type of an event, since the recorder packs into words what `tracing` gets as text.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use estafette_devices::{Fence, Reactor, Timing};
use estafette_graph::{AccessMode, OpId, VarId};
#[cfg(feature = "links")]
use estafette_report::model::{ClockOffset, ImportOrigin};
use estafette_sync::sync::Mutex;
use smallvec::SmallVec;
use tracing::span::EnteredSpan;

#[cfg(feature = "links")]
use super::encoding::NO_ENGINE;
use super::encoding::{
    EventKind, NONE, OutcomeCode, UseKind, WORDS_MAX, access, element, ended, name_and_use, narrow, pair,
};
use super::events::{self, emit};
use super::names;
use super::nvtx::{self, Range};
use super::writer::{self, Writer};
use crate::core::engine_core::{Core, graph};
use crate::core::error::FailureKind;
#[cfg(feature = "links")]
use crate::core::lease_info::CallSite;
use crate::core::lease_info::LeaseOwner;
use crate::core::operation::{Name, OpGranted, OpKind, OpPending, OpState};
use crate::core::var_state::Ending;
use crate::tensor::handle::{Tensor, TensorInner};

/// Waits that are no operations of the graph have numbers of their own, far above those of operations.
const WAITS: u64 = 1 << 62;

/// The target of a wait for all operations in flight.
const ANY: u64 = 0;

pub(super) fn use_of(kind: OpKind) -> UseKind {
    match kind {
        OpKind::Work | OpKind::WorkerOnly | OpKind::NeedsLock => UseKind::Body,
        OpKind::ReadinessQuery => UseKind::Wait,
        OpKind::Lease => UseKind::Lease,
        OpKind::Merge => UseKind::Copy,
    }
}

/// Accesses that one event has room for.
pub(super) const ACCESSES_MAX: usize = WORDS_MAX - 3;

/// Extents of a shape that are noted, at most.
const NDIM_MAX: usize = 64;

/// Words for accesses in an event of narrow form, two to a word.
const NARROW_WORDS: usize = 4;

impl Writer {
    fn name(&mut self, name: &Name) -> u32 {
        match name {
            Name::Static(text) => self.fixed_text(text),
            Name::Shared(text) => self.text(text),
        }
    }

    #[inline]
    fn submitted(
        &mut self,
        id: u64,
        state: &OpState,
        accesses: impl ExactSizeIterator<Item = (u64, AccessMode)>,
    ) {
        let now = self.now();
        self.is_of(&state.core);
        let (name, what) = (self.name(&state.name), use_of(state.kind));
        if accesses.len() > 2 * NARROW_WORDS {
            let all: Vec<u64> = accesses.map(|(var, mode)| access(var, mode)).collect();
            return self.submitted_at_length(now, id, pair(name, what as u32), &all);
        }
        let (mut words, mut all, len) = ([0; 2 * NARROW_WORDS], 0, accesses.len());
        for (word, (var, mode)) in words.iter_mut().zip(accesses) {
            *word = access(var, mode);
            all |= *word;
        }
        match narrow(id, name_and_use(name, what)) {
            Some(word) if all >> 32 == 0 => {
                let pairs = words[..len.next_multiple_of(2)].chunks_exact(2).map(|two| two[0] | two[1] << 32);
                self.write(EventKind::SubmittedNarrow, now, word, pairs);
            }
            _ => self.submitted_at_length(now, id, pair(name, what as u32), &words[..len]),
        }
    }

    #[cold]
    fn submitted_at_length(&mut self, now: u64, id: u64, about: u64, accesses: &[u64]) {
        let (first, rest) = accesses.split_at(accesses.len().min(ACCESSES_MAX));
        self.write(EventKind::Submitted, now, id, [&[about], first].concat());
        for some in rest.chunks(ACCESSES_MAX) {
            self.write(EventKind::Accesses, now, id, some.iter().copied());
        }
    }
}

/// A pending operation is about to be submitted. No other thread sees it before.
#[cold]
#[inline(never)]
pub(crate) fn submitted(pending_op: &OpPending<'_>) {
    let accesses = || pending_op.accesses().map(|(var, mode)| (var.get(), mode));
    note_submitted(pending_op.id().get(), pending_op.payload(), accesses);
}

/// A lease begins that was created as granted.
#[cold]
#[inline(never)]
pub(crate) fn split_off(granted: &OpGranted) {
    let accesses = || granted.accesses().map(|access| (access.var().get(), access.mode()));
    note_submitted(granted.id().get(), granted.payload(), accesses);
    begins(granted);
}

fn note_submitted<A>(id: u64, state: &OpState, accesses: impl Fn() -> A)
where
    A: ExactSizeIterator<Item = (u64, AccessMode)>,
{
    events::submitted(id, state.name.as_str(), accesses().len());
    if use_of(state.kind) == UseKind::Body {
        events::body_follows(id, state.name.as_str());
    }
    writer::with(|writer| {
        writer.submitted(id, state, accesses());
        // A wait that has not ended when the trace does is known by this.
        if state.blocks() {
            let now = writer.now();
            writer.write(EventKind::Blocks, now, id, []);
        }
        if let Some(lease) = state.lease() {
            let (now, words) = (writer.now(), writer.owner(&lease.details.owner));
            writer.write(EventKind::LeaseOwner, now, id, words);
        }
    });
    if let Some(lease) = state.lease() {
        events::taken(id, &lease.details.owner);
    }
}

/// Notes the variables of these tensors.
#[cold]
#[inline(never)]
pub(crate) fn uses(tensors: &[Tensor]) {
    writer::with(|writer| tensors.iter().for_each(|tensor| describe(writer, &tensor.inner, None)));
}

/// A tensor has got its memory.
#[cold]
#[inline(never)]
pub(crate) fn came_in(tensor: &TensorInner) {
    writer::with(|writer| describe(writer, tensor, None));
}

/// A tensor was imported from `library`, a package name. For bindings; does nothing while tracing is off.
pub fn imported_from(tensor: &Tensor, library: &'static str) {
    if super::is_open() && !library.is_empty() {
        if let Some(var) = tensor.inner.vars.first() {
            emit!(target: "estafette::exchange", variable = var.id().get(), library, "imported");
        }
        writer::with(|writer| describe(writer, &tensor.inner, Some(library)));
    }
}

/// A copy that a library makes on this thread, for a tensor that is imported. It ends when this is dropped:
/// cancelled, unless a copy was made.
#[derive(Debug)]
pub struct Copying {
    id: u64,
    is_made: bool,
}

/// `library`, a package name, begins to copy what is imported. For bindings; `None` while tracing is off.
pub fn copy_begins(library: &str) -> Option<Copying> {
    if !super::is_open() {
        return None;
    }
    let id = graph().next_id().get();
    let library = if library.is_empty() { "another library" } else { library };
    writer::with(|writer| {
        let (now, name) = (writer.now(), writer.text(&format!("copy by {library}")));
        writer.write(EventKind::Submitted, now, id, [pair(name, UseKind::Copy as u32)]);
        writer.write(EventKind::Began, now, id, [0]);
    });
    Some(Copying { id, is_made: false })
}

impl Copying {
    /// The copy became the memory of `tensor`.
    pub fn made(mut self, tensor: &Tensor) {
        self.is_made = true;
        if let Some(var) = tensor.inner.vars.first() {
            write(EventKind::Accesses, self.id, [access(var.id().get(), AccessMode::Write)]);
        }
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        let how = if self.is_made { OutcomeCode::Well } else { OutcomeCode::Cancelled };
        write(EventKind::Ended, self.id, [ended(how, false, NONE)]);
    }
}

fn describe(writer: &mut Writer, tensor: &TensorInner, library: Option<&'static str>) {
    let Some(var) = tensor.vars.first() else { return };
    let var = var.id().get();
    if library.is_none() && !writer.is_new(var) {
        return;
    }
    let Ok(definition) = tensor.definition() else { return };
    let layout = &definition.layout;
    let library = library.map_or(NONE, |library| writer.fixed_text(library));
    let now = writer.now();
    // No tensor of use has more, and the event has to have room for them.
    let shape = layout.shape().iter().take(NDIM_MAX).map(|&extent| extent as u64);
    let about = [layout.byte_len() as u64, pair(element(layout.dtype()), library)];
    let words: SmallVec<[u64; 8]> = about.into_iter().chain(shape).collect();
    writer.write(EventKind::Variable, now, var, words);
}

impl Tensor {
    /// Names the tensor in reports, also of recorders that are opened later. The last 65,536 tensors that
    /// were made and named keep their names. Does nothing for a tensor that has no memory yet.
    pub fn call_in_report(&self, name: &str) {
        if let Some(var) = self.inner.vars.first() {
            names::note(var.id().get(), name);
        }
    }
}

/// An operation was pushed to the queue that it runs from. `at_once`: by the thread that has just submitted
/// it.
#[cold]
#[inline(never)]
pub(crate) fn ready(id: OpId, at_once: bool) {
    events::ready(id.get());
    writer::with(|writer| {
        let at = if at_once { writer.last } else { writer.now() };
        writer.write(EventKind::Ready, at, id.get(), []);
    });
}

/// An operation begins that has no body on this thread.
#[cold]
#[inline(never)]
pub(crate) fn begins(granted: &OpGranted) {
    begins_at(granted, Writer::now);
}

/// The body of an operation begins. It ends when the result is dropped. `at_once` says that the thread has
/// noted something else about an operation just now, with nothing in between that takes time: one reading of
/// the clock serves both.
#[cold]
#[inline(never)]
pub(crate) fn body_begins(granted: &OpGranted, at_once: bool) -> (Option<EnteredSpan>, Option<Range>) {
    begins_at(granted, |writer| if at_once { writer.last } else { writer.now() });
    (events::body(granted), nvtx::body(granted))
}

fn begins_at(granted: &OpGranted, at: impl Fn(&mut Writer) -> u64) {
    let id = granted.id().get();
    if granted.payload().kind == OpKind::Lease {
        events::held(id);
    }
    let queue = granted.payload().queue().map_or(0, |queue| {
        if super::is_kept()
            && let Some(timing) = queue.time()
        {
            TIMINGS.lock().insert(id, timing);
        }
        queue.id().get()
    });
    writer::with(|writer| {
        let at = at(writer);
        writer.is_of(&granted.payload().core);
        if queue == 0 && granted.payload().kind != OpKind::Lease {
            writer.begins(at, id);
        } else {
            writer.write(EventKind::Began, at, id, [queue]);
        }
    });
}

estafette_sync::per_process! {
    /// The timings of device work of operations under way, from the beginning of their bodies to the end.
    /// Only operations on queues that measure time are in the map.
    static TIMINGS: Mutex<BTreeMap<u64, Arc<dyn Timing>>> = Mutex::new(BTreeMap::new());
}

/// A body ran well and left no device work; its operation is about to be completed.
#[cold]
#[inline(never)]
pub(crate) fn ends_well(granted: &OpGranted) {
    events::ended(granted.id().get(), "ok", None);
    writer::with(|writer| {
        writer.now();
        writer.ends_well(granted.id().get());
    });
}

/// An operation is about to be completed.
#[cold]
#[inline(never)]
pub(crate) fn ends(granted: &OpGranted, ending: &Ending<'_>) {
    let id = granted.id();
    let (how, text, left) = match ending {
        Ending::Ran { left, failure } => {
            let how = if failure.is_some() { OutcomeCode::Failed } else { OutcomeCode::Well };
            (how, failure.map(ToString::to_string), left.map(|(fences, _)| fences))
        }
        Ending::Skipped { failure } => {
            let cancelled = failure.kind() == FailureKind::Cancelled && failure.id() == id.get();
            let how = if cancelled { OutcomeCode::Cancelled } else { OutcomeCode::Skipped };
            (how, Some(failure.to_string()), None)
        }
        Ending::Polled => (OutcomeCode::Well, None, None),
    };
    let outcome = match how {
        OutcomeCode::Well => "ok",
        OutcomeCode::Failed => "failed",
        OutcomeCode::Cancelled => "cancelled",
        OutcomeCode::Skipped => "skipped",
    };
    events::ended(id.get(), outcome, text.as_deref());
    writer::with(|writer| {
        let now = writer.now();
        let text = text.as_deref().map_or(NONE, |text| writer.text(text));
        writer.flush_running();
        writer.write(EventKind::Ended, now, id.get(), [ended(how, left.is_some(), text)]);
    });
    // Dropped under no lock: it may own events of a driver.
    let timing = granted.payload().queue().and_then(|_| TIMINGS.lock().remove(&id.get()));
    if let Some(fences) = left {
        watch(id, fences, timing);
    }
}

/// Notes the end of device work when it is observed, and when it ran.
fn watch(id: OpId, fences: &[Fence], timing: Option<Arc<dyn Timing>>) {
    Reactor::global().when_settled(fences, move |settled| {
        let span = if settled.is_ok() { timing.and_then(|timing| timing.span()) } else { None };
        let text = settled.err().map(|error| error.to_string());
        emit!(target: "estafette::op", id = id.get(), why = text.as_deref(), "device work done");
        writer::with(|writer| {
            let now = writer.now();
            let how = if text.is_some() { OutcomeCode::Failed } else { OutcomeCode::Well };
            let text = text.as_deref().map_or(NONE, |text| writer.text(text));
            let about = pair(u32::from(how as u8), text);
            match &span {
                None => writer.write(EventKind::Done, now, id.get(), [about]),
                Some(span) => {
                    let [began, ended] = [span.began_ns, span.ended_ns].map(|at| writer.since_start(at));
                    writer.write(EventKind::Done, now, id.get(), [about, began, ended]);
                }
            }
        });
    });
}

/// An operation has left its queues without having been granted.
#[cold]
#[inline(never)]
pub(crate) fn withdrawn(id: OpId) {
    events::ended(id.get(), "cancelled", None);
    write(EventKind::Ended, id.get(), [ended(OutcomeCode::Cancelled, false, NONE)]);
}

/// The waiters for an operation are about to be notified.
#[cold]
#[inline(never)]
pub(crate) fn observed(id: OpId) {
    write(EventKind::Observed, id.get(), []);
}

/// A waiter resumes; `blocking` if the waiter is a thread.
#[cold]
#[inline(never)]
pub(crate) fn resumed(id: u64, blocking: bool) {
    emit!(target: "estafette::stall", id, blocking, "resumed");
    writer::with(|writer| {
        let now = writer.now();
        writer.write(EventKind::Resumed, now, id, [u64::from(blocking)]);
        writer.woken_from = if blocking { id } else { 0 };
    });
}

/// A lease was granted at once, without an operation.
#[cold]
#[inline(never)]
pub(crate) fn pinned(id: OpId, owner: &LeaseOwner, tensor: &Tensor, var: VarId) {
    events::submitted(id.get(), "lease", 1);
    events::taken(id.get(), owner);
    events::held(id.get());
    writer::with(|writer| {
        let now = writer.now();
        let [text, site] = writer.owner(owner);
        writer.write(
            EventKind::LeasePinned,
            now,
            id.get(),
            [access(var.get(), AccessMode::Read), text, site],
        );
        describe(writer, &tensor.inner, None);
    });
}

/// The end of such a lease; whether device work goes on.
#[cold]
#[inline(never)]
pub(crate) fn unpinned(id: OpId, left: &[Fence]) {
    events::ended(id.get(), "ok", None);
    write(EventKind::Ended, id.get(), [ended(OutcomeCode::Well, !left.is_empty(), NONE)]);
    if !left.is_empty() {
        watch(id, left, None);
    }
}

/// Notes that the operation `id` gives a value of another process: that process's number, the key of its
/// lease there, and the clock of its machine if that is another one.
#[cfg(feature = "links")]
pub(crate) fn has_origin(id: u64, origin: &ImportOrigin, site: Option<&CallSite>) {
    writer::with(|writer| {
        let now = writer.now();
        let site = site.map_or(NONE, |site| writer.text(&site.to_trace()));
        let (about, key) = (pair(origin.process, site), origin.key);
        let Some(ClockOffset { clock, ahead_ns, uncertainty_ns }) = &origin.clock else {
            return writer.write(EventKind::ImportOrigin, now, id, [about, key]);
        };
        let clock = writer.text(clock).into();
        writer.write(
            EventKind::ImportOrigin,
            now,
            id,
            [about, key, clock, *ahead_ns as u64, *uncertainty_ns],
        );
    });
}

/// A value of another process has come without an operation, and is there when `ready` is done. In traces it
/// has one, which is returned.
#[cfg(feature = "links")]
pub(crate) fn received(
    tensor: &Tensor,
    process: u32,
    key: u64,
    ready: &Fence,
    site: Option<&CallSite>,
) -> Option<OpId> {
    let var = tensor.inner.vars.first()?;
    let id = graph().next_id();
    writer::with(|writer| {
        let (now, name) = (writer.now(), writer.text(&format!("tensor of process {process}")));
        let about = [pair(name, UseKind::Body as u32), access(var.id().get(), AccessMode::Write)];
        writer.write(EventKind::Submitted, now, id.get(), about);
        writer.write(EventKind::Began, now, id.get(), [0]);
        writer.write(EventKind::Ended, now, id.get(), [ended(OutcomeCode::Well, true, NONE)]);
    });
    has_origin(id.get(), &ImportOrigin { process, key, clock: None }, site);
    watch(id, std::slice::from_ref(ready), None);
    Some(id)
}

/// A wait for something that is no access of a variable, until dropped.
#[derive(Debug)]
pub(crate) struct WaitNoted {
    id: u64,
    blocking: bool,
}

impl WaitNoted {
    /// Waits for the end of an operation by name. `blocking`: a thread waits, and not a task or a callback.
    pub(crate) fn for_op(op: OpId, blocking: bool) -> Option<Self> {
        let what = if blocking { "wait" } else { "await" };
        super::is_open().then(|| Self::begin(what, op.get(), 0, blocking))
    }

    /// Waits for operations of `core` in flight; `what` names the wait.
    pub(crate) fn for_any(what: &'static str, core: &Core, blocking: bool) -> Option<Self> {
        super::is_open().then(|| Self::begin(what, ANY, core.id, blocking))
    }

    /// Waits for another process; `what` names the wait.
    #[cfg(feature = "links")]
    pub(crate) fn for_process(what: &'static str, blocking: bool) -> Option<Self> {
        super::is_open().then(|| Self::begin(what, ANY, NO_ENGINE, blocking))
    }

    /// Notes that a thread waits, or with false a task.
    #[cfg(feature = "links")]
    pub(crate) fn set_blocking(&mut self, blocking: bool) {
        self.blocking = blocking;
    }

    /// The wait was for the operation `id`, which has come from another process.
    #[cfg(feature = "links")]
    pub(crate) fn was_for(&self, id: u64) {
        write(EventKind::WaitedFor, self.id, [id]);
    }

    #[cold]
    fn begin(what: &'static str, target: u64, engine: u64, blocking: bool) -> Self {
        // An id allocator outside of every protocol.
        static NEXT: AtomicU64 = AtomicU64::new(WAITS);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        emit!(target: "estafette::stall", id, what, operation = target, "waits");
        writer::with(|writer| {
            let (now, name) = (writer.now(), writer.fixed_text(what));
            writer.write(EventKind::WaitsFor, now, id, [target, pair(name, u32::from(!blocking)), engine]);
        });
        Self { id, blocking }
    }
}

impl Drop for WaitNoted {
    fn drop(&mut self) {
        resumed(self.id, self.blocking);
    }
}

/// The body of the operation `id` works with arrays of `library`, a package name, or the lease `id` is that
/// library's. Does nothing while no recorder is open.
pub fn body_uses(id: u64, library: &'static str) {
    if super::is_open() {
        writer::with(|writer| {
            let now = writer.now();
            let library = writer.fixed_text(library);
            writer.write(EventKind::Library, now, id, [library.into()]);
        });
    }
}

/// A thread is about to run the body of the operation `id`, and asks for a lock that the body needs, such as
/// the Python lock. For bindings; does nothing while tracing is off.
pub fn body_wants_lock(id: u64) {
    note(EventKind::Awake, id);
}

/// It has the lock: the body begins. On the thread of an event loop, that loop runs the body, which a worker
/// has sent there.
pub fn body_has_lock(id: u64) {
    note(EventKind::Locked, id);
}

/// The calling thread has come back from a blocking wait, and has got the lock that it had given up for it.
pub fn wait_has_lock() {
    if super::is_open() {
        writer::with(|writer| {
            if writer.woken_from != 0 {
                let (now, id) = (writer.now(), std::mem::take(&mut writer.woken_from));
                writer.write(EventKind::Locked, now, id, [1]);
            }
        });
    }
}

/// The calling thread runs an event loop, so its tasks resume when the loop runs them.
pub fn on_event_loop() {
    if super::is_open() {
        writer::with(|writer| writer.on_event_loop());
    }
}

fn note(kind: EventKind, id: u64) {
    if super::is_open() {
        write(kind, id, []);
    }
}

fn write<const N: usize>(kind: EventKind, id: u64, words: [u64; N]) {
    writer::with(|writer| {
        let now = writer.now();
        writer.write(kind, now, id, words);
    });
}
