//! Kinds of commands of a stream, for scripts and reports.

/// The kinds of commands; the numbers are those of `cusim_latency`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Kind {
    /// A copy of memory.
    Copy = 1,
    /// Memory set to a value.
    Set = 2,
    /// A kernel.
    Kernel = 3,
    /// An event recorded.
    Record = 4,
    /// A wait for an event.
    Wait = 5,
    /// A value written to memory.
    WriteValue = 6,
    /// A wait for a value in memory.
    WaitValue = 7,
    /// A function of the host.
    HostFunction = 8,
    /// A graph.
    Graph = 9,
    /// Stream-ordered allocation or release.
    Memory = 10,
}

impl Kind {
    /// The kind with that number.
    pub(crate) fn numbered(number: u32) -> Option<Self> {
        use Kind::*;
        [Copy, Set, Kernel, Record, Wait, WriteValue, WaitValue, HostFunction, Graph, Memory]
            .into_iter()
            .find(|kind| *kind as u32 == number)
    }
}
