//! Serializes functions that enqueue on one foreign queue.
//!
//! Two threads that enqueue with dpnp (0.20) on one queue at once can block each other for ever, in dpctl's
//! list of what the queue was given. A `sycl::queue` may be used by many threads, but the libraries around it
//! keep books of their own. So the functions of operations that name the same queue run one after the other:
//! each writes a variable of the queue. Only the functions take turns; what they enqueue is ordered by the
//! queue, and by its data.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use estafette::Variable;
use estafette::bindings;
use estafette::devices::Queue;
use estafette::devices::sycl::SyclQueue;
use estafette_sync::sync::Mutex;

estafette_sync::per_process! {
    /// By the identity of the queue, which is that of no other as long as a wrapper of it lives; and those
    /// keep the variables.
    static MUTEXES: Mutex<BTreeMap<usize, Weak<Variable>>> = Mutex::new(BTreeMap::new());
}

/// The variable of what is behind `queue`, if that is a foreign SYCL queue. It is kept by the wrapper, and so
/// by the operations under way that have it.
pub fn on(queue: &dyn Queue) -> Option<Variable> {
    let queue = SyclQueue::from_queue(queue).filter(|queue| queue.is_foreign())?;
    let mut mutexes = MUTEXES.lock();
    let identity = queue.identity();
    let variable = match mutexes.get(&identity).and_then(Weak::upgrade) {
        Some(variable) => variable,
        None => {
            mutexes.retain(|_, variable| variable.strong_count() > 0);
            let variable = Arc::new(bindings::operation::mutex());
            mutexes.insert(identity, Arc::downgrade(&variable));
            variable
        }
    };
    drop(mutexes);
    let mutex = (*variable).clone();
    queue.keep(variable);
    Some(mutex)
}
