//! Messages on the socket of a link: wake-ups, and segments that each process shows the other.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::sync::Arc;

use estafette_devices::{Identity, SharedSegment, Viewer};
use estafette_sync::sync::atomic::Ordering;

use super::{Link, Shared};
use crate::board::SEGMENTS;
use crate::bulk;
use crate::platform::{Descriptor, Memory, is_shortage, too_many_open_files};
use crate::ring::Violation;
use crate::{LinkError, PeerDeviceSegment, PeerMemory, PeerSegment, Segment};

/// Messages on the socket: a wake-up.
pub(super) const WAKE_UP: u8 = 1;
/// A segment: its number and its length follow, and a descriptor comes with it.
const SEGMENT: u8 = 2;
/// As [`SEGMENT`], for writing.
const WRITABLE: u8 = 3;
/// Memory of a device: its number and its length follow, and what processes know the device by. A descriptor
/// comes with it.
const DEVICE: u8 = 4;
/// The owner has released a segment: its number follows.
const RELEASED: u8 = 5;
/// Bytes of the longest message on the socket.
const MESSAGE_BYTES: usize = 36;
/// Messages that the link thread takes from the socket at once.
const DRAINED_MAX: usize = 64;

/// Segments that the peer was shown.
#[derive(Default)]
pub(super) struct Shown {
    /// By the number of the segment, and the kind of the message: the number there, and how many misses the
    /// peer had counted then.
    numbers: HashMap<(u64, u8), (u32, u64)>,
    /// Numbers of released segments, of which the peer has not been notified.
    released: Vec<u32>,
    /// Fresh numbers in the place of those of segments of whose release the peer was notified, with the same
    /// count in *missed*. They were never used: the peer may read of a segment in the ring before it reads of
    /// the release of an earlier one on the socket.
    free: Vec<u32>,
    next: u32,
    /// The socket was full, and the link thread comes when it has room.
    wants_room: bool,
}

/// The state of a segment that the peer has shown.
pub(super) enum SegmentState {
    Mapped(PeerMemory),
    /// Memory was short, or what else a mapping takes.
    Unmapped {
        descriptor: Descriptor,
        bytes: usize,
        is_writable: bool,
    },
    /// There was no room for its descriptor. The peer shows it again with the next tensor in it.
    Missed,
}

impl SegmentState {
    /// The memory. What was short before may be there by now.
    fn open(&mut self) -> io::Result<PeerMemory> {
        match self {
            Self::Mapped(segment) => Ok(segment.clone()),
            Self::Unmapped { descriptor, bytes, is_writable } => {
                let memory = Memory::open(descriptor, *bytes, *bytes, *is_writable)?;
                let segment = Arc::new(PeerSegment::new(memory, *is_writable));
                bulk::populate(&segment);
                let segment = PeerMemory::Host(segment);
                *self = Self::Mapped(segment.clone());
                Ok(segment)
            }
            Self::Missed => Err(too_many_open_files()),
        }
    }
}

impl Shared {
    fn want_room(&self, shown: &mut Shown, is_wanted: bool) {
        if std::mem::replace(&mut shown.wants_room, is_wanted) != is_wanted {
            // Fails for a descriptor that was removed from the poll: that link has ended.
            let _ = self.hub.poll.watch_room(self.channel.socket.descriptor(), self.token, is_wanted);
        }
    }

    /// On the link thread, which has come: there is room, or what finds none wants it again. Senders try when
    /// the link is dispatched.
    pub(crate) fn use_room(&self) {
        let mut shown = self.shown.lock();
        self.want_room(&mut shown, false);
        self.send_releases(&mut shown);
    }

