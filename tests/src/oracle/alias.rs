//! Memory of a cell that is imported again for one operation, by a foreign library: its deleter notes whether
//! it was called too early, and its content may be ready only when a foreign fence is done.

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use estafette::bindings::{self, Origin};
use estafette::devices::{DLDevice, Fence, FenceSet, host};
use estafette::exchange::foreign_fence::{FENCE_VERSION, FenceCallback, OK, PENDING, RawFence};
use estafette::exchange::{Abi, flush_deleters};
use estafette::{Engine, Error, ImportOptions, ManagedTensor, Tensor};
use estafette_sync::thread;
use estafette_sync::time::{Duration, Instant};

use super::program::{CellId, ImportWait, OpIndex};
use super::world::World;
use crate::foreign::{DLTensor, Versioned};

/// Limit for deleters that are on their way.
const PATIENCE: Duration = Duration::from_secs(5);

/// Facts about the imports of one operation.
#[derive(Debug, Default)]
pub struct Uses {
    /// True if its body has begun. One that is cancelled or skipped uses nothing.
    begun: AtomicBool,
    /// True if nothing of the operation uses its operands any more.
    pub over: AtomicBool,
    /// True if a fence of an import is pending.
    pub pending: AtomicBool,
    imported: AtomicUsize,
    deleted: AtomicUsize,
    early: AtomicUsize,
}

impl Uses {
    /// The operation uses its operands from now on.
    pub(super) fn begin(&self, op: OpIndex) {
        self.begun.store(true, Ordering::Release);
        let deleted = self.deleted.load(Ordering::Acquire);
        assert!(
            deleted == 0 || self.over.load(Ordering::Acquire),
            "operation {op} begins with what was deleted"
        );
    }

    /// Checks that each import has been deleted once, after its last use. Memory that a broken device may
    /// still use is `kept`, perhaps.
    pub fn check(&self, op: OpIndex, kept: bool) {
        // A value dropped a moment ago may be on its way out on another thread.
        let deadline = Instant::now() + PATIENCE;
        while self.deleted.load(Ordering::Acquire) < self.imported.load(Ordering::Acquire) {
            if kept || Instant::now() > deadline {
                break;
            }
            // A release that found no thread, because the system refused one, is tried again.
            flush_deleters(Duration::from_millis(1));
            thread::sleep(Duration::from_micros(100));
        }
        let [imported, deleted, early] =
            [&self.imported, &self.deleted, &self.early].map(|count| count.load(Ordering::Acquire));
        let counts = format!("operation {op}: {imported} imports, {deleted} calls of their deleters");
        assert!(if kept { deleted <= imported } else { deleted == imported }, "{counts}");
        assert_eq!(early, 0, "operation {op}: deleters called before its last use");
    }
}

#[derive(Debug)]
pub(super) enum Settle {
    Promise(host::Completer),
    /// A foreign fence that has to be asked.
    Foreign(Arc<AtomicBool>),
}

impl Settle {
    pub(super) fn done(self) {
        match self {
            Self::Promise(completer) => completer.complete(),
            Self::Foreign(done) => done.store(true, Ordering::Release),
        }
    }
}

pub(super) fn fence(pending: ImportWait) -> (Settle, Fence) {
    if pending == ImportWait::Promise {
        let (completer, fence) = host::promise("content of an import");
        return (Settle::Promise(completer), fence);
    }
    let done = Arc::<AtomicBool>::default();
    let raw = RawFence {
        version: FENCE_VERSION,
        size: size_of::<RawFence>() as u32,
        context: Arc::as_ptr(&done).cast_mut().cast(),
        device: DLDevice::CPU,
        flags: 0,
        query: Some(query),
        wait: None,
        order_on: None,
        subscribe: (pending == ImportWait::Silent).then_some(subscribe),
        unsubscribe: None,
        error: None,
        native: None,
        retain: Some(retain),
        release: Some(release),
        reserved: [None; 3],
    };
    // SAFETY: a struct as it is described; its context lives as long as something retains it.
    let fence =
        unsafe { bindings::exchange::import(NonNull::from(&raw), &[]) }.expect("the struct is in order");
    (Settle::Foreign(done), fence)
}

