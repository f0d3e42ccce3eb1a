//! Pools of jobs that are closures, with and without a shared lock.

use std::sync::Arc;

use estafette_devices::cpu::{Job, Pool, PoolOptions, SharedLock};

/// A job that is a closure.
pub struct Run(pub Body);

pub type Body = Box<dyn FnOnce(&Pool<Run>) + Send>;

impl Job for Run {
    fn run(self, pool: &Pool<Self>) {
        (self.0)(pool);
    }

    fn needs_lock(&self) -> bool {
        true
    }
}

/// Runs up to three jobs at a time.
#[derive(Debug)]
struct Lock;

impl SharedLock for Lock {
    fn lock_while(&self, next: &mut dyn FnMut() -> bool) {
        let _ = next() && next() && next();
    }
}

pub fn pool(workers: usize, spare_limit: usize, with_lock: bool) -> Pool<Run> {
    let name = "test".to_owned();
    let pool = Pool::new(PoolOptions { workers, name, spare_limit, ..PoolOptions::default() })
        .expect("threads can be started");
    if with_lock {
        pool.share_lock(Arc::new(Lock));
    }
    pool
}
