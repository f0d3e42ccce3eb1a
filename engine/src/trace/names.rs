//! The names that programs give their tensors for the report. They are kept whether tracing is on or not: programs name a
//! tensor when they make it, and begin to record later.

use std::collections::BTreeMap;

use estafette_report::model::Text;
use estafette_sync::sync::Mutex;

/// Names that are kept. No notification says that a variable is gone; beyond this limit the oldest variable's name is removed.
const NAMES_MAX: usize = 1 << 16;

estafette_sync::statics! {
    /// By variable, whose numbers grow and are not used again.
    static NAMES: Mutex<BTreeMap<u64, String>> = Mutex::new(BTreeMap::new());
    /// The variables that were named since [`fresh`] was called, while that is asked for.
    static FRESH: Mutex<Option<Vec<u64>>> = Mutex::new(None);
}

pub(super) fn note(var: u64, name: &str) {
    let mut names = NAMES.lock();
    names.insert(var, name.to_owned());
    if names.len() > NAMES_MAX {
        names.pop_first();
    }
    if let Some(fresh) = &mut *FRESH.lock()
        && fresh.len() < NAMES_MAX
    {
        fresh.push(var);
    }
}

/// Whether [`fresh`] will be asked; from then on it has all names.
pub(super) fn watch(on: bool) {
    let names = NAMES.lock();
    let fresh = on.then(|| names.keys().copied().collect());
    *FRESH.lock() = fresh;
}

/// The names that were given since the last call.
pub(super) fn fresh() -> Vec<(u64, String)> {
    let names = NAMES.lock();
    let mut fresh = FRESH.lock();
    let fresh = fresh.as_mut().map(std::mem::take).unwrap_or_default();
    fresh.into_iter().filter_map(|var| Some((var, names.get(&var)?.clone()))).collect()
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
