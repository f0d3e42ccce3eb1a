//! A test's orders: how long things take, what fails and when.

use std::collections::HashMap;
use std::ffi::c_int;

use crate::codes::Code;
use crate::kind::Kind;

#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) devices: usize,
    pub(crate) driver_version: i32,
    pub(crate) attributes: HashMap<i32, i32>,
    pub(crate) virtual_clock: bool,
    pub(crate) now: u64,
    seed: u64,
    /// Nanoseconds by stream and kind; `None` stands for any.
    pub(crate) latencies: HashMap<(Option<usize>, Option<Kind>), u64>,
    /// Commands take up to so many nanoseconds longer, by the seed.
    pub(crate) jitter: u64,
    pub(crate) failing_allocation: Option<u64>,
    /// Error of the next call of a function, by its symbol.
    pub(crate) failing_calls: HashMap<String, Code>,
    pub(crate) capacity: u64,
    /// Number of commands that a stream starts until one fails, and the error.
    pub(crate) faults: HashMap<usize, (u64, Code)>,
    /// Hardware connections of a context, which its streams share in the order of their creation. `None`: one
    /// for each stream.
    pub(crate) connections: Option<usize>,
    /// Commands that a stream takes; a call that enqueues one more waits. `None`: any number.
    pub(crate) depth: Option<usize>,
    /// Time of each call that needs a context, in nanoseconds.
    pub(crate) call_time: u64,
    /// Error of `cuInit`.
    pub(crate) start: Option<Code>,
    /// True if devices reach each other's memory.
    pub(crate) peer_access: bool,
    /// True if memory cannot be mapped for reading alone.
    pub(crate) no_read_only: bool,
    /// True if calls that pin memory, make a stream or load code wait for all work of the context.
    pub(crate) setup_waits: bool,
    /// Asks whether the calling thread has the lock of a Python interpreter. A call that may wait must not be
    /// made with it: what the driver waits for may be a thread that wants that lock.
    pub(crate) has_interpreter: Option<unsafe extern "C" fn() -> c_int>,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            devices: 2,
            driver_version: 12_040,
            attributes: HashMap::new(),
            virtual_clock: false,
            now: 0,
            seed: 0x9e37_79b9_7f4a_7c15,
            latencies: HashMap::new(),
            jitter: 0,
            failing_allocation: None,
            failing_calls: HashMap::new(),
            capacity: 4 << 30,
            faults: HashMap::new(),
            connections: from_environment("ESTAFETTE_CUDA_SIM_CONNECTIONS")
                .or_else(|| from_environment("CUDA_DEVICE_MAX_CONNECTIONS")),
            depth: from_environment("ESTAFETTE_CUDA_SIM_DEPTH"),
            call_time: from_environment("ESTAFETTE_CUDA_SIM_CALL_NS").unwrap_or(0) as u64,
            start: None,
            peer_access: true,
            no_read_only: false,
            setup_waits: from_environment("ESTAFETTE_CUDA_SIM_SETUP_WAITS").is_some(),
            has_interpreter: None,
        }
    }
}

/// A positive number for a whole process, which a suite sets for tests that script nothing themselves.
fn from_environment(name: &str) -> Option<usize> {
    let text = std::env::var(name).ok()?;
    let number = text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text:?}"));
    (number > 0).then_some(number)
}

impl Script {
    pub(crate) fn seed(&mut self, seed: u64) {
        self.seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    }

    /// A number below `limit`, by the seed. Vigna's xorshift64*.
    pub(crate) fn draw(&mut self, limit: u64) -> u64 {
        self.seed ^= self.seed >> 12;
        self.seed ^= self.seed << 25;
        self.seed ^= self.seed >> 27;
        (self.seed.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % limit.max(1)
    }

    /// Time of a command, besides what it says of itself.
    pub(crate) fn latency(&mut self, stream: usize, kind: Kind) -> u64 {
        let base = [(Some(stream), Some(kind)), (Some(stream), None), (None, Some(kind)), (None, None)]
            .iter()
            .find_map(|key| self.latencies.get(key).copied())
            .unwrap_or(0);
        let jitter = self.jitter;
        base + if jitter > 0 { self.draw(jitter) } else { 0 }
    }
}
