//! The engine handle.
//!
//! | part | what it has |
//! |---|---|
//! | `builder` | the options of an engine, and its start |
//! | `copy` | copies of tensors as operations |
//! | `shutdown` | waits for the end of all operations; shutdown |
//! | `stats` | counters |
//!
//! # Invariants
//!
//! - The drop of the last handle waits for nothing. Operations in flight own the core; without workers the
//!   dropping thread runs what is ready.
//! - A shutdown refuses later submissions, and ends what is in flight.
//! - A copy is an operation: it is ordered, fails and is cancelled as any other one.
//!
//! # Names of asynchronous functions
//!
//! `x_async` exists only where `x` blocks (`copy`, `to_vec`, `replay`). A function that is asynchronous in
//! the first place has the plain name (`connect`, `export`, `shutdown`). Its blocking form, where there is
//! one, ends with `_wait` (`export_wait`). That of `shutdown` is `shutdown_timeout` instead, since it cancels
//! what is left at its deadline.

mod builder;
pub(crate) mod copy;
mod shutdown;
mod stats;

use std::borrow::Cow;
use std::sync::Arc;
#[cfg(feature = "operators")]
use std::sync::Weak;

use estafette_devices::{DLDevice, Device};
use estafette_sync::sync::OnceLock;

use crate::core::coalesced;
use crate::core::core_ref::CoreRef;
use crate::core::error::Error;
use crate::core::operation::Name;
use crate::core::unretrieved::Unretrieved;
use crate::exchange::{DType, Element, ManagedTensor};
use crate::lease::{Access, Lease, LeaseOwner, LeaseRequest};
use crate::operation::builder::OpBuilder;
use crate::operation::import::{self, ImportOptions};
use crate::tensor::handle::Tensor;
use crate::tensor::variable::Variable;
use crate::wait::activity::StallWatch;
use crate::wait::diagnose::{Diagnosis, diagnose};

pub use estafette_devices::cpu::SharedLock;

pub use self::builder::{EngineBuilder, STACK_SIZES, WORKERS_MAX};
pub use self::shutdown::ShutdownReport;
pub use self::stats::Stats;
pub use crate::tensor::memory::Memory;

/// Schedules operations in the order that their data demands. A clone is another handle to the same engine.
///
/// Dropping the last handle detaches the engine: submitted operations still run, and nothing waits for them.
/// An engine without workers runs what is ready on the thread that drops it. Use [`shutdown`](Self::shutdown)
/// to wait for the end. The end of `main` ends the process, whatever is in flight.
///
/// A failure of an operation shows where the program inspects its outcome or its outputs. A failure that the
/// program never retrieves is reported when its last version and handle are gone: at the level *error* of
/// `tracing` (target `estafette::unretrieved`; see [`on_unretrieved`](crate::operation::on_unretrieved)). The
/// end of the engine also names such failures ([`ShutdownReport::unretrieved`]).
#[derive(Clone)]
pub struct Engine {
    handle: Arc<EngineHandle>,
}

/// For the bodies of operations, which must not keep an engine: a thread that drops the last handle as it
/// ends an operation would end the engine, and without workers no thread would run that operation.
#[cfg(feature = "operators")]
pub(crate) struct WeakEngine {
    core: CoreRef,
    handle: Weak<EngineHandle>,
}

#[cfg(feature = "operators")]
impl WeakEngine {
    pub(crate) fn core(&self) -> &CoreRef {
        &self.core
    }

    /// A handle. If the program has none any more, it is one whose drop ends nothing.
    pub(crate) fn to_engine(&self) -> Engine {
        let inner = || EngineHandle {
            core: self.core.clone(),
            _registered: None,
            watch: OnceLock::new(),
            ends_nothing: true,
        };
        Engine { handle: self.handle.upgrade().unwrap_or_else(|| Arc::new(inner())) }
    }
}

struct EngineHandle {
    core: CoreRef,
    /// Its drop ends nothing: the program's last handle is gone, and this one is for a body that runs on.
    ends_nothing: bool,
    /// Of an engine without workers: its place in the registry for waits that know no engine.
    _registered: Option<Arc<CoreRef>>,
    /// Set once the handle is where the watch can find it.
    watch: OnceLock<StallWatch>,
}

impl Drop for EngineHandle {
    fn drop(&mut self) {
        if self.core.generation.is_inherited() {
            // A forked child: the pool's threads do not exist here, and its locks may be held for ever.
            std::mem::forget(self.watch.take());
            return std::mem::forget(self.core.clone());
        }
        if self.ends_nothing {
            return;
        }
        self.core.run_rest();
        self.core.failures.close();
        self.core.detach();
        self.core.clear_thread_cache();
    }
}

impl Engine {
    #[inline]
    pub(crate) fn core(&self) -> &CoreRef {
        &self.handle.core
    }

