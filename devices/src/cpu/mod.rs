//! The worker pool of the host: work-stealing deques (crossbeam), priorities, and workers that sleep when
//! there is nothing to do.
//!
//! [`Pool`] is generic over what it runs, a [`Job`], so it knows no operation. What is inside:
//!
//! | file | idea |
//! |---|---|
//! | `pool.rs` | the handle: push, take, shut down |
//! | `outside.rs` | threads from outside: deques of those that push, slots of those that wait for a job and run it |
//! | `queues.rs` | where jobs wait: deques, injector, priorities; taking one particular job out of the middle |
//! | `sorted.rs` | jobs by priority and by age; jobs that enqueue work on devices, in the order of their numbers |
//! | `deques.rs` | crossbeam's deques, and what stands for them under loom |
//! | `workers.rs` | the loop of one thread; which threads exist, and spare ones for workers that block |
//! | `concurrency.rs` | the number of threads that run jobs at once, where more may be slower than fewer |
//! | `waiters.rs` | jobs that are left to the thread that waits for them |
//! | `sleep.rs` | sleep of workers, and their wake-ups; independent of all the others, checked with loom |

mod concurrency;
mod deques;
#[cfg(all(test, estafette_loom))]
mod models;
mod outside;
mod pool;
mod queues;
mod sleep;
mod sorted;
mod waiters;
mod workers;

pub use self::outside::{ConcurrencySlot, WaitGuard};
pub use self::pool::{BlockingGuard, Job, Pool, PoolOptions, SharedLock};
