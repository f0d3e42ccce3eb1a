//! The one door to what is Linux or x86-64 only. Each part has a special form and a portable one, which needs
//! the standard library alone; the lines below choose. `cargo xtask lint` counts what code that users install
//! names an operating system or a processor elsewhere.
//!
//! | part | Linux | portable |
//! |---|---|---|
//! | `barrier` | `membarrier(2)`, so that the light side is free | a fence on both sides |
//! | [`clock`] | the coarse clock; the clock that drivers of devices use | `Instant` |
//! | `fork` | a handler of `pthread_atfork` | the process id is compared at each question |
//! | [`library`] | versions in names; what is loaded already; symbols of the process | no such name, nothing found |
//! | [`memory`] | mappings, large pages, thresholds of glibc | the program's allocator as it is, which clears large blocks by writing to them |
//! | `stack` | `RLIMIT_STACK` | no limit is known |
//! | [`thread`] | the slack of naps; a thread's number | naps as they are; no number |
//!
//! | part | x86-64 | portable |
//! |---|---|---|
//! | [`prefetch`] | an instruction | nothing |
//! | [`ticks`] | the time stamp counter | never steady |
//! | `valgrind` | client requests | nothing |
//!
//! `--cfg estafette_portable` switches the special forms off, and so do the model checkers: what they run is
//! portable.
//!
//! [`exit`] is the same everywhere, `child` forks for tests, [`signal`] and [`descriptor`] on every Unix; so
//! is most of [`library`], where the standard library knows the difference.

#[cfg(unix)]
#[doc(hidden)]
pub mod child;
pub mod descriptor;
pub mod exit;
pub mod library;
pub mod signal;

#[cfg(all(target_os = "linux", not(any(estafette_portable, estafette_loom, estafette_shuttle))))]
#[path = "linux/mod.rs"]
mod system;
#[cfg(not(all(target_os = "linux", not(any(estafette_portable, estafette_loom, estafette_shuttle)))))]
#[path = "portable/system.rs"]
mod system;

#[cfg(all(target_arch = "x86_64", not(any(miri, estafette_portable, estafette_loom, estafette_shuttle))))]
#[path = "x86_64/mod.rs"]
mod processor;
#[cfg(not(all(
    target_arch = "x86_64",
    not(any(miri, estafette_portable, estafette_loom, estafette_shuttle))
)))]
#[path = "portable/processor.rs"]
mod processor;

pub use self::processor::{prefetch, ticks};
pub use self::system::{clock, memory, thread};

pub(crate) use self::processor::valgrind;
pub(crate) use self::system::{barrier, fork, stack};
