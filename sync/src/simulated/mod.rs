//! Additions to shuttle: time, timeouts, thread-locals and statics as engines use them, and a scheduler
//! with a seed.
//!
//! Shuttle runs all threads of an execution on one thread of the system and decides at each operation which
//! one goes on. It has no clock: by itself a timeout never ends a wait. Here the clock is a number,
//! [`time::Instant`], that moves a little whenever it is read, and to the next timeout when no thread can go
//! on. [`clock::start`] starts the thread that moves it, and [`scheduler::Seeded`] lets it run at the right
//! moments. Without that thread, as in models of single protocols, timeouts never end waits.
//!
//! | part | what it has |
//! |---|---|
//! | `clock` | the clock of one execution, its timers, and the thread that moves it |
//! | `local` | thread-locals of the execution's threads, with the interface of `std`'s |
//! | `scheduler` | a scheduler whose every choice follows from one seed, and which knows the thread that moves the clock |
//! | `statics` | statics that begin anew with each execution |
//! | `sync` | shuttle's `std::sync`, with timeouts that the clock of the execution ends, and with `OnceLock` |
//! | `thread` | shuttle's `std::thread`, with timeouts that the clock of the execution ends, and threads that can be refused |
//! | `time` | `std::time` by the clock of the execution |

use std::cell::RefCell;

use shuttle::future::AbortHandle;

pub mod clock;
mod local;
pub mod scheduler;
mod statics;
pub mod sync;
pub mod thread;
pub mod time;

pub use self::local::LocalKey;
pub use self::statics::{PerExecution, drop_at_the_end};

thread_local! {
    /// The tasks of the execution that this thread of the system runs.
    static TASKS: RefCell<Vec<AbortHandle>> = const { RefCell::new(Vec::new()) };
}

/// Runs a future as a task of the execution. Its end is waited for before the execution ends.
pub fn spawn(future: impl Future<Output = ()> + Send + 'static) {
    let task = shuttle::future::spawn(future);
    TASKS.with_borrow_mut(|tasks| tasks.push(task.abort_handle()));
    // Dropping a handle would detach the task.
    std::mem::forget(task);
}

/// Drops the tasks that have not ended, each where it waits, as a runtime does that ends.
pub fn drop_tasks() {
    TASKS.take().iter().for_each(AbortHandle::abort);
}
