//! The operations that a thread submits before it lets them run.
//!
//! Without workers a thread that submits operations which follow each other has few that are ready, and may be ahead by thousands. They are no
//! longer in the caches when they run, which takes a sixth more time then. So from [`BACKLOG`] operations on the thread runs what is ready, until
//! half of them have ended. With workers the same made pipelines of 50 us a function slower: they need many ready functions.

use std::cell::Cell;

use estafette::Engine;
use pyo3::prelude::*;

use crate::asyncio::stopped_loop;
use crate::interpreter::guard;

/// An operation takes one to two kilobytes, and a core's own cache has some hundred.
const BACKLOG: usize = 512;
/// A thread looks at the backlog once in so many submissions, and less and less often while it finds that none has ended.
const PERIOD: (u32, u32) = (64, 4_096);

thread_local! {
    /// Submissions until the next look, and from that to the one after it.
    static NEXT: Cell<(u32, u32)> = const { Cell::new((PERIOD.0, PERIOD.0)) };
}

/// The calling thread has submitted an operation.
#[inline]
pub fn submitted(py: Python<'_>, engine: &Engine) {
    let (left, period) = NEXT.get();
    NEXT.set((left.saturating_sub(1), period));
    if left == 0 {
        look(py, engine, period);
    }
}

#[cold]
fn look(py: Python<'_>, engine: &Engine, period: u32) {
    let stats = engine.stats();
    let is_far_ahead =
        stats.workers == 0 && stats.in_flight >= BACKLOG && stopped_loop::may_block(py).unwrap_or(false);
    let is_in_vain = is_far_ahead && !guard::detach(py, || engine.thin_out(BACKLOG / 2));
    let period = if is_in_vain { (2 * period).min(PERIOD.1) } else { PERIOD.0 };
    NEXT.set((period, period));
}
