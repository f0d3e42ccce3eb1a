//! The worker pool of the host: work-stealing deques (crossbeam), priorities, and workers that sleep when
//! there is nothing to do.
//!
//! [`Pool`] is generic over what it runs, a [`Job`], so it knows no operation. What is inside:
//!
//! | file | idea |
//! |---|---|
//! | `pool.rs` | the handle: push, take, shut down |
//! | `external.rs` | deques for threads from outside |
//! | `queues.rs` | where jobs wait: deques, injector, priorities; taking one particular job out of the middle |
//! | `priority.rs` | jobs that are not ordinary, by priority and by age |
//! | `deques.rs` | crossbeam's deques, and what stands for them under loom |
//! | `in_order.rs` | jobs that enqueue work on devices, in the order of their numbers |
//! | `workers.rs` | the loop of one thread; which threads exist, and spare ones for workers that block |
//! | `concurrency.rs` | the number of threads that run jobs at once, where more may be slower than fewer |
//! | `slot.rs` | a thread that waits for a job runs it in a slot of its own |
//! | `waiters.rs` | jobs that are left to the thread that waits for them |
//! | `sleep.rs` | sleep of workers, and their wake-ups; independent of all the others, checked with loom |

mod concurrency;
mod deques;
mod external;
mod in_order;
#[cfg(all(test, estafette_loom))]
mod models;
mod pool;
mod priority;
mod queues;
mod sleep;
mod slot;
mod waiters;
mod workers;

pub use self::pool::{BlockingGuard, Job, Pool, PoolOptions, SharedLock};
pub use self::slot::{ConcurrencySlot, WaitGuard};