unsafe extern "C" fn query(context: *mut c_void) -> i32 {
    // SAFETY: retained.
    let done = unsafe { &*context.cast::<AtomicBool>() };
    if done.load(Ordering::Acquire) { OK } else { PENDING }
}

/// Accepts the subscription, and never calls.
unsafe extern "C" fn subscribe(_: *mut c_void, _: FenceCallback, _: *mut c_void, token: *mut u64) -> i32 {
    // SAFETY: the caller passes a writable place.
    unsafe { token.write(0) };
    OK
}

unsafe extern "C" fn retain(context: *mut c_void) {
    // SAFETY: the context is that of an `Arc` that lives.
    unsafe { Arc::increment_strong_count(context.cast::<AtomicBool>()) };
}

unsafe extern "C" fn release(context: *mut c_void) {
    // SAFETY: retained before.
    unsafe { Arc::decrement_strong_count(context.cast::<AtomicBool>()) };
}

/// Imports the memory of `cell` for `op`, with `ready` as the fence of its content.
pub(super) fn import(
    world: &World,
    engine: &Engine,
    op: OpIndex,
    cell: CellId,
    ready: Option<&Fence>,
) -> Tensor {
    let ready = ready.cloned().map(Into::into).unwrap_or_default();
    let tensor = import_place(engine, world.cells[cell].address(), &world.uses[op], ready);
    tensor.expect("a true description is taken")
}

/// Imports one number at `place`, which nothing but operations and leases writes and which outlives all of
/// them.
pub(super) fn import_place(
    engine: &Engine,
    place: *mut u64,
    uses: &Arc<Uses>,
    ready: FenceSet,
) -> Result<Tensor, Error> {
    let uses = Arc::clone(uses);
    uses.imported.fetch_add(1, Ordering::AcqRel);
    let context = Box::into_raw(Box::new(AliasContext { shape: [1], uses }));
    let tensor = DLTensor {
        data: place.cast(),
        device_type: 1,
        device_id: 0,
        ndim: 1,
        code: 1,
        bits: 64,
        lanes: 1,
        // SAFETY: made above, and freed by the deleter.
        shape: unsafe { &raw mut (*context).shape }.cast(),
        strides: ptr::null_mut(),
        byte_offset: 0,
    };
    let managed = Versioned {
        major: 1,
        minor: 1,
        manager_ctx: context.cast(),
        deleter: Some(delete),
        flags: 0,
        tensor,
    };
    // SAFETY: it describes one number, as the caller promises.
    let managed = unsafe { ManagedTensor::from_raw(Box::into_raw(Box::new(managed)).cast(), Abi::Versioned) };
    let managed = managed.expect("version 1.1 is known");
    // SAFETY: as above; only operations and leases write it.
    unsafe {
        engine.import_with(
            managed,
            ImportOptions { ready, origin: Some(&|| Origin::Owner), ..ImportOptions::default() },
        )
    }
}

struct AliasContext {
    shape: [i64; 1],
    uses: Arc<Uses>,
}

unsafe extern "C" fn delete(managed: *mut Versioned) {
    // SAFETY: both were boxed by `import`, and a deleter is called once. Were it called again, valgrind and
    // the count would show it.
    let context = unsafe {
        let context = (*managed).manager_ctx;
        drop(Box::from_raw(managed));
        Box::from_raw(context.cast::<AliasContext>())
    };
    context.uses.deleted.fetch_add(1, Ordering::AcqRel);
    if context.uses.begun.load(Ordering::Acquire) && !context.uses.over.load(Ordering::Acquire) {
        context.uses.early.fetch_add(1, Ordering::AcqRel);
    }
}
