//! Facts about memory that another process has shown to this one.

use std::sync::{Arc, OnceLock};

use estafette_devices::DeviceError;
use estafette_links::{Address, Peer};

/// Memory of another process, as this process has it.
pub(crate) enum Loan {
    ForReading(RemoteOrigin),
    /// Set before the end, if what was written has failed.
    ForWriting(Arc<OnceLock<DeviceError>>),
}

/// The origin of memory of another process: how its owner is asked to show it to a third process.
#[derive(Clone)]
pub(crate) struct RemoteOrigin {
    /// The owner's door for tickets.
    pub(crate) address: Address,
    /// The owner.
    pub(crate) process: u32,
    /// The owner's number of the use by this process.
    pub(crate) share: u64,
    pub(crate) peer: Peer,
}
