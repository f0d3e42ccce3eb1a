//! The end of an engine's work: waits for all of it, and shutdown.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use crate::core::clock;
use crate::core::engine_core::graph;
use crate::core::error::Error;
use crate::core::lease_info;
use crate::core::operation::{Op, OpHandle, OpKind};
use crate::core::unretrieved::Unretrieved;
use crate::engine::Engine;
use crate::trace;
use crate::wait::awaits::{Awaited, Pending};
use crate::wait::blocking::take_snapshot_of;
use crate::wait::inspect;

/// The end of a shutdown.
#[derive(Debug, Clone)]
pub struct ShutdownReport {
    /// True if every operation that was in flight has ended.
    pub drained: bool,
    /// Operations that were cancelled because only leases held them up.
    pub cancelled: Vec<String>,
    /// The leases that held up the operations in `cancelled`: those that differ in age alone once, with their
    /// number, and ten kinds at most.
    pub leases: Vec<String>,
    /// Operations that were still running.
    pub running: Vec<String>,
    /// Operations without tensors or variables that were still running, and permits that no operation had
    /// used yet.
    pub unlisted: usize,
    /// Failures of the engine's operations that the program had not retrieved.
    pub unretrieved: Unretrieved,
}

impl Engine {
    /// Waits until everything submitted to this engine has ended. Leases do not count, and device work that
    /// an operation has left may go on: wait for its outputs. Without a timeout the wait may run any ready
    /// operation on this thread, unless helping is [forbidden](crate::wait::without_helping). With a timeout
    /// the wait runs nothing, so that the timeout is kept.
    ///
    /// # Errors
    /// [`Error::Timeout`]; [`Error::LeaseHeld`] when only leases hold up what is left;
    /// [`Error::WouldDeadlock`] inside an operation. Failures of operations are not reported here but at
    /// their outputs, and at the end of the engine.
    pub fn wait_all(&self, timeout: Option<Duration>) -> Result<(), Error> {
        self.core().generation.check()?;
        let deadline = timeout.and_then(clock::deadline);
        match (self.core().wait_idle(deadline, true)?, timeout) {
            (true, _) => Ok(()),
            (false, timeout) => Err(Error::Timeout(timeout.unwrap_or_default())),
        }
    }

    /// Refuses new submissions and waits, asynchronously, until everything in flight has ended. Waits for
    /// other processes end by [`Error::Shutdown`], except for those of operations.
    ///
    /// The future has no timeout. Drop the future to stop waiting; use
    /// [`shutdown_timeout`](Self::shutdown_timeout) to cancel what leases hold up. Inside an operation of
    /// this engine, which must not wait for all, the first poll ends the wait, and the report names what is
    /// in flight as running.
    pub async fn shutdown(&self) -> ShutdownReport {
        let core = self.core();
        core.close();
        if let Some(report) = self.report_in_child() {
            return report;
        }
        if core.is_current() {
            return self.report_rest(false);
        }
        let mut listening = core.notifier.listen_async();
        let mut pending = Pending::default();
        poll_fn(|cx| {
            listening.register_waker(cx.waker());
            if core.in_flight() == 0 {
                return Poll::Ready(());
            }
            // The end of everything is not a matter of leases alone: this has no error.
            let _ = pending.poll(cx, || Awaited::room(core));
            Poll::Pending
        })
        .await;
        // A wait for another process that began in an operation may outlive it.
        core.close();
        trace::engine_is_over();
        self.report_of_shutdown(true)
    }

    /// Refuses new submissions, ends waits as [`shutdown`](Self::shutdown), and blocks until everything in
    /// flight has ended, or for `timeout`. After the timeout the engine cancels operations that only leases
    /// hold up, and reports them with the leases. With a limit it runs nothing on this thread.
    ///
    /// A timeout beyond the end of the clock, such as `Duration::MAX`, is no limit. Without a limit, leases
    /// are waited for [`lease_timeout`](crate::engine::EngineBuilder::lease_timeout); then what they hold up
    /// is cancelled. Without a limit the call may run operations on this thread, unless helping is
    /// [forbidden](crate::wait::without_helping).
    ///
    /// Inside an operation of this engine and in a callback, which must not wait for all, the wait ends at
    /// once and cancels nothing. The same holds where a hook of waits ends it. The report then names what is
    /// in flight as running.
    pub fn shutdown_timeout(&self, timeout: Duration) -> ShutdownReport {
        let core = self.core();
        core.close();
        if let Some(report) = self.report_in_child() {
            return report;
        }
        let deadline = clock::deadline(timeout);
        let report = match core.wait_idle(deadline, deadline.is_none()) {
            Ok(true) => self.report_of_shutdown(true),
            Err(error) if !clock::is_over(deadline) && !matches!(error, Error::LeaseHeld(_)) => {
                self.report_rest(false)
            }
            _ => self.report_rest(true),
        };
        // As in `shutdown`.
        core.close();
        trace::engine_is_over();
        report
    }

    /// In a forked child, which waits for nothing: what is in flight ends in the parent.
    fn report_in_child(&self) -> Option<ShutdownReport> {
        let core = self.core();
        core.generation.is_inherited().then(|| self.report_of_shutdown(core.in_flight() == 0))
    }

    fn report_of_shutdown(&self, drained: bool) -> ShutdownReport {
        ShutdownReport {
            drained,
            cancelled: Vec::new(),
            leases: Vec::new(),
            running: Vec::new(),
            unlisted: 0,
            unretrieved: self.unretrieved(),
        }
    }

    /// Reports what is in flight. If it `cancels`, cancels every operation of this engine that is queued
    /// behind leases only.
    fn report_rest(&self, cancels: bool) -> ShutdownReport {
        let core = self.core();
        let (snapshot, unlisted) = take_snapshot_of(core);
        let mine = |op: &&OpHandle| op.payload().core.id == core.id && op.payload().is_counted();
        let waiting = if cancels { graph().waiting() } else { Vec::new() };
        let (held, leases) = inspect::held(waiting.iter().filter(mine));
        let mut report = self.report_of_shutdown(false);
        report.leases = lease_info::in_words(&leases);
        for op in snapshot.ops.iter().filter(|op| op.label.core == core.id && op.label.counted) {
            let list = if held.contains(&op.id) { &mut report.cancelled } else { &mut report.running };
            list.push(op.label.name.as_str().to_string());
        }
        for op in waiting {
            if held.contains(&op.id()) && op.payload().kind != OpKind::Lease {
                Op::new(op).cancel();
            }
        }
        report.unlisted = unlisted;
        report.drained = report.cancelled.is_empty()
            && report.running.is_empty()
            && report.unlisted == 0
            && core.in_flight() == 0;
        report
    }
}
