//! Memory that has been on its way back for long, as [`Engine::diagnose`](crate::Engine::diagnose) and the
//! watchdog show it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use estafette_devices::DLDevice;

use super::Reaper;
use super::queue::{Phase, Queue, Ready};
use super::thread_state::DeleterThread;
use crate::core::clock::Coarse;
use crate::exchange::dtype::DType;
use crate::exchange::layout::Layout;

/// A deleter that has run for so long is slow: another thread goes on with the others, and it is named in
/// diagnoses. Nearly all deleters take microseconds; those that free memory of a device or wait for Python's
/// lock take milliseconds.
pub(super) const SLOW: Duration = Duration::from_millis(250);

/// Memory that has waited for the end of device work for so long is named in diagnoses. Long kernels take
/// seconds.
const FENCED_LONG: Duration = Duration::from_secs(10);

/// Lengths of dimensions that are kept for messages.
const DIMS: usize = 4;

/// Whose memory it was, for people.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReleasedMemory {
    tensor: Option<TensorSummary>,
    address: usize,
}

#[derive(Debug, Clone, Copy)]
struct TensorSummary {
    variable: u64,
    dtype: DType,
    device: DLDevice,
    ndim: u8,
    shape: [i64; DIMS],
}

impl ReleasedMemory {
    /// The memory of a tensor that `variable` orders the uses of.
    pub(crate) fn tensor(variable: u64, layout: &Layout) -> Self {
        let mut shape = [0; DIMS];
        shape.iter_mut().zip(layout.shape()).for_each(|(kept, length)| *kept = *length);
        let looks = TensorSummary {
            variable,
            dtype: layout.dtype(),
            device: layout.device(),
            ndim: layout.shape().len() as u8,
            shape,
        };
        Self { tensor: Some(looks), address: 0 }
    }

    /// The same, and where it was.
    pub(super) fn at(self, data: *mut u8) -> Self {
        Self { address: data.addr(), ..self }
    }

    /// True if both had the same memory.
    pub(super) fn has_memory_of(&self, other: *mut u8) -> bool {
        self.address != 0 && self.address == other.addr()
    }
}

impl fmt::Display for ReleasedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.tensor {
            None => f.write_str("an owner without a tensor")?,
            Some(TensorSummary { variable, dtype, device, ndim, shape }) => {
                let ndim = usize::from(*ndim);
                write!(f, "the tensor of variable {variable} ({dtype} [")?;
                for (at, length) in shape.iter().take(ndim).enumerate() {
                    write!(f, "{}{length}", if at > 0 { ", " } else { "" })?;
                }
                write!(f, "{}] on {device})", if ndim > DIMS { ", ..." } else { "" })?;
            }
        }
        if self.address == 0 { Ok(()) } else { write!(f, " at {:#x}", self.address) }
    }
}

/// Memory that has been on its way back to its owner for long.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Release {
    /// Identity among all releases of this process.
    pub id: u64,
    /// Whose memory it is, in words: the variable of the tensor, its element type, shape, device and address.
    pub what: String,
    /// The state of the release.
    pub status: ReleaseStatus,
    /// Time since the deleter was called, for [`ReleaseStatus::Deleting`]; for the others, time since the
    /// memory was given up. Some milliseconds coarse.
    pub age: Duration,
}

/// The reason for which memory on its way back waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReleaseStatus {
    /// Its deleter was called and has not returned.
    Deleting,
    /// Its deleter waits for another deleter to return.
    Queued,
    /// Device work that uses it has not ended.
    Fenced,
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, age, .. } = self;
        match self.status {
            ReleaseStatus::Deleting => write!(f, "the deleter of {what} has not returned for {age:.1?}"),
            ReleaseStatus::Queued => {
                write!(f, "{what} waits for another deleter to return; given up {age:.1?} ago")
            }
            ReleaseStatus::Fenced => write!(f, "{what} waits for device work to end; given up {age:.1?} ago"),
        }
    }
}

impl Reaper {
    /// Memory that has been on its way back for long: each deleter that has run for more than a quarter of a
    /// second, and the oldest of those that wait for a deleter for that long, or for device work for more
    /// than ten seconds.
    pub(crate) fn slow(&self) -> Vec<Release> {
        self.slower_than(SLOW, FENCED_LONG)
    }

    pub(super) fn slower_than(&self, slow: Duration, fenced_long: Duration) -> Vec<Release> {
        let queue = self.shared.lock();
        if queue.phase == Phase::Stopped && queue.overtaken.is_empty() {
            return Vec::new();
        }
        let mut found = Vec::new();
        let mut waiting = Vec::new();
        let about =
            |ready: &Ready| (ready.receipt.id, ready.receipt.since, ready.what.at(ready.storage.data()));
        for thread in threads(&queue) {
            let books = thread.lock();
            if let Some(active) = &books.active
                && active.since.elapsed() >= slow
            {
                let age = active.since.elapsed();
                found.push(Release {
                    id: active.receipt.id,
                    what: active.what.to_string(),
                    status: ReleaseStatus::Deleting,
                    age,
                });
            }
            waiting.extend(books.batch.front().into_iter().chain(books.behind.front()).map(about));
        }
        waiting.extend(queue.ready.front().map(about));
        let waits = |(id, since, what): (u64, Coarse, ReleasedMemory), status, long| {
            let age = since.elapsed();
            (age >= long).then(|| Release { id, what: what.to_string(), status, age })
        };
        // Memory that is ready waits for nothing else; while no deleter is slow it is about to go.
        if !found.is_empty() {
            let oldest = waiting.into_iter().min_by_key(|(id, ..)| *id);
            found.extend(oldest.and_then(|oldest| waits(oldest, ReleaseStatus::Queued, slow)));
        }
        let fenced = queue.fenced.first_key_value().map(|(id, (since, what))| (*id, *since, *what));
        found.extend(fenced.and_then(|fenced| waits(fenced, ReleaseStatus::Fenced, fenced_long)));
        found.sort_by_key(|release| release.id);
        found
    }
}

/// Of all threads that have begun with a deleter.
fn threads(queue: &Queue) -> impl Iterator<Item = &Arc<DeleterThread>> {
    queue.overtaken.iter().chain(&queue.leader)
}

#[cfg(all(test, not(estafette_shuttle)))]
mod tests;
