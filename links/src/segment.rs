//! Memory of one process that others read.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use estafette_devices::{DeviceError, Identity};
use estafette_sync::statics;
use estafette_sync::sync::atomic::{AtomicU64, Ordering};
use estafette_sync::sync::{Mutex, OnceLock};

use crate::LinkError;
use crate::bulk::{Bulk, PORTION, finish_releases};
use crate::link::Shared;
use crate::platform::{CloseOnFork, Descriptor, Memory, is_shortage};

statics! {
    static NEXT: AtomicU64 = AtomicU64::new(0);
}

/// Memory that this process writes and its peers read, without a name: it ends with the last process that has
/// it. When this process releases it, its peers do, too. A forked child does not have it.
#[derive(Debug)]
pub struct Segment {
    // Dropped first, so that the end of the mapping is that of the memory.
    descriptor: CloseOnFork<Descriptor>,
    memory: Bulk<Memory>,
    /// The number of the segment in this process.
    number: u64,
    is_writable: bool,
    /// The links on which the segment was shown.
    links: Mutex<Vec<Weak<Shared>>>,
}

impl Segment {
    /// A segment of `bytes` bytes, all zero, with pages behind all of them.
    ///
    /// # Errors
    /// There is no memory, or no descriptor.
    pub fn new(bytes: usize) -> Result<Self, LinkError> {
        Self::of(bytes, false)
    }

    /// A segment that peers can be shown for writing, too. A peer that was shown it so can write it at any
    /// time.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn new_writable(bytes: usize) -> Result<Self, LinkError> {
        Self::of(bytes, true)
    }

    fn of(bytes: usize, is_writable: bool) -> Result<Self, LinkError> {
        if bytes == 0 {
            return Err(LinkError::Invalid("a segment of no bytes".to_owned()));
        }
        let create = || Memory::create("estafette-segment", bytes, bytes, is_writable);
        let created = create().or_else(|error| {
            if bytes <= PORTION || !is_shortage(&error) {
                return Err(error);
            }
            // Memory whose release is left to a thread may be what this lacks.
            finish_releases();
            create()
        });
        let (memory, descriptor) = created.map_err(LinkError::system("making shared memory"))?;
        memory.populate(0..bytes);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let memory = Bulk::new(memory, bytes);
        Ok(Self { descriptor, memory, number, is_writable, links: Mutex::default() })
    }

    /// The segment's first byte in this process: writable.
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

    /// True if peers can be shown it for writing.
    pub fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// Its end is said on that link.
    pub(crate) fn is_shown_on(&self, link: &Arc<Shared>) {
        let mut links = self.links.lock();
        links.retain(|link| link.strong_count() > 0);
        links.push(Arc::downgrade(link));
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        let links = std::mem::take(&mut *self.links.lock());
        links.iter().filter_map(Weak::upgrade).for_each(|link| link.report_release(self));
    }
}

/// A segment of a peer, mapped read-only, so that a write to it is a fault, unless the peer has shown it for
/// writing. A forked child has it if it is mapped read-only.
#[derive(Debug)]
pub struct PeerSegment {
    memory: Bulk<Memory>,
    is_writable: bool,
}

impl PeerMemory {
    /// Host memory, if it is that.
    pub fn host(self) -> Option<Arc<PeerSegment>> {
        match self {
            Self::Host(segment) => Some(segment),
            Self::Device(_) => None,
        }
    }
}

impl PeerSegment {
    pub(crate) fn new(memory: Memory, is_writable: bool) -> Self {
        let bytes = memory.bytes();
        Self { memory: Bulk::new(memory, bytes), is_writable }
    }

    /// Maps the pages of the portion from there on, and returns where the next one begins.
    pub(crate) fn populate_from(&self, start: usize) -> Option<usize> {
        let end = self.bytes().min(start + PORTION);
        self.memory.populate(start..end);
        (end < self.bytes()).then_some(end)
    }

    /// True if it is mapped for writing.
    pub fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// Its first byte in this process. The peer may change the content at any time, but while a fence and a
    /// lease say otherwise.
    pub fn start(&self) -> NonNull<u8> {
        self.memory.start()
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.memory.bytes()
    }
}

/// Memory of a device that a peer has shown.
#[derive(Debug)]
pub struct PeerDeviceSegment {
    descriptor: Descriptor,
    bytes: usize,
    identity: Identity,
    opened: OnceLock<Box<dyn Any + Send + Sync>>,
    /// One thread at a time opens it.
    opening: Mutex<()>,
}

