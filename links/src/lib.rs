//! Processes say *when it is done*, too: fences that cross between the processes of one machine, and memory
//! that they speak of.
//!
//! A [`Link`] joins two processes. One sends a promise, the other has it as a
//! [`Fence`](estafette_devices::Fence) that settles as the promise does, and the answer, that the use is
//! over, comes back the same way. A failure crosses with its text. The death of a process settles every fence
//! that waits for it. Memory crosses as a [`Segment`], which its owner writes and its peers read.
//!
//! This crate never knows an operation, a tensor, a name that outlives a process, or a lock in shared memory.
//! There is no broker. A program that opens no [`Door`] and no link pays nothing: no thread, no descriptor.
//!
//! | part | idea |
//! |---|---|
//! | `board`, `slots`, `ring`, `notify`, `watched` | shared words with one writer each: slots, messages, wake-ups; models |
//! | `fence` | a slot of a peer's board as an event of `estafette_devices` |
//! | `link`, `door`, `descriptor`, `segment`, `arena`, `error` | the interface |
//! | `hub`, `liveness`, `threads`, `mailbox` | the link thread; the thread of liveness locks; values that they leave for futures |
//! | `bulk` | the thread that maps and frees large memory |
//! | `nixl`, [`network`] | a feature: memory of other machines, and how two machines meet |
//! | `platform` | requests of links to the operating system |
//!
//! The protocol, its numbered steps and the races that it excludes are in `PROTOCOL.md` beside this crate's
//! manifest.
//!
//! ```no_run
//! use estafette_devices::host;
//! use estafette_links::{Address, Door, Link, LinkError};
//!
//! # async fn producer(door: Door) -> Result<(), LinkError> {
//! let link = door.accept().await?;                          // one process: `door.address()` went to the other
//! let (completer, promise) = host::promise("frame 7");
//! let used = link.send(&promise, b"frame 7").await?;        // crosses at once, pending
//! completer.complete();
//! used.settled().await.expect("the other process is done with it");
//! # Ok(()) }
//! # async fn consumer(address: Address) -> Result<(), LinkError> {
//! let link = Link::connect(&address).await?;                // the other process
//! let frame = link.receive().await?;
//! frame.fence().settled().await.expect("the promise was kept");
//! frame.complete();
//! # Ok(()) }
//! ```

/// A step of the protocol. Tests end the process there.
macro_rules! step {
    ($name:literal) => {
        #[cfg(all(
            any(test, feature = "steps"),
            not(any(estafette_portable, estafette_loom, estafette_shuttle))
        ))]
        crate::steps::at($name);
    };
}

/// A step of an engine: see `steps`.
#[doc(hidden)]
#[inline]
pub fn pass_step(name: &str) {
    #[cfg(all(
        any(test, feature = "steps"),
        not(any(estafette_portable, estafette_loom, estafette_shuttle))
    ))]
    steps::at(name);
    let _ = name;
}

mod arena;
mod board;
mod bulk;
mod descriptor;
mod door;
mod error;
mod fence;
mod hub;
mod link;
mod liveness;
mod mailbox;
#[cfg(all(test, estafette_loom))]
mod models;
#[cfg(feature = "nixl")]
pub mod network;
#[cfg(feature = "nixl")]
mod nixl;
mod notify;
mod platform;
mod ring;
mod segment;
mod slots;
#[cfg(all(any(test, feature = "steps"), not(any(estafette_portable, estafette_loom, estafette_shuttle))))]
#[doc(hidden)]
pub mod steps;
#[cfg(all(test, not(any(estafette_portable, estafette_loom, estafette_shuttle))))]
mod tests;
mod threads;
mod watched;

pub use self::{
    arena::Arena,
    door::{Address, Door, place, secret},
    error::LinkError,
    link::{Link, Peer, Received},
    segment::{PeerDeviceSegment, PeerMemory, PeerSegment, Segment},
};
