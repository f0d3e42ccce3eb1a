//! Names of operations. Programs give the same few again and again, as literals; each is kept once, so that a
//! submission does not copy it.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashSet;

use estafette_sync::sync::{Mutex, OnceLock};

/// So many different names are kept; a program that makes up more pays for a copy of each further one.
const NAMES_MAX: usize = 1024;
/// Longer names are not kept.
const LENGTH_MAX: usize = 128;

thread_local! {
    /// The name that this thread used last.
    static LAST: Cell<&'static str> = const { Cell::new("") };
}

/// `name` for as long as an operation needs it.
pub(crate) fn kept(name: &str) -> Cow<'static, str> {
    let last = LAST.get();
    if last == name {
        return Cow::Borrowed(last);
    }
    match keep(name) {
        Some(name) => {
            LAST.set(name);
            Cow::Borrowed(name)
        }
        None => Cow::Owned(name.to_owned()),
    }
}

fn keep(name: &str) -> Option<&'static str> {
    static NAMES: OnceLock<Mutex<HashSet<&'static str>>> = OnceLock::new();
    if name.len() > LENGTH_MAX {
        return None;
    }
    let names = NAMES.get_or_init(Mutex::default);
    let mut names = names.lock();
    if let Some(known) = names.get(name) {
        return Some(known);
    }
    if names.len() >= NAMES_MAX {
        return None;
    }
    // The name stays for as long as the process; the bounds above limit such names.
    let name: &'static str = Box::leak(name.into());
    names.insert(name);
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_names_are_kept_once_and_many_are_copied() {
        let first = kept("fill");
        kept("drain");
        assert!(std::ptr::eq(&*first, &*kept("fill")), "kept once");
        let long = "n".repeat(LENGTH_MAX + 1);
        assert!(matches!(kept(&long), Cow::Owned(name) if name == long));
        let copied =
            (0..2 * NAMES_MAX).filter(|number| matches!(kept(&number.to_string()), Cow::Owned(_))).count();
        assert!((NAMES_MAX..=NAMES_MAX + 2).contains(&copied), "{copied}");
    }
}
