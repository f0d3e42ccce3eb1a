//! The names that programs give their tensors for the report. They are kept whether tracing is on or not:
//! programs name a tensor when they make it, and begin to record later.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use estafette_report::model::Text;
use estafette_sync::sync::Mutex;

/// Names that are kept. No notification says that a variable is gone; beyond this limit the oldest variable's
/// name is removed.
const NAMES_MAX: usize = 1 << 16;

estafette_sync::per_process! {
    /// By variable, whose numbers grow and are not used again.
    static NAMES: Mutex<BTreeMap<u64, String>> = Mutex::new(BTreeMap::new());
    /// For each [`Watch`], by its number: the variables that were named since it was asked.
    static FRESH: Mutex<BTreeMap<u64, Vec<u64>>> = Mutex::new(BTreeMap::new());
}

thread_local! {
    /// The name that this thread has from those who started it, where that was not Rust.
    static THREAD: RefCell<Option<Box<str>>> = const { RefCell::new(None) };
}

/// Names this thread in traces that it has not written to yet, unless Rust has started it. For bindings.
pub fn call_this_thread(name: &str) {
    // A thread that ends writes no more.
    let _ = THREAD.try_with(|own| own.replace(Some(name.into())));
}

pub(super) fn of_this_thread() -> Option<String> {
    THREAD.try_with(|own| own.borrow().as_deref().map(str::to_owned)).ok().flatten()
}

pub(super) fn note(var: u64, name: &str) {
    let mut names = NAMES.lock();
    names.insert(var, name.to_owned());
    if names.len() > NAMES_MAX {
        names.pop_first();
    }
    for fresh in FRESH.lock().values_mut().filter(|fresh| fresh.len() < NAMES_MAX) {
        fresh.push(var);
    }
}

/// Learns of all names, those that were given before included.
#[derive(Debug)]
pub(super) struct Watch(u64);

impl Watch {
    pub(super) fn begin() -> Self {
        // An id allocator outside of every protocol.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let own = NEXT.fetch_add(1, Ordering::Relaxed);
        let names = NAMES.lock();
        FRESH.lock().insert(own, names.keys().copied().collect());
        Self(own)
    }

    /// The names that were given since the last call.
    pub(super) fn fresh(&self) -> Vec<(u64, String)> {
        let names = NAMES.lock();
        let fresh = FRESH.lock().get_mut(&self.0).map(std::mem::take).unwrap_or_default();
        fresh.into_iter().filter_map(|var| Some((var, names.get(&var)?.clone()))).collect()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        FRESH.lock().remove(&self.0);
    }
}

/// The name of a variable, if it has one.
pub(super) fn get(var: u64) -> Option<Text> {
    let names = NAMES.lock();
    names.get(&var).map(|name| name.as_str().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_names_go_first() {
        // Numbers that no variable of this process reaches.
        let first = u64::MAX / 2;
        for id in first..=first + NAMES_MAX as u64 {
            note(id, &format!("tensor {id}"));
        }
        let last = first + NAMES_MAX as u64;
        assert_eq!((get(first), get(last)), (None, Some(format!("tensor {last}").into())));
    }
}
