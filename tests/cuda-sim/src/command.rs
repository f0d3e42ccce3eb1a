//! Commands: what streams hold, what each waits for, and what it does when its time has come.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::codes::{Code, ILLEGAL_ADDRESS, STREAM_CAPTURE_IMPLICIT, STREAM_CAPTURE_INVALIDATED};
use crate::kernels::Launch;
use crate::kind::Kind;
use crate::state::{DriverState, IN_HOST_FUNCTION, Recorded};
use crate::stream::Stream;
use crate::vector_clock::VectorClock;

pub(crate) type CommandId = u64;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Touch {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) write: bool,
}

impl Touch {
    pub(crate) fn read(address: u64, bytes: u64) -> Self {
        Self { address, bytes, write: false }
    }

    pub(crate) fn write(address: u64, bytes: u64) -> Self {
        Self { address, bytes, write: true }
    }

    pub(crate) fn end(&self) -> u64 {
        self.address + self.bytes
    }

    /// True if the order of the two matters.
    pub(crate) fn conflicts(&self, other: &Self) -> bool {
        (self.write || other.write) && self.address < other.end() && other.address < self.end()
    }
}

/// Comparison of a waiting stream, `cuStreamWaitValue`'s flags.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Comparison {
    GreaterOrEqual,
    Equal,
    And,
    Nor,
}

#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// It only takes its place in the order.
    Nothing,
    Record {
        event: u64,
    },
    Copy {
        to: u64,
        from: u64,
        bytes: u64,
    },
    Set {
        to: u64,
        value: u32,
        width: u64,
        count: u64,
    },
    WriteValue {
        address: u64,
        value: u64,
        wide: bool,
    },
    WaitValue {
        address: u64,
        value: u64,
        wide: bool,
        until: Comparison,
    },
    HostFunction {
        function: unsafe extern "C" fn(*mut c_void),
        data: usize,
    },
    Kernel(Launch),
    /// Nodes in an order that respects their dependences, each with the places of those that it comes after.
    Graph(Vec<(Work, Vec<usize>)>),
    Free {
        base: u64,
    },
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Progress {
    Queued,
    /// On the virtual clock: over at that time.
    Until(u64),
    Running,
}

#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) stream: usize,
    pub(crate) kind: Kind,
    pub(crate) after: Vec<CommandId>,
    pub(crate) work: Work,
    pub(crate) touches: Vec<Touch>,
    pub(crate) progress: Progress,
    pub(crate) clock: VectorClock,
}

/// A caller's request to a stream.
pub(crate) struct StreamRequest {
    pub(crate) kind: Kind,
    pub(crate) work: Work,
    pub(crate) touches: Vec<Touch>,
    /// Commands of other streams that come first, and what else was known to them.
    pub(crate) after: Vec<CommandId>,
    pub(crate) clock: VectorClock,
}

impl StreamRequest {
    pub(crate) fn new(kind: Kind, work: Work, touches: Vec<Touch>) -> Self {
        Self { kind, work, touches, after: Vec::new(), clock: VectorClock::default() }
    }
}

impl DriverState {
    /// Puts a command at the end of a stream, or a node into the graph that the stream is captured to (then
    /// `None`).
    pub(crate) fn enqueue(
        &mut self,
        stream: usize,
        request: StreamRequest,
    ) -> Result<Option<CommandId>, Code> {
        self.refuse_implicit_capture(stream)?;
        if let Some(capture) = self.streams[stream].capture {
            if self.captures[&capture].invalid {
                return Err(STREAM_CAPTURE_INVALIDATED);
            }
            self.add_node(capture, stream, request, None);
            return Ok(None);
        }
        let mut after = request.after;
        let mut clock = request.clock;
        clock.merge(&self.host);
        for other in [vec![stream], self.ordered_before(stream)].concat() {
            clock.merge(&self.streams[other].clock);
            after.extend(self.streams[other].queue.back());
        }
        self.last_command += 1;
        let id = self.last_command;
        let count = self.streams[stream].count + 1;
        self.detect(stream, count, request.kind, &clock, &request.touches);
        clock.learn(stream, count);
        if let Work::Free { base } = request.work {
            self.memory.retire(base);
        }
        let this = &mut self.streams[stream];
        this.count = count;
        this.clock = clock.clone();
        this.queue.push_back(id);
        self.busy.insert(stream);
        self.news = true;
        let (kind, work, touches) = (request.kind, request.work, request.touches);
        self.commands
            .insert(id, Command { stream, kind, after, work, touches, progress: Progress::Queued, clock });
        Ok(Some(id))
    }

    /// The legacy stream may not be used while a stream that waits for it is captured: that ends the capture.
    pub(crate) fn refuse_implicit_capture(&mut self, stream: usize) -> Result<(), Code> {
        let Some(capture) = self.capture_beside(stream) else { return Ok(()) };
        self.invalidate(capture);
        Err(STREAM_CAPTURE_IMPLICIT)
    }

