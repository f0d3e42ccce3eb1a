//! Memory of one process that others read.

use std::ptr::NonNull;

use estafette_sync::statics;
use estafette_sync::sync::atomic::{AtomicU64, Ordering};

use crate::LinkError;
use crate::platform::{Descriptor, Memory};

statics! {
    static NEXT: AtomicU64 = AtomicU64::new(0);
}

/// Memory that this process writes and its peers read, without a name: it ends with the last process that has it. A forked child does
/// not have it.
#[derive(Debug)]
pub struct Segment {
    memory: Memory,
    descriptor: Descriptor,
    /// Of this process.
    number: u64,
}

impl Segment {
    /// A segment of `bytes` bytes, all zero, with pages behind all of them.
    ///
    /// # Errors
    /// There is no memory, or no descriptor.
    pub fn new(bytes: usize) -> Result<Self, LinkError> {
        if bytes == 0 {
            return Err(LinkError::Invalid("a segment of no bytes".to_owned()));
        }
        let (memory, descriptor) =
            Memory::create("estafette-segment", bytes).map_err(LinkError::system("making shared memory"))?;
        Ok(Self { memory, descriptor, number: NEXT.fetch_add(1, Ordering::Relaxed) })
    }

    /// Where it begins in this process: writable.
    pub fn start(&self) -> NonNull<u8> {
        self.memory.start()
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    pub(crate) fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

/// A segment of a peer, mapped read-only: a write to it is a fault.
#[derive(Debug)]
pub struct PeerSegment(pub(crate) Memory);

impl PeerSegment {
    /// Where it begins in this process. The peer may change the content at any time, but while a fence and a lease say otherwise.
    pub fn start(&self) -> NonNull<u8> {
        self.0.start()
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }
}
