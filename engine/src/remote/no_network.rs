//! In place of `network`, without NIXL.

use std::time::Duration;

use estafette_devices::{DeviceError, DeviceErrorKind};

use super::ticket::UntilHeld;
use crate::core::error::Error;
use crate::core::lease_info::CallSite;
use crate::operation::completion::Completion;

/// Without NIXL the form of addresses is unknown, so any bytes may be an address.
pub(super) fn parse(_reach: &[u8]) -> Option<()> {
    Some(())
}

pub(super) fn fetch(
    _reach: &[u8],
    process: u32,
    _secret: [u8; 16],
    _until_held: UntilHeld,
    completion: Completion,
    _site: Option<CallSite>,
) {
    let what = format!(
        "process {process} is on another machine, and this program was built without the feature `nixl`"
    );
    completion.produce(Err(Box::new(Error::Device(DeviceError::new(DeviceErrorKind::Other, what)))));
}

pub(crate) fn listen(_at: &str, _deadline: Duration) -> Result<Vec<u8>, Error> {
    Err(Error::invalid(
        "tickets for other machines need the feature `nixl`, which this program was built without",
    ))
}
