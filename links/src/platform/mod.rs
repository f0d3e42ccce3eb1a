//! Requests of links to the operating system. It stands here and not in `estafette_sync::platform`, since
//! descriptors that cross processes, sockets and sealed memory are of no use to a process alone.
//!
//! | part | Linux | portable |
//! |---|---|---|
//! | [`Memory`] | a sealed memfd, mapped | none |
//! | [`Socket`] | an abstract unix socket that keeps messages apart and carries descriptors | none |
//! | [`Poll`], [`Waker`] | `epoll`, `eventfd` | none |
//! | [`RobustList`], [`wait_for_any`] | robust futexes, `futex_waitv` | none |
//! | [`CloseOnFork`] | descriptors that a forked child closes | a descriptor |
//! | [`connect`], [`keep_trying`] | TCP sockets | none |
//! | [`own_process`], [`may_be_process`], [`random`], [`place`] | a pidfd, `getrandom`; files of the kernel | none |
//! | [`is_shortage`], [`check_room`] | the numbers of errors; descriptors | never; none |
//!
//! In the portable form each constructor says that links are not supported, and its types have no values.

#[cfg(all(target_os = "linux", not(any(estafette_portable, estafette_loom, estafette_shuttle))))]
#[path = "linux/mod.rs"]
mod system;
#[cfg(not(all(target_os = "linux", not(any(estafette_portable, estafette_loom, estafette_shuttle)))))]
#[path = "portable.rs"]
mod system;

#[cfg(all(
    any(test, feature = "steps"),
    not(any(estafette_portable, estafette_loom, estafette_shuttle))
))]
pub use self::system::end_or_stop;
pub use self::system::{
    CloseOnFork, Descriptor, Memory, Poll, RobustList, Socket, Waker, check_room, is_shortage,
    may_be_process, own_process, own_user, owner_died, place, random, too_many_open_files, wait_for_any,
    wake_all,
};
#[cfg(feature = "nixl")]
pub use self::system::{connect, free, keep_trying};
