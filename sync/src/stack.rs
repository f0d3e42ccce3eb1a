//! The size of the stacks of the project's threads.
//!
//! Rust gives threads 2 MiB. Functions of other libraries run on ours, and expect what the system gives to
//! threads: an interpreter computes its limits of recursion with that. A stack takes address space at once,
//! and memory only as far as it is used.

use std::sync::OnceLock;

use crate::platform;
use crate::thread::Builder;

/// The size that a thread gets where the system sets no limit, or does not say: the usual limit of Linux.
const USUAL: usize = 8 << 20;
/// Never less than Rust's own default.
const LEAST: usize = 2 << 20;

/// The size in bytes of a thread's stack if nothing else was asked for: `RUST_MIN_STACK`, where the
/// environment has it, as for every Rust thread; else the limit of the process, `RLIMIT_STACK`, which is the
/// system's default for threads as well. 8 MiB if that is unlimited, and 2 MiB at least.
pub fn default_size() -> usize {
    static SIZE: OnceLock<usize> = OnceLock::new();
    *SIZE.get_or_init(|| {
        let asked = std::env::var("RUST_MIN_STACK").ok().and_then(|size| size.parse().ok());
        asked.unwrap_or_else(|| size_under(platform::stack::limit()))
    })
}

/// A thread called `name`, with a stack of the default size.
pub fn thread(name: impl Into<String>) -> Builder {
    Builder::new().name(name.into()).stack_size(default_size())
}

fn size_under(limit: Option<u64>) -> usize {
    limit.and_then(|limit| limit.try_into().ok()).unwrap_or(USUAL).max(LEAST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_is_as_large_as_the_limit_and_never_tiny() {
        assert_eq!(size_under(Some(8 << 20)), 8 << 20);
        assert_eq!(size_under(Some(64 << 20)), 64 << 20);
        assert_eq!(size_under(None), 8 << 20);
        assert_eq!(size_under(Some(16 << 10)), 2 << 20);
    }
}
