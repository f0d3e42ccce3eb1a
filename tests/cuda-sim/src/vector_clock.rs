//! Work known to have happened before something: for every stream, the number of its commands.

/// One count per stream, by the stream's place in the simulator's table.
#[derive(Clone, Debug, Default)]
pub(crate) struct VectorClock(Vec<u64>);

impl VectorClock {
    /// Number of commands of `stream` that are known to be over.
    pub(crate) fn known(&self, stream: usize) -> u64 {
        self.0.get(stream).copied().unwrap_or(0)
    }

    pub(crate) fn learn(&mut self, stream: usize, count: u64) {
        if self.0.len() <= stream {
            self.0.resize(stream + 1, 0);
        }
        self.0[stream] = self.0[stream].max(count);
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (stream, count) in other.0.iter().enumerate() {
            self.learn(stream, *count);
        }
    }
}
