//! NIXL, which moves bytes between machines: its C library, found at run time, and agents of it.
//!
//! | part | idea |
//! |---|---|
//! | `library` | where the library is |
//! | `api` | its functions |
//! | `agent` | an agent, and transfers that it makes |
//!
//! NIXL gives out no descriptor to wait for: status and notifications are asked for, and asking is what moves
//! the bytes. Its own thread, which would ask, makes an answer a thousand times later than a thread that asks
//! itself; so it is left off.

mod agent;
mod api;
mod library;
#[cfg(all(test, not(any(estafette_portable, estafette_loom, estafette_shuttle))))]
pub(crate) mod tests;

pub(crate) use self::agent::{Agent, NixlError, Progress, Transfer};
pub use self::library::{check, suggest_library};
