//! Hooks, handles and imports of an engine.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use estafette_devices::{DLDevice, Queue};

use crate::core::engine_core::WaitHook;
use crate::core::error::Error;
use crate::core::operation::Name;
use crate::engine::{Engine, SharedLock};
use crate::exchange::ManagedTensor;
use crate::export::stream::device_with_streams;
use crate::operation::builder::OpBuilder;
use crate::operation::import::{self, ImportOptions, OwnedMemory};
use crate::tensor::alias_map::Origin;
use crate::tensor::handle::Tensor;
use crate::wait::notify::notify;

pub use super::fenced::import_fenced;

/// As [`op`](Engine::op), with a name that the caller keeps as well.
pub fn op_shared<'e>(engine: &'e Engine, name: &Arc<String>) -> OpBuilder<'e> {
    OpBuilder::new(engine.core(), Name::Shared(Arc::clone(name)))
}

/// As [`import_with`](Engine::import_with), but a tensor that the engine refuses comes back, and its
/// deleter was not called.
///
/// # Errors
/// As [`import_with`](Engine::import_with).
///
/// # Safety
/// As for [`import_with`](Engine::import_with).
pub unsafe fn import_or_return(
    engine: &Engine,
    managed: ManagedTensor,
    options: ImportOptions<'_>,
) -> Result<Tensor, Box<(Error, ManagedTensor)>> {
    import::import(engine.core(), managed, options)
}

/// As [`import_with`](Engine::import_with), of memory without a struct. `origin` is as that of
/// [`ImportOptions`].
///
/// # Errors
/// [`Error::Shutdown`]; [`Error::Forked`].
#[inline]
pub fn import_host(
    engine: &Engine,
    memory: OwnedMemory,
    origin: impl FnOnce() -> Origin,
) -> Result<Tensor, Error> {
    import::import_host(engine.core(), memory, origin)
}

/// The time that leases alone may hold up a wait before it ends.
pub fn lease_timeout(engine: &Engine) -> Duration {
    engine.core().lease_timeout
}

pub fn is_last_handle(engine: &Engine) -> bool {
    engine.is_last_handle()
}

/// True if both are handles to the same engine.
pub fn is_same(engine: &Engine, other: &Engine) -> bool {
    engine.core().same(other.core())
}

/// From now on bodies share `lock`, such as that of a language's interpreter. A worker that has it runs one
/// [body that needs it](super::operation::needs_lock) after the other without giving it up in between. Two
/// threads that take the lock from each other may get less done than one, so the engine finds out how many of
/// its workers run operations at once with the best throughput, from one upwards, and lets the others sleep.
/// A ready operation may start beside others that have started none for a millisecond, or for twice the usual
/// time of an operation if that is longer, up to 50 ms. That is found out within eight more, or once no other
/// thread submits without a pause. So operations may wait for each other. Only the first call counts. Without
/// one, every worker runs operations.
pub fn share_lock(engine: &Engine, lock: Arc<dyn SharedLock>) {
    engine.core().pool.share_lock(lock);
}

/// Sets a hook that a wait calls once when only leases hold the wait up. A garbage collector should run
/// in this hook, since it may release such leases. Only the first call counts.
pub fn on_lease_wait(engine: &Engine, hook: impl Fn() + Send + Sync + 'static) {
    let _ = engine.core().on_lease_wait.set(Box::new(hook));
}

/// Sets the hook that may end waits with [`Error::Interrupted`]. Only the first call counts.
pub fn on_wait(engine: &Engine, hook: impl WaitHook + 'static) {
    let _ = engine.core().on_wait.set(Box::new(hook));
}

/// Releases a handle that may be the last one of the program: what is in flight goes on as if it were, and
/// `ended` is called once all of it has ended, with a handle until then and on the thread that finds that
/// out.
pub fn detach(engine: Engine, ended: impl FnOnce(&Engine) + Send + 'static) {
    engine.core().run_rest();
    let idle = async move {
        let core = engine.core();
        let mut listening = core.notifier.listen_async();
        poll_fn(|cx| {
            listening.register_waker(cx.waker());
            if core.in_flight() == 0 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        drop(listening);
        engine
    };
    notify(idle, move |engine| ended(&engine));
}

/// The default queue of `device`: the same at every call.
///
/// # Errors
/// [`Error::Invalid`] for a device that the engine does not have.
pub fn queue_on(engine: &Engine, device: DLDevice) -> Result<Arc<dyn Queue>, Error> {
    Ok(device_with_streams(engine.core(), device)?.default_queue())
}

/// Checks that the engine takes tensors. For bindings, which open doors for one engine.
///
/// # Errors
/// [`Error::Shutdown`], [`Error::Forked`].
pub fn check_usable(engine: &Engine) -> Result<(), Error> {
    engine.core().check_usable()
}