    /// The same for questions about captures, which leave the capture as it is.
    pub(crate) fn not_beside_a_capture(&self, stream: usize) -> Result<(), Code> {
        self.capture_beside(stream).map_or(Ok(()), |_| Err(STREAM_CAPTURE_IMPLICIT))
    }

    /// If `stream` is a legacy stream: the capture of a stream that waits for it.
    fn capture_beside(&self, stream: usize) -> Option<u64> {
        let this = &self.streams[stream];
        if this.origin != crate::stream::Origin::Legacy {
            return None;
        }
        let beside = |other: &&Stream| other.context == this.context && other.is_blocking();
        self.streams.iter().filter(beside).find_map(|other| other.capture)
    }

    /// The command that a stream may begin now.
    pub(crate) fn ready(&self, stream: usize) -> Option<CommandId> {
        let this = &self.streams[stream];
        let id = *this.queue.front()?;
        let command = &self.commands[&id];
        let can = !this.blocked
            && command.progress == Progress::Queued
            && command.after.iter().all(|other| self.is_over(*other))
            && is_satisfied(&command.work)
            && self.is_first_of_its_connection(stream, id);
        can.then_some(id)
    }

    /// True if all that came before on the same hardware connection has begun. The connection passes commands
    /// on in the order in which they were enqueued, whatever their streams: one that cannot begin holds up
    /// all behind it (CUDA Programming Guide, `CUDA_DEVICE_MAX_CONNECTIONS`).
    fn is_first_of_its_connection(&self, stream: usize, id: CommandId) -> bool {
        let Some(connections) = self.script.connections else { return true };
        let place = |stream: usize| {
            let this = &self.streams[stream];
            (this.context, this.number % connections)
        };
        let own = place(stream);
        let begins_next = |other: usize| {
            let mut queue = self.streams[other].queue.iter();
            queue.find(|id| self.commands[id].progress == Progress::Queued)
        };
        let others = self.busy.iter().filter(|other| **other != stream && place(**other) == own);
        others.filter_map(|other| begins_next(*other)).all(|other| *other > id)
    }

    /// True if a stream waits for a value in memory, of which no notification comes.
    pub(crate) fn waits_for_value(&self, stream: usize) -> bool {
        let front = self.streams[stream].queue.front();
        front.is_some_and(|id| matches!(self.commands[id].work, Work::WaitValue { .. } | Work::Graph(_)))
    }

    /// Begins a command: its work, or nothing when it failed and took its context along.
    pub(crate) fn begin(&mut self, id: CommandId) -> Option<Work> {
        let command = self.commands.get_mut(&id)?;
        command.progress = Progress::Running;
        // Commands that share the connection may begin now.
        self.news |= self.script.connections.is_some();
        let (stream, work, kind) = (command.stream, command.work.clone(), command.kind);
        let touches = command.touches.clone();
        let clock = command.clock.clone();
        let context = self.streams[stream].context;
        if let Some((left, code)) = self.script.faults.get_mut(&stream) {
            *left -= 1;
            if *left == 0 {
                let code = *code;
                self.script.faults.remove(&stream);
                self.fault(context, code);
                return None;
            }
        }
        let is_kernel = matches!(kind, Kind::Kernel | Kind::Graph);
        let may = |touch: &Touch| {
            if is_kernel {
                self.device_may_touch(context, touch)
            } else {
                self.mapping_allows(context, touch)
            }
        };
        if let Some(touch) = touches.iter().find(|touch| !may(touch)) {
            let name = self.stream_name(stream);
            self.violation(format!(
                "{kind:?} on {name} touches {} bytes at {:#x}, which it may not",
                touch.bytes, touch.address
            ));
            self.fault(context, ILLEGAL_ADDRESS);
            return None;
        }
        // The host may read a value that is written as soon as it is there, before this command is over.
        if let Work::HostFunction { .. } | Work::WriteValue { .. } = work {
            self.host.merge(&clock);
        }
        Some(work)
    }

    /// Takes a command out that has done its work.
    pub(crate) fn finish(&mut self, id: CommandId) {
        // It is gone already if its context failed meanwhile.
        let Some(command) = self.commands.remove(&id) else { return };
        self.news = true;
        let stream = &mut self.streams[command.stream];
        stream.queue.pop_front();
        if stream.queue.is_empty() {
            self.busy.remove(&command.stream);
            if stream.destroyed {
                stream.condvar.notify_one();
            }
        }
        match command.work {
            Work::Record { event } => {
                let now = self.now();
                if let Some(event) = self.events.get_mut(&event)
                    && matches!(event.recorded, Recorded::Command { id: last, .. } if last == id)
                {
                    event.reached = Some(now);
                }
            }
            Work::Free { base } => {
                let freed = self.memory.around(base).map(|allocation| (allocation.bytes, allocation.pool));
                if let Some((bytes, pool)) = freed
                    && let Some(pool) = self.pools.get_mut(&pool)
                {
                    pool.leaving -= bytes;
                }
                self.memory.release(base);
            }
            _ => {}
        }
    }

