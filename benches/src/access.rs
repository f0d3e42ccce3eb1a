//! The variables that an operation uses.

/// Number of variables of the larger patterns.
pub const VARIABLES: usize = 1_000;

/// Largest number of variables that an operation of a workload reads.
pub const READS_MAX: usize = 5;

/// The variables that an operation uses, as indices. Small, so that a long list of them costs the measured
/// loop little.
#[derive(Debug, Clone, Copy)]
pub struct Access {
    reads: [u16; READS_MAX],
    count: u8,
    write: Option<u16>,
}

impl Access {
    /// Reads `reads` and writes `write`.
    ///
    /// # Panics
    /// With more than [`READS_MAX`] reads, or an index above 65,535.
    pub fn new(reads: &[usize], write: Option<usize>) -> Self {
        assert!(reads.len() <= READS_MAX, "no workload reads that many variables");
        let mut kept = [0; READS_MAX];
        for (kept, read) in kept.iter_mut().zip(reads) {
            *kept = small(*read);
        }
        Self { reads: kept, count: reads.len() as u8, write: write.map(small) }
    }

    /// The variables that it reads.
    pub fn reads(&self) -> impl ExactSizeIterator<Item = usize> {
        self.read_indices().iter().map(|read| usize::from(*read))
    }

    /// As [`reads`](Self::reads), without a conversion.
    pub(crate) fn read_indices(&self) -> &[u16] {
        &self.reads[..usize::from(self.count)]
    }

    /// The variable that it writes, if any.
    pub fn write(&self) -> Option<usize> {
        self.write.map(usize::from)
    }
}

fn small(index: usize) -> u16 {
    u16::try_from(index).expect("workloads have fewer than 65,536 variables")
}
