//! What `estafette_sync` does not re-export because it is a macro: thread-locals of the model checker's own threads.

#[cfg(estafette_loom)]
pub(crate) use loom::thread_local;
#[cfg(estafette_shuttle)]
pub(crate) use shuttle::thread_local;
#[cfg(not(any(estafette_loom, estafette_shuttle)))]
pub(crate) use std::thread_local;
