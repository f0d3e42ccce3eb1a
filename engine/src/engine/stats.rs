//! Counters.

use crate::copy::{bytes_for_processes, staging};
use crate::engine::Engine;
use crate::exchange::quarantine::{self, QuarantineStats};
use crate::exchange::{handed_back, reaper};

/// Counters of an engine and of the process.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Stats {
    /// Worker threads for host operations.
    pub workers: usize,
    /// Operations in flight in this engine.
    pub in_flight: usize,
    /// Failures of this engine's operations that the program has not retrieved.
    pub unretrieved: u64,
    /// The engine's in-flight limit.
    pub in_flight_limit: usize,
    /// Deleters run by this process's reaper.
    pub released: u64,
    /// Deleters among them that belong to tensors of other libraries.
    pub deleters: u64,
    /// Tensors whose memory was leaked because the end of their last use can never be known.
    pub leaked: u64,
    /// Tensors handed to the reaper whose last use is not over yet.
    pub releasing: u64,
    /// Counters of this process's quarantine.
    pub quarantine: QuarantineStats,
    /// Bytes of pinned host memory that this process keeps for copies from and to devices.
    pub staging_bytes: u64,
    /// Tensors of other libraries whose memory this process released while their last use was pending, behind
    /// a wait of their allocator's stream
    /// ([`ImportOptions::release_stream`](crate::ImportOptions::release_stream)).
    pub handed_back: u64,
    /// Bytes that this process has copied into shared memory for other processes, since their memory was not
    /// shared, or a copy was asked for.
    pub copied_for_processes: u64,
}

impl Engine {
    /// Counters.
    pub fn stats(&self) -> Stats {
        let reaper = reaper().stats();
        Stats {
            workers: self.core().pool.workers(),
            in_flight: self.core().in_flight(),
            unretrieved: self.unretrieved().count(),
            in_flight_limit: self.core().in_flight_limit(),
            released: reaper.released,
            deleters: reaper.deleters,
            leaked: reaper.leaked,
            releasing: reaper.pending,
            quarantine: quarantine::stats(),
            staging_bytes: staging::bytes(),
            handed_back: handed_back(),
            copied_for_processes: bytes_for_processes(),
        }
    }
}