    /// Begins the description of an operation.
    #[inline(always)]
    pub fn op(&self, name: impl Into<Cow<'static, str>>) -> OpBuilder<'_> {
        OpBuilder::new(self.core(), Name::from(name.into()))
    }

    /// Runs `submit`, in which this thread submits many operations, and wakes the workers once for all of
    /// them: at the end of `submit`, or before the thread has to wait. Workers that are awake begin at once.
    ///
    /// Waking a sleeping thread costs its waker microseconds, many times the cost of a submission. Where
    /// `submit` waits by other means than the engine's, sleeping workers are notified of the work some
    /// milliseconds late.
    ///
    /// ```
    /// # let engine = estafette::Engine::builder().workers(1).build()?;
    /// let files: Vec<_> = (0..100).map(|_| engine.var()).collect();
    /// let ops = engine.submit_many(|| {
    ///     files.iter().map(|file| engine.op("touch").writes_vars(&[file]).run(|[], []| Ok(()))).collect::<Result<Vec<_>, _>>()
    /// })?;
    /// assert_eq!(ops.len(), 100);
    /// engine.wait_all(None)?;
    /// # Ok::<(), estafette::Error>(())
    /// ```
    pub fn submit_many<T>(&self, submit: impl FnOnce() -> T) -> T {
        coalesced::hold_back(self.core(), submit)
    }

    /// A variable without memory, for order alone.
    pub fn var(&self) -> Variable {
        Variable::new()
    }

    /// Adopts a tensor of another library, without a copy. On an error its deleter has been called.
    ///
    /// The engine orders memory that overlaps known tensors with these tensors.
    ///
    /// # Errors
    /// [`Error::InvalidTensor`] names the field that breaks the rules; [`Error::Invalid`] for a device that
    /// the engine does not have; [`Error::Shutdown`]; [`Error::Forked`].
    ///
    /// # Safety
    /// The description must be true: the memory exists, is initialized, and stays valid until the deleter is
    /// called. Only the engine's operations and leases write the memory meanwhile. The content of the memory
    /// is ready to be read.
    pub unsafe fn import(&self, managed: ManagedTensor) -> Result<Tensor, Error> {
        // SAFETY: by contract.
        unsafe { self.import_with(managed, ImportOptions::default()) }
    }

    /// As [`import`](Self::import), with options: memory that becomes ready later, that must not be written,
    /// or that its allocator reuses in the order of a stream.
    ///
    /// # Errors
    /// As [`import`](Self::import); [`Error::Invalid`] for a release stream of another device than the
    /// memory.
    ///
    /// # Safety
    /// As for [`import`](Self::import), once the fences of the options are done; and the promises of the
    /// options.
    #[inline]
    pub unsafe fn import_with(
        &self,
        managed: ManagedTensor,
        options: ImportOptions<'_>,
    ) -> Result<Tensor, Error> {
        import::import(self.core(), managed, options).map_err(|refused| refused.0)
    }

    /// A tensor with the elements of a vector in row-major order, without a copy.
    ///
    /// # Errors
    /// [`Error::Invalid`] when `shape` does not hold exactly these elements; [`Error::Shutdown`];
    /// [`Error::Forked`].
    pub fn from_vec<T: Element>(&self, values: Vec<T>, shape: &[i64]) -> Result<Tensor, Error> {
        import::from_vec(self.core(), values, shape)
    }

    /// A tensor of zeros in host memory. Safe views never see uninitialized memory.
    ///
    /// # Errors
    /// [`Error::InvalidTensor`] for a shape that cannot be; [`Error::Device`] when memory is exhausted;
    /// [`Error::Shutdown`]; [`Error::Forked`].
    pub fn zeros(&self, shape: &[i64], dtype: DType) -> Result<Tensor, Error> {
        self.empty(shape, dtype, DLDevice::CPU)
    }

    /// A tensor in the memory of a device, or in other [`Memory`]; its bytes are arbitrary. Where the host
    /// can use the memory the bytes are zero.
    ///
    /// # Errors
    /// As [`zeros`](Self::zeros), and [`Error::Invalid`] for a device that the engine does not have;
    /// [`Error::NotShared`] if memory of the device cannot be shown to other processes and is to be.
    pub fn empty(&self, shape: &[i64], dtype: DType, memory: impl Into<Memory>) -> Result<Tensor, Error> {
        import::allocate(self.core(), memory.into(), shape, dtype)
    }

    /// Requests leases of several tensors in one step. All are granted together, once all tensors are
    /// defined, ready, and free. The leases come in the order of `wanted`. A tensor may be wanted twice; if
    /// one of the two is a write, both are exclusive.
    ///
    /// # Errors
    /// As [`Tensor::lease`]; [`Error::Invalid`] for [`Access::Alias`], which nothing orders.
    pub fn lease_all(
        &self,
        wanted: &[(Tensor, Access)],
        owner: impl Into<LeaseOwner>,
    ) -> LeaseRequest<Vec<Lease>> {
        LeaseRequest::of_all(self.core().clone(), wanted, owner.into())
    }

    /// The devices of this engine; the host is the first.
    pub fn devices(&self) -> &[Arc<dyn Device>] {
        &self.core().devices
    }

    /// Runs, on this thread, the ready operations of an engine without workers, and operations that they make
    /// ready in turn. Waits for nothing: this function is for programs with one thread and a loop of their
    /// own. Returns whether an operation was ready. Runs nothing where the engine has workers, or where
    /// helping is [forbidden](crate::wait::without_helping).
    pub fn run_ready(&self) -> bool {
        self.core().generation.is_current() && self.core().run_ready()
    }

    /// True if no other handle of the engine is alive, in any language.
    pub(crate) fn is_last_handle(&self) -> bool {
        Arc::strong_count(&self.handle) == 1
    }

    /// The operations in flight, what each one waits for, and the deleters that do not return.
    pub fn diagnose(&self) -> Diagnosis {
        diagnose(self.core())
    }

    #[cfg(feature = "operators")]
    pub(crate) fn downgrade(&self) -> WeakEngine {
        WeakEngine { core: self.core().clone(), handle: Arc::downgrade(&self.handle) }
    }

    /// Failures of this engine's operations that the program has not retrieved so far.
    pub fn unretrieved(&self) -> Unretrieved {
        if self.core().generation.is_inherited() {
            Unretrieved::default()
        } else {
            self.core().failures.unretrieved()
        }
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("id", &self.core().id)
            .field("workers", &self.core().pool.workers())
            .field("in_flight", &self.core().in_flight())
            .finish()
    }
}