    /// Takes messages from the socket: up to the first wake-up on the link thread, which comes back if there
    /// is more; else all that may be there from a peer that keeps to the protocol. True at its end.
    pub(crate) fn drain(&self, is_link_thread: bool) -> bool {
        // Dropped after the lock.
        let mut over = Vec::new();
        let mut seen = self.seen.lock();
        let mut bytes = [0; MESSAGE_BYTES];
        for _ in 0..if is_link_thread { DRAINED_MAX } else { 4 * SEGMENTS } {
            let (length, descriptors) = match self.channel.socket.receive(&mut bytes) {
                Ok(Some(message)) if message.0 > 0 => message,
                Ok(None) => break,
                Err(error) if is_shortage(&error) => break,
                Ok(Some(_)) | Err(_) => return true,
            };
            let violation = match (bytes[0], length, descriptors.map(<[_; 1]>::try_from)) {
                (WAKE_UP, 1, Ok(Err(none))) if none.is_empty() => {
                    if is_link_thread {
                        break;
                    }
                    self.hub.dispatch_soon(self.token);
                    continue;
                }
                (SEGMENT | WRITABLE, 16, Ok(Ok([descriptor])))
                | (DEVICE, MESSAGE_BYTES, Ok(Ok([descriptor]))) => {
                    self.note_segment(&mut seen, &bytes, Some(descriptor)).err()
                }
                (SEGMENT | WRITABLE, 16, Err(_)) | (DEVICE, MESSAGE_BYTES, Err(_)) => {
                    self.note_segment(&mut seen, &bytes, None).err()
                }
                (RELEASED, 8, Ok(Err(none))) if none.is_empty() => {
                    over.extend(seen.remove(&number(&bytes)));
                    step!("released");
                    None
                }
                _ => Some(Violation("an unknown message")),
            };
            if let Some(violation) = violation {
                self.break_off(violation);
            }
        }
        false
    }

    /// Maps a segment that the peer shows, as far as this process can; memory of a device when it is used.
    fn note_segment(
        &self,
        seen: &mut HashMap<u32, SegmentState>,
        message: &[u8; MESSAGE_BYTES],
        descriptor: Option<Descriptor>,
    ) -> Result<(), Violation> {
        let number = number(message);
        let bytes = u64::from_le_bytes(*message[8..16].as_array().expect("eight bytes"));
        let bytes = usize::try_from(bytes).map_err(|_| Violation("a segment without end"))?;
        if seen.len() >= SEGMENTS && !seen.contains_key(&number) {
            return Err(Violation("a segment too many"));
        }
        if seen.get(&number).is_some_and(|its| !matches!(its, SegmentState::Missed)) {
            // An earlier one of this number was missed, so the peer has shown this one twice.
            return Ok(());
        }
        let new = match descriptor {
            None => {
                self.own.miss(number);
                SegmentState::Missed
            }
            Some(descriptor) if message[0] == DEVICE => {
                let identity: Identity = *message[16..].as_array().expect("twenty bytes");
                SegmentState::Mapped(PeerMemory::Device(Arc::new(PeerDeviceSegment::new(
                    descriptor, bytes, identity,
                ))))
            }
            Some(descriptor) => {
                let mut new =
                    SegmentState::Unmapped { descriptor, bytes, is_writable: message[0] == WRITABLE };
                if new.open().is_err_and(|error| !is_shortage(&error)) {
                    return Err(Violation("a segment that is none"));
                }
                new
            }
        };
        seen.insert(number, new);
        step!("segment, mapped");
        Ok(())
    }
}

/// The number of the segment in a message.
fn number(message: &[u8; MESSAGE_BYTES]) -> u32 {
    u32::from_le_bytes(*message[4..8].as_array().expect("four bytes"))
}

impl Viewer for Shared {
    fn is_over(&self, segment: u64) {
        self.report_releases(&[(segment, DEVICE)]);
    }
}

impl Shared {
    /// Notifies the peer that this process has released a segment.
    pub(crate) fn report_release(&self, segment: &Segment) {
        self.report_releases(&[(segment.number(), SEGMENT), (segment.number(), WRITABLE)]);
    }

    fn report_releases(&self, keys: &[(u64, u8)]) {
        if !self.hub.generation.is_current() {
            return;
        }
        let mut shown = self.shown.lock();
        let released: Vec<_> = keys.iter().filter_map(|key| shown.numbers.remove(key)).collect();
        shown.released.extend(released.into_iter().map(|(number, _)| number));
        self.send_releases(&mut shown);
    }

    /// Under the lock, so that messages of one number keep their order. What does not get through now follows
    /// once there is room.
    fn send_releases(&self, shown: &mut Shown) {
        while let Some(number) = shown.released.pop() {
            let message = [[RELEASED; 4], number.to_le_bytes()].concat();
            if let Err(error) = self.channel.socket.send(&message, &[]) {
                shown.released.push(number);
                if error.kind() == ErrorKind::WouldBlock {
                    self.want_room(shown, true);
                }
                return;
            }
            shown.free.push(number.wrapping_add(SEGMENTS as u32));
            step!("release");
        }
    }
}

