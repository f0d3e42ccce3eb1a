//! Doors: where other processes reach this one.

use std::fmt;
use std::sync::Arc;

use crate::hub::Hub;
use crate::link::Link;
use crate::mailbox::Mailbox;
use crate::platform::{self, Socket, random};
use crate::{LinkError, hub};

/// The address of a door: some bytes, which may travel through anything to a process of the same user on the
/// same machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address(Vec<u8>);

/// The beginning of a door's name.
const PREFIX: &[u8] = b"estafette-";
/// Bytes of an address: the beginning, and a random number of 128 bits.
const ADDRESS_BYTES: usize = PREFIX.len() + 32;

/// 128 random bits: a name that only processes which were given it can use.
///
/// # Errors
/// The system has no random bits.
pub fn secret() -> Result<[u8; 16], LinkError> {
    random().map_err(LinkError::system("asking for random bytes"))
}

/// A number of this machine, since it was started, and of the network namespace of the calling thread: doors
/// that it opens are known there alone. 0 where the system does not say.
pub fn place() -> u64 {
    platform::place().unwrap_or(0)
}

impl Address {
    /// The length of an address in bytes.
    pub const BYTES: usize = ADDRESS_BYTES;

    /// The address in `bytes`.
    ///
    /// # Errors
    /// `bytes` are no address.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, LinkError> {
        let digits = bytes.strip_prefix(PREFIX).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        match digits {
            Some(_) if bytes.len() == ADDRESS_BYTES => Ok(Self(bytes.to_vec())),
            _ => Err(LinkError::Invalid(format!(
                "{:?} is no address of a door",
                String::from_utf8_lossy(bytes)
            ))),
        }
    }

    /// As bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

/// The listener by which other processes of the same user and machine make links to this one. It is closed
/// when it is dropped; its links stay.
#[derive(Debug)]
pub struct Door {
    address: Address,
    hub: &'static Hub,
    token: u64,
    arrived: Arc<Mailbox<Result<Link, LinkError>>>,
}

impl Door {
    /// A door with an address of its own.
    ///
    /// # Errors
    /// Errors of the system; this system or kernel has no links; 4,096 doors and links of this process are
    /// open or in use.
    pub fn open() -> Result<Self, LinkError> {
        let hub = Hub::get()?;
        let digits = secret()?.into_iter().flat_map(|byte| format!("{byte:02x}").into_bytes());
        let address = Address(PREFIX.iter().copied().chain(digits).collect());
        let socket = Socket::listen(&address.0).map_err(LinkError::system("opening a door"))?;
        let arrived = Arc::new(Mailbox::default());
        let token = hub.add_door(socket, Arc::clone(&arrived))?;
        Ok(Self { address, hub, token, arrived })
    }

    /// The door's address.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The next link that another process has made.
    ///
    /// # Errors
    /// The system refused to make one, or 4,096 doors and links are open, which the door tries again in a
    /// moment; the process that came waits, or was hung up on.
    /// [`LinkError::Invalid`]: the door is closed. [`LinkError::Forked`].
    pub async fn accept(&self) -> Result<Link, LinkError> {
        self.hub.generation.check()?;
        let closed = |_| LinkError::Invalid("the door is closed".to_owned());
        self.arrived.take().await.map_err(closed)?
    }

    /// Closes the door, as dropping it does, while other threads and futures may use it. Waits at the door,
    /// and later calls, fail with [`LinkError::Invalid`]; links that were not accepted are closed.
    pub fn close(&self) {
        if self.hub.generation.is_inherited() {
            return;
        }
        self.hub.remove(self.token);
        self.arrived.close();
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.close();
    }
}

/// A connection on which this process waits for a greeting. Dropping it gives it up.
struct Connecting(&'static Hub, u64);

impl Drop for Connecting {
    fn drop(&mut self) {
        self.0.abandon(self.1);
    }
}

impl Link {
    /// A link to the process with a door at `address`.
    ///
    /// # Errors
    /// The door is closed, its process has died, or that process acts for another user; errors of the system;
    /// 4,096 doors and links are open in this process.
    pub async fn connect(address: &Address) -> Result<Self, LinkError> {
        let hub = Hub::get()?;
        let system = |error| LinkError::system(format!("connecting to the door at {address}"))(error);
        let socket = Socket::connect(&address.0).map_err(system)?;
        let arrived = Arc::new(Mailbox::default());
        let _connecting = Connecting(hub, hub.greet(socket, Arc::clone(&arrived), hub::Side::Connects)?);
        arrived.take().await.expect("nothing closes it")
    }
}

#[cfg(all(test, estafette_portable))]
mod tests {
    use super::*;

    #[test]
    fn a_system_without_links_says_so() {
        let error = Door::open().expect_err("there are none");
        assert_eq!(
            error.to_string(),
            "starting to wait for other processes: links between processes need Linux"
        );
        assert!(crate::Segment::new(4096).is_err());
    }
}
