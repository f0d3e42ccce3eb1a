//! Notes that engines write beside a promise.

use estafette_devices::DLDevice;
use estafette_links::Address;

use super::ticket::Ticket;
use crate::exchange::{DType, Layout};

/// The note of a message from the process that has a tensor. On the link of a ticket the number of the
/// request comes before it.
#[derive(Debug)]
pub(super) enum Note {
    /// The tensor, which may be used once the promise is kept.
    Tensor(Description),
    /// The receiver gets the tensor by this ticket. The sender keeps the ticket until the message is
    /// answered.
    Ticket(Ticket),
    /// The tensor is kept for the receiver. A second message describes it once its layout is known, unless
    /// the promise fails.
    Later,
    /// The door for tickets of the sender.
    Door(Address),
}

const TENSOR: u8 = 0;
const TICKET: u8 = 1;
const LATER: u8 = 2;
const DOOR: u8 = 3;

impl Note {
    pub(super) fn to_bytes(&self, prefix: &[u8]) -> Vec<u8> {
        let (kind, content) = match self {
            Self::Tensor(description) => (TENSOR, description.to_bytes()),
            Self::Ticket(ticket) => (TICKET, ticket.to_bytes()),
            Self::Later => (LATER, Vec::new()),
            Self::Door(address) => (DOOR, address.as_bytes().to_vec()),
        };
        [prefix, &[kind], &content].concat()
    }

    /// `None` for bytes that are no note.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [TENSOR, description @ ..] => Description::from_bytes(description).map(Self::Tensor),
            [TICKET, ticket @ ..] => Ticket::from_bytes(ticket).ok().map(Self::Ticket),
            [LATER] => Some(Self::Later),
            [DOOR, address @ ..] => Address::from_bytes(address).ok().map(Self::Door),
            _ => None,
        }
    }
}

/// The description of a tensor for the other process.
#[derive(Debug, PartialEq)]
pub(super) struct Description {
    /// The number of the segment.
    pub(super) number: u32,
    /// The offset of the first element in the segment.
    pub(super) first: u64,
    pub(super) layout: Layout,
    /// The number of the lease in traces.
    pub(super) key: u64,
    /// The owner's number of the use by the receiver.
    pub(super) share: u64,
    /// The tensor is lent for writing.
    pub(super) is_writable: bool,
}

/// Flags that the layout does not have, as bits.
const PADDED: u8 = 1;
const WRITABLE: u8 = 2;

impl Description {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let DType { code, bits, lanes } = self.layout.dtype();
        let mut bytes = self.number.to_le_bytes().to_vec();
        let padded = if self.layout.is_padded() { PADDED } else { 0 };
        let writable = if self.is_writable { WRITABLE } else { 0 };
        bytes.extend([code, bits, padded | writable, self.layout.shape().len() as u8]);
        for word in [self.first, u64::from(lanes), self.key, self.share] {
            bytes.extend(word.to_le_bytes());
        }
        let numbers = self.layout.shape().iter().chain(self.layout.strides());
        bytes.extend(numbers.flat_map(|number| number.to_le_bytes()));
        bytes
    }

    /// `None` for bytes that describe nothing.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (words, rest) = bytes.as_chunks::<8>();
        let [head, first, lanes, key, share, numbers @ ..] = words else { return None };
        let [a, b, c, d, code, bits, more, ndim] = *head;
        let numbers: Vec<i64> = numbers.iter().map(|number| i64::from_le_bytes(*number)).collect();
        let (shape, strides) = numbers.split_at_checked(ndim.into())?;
        let lanes = u16::try_from(u64::from_le_bytes(*lanes)).ok()?;
        if !rest.is_empty() || more & !(PADDED | WRITABLE) != 0 {
            return None;
        }
        let layout = Layout::strided(DType { code, bits, lanes }, DLDevice::CPU, shape, strides).ok()?;
        let layout = layout.with_padding(more & PADDED != 0);
        let [first, key, share] = [first, key, share].map(|number| u64::from_le_bytes(*number));
        let (number, is_writable) = (u32::from_le_bytes([a, b, c, d]), more & WRITABLE != 0);
        Some(Self { number, first, layout, key, share, is_writable })
    }
}