impl PeerDeviceSegment {
    pub(crate) fn new(descriptor: Descriptor, bytes: usize, identity: Identity) -> Self {
        Self { descriptor, bytes, identity, opened: OnceLock::new(), opening: Mutex::default() }
    }

    /// The result of `open` for the device, the descriptor and the length, at the first call that succeeds;
    /// the same at every later one.
    ///
    /// # Errors
    /// The error of `open`.
    ///
    /// # Panics
    /// Another call makes something of another type of it.
    pub fn open<T: Send + Sync + 'static>(
        &self,
        open: impl FnOnce(&Identity, &Descriptor, usize) -> Result<T, DeviceError>,
    ) -> Result<&T, DeviceError> {
        let _opening = self.opening.lock();
        let opened = match self.opened.get() {
            Some(opened) => opened,
            None => {
                let new = open(&self.identity, &self.descriptor, self.bytes)?;
                self.opened.get_or_init(|| Box::new(new))
            }
        };
        Ok(opened.downcast_ref().expect("of one type"))
    }

    /// True if a call of [`open`](Self::open) has succeeded, so that later ones do not wait.
    pub fn is_opened(&self) -> bool {
        self.opened.get().is_some()
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Memory that a peer has shown.
#[derive(Clone, Debug)]
pub enum PeerMemory {
    /// Of the host.
    Host(Arc<PeerSegment>),
    /// Of a device.
    Device(Arc<PeerDeviceSegment>),
}

#[cfg(all(test, not(any(estafette_portable, estafette_loom, estafette_shuttle))))]
mod tests {
    use std::os::fd::AsRawFd;

    use estafette_devices::DeviceErrorKind;
    use estafette_sync::platform::child::in_forked_child;

    use super::*;

    #[test]
    fn a_forked_child_keeps_only_what_is_mapped_for_reading_and_closes_nothing_in_its_place() {
        let segment = Segment::new(4096).expect("memory");
        let (_memory, theirs) = Memory::create("a segment of a peer", 4096, 4096, false).expect("memory");
        let theirs = theirs.try_clone().expect("a descriptor");
        let memory = Memory::open(&theirs, 4096, 4096, false).expect("a mapping");
        let seen = PeerSegment::new(memory, false);
        let (_memory, for_writing) = Memory::create("another one", 4096, 4096, true).expect("memory");
        let memory = Memory::open(&for_writing, 4096, 4096, true).expect("a mapping");
        let written = PeerSegment::new(memory, true);
        let number = segment.descriptor.as_raw_fd();
        let is_mapped = |start: NonNull<u8>| {
            let mut page = 0;
            // SAFETY: one page, whose state is one byte.
            unsafe { libc::mincore(start.as_ptr().cast(), 4096, &raw mut page) == 0 }
        };
        assert!(is_mapped(segment.start()) && is_mapped(seen.start()) && is_mapped(written.start()));
        assert!(in_forked_child(|| {
            // SAFETY: takes integers.
            let is_open = || unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0;
            let is_kept = is_open() || is_mapped(segment.start()) || is_mapped(written.start());
            let is_read = is_mapped(seen.start());
            // SAFETY: takes integers. The lowest free number from this one on is this one.
            let other = unsafe { libc::fcntl(theirs.as_raw_fd(), libc::F_DUPFD, number) };
            // SAFETY: the child's copies; it gives each up once.
            drop(unsafe { (std::ptr::read(&segment), std::ptr::read(&seen), std::ptr::read(&written)) });
            !is_kept && is_read && !is_mapped(seen.start()) && other == number && is_open()
        }));
    }

    #[test]
    fn memory_of_a_device_that_was_not_opened_is_tried_again_and_opened_once() {
        let (_memory, descriptor) = Memory::create("a segment", 4096, 4096, false).expect("memory");
        let descriptor = descriptor.try_clone().expect("a descriptor");
        let segment = PeerDeviceSegment::new(descriptor, 4096, Identity::default());
        let refuse = |_: &_, _: &_, _| Err::<u8, _>(DeviceError::new(DeviceErrorKind::OutOfMemory, "short"));
        assert_eq!(segment.open(refuse).expect_err("refused").message(), "short");
        assert!(!segment.is_opened());
        assert_eq!(segment.open(|_, _, _| Ok(7_u8)).expect("opened"), &7);
        assert_eq!(segment.open(refuse).expect("opened before"), &7);
        assert!(segment.is_opened());
    }
}