impl Link {
    /// Lets the peer read a segment, and returns the number by which the peer asks for it. One that the peer
    /// had no descriptor for is shown once more, under the same number. Once this process releases the
    /// segment, the peer does.
    ///
    /// # Errors
    /// [`LinkError::Full`] while the socket is, for which [`when_room`](Self::when_room) waits; the peer
    /// closed, died or broke the protocol; 1,024 segments are shown.
    pub fn show(&self, segment: &Segment) -> Result<u32, LinkError> {
        self.show_as(segment, false)
    }

    /// As [`show`](Self::show), for the peer to write as well. The number is another one.
    ///
    /// # Errors
    /// As `show`, and [`LinkError::Invalid`] for a segment that is not [made for
    /// that](Segment::new_writable).
    pub fn show_for_writing(&self, segment: &Segment) -> Result<u32, LinkError> {
        if !segment.is_writable() {
            return Err(LinkError::Invalid("a segment that no peer can write".to_owned()));
        }
        self.show_as(segment, true)
    }

    fn show_as(&self, segment: &Segment, for_writing: bool) -> Result<u32, LinkError> {
        let kind = if for_writing { WRITABLE } else { SEGMENT };
        let key = (segment.number(), kind);
        let (number, is_new) = self.pass(key, segment.bytes(), &[], segment.descriptor())?;
        if is_new {
            segment.is_shown_on(&self.shared);
        }
        Ok(number)
    }

    /// As [`show`](Self::show), of memory of a device.
    ///
    /// # Errors
    /// As `show`.
    pub fn show_device(&self, segment: &SharedSegment) -> Result<u32, LinkError> {
        let key = (segment.number(), DEVICE);
        let bytes = segment.memory().len();
        let (number, is_new) = self.pass(key, bytes, segment.identity(), segment.descriptor())?;
        if is_new {
            let viewer: Arc<dyn Viewer> = self.shared.clone();
            segment.at_end(Arc::downgrade(&viewer));
        }
        Ok(number)
    }

    /// Passes a segment to the peer, and returns its number and whether it is new.
    fn pass(
        &self,
        key: (u64, u8),
        bytes: usize,
        more: &[u8],
        descriptor: &Descriptor,
    ) -> Result<(u32, bool), LinkError> {
        let shared = &self.shared;
        shared.check()?;
        let mut shown = shared.shown.lock();
        shared.send_releases(&mut shown);
        let known = shown.numbers.get(&key).copied();
        let next = Some(shown.next).filter(|next| (*next as usize) < SEGMENTS);
        let unused = shown.free.last().copied().or(next);
        let Some(number) = known.map(|(number, _)| number).or(unused) else {
            return Err(LinkError::Invalid(format!(
                "a link shows {SEGMENTS} segments at a time, of which each tensor that is shared for writing has one of its own: release \
                 such tensors, or make another link"
            )));
        };
        let missed = shared.peer.missed(number);
        if known.is_some_and(|(_, before)| before == missed) {
            return Ok((number, false));
        }
        let message = [&[key.1; 4], &number.to_le_bytes()[..], &(bytes as u64).to_le_bytes(), more].concat();
        match shared.channel.socket.send(&message, &[descriptor]) {
            Ok(()) => {
                step!("segment");
                if known.is_none() && shown.free.pop().is_none() {
                    shown.next += 1;
                }
                shown.numbers.insert(key, (number, missed));
                Ok((number, known.is_none()))
            }
            Err(error) => Err(match error.kind() {
                ErrorKind::WouldBlock => {
                    shared.want_room(&mut shown, true);
                    LinkError::Full { process: self.process() }
                }
                // The first sign of its end.
                ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
                    shared.note_lost();
                    shared.error(shared.fate.load(Ordering::Acquire))
                }
                _ => LinkError::system("passing shared memory")(error),
            }),
        }
    }

    /// The segment that the peer has shown under this number. Each is mapped once; it may be kept longer than
    /// the link.
    ///
    /// # Errors
    /// The peer has shown none under this number. [`LinkError::System`]: this process lacks memory, address
    /// space or descriptors. The link stays as it is, and a later call succeeds once there are some; where
    /// descriptors were short, once the peer has shown the segment again.
    pub fn segment(&self, number: u32) -> Result<PeerMemory, LinkError> {
        self.check_process()?;
        if let Some(SegmentState::Mapped(segment)) = self.shared.seen.lock().get(&number) {
            return Ok(segment.clone());
        }
        self.shared.drain(false);
        let process = self.process();
        match self.shared.seen.lock().get_mut(&number) {
            Some(seen) => seen.open().map_err(LinkError::system("mapping memory of another process")),
            None => Err(LinkError::Invalid(format!("process {process} has shown no segment {number}"))),
        }
    }
}
