//! A tokio runtime for asynchronous bodies.

#[cfg(not(estafette_shuttle))]
use std::io;

use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicBool, Ordering};
use tokio::runtime::{Handle, RuntimeFlavor};

#[cfg(not(estafette_shuttle))]
use crate::core::error::Error;
#[cfg(not(estafette_shuttle))]
use crate::core::operation::contain_panic;

/// The runtime of an engine.
#[derive(Default)]
pub(crate) struct Runtime {
    /// The runtime of the program, for bodies.
    given: Option<Handle>,
    /// For bodies without one, and for copies. Made at first use, gone when closed.
    own: Mutex<Option<tokio::runtime::Runtime>>,
    /// True once the warning was logged that a submission blocks a runtime.
    blocked: AtomicBool,
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.close();
    }
}

impl Runtime {
    /// The runtime of the program.
    pub(crate) fn given(runtime: Handle) -> Self {
        Self { given: Some(runtime), own: Mutex::default(), blocked: AtomicBool::new(false) }
    }

    /// Runs an asynchronous body; `stack_size` is for the thread of a runtime that is made for it.
    ///
    /// # Errors
    /// [`Error::Start`] when the runtime cannot be made.
    #[cfg(not(estafette_shuttle))]
    pub(crate) fn spawn(
        &self,
        task: impl Future<Output = ()> + Send + 'static,
        stack_size: usize,
    ) -> Result<(), Error> {
        // Spawning may drop the task, which is foreign code.
        drop(self.handle(stack_size)?.spawn(task));
        Ok(())
    }

    /// As [`spawn`](Self::spawn), of work of the engine, which goes on while the program blocks its own
    /// runtime.
    #[cfg(not(estafette_shuttle))]
    pub(crate) fn spawn_internal(
        &self,
        task: impl Future<Output = ()> + Send + 'static,
        stack_size: usize,
    ) -> Result<(), Error> {
        drop(self.own(stack_size)?.spawn(task));
        Ok(())
    }

    /// Calls `make`, which makes the future of an asynchronous body: timers and sockets are made where their
    /// runtime is the current one. `stack_size` and the errors are as for [`spawn`](Self::spawn).
    #[cfg(not(estafette_shuttle))]
    pub(crate) fn within<R>(&self, make: impl FnOnce() -> R, stack_size: usize) -> Result<R, Error> {
        let handle = self.handle(stack_size)?;
        let _entered = handle.enter();
        Ok(make())
    }

    #[cfg(not(estafette_shuttle))]
    fn handle(&self, stack_size: usize) -> Result<Handle, Error> {
        self.given.clone().map_or_else(|| self.own(stack_size), Ok)
    }

    #[cfg(not(estafette_shuttle))]
    fn own(&self, stack_size: usize) -> Result<Handle, Error> {
        if let Some(runtime) = &*self.own.lock() {
            return Ok(runtime.handle().clone());
        }
        let made = start(stack_size)?;
        let mut own = self.own.lock();
        let mut spare = None;
        let handle = match &*own {
            Some(runtime) => {
                spare = Some(made);
                runtime.handle().clone()
            }
            None => own.insert(made).handle().clone(),
        };
        drop(own);
        if let Some(spare) = spare {
            spare.shutdown_background();
        }
        Ok(handle)
    }

    /// Logs once that the calling thread, which waits for room, belongs to a tokio runtime. Other tasks of
    /// that runtime may be held up. Where the runtime has one thread and runs this engine's asynchronous
    /// bodies, the wait may last for ever. This is no error: tokio does not say whether the thread may block
    /// (`spawn_blocking`) or polls tasks.
    pub(crate) fn warn_if_blocked(&self) {
        let Ok(here) = Handle::try_current() else { return };
        if self.blocked.swap(true, Ordering::Relaxed) {
            return;
        }
        let runs_bodies = self.given.as_ref().is_some_and(|given| given.id() == here.id());
        if runs_bodies && here.runtime_flavor() == RuntimeFlavor::CurrentThread {
            tracing::warn!(
                "a submission waits for room on the thread of the runtime that runs this engine's asynchronous bodies: if these are \
                 in the way it waits for ever; submit with `permit().await` there, or give the engine a runtime with more threads"
            );
        } else {
            tracing::warn!(
                "a submission waits for room on a thread of a tokio runtime, and may hold up the tasks of that runtime; submit with \
                 `permit().await` in tasks"
            );
        }
    }

    /// Ends a runtime that was made for the engine.
    pub(crate) fn close(&self) {
        let own = self.own.lock().take();
        // The last handle may be dropped inside asynchronous code, where waiting for the runtime would panic.
        if let Some(own) = own {
            own.shutdown_background();
        }
    }
}

/// Runs `sleep`, which blocks the thread, in an asynchronous body. A multi-thread runtime moves the other
/// tasks of the thread to other threads meanwhile. A runtime of one thread cannot do so, and the wait may be
/// for one of these tasks.
pub(crate) fn block<R>(sleep: impl FnOnce() -> R) -> R {
    let covered =
        Handle::try_current().is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread);
    if covered { tokio::task::block_in_place(sleep) } else { sleep() }
}

/// A runtime of one thread, with `stack_size` bytes of stack.
///
/// # Errors
/// [`Error::Start`] when the system refuses a thread or a descriptor. Where a thread is refused tokio panics;
/// this function contains the panic.
#[cfg(not(estafette_shuttle))]
fn start(stack_size: usize) -> Result<tokio::runtime::Runtime, Error> {
    let build = || -> io::Result<tokio::runtime::Runtime> {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("estafette-async")
            .thread_stack_size(stack_size)
            .enable_all()
            .build()
    };
    let built = contain_panic(build).and_then(|built| built.map_err(|error| error.to_string()));
    built.map_err(|why| Error::Start(format!("asynchronous runtime: {why}")))
}
