//! Streams: queues of commands, and how the legacy stream orders those that did not opt out.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar};
use std::thread::ThreadId;

use crate::codes::{Code, INVALID_HANDLE};
use crate::command::CommandId;
use crate::state::DriverState;
use crate::vector_clock::VectorClock;

/// Handles that stand for a stream of the current context.
const LEGACY: u64 = 1;
const PER_THREAD: u64 = 2;

/// The flag of `cuStreamCreate` that takes a stream out of the legacy stream's order.
pub(crate) const NON_BLOCKING: u32 = 1;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Origin {
    Created,
    Legacy,
    PerThread(ThreadId),
    /// The internal stream of events that stand for a whole context.
    Records,
}

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) handle: u64,
    pub(crate) context: usize,
    /// The handle of its green context, which is a part of `context`; 0 for none.
    pub(crate) green: u64,
    pub(crate) origin: Origin,
    pub(crate) flags: u32,
    /// Number of streams that its context had before.
    pub(crate) number: usize,
    /// Commands that are not over, in order.
    pub(crate) queue: VecDeque<CommandId>,
    /// Number of commands it has got, and what each next one is known to come after.
    pub(crate) count: u64,
    pub(crate) clock: VectorClock,
    pub(crate) blocked: bool,
    pub(crate) destroyed: bool,
    /// The capture it takes part in, and the nodes its next one comes after.
    pub(crate) capture: Option<u64>,
    pub(crate) tail: Vec<usize>,
    /// Wakes the thread that works on it.
    pub(crate) condvar: Arc<Condvar>,
}

impl Stream {
    /// True if it and the legacy stream wait for each other.
    pub(crate) fn is_blocking(&self) -> bool {
        self.origin != Origin::Legacy && self.flags & NON_BLOCKING == 0
    }
}

impl DriverState {
    /// Makes a stream, and a thread that works on it.
    pub(crate) fn add_stream(&mut self, context: usize, origin: Origin, flags: u32) -> usize {
        let handle = match origin {
            Origin::Created => self.handle(),
            Origin::Legacy => LEGACY,
            Origin::PerThread(_) => PER_THREAD,
            Origin::Records => 0,
        };
        let place = self.streams.len();
        let number = self.streams.iter().filter(|stream| stream.context == context).count();
        self.streams.push(Stream {
            handle,
            context,
            green: 0,
            origin,
            flags,
            number,
            queue: VecDeque::new(),
            count: 0,
            clock: VectorClock::default(),
            blocked: false,
            destroyed: false,
            capture: None,
            tail: Vec::new(),
            condvar: Arc::default(),
        });
        if origin == Origin::Created {
            self.by_handle.insert(handle, place);
        }
        crate::clockwork::spawn(place, &self.streams[place].condvar);
        place
    }

    /// The stream of a context's own records.
    pub(crate) fn stream_for_records(&mut self, context: usize) -> usize {
        let is_it = |stream: &Stream| stream.context == context && stream.origin == Origin::Records;
        let found = self.streams.iter().position(is_it);
        found.unwrap_or_else(|| self.add_stream(context, Origin::Records, NON_BLOCKING))
    }

    /// The stream that a handle stands for on this thread.
    pub(crate) fn stream(&mut self, handle: u64) -> Result<usize, Code> {
        let origin = match handle {
            0 | LEGACY => Origin::Legacy,
            PER_THREAD => Origin::PerThread(std::thread::current().id()),
            _ => {
                let found = self.by_handle.get(&handle).copied();
                if found.is_none() {
                    self.violation(format!("stream {handle:#x} is used, but was never made or is destroyed"));
                }
                return found.ok_or(INVALID_HANDLE);
            }
        };
        let context = self.current()?;
        let found =
            self.streams.iter().position(|stream| stream.context == context && stream.origin == origin);
        Ok(found.unwrap_or_else(|| self.add_stream(context, origin, 0)))
    }

    /// The same, of a context that works: for what is enqueued.
    pub(crate) fn sound_stream(&mut self, handle: u64) -> Result<usize, Code> {
        self.current()?;
        let stream = self.stream(handle)?;
        self.sound(self.streams[stream].context)?;
        Ok(stream)
    }

    /// The streams whose last commands the next one of `stream` has to come after, by the legacy stream's
    /// rules.
    pub(crate) fn ordered_before(&self, stream: usize) -> Vec<usize> {
        let this = &self.streams[stream];
        let relevant = |other: &Stream| match this.origin {
            Origin::Legacy => other.is_blocking(),
            _ => this.is_blocking() && other.origin == Origin::Legacy,
        };
        let others = self.streams.iter().enumerate();
        others
            .filter(|(_, other)| other.context == this.context && relevant(other))
            .map(|(place, _)| place)
            .collect()
    }

    pub(crate) fn stream_name(&self, stream: usize) -> String {
        let this = &self.streams[stream];
        match this.origin {
            Origin::Created => format!("stream {:#x}", this.handle),
            Origin::Legacy => format!("the legacy stream of context {}", this.context),
            Origin::PerThread(thread) => format!("the stream of {thread:?}"),
            Origin::Records => format!("the records of context {}", this.context),
        }
    }
}