    /// A command of the context has failed: every later call says so, and nothing that it still had to do
    /// happens.
    pub(crate) fn fault(&mut self, context: usize, code: Code) {
        self.contexts[context].fault.get_or_insert(code);
        let streams: Vec<usize> =
            (0..self.streams.len()).filter(|stream| self.streams[*stream].context == context).collect();
        self.commands.retain(|_, command| !streams.contains(&command.stream));
        self.news = true;
        for stream in streams {
            self.streams[stream].queue.clear();
            self.busy.remove(&stream);
        }
    }
}

fn is_satisfied(work: &Work) -> bool {
    let Work::WaitValue { address, value, wide, until } = *work else { return true };
    let (now, sign) = if wide {
        // SAFETY: `cuStreamWaitValue` checked that the address is aligned memory of the simulator.
        (
            unsafe { &*(address as *const AtomicU64) }.load(Ordering::Acquire),
            now_is_ahead_64 as fn(u64, u64) -> bool,
        )
    } else {
        // SAFETY: as above.
        let now = unsafe { &*(address as *const AtomicU32) }.load(Ordering::Acquire);
        (u64::from(now), now_is_ahead_32 as fn(u64, u64) -> bool)
    };
    match until {
        Comparison::GreaterOrEqual => sign(now, value),
        Comparison::Equal => now == value,
        Comparison::And => now & value != 0,
        Comparison::Nor => !(now | value) != 0,
    }
}

/// The driver compares cyclically: the difference is not negative.
fn now_is_ahead_64(now: u64, value: u64) -> bool {
    now.wrapping_sub(value) as i64 >= 0
}

fn now_is_ahead_32(now: u64, value: u64) -> bool {
    (now as u32).wrapping_sub(value as u32) as i32 >= 0
}

impl Work {
    /// Time that it takes by itself.
    pub(crate) fn nanoseconds(&self) -> u64 {
        match self {
            Self::Kernel(launch) => launch.nanoseconds(),
            // Nodes that nothing orders run at the same time: it takes as long as the longest way through it.
            Self::Graph(nodes) => {
                let mut ends: Vec<u64> = Vec::with_capacity(nodes.len());
                for (node, after) in nodes {
                    let begin = after.iter().map(|place| ends[*place]).max().unwrap_or(0);
                    ends.push(begin + node.nanoseconds());
                }
                ends.into_iter().max().unwrap_or(0)
            }
            _ => 0,
        }
    }

    /// Does it, on memory of the host. Without the simulator's lock, since a host function may take its time.
    pub(crate) fn perform(&self) {
        match *self {
            // SAFETY: addresses were checked when the command came, and released memory is kept (see
            // `memory.rs`).
            Self::Copy { to, from, bytes } => unsafe {
                std::ptr::copy(from as *const u8, to as *mut u8, bytes as usize);
            },
            // SAFETY: as above.
            Self::Set { to, value, width, count } => unsafe {
                for index in 0..count {
                    let place = to + index * width;
                    match width {
                        1 => (place as *mut u8).write(value as u8),
                        2 => (place as *mut u16).write_unaligned(value as u16),
                        _ => (place as *mut u32).write_unaligned(value),
                    }
                }
            },
            Self::WriteValue { address, value, wide } => {
                if wide {
                    // SAFETY: checked to be aligned memory of the simulator when the command came.
                    unsafe { &*(address as *const AtomicU64) }.store(value, Ordering::Release);
                } else {
                    // SAFETY: as above.
                    unsafe { &*(address as *const AtomicU32) }.store(value as u32, Ordering::Release);
                }
            }
            Self::HostFunction { function, data } => {
                IN_HOST_FUNCTION.set(true);
                // SAFETY: the caller that enqueued the function promised that it may be called with this
                // argument.
                unsafe { function(data as *mut c_void) };
                IN_HOST_FUNCTION.set(false);
            }
            // SAFETY: `begin` has checked what it touches.
            Self::Kernel(ref launch) => unsafe { launch.compute() },
            Self::Graph(ref nodes) => {
                for (node, _) in nodes {
                    while !is_satisfied(node) {
                        std::thread::yield_now();
                    }
                    node.perform();
                }
            }
            Self::Nothing | Self::Record { .. } | Self::WaitValue { .. } | Self::Free { .. } => {}
        }
    }
}
