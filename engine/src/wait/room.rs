//! Waits of a whole engine: for room below the in-flight limit, and for the end of everything.

use std::pin::pin;
use std::ptr;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use estafette_report::model::IN_FLIGHT_LIMIT;
use estafette_sync::barrier;
use estafette_sync::sync::atomic::Ordering;
use estafette_sync::thread;
use estafette_sync::time::{Duration, Instant};

use crate::core::clock;
use crate::core::coalesced;
use crate::core::contained::Contained;
use crate::core::context;
use crate::core::core_ref::CoreRef;
use crate::core::error::Error;
use crate::core::permit_waiters::{HELD_UP, PermitWaiters};
use crate::core::wait_for::{self, On};
use crate::exchange::{callback, foreign_fence};
use crate::operation::permits::WaitsForPermit;
use crate::trace::hooks::WaitNoted;
use crate::wait::awaits::{Awaited, Pending, inspect_by};
use crate::wait::deadlock::{self, Checks, Detector};
use crate::wait::fence::PAUSE;
use crate::wait::notify::Woken;
use crate::wait::stand_in::{StandInSet, others_without_workers};

/// The number of times that a thread yields before it falls asleep because the in-flight limit is reached, or
/// because something is in flight. A yield takes about a microsecond when no other thread wants the
/// processor.
const PATIENCE: u32 = 64;

/// The time that futures which were woken for permits, and are not polled, keep these from the next one.
const HELD_UP_MAX: Duration = Duration::from_millis(100);

/// Notifies those that wait for permits in engines where it is time. Returns when it is time for the next
/// engine.
pub(crate) fn wake_held_up() -> Option<Instant> {
    let now = Instant::now();
    let mut due = Vec::new();
    let mut held_up = HELD_UP.lock();
    held_up.retain(|(core, time)| {
        // SAFETY: a drop takes its core out first, and waits for the lock to do so.
        let core = if *time <= now { unsafe { core.upgrade() } } else { None };
        let is_due = core.is_some();
        // The last reference drops what is the program's.
        due.extend(core.map(Contained::new));
        !is_due
    });
    drop(held_up);
    for core in due {
        // A thread that finds the mark has freed permits, or woken futures, before: the call behind it sees
        // that.
        core.permits_are_watched.store(false, Ordering::Release);
        core.notify_permits();
    }
    HELD_UP.lock().iter().map(|(_, time)| *time).filter(|time| *time > now).min()
}

impl CoreRef {
    /// Wakes futures for the permits that are free. While woken futures hold others up, the watcher does so
    /// again.
    #[cold]
    pub(crate) fn wake_permit_waiters(&self) {
        let wake = |inside| self.permit_waiters[usize::from(inside)].wake(|| self.free_permits(inside));
        let is_held_up = wake(false) | wake(true);
        if is_held_up {
            self.watch_permits(Instant::now() + HELD_UP_MAX);
        }
    }

    /// The calling thread has released what it had reserved. The watcher notifies those that wait for
    /// permits: the thread may be at its end, or about to use another engine, and wakers are foreign code.
    pub(crate) fn permits_released(&self) {
        barrier::light();
        if self.notifier.has_waiters() || self.permit_waiters.iter().any(PermitWaiters::has_waiters) {
            self.watch_permits(Instant::now());
        }
    }

    fn watch_permits(&self, time: Instant) {
        let mut held_up = HELD_UP.lock();
        if !self.permits_are_watched.swap(true, Ordering::AcqRel) {
            held_up.push((self.address(), time));
        } else if let Some((_, known)) = held_up.iter_mut().find(|(core, at)| core.is_of(self) && *at > time)
        {
            *known = time;
        } else {
            return;
        }
        drop(held_up);
        inspect_by(time);
    }

    /// Acquires a permit where none was acquired in advance.
    #[cold]
    pub(crate) fn acquire_slowly(&self) -> Result<(), Error> {
        // The thread comes here now and then. That is often enough to run what caller-runs operations have
        // made ready, apart from the first successor of each, which has run already.
        if self.is_caller_running() && context::current().is_none() {
            self.begin_caller_runs();
        }
        let mut checks: Option<Checks<'_>> = None;
        loop {
            match self.try_acquire_permit() {
                Err(Error::InFlightLimit { in_flight, limit }) => {
                    let checks = checks.get_or_insert_with(|| self.checks_of_room());
                    self.wait_for_room(in_flight, limit, checks)?;
                }
                other => return other,
            }
        }
    }

    /// The checks of a submission that waits for room.
    pub(crate) fn checks_of_room(&self) -> Checks<'_> {
        Checks::new(&self.room_checks, self.notifier_or(&self.room), self.lease_timeout)
    }

    /// Waits until there may be a permit. Runs ready operations where the engine has no worker to do it.
    ///
    /// `checks` are the submission's own.
    pub(crate) fn wait_for_room(
        &self,
        in_flight: usize,
        limit: usize,
        checks: &mut Checks<'_>,
    ) -> Result<(), Error> {
        callback::check()?;
        coalesced::wake_held_back();
        let inside = context::current().is_some();
        // On this thread an operation that waits for the current one would never end.
        let helps = self.helps_without_workers() && !inside;
        if inside {
            checks.stand_ins.relieve(self);
        }
        if helps && self.help_any_after(|| checks.hand_over()) {
            // Once at it, for the next submissions as well.
            while self.in_flight() > limit / 2 && !self.has_raised() && self.help_any() {}
            self.check_raised()?;
            self.begin_caller_runs();
            return Ok(());
        }
        // The threads that run the operations are most likely awake, and a sleep costs them and this thread
        // more than a few yields.
        for _ in 0..PATIENCE {
            thread::yield_now();
            if self.in_flight() < limit - limit / 4 || (helps && self.pool.has_work()) {
                return Ok(());
            }
        }
        let _noted = WaitNoted::for_any(IN_FLIGHT_LIMIT, self, true);
        let _blocked = wait_for::register(|| On::AnyOther);
        let _cover = self.cover();
        if checks.are_new() && others_without_workers(self) {
            self.want_others(&mut checks.stand_ins);
        }
        // Inside of an operation the limit differs from that of the notifier. And where nothing has moved for
        // a while, a single permit counts.
        let counts = inside || checks.are_in_vain();
        let notifier = if counts { &self.notifier } else { self.notifier_or(&self.room) };
        let exactly = ptr::eq(notifier, &raw const self.notifier);
        let has_room =
            |in_flight| if exactly { !self.is_full(inside) } else { in_flight <= self.enough_room() };
        let mut listening = notifier.listen();
        let before = self.in_flight();
        if has_room(before) || (helps && self.pool.has_work()) {
            return Ok(());
        }
        let wake = checks.next().or_else(|| self.may_be_interrupted().then(|| checks.later()));
        context::blocking(|| listening.wait_until(wake));
        self.check_interrupt(&|stopped| deadlock::kept_full_by(self, limit, stopped))?;
        if self.in_flight() < before {
            checks.start_over();
            return Ok(());
        }
        self.runtime.warn_if_blocked();
        if inside {
            checks.stand_ins.rely_on(self, "a submission inside of an operation")?;
        }
        if checks.are_due()
            && !self.is_moved_by(&mut checks.stand_ins)
            && let Some(checked) =
                checks.paced(&self.progress_looks, |checks| checks.check_room(self, in_flight))
        {
            checked?;
        }
        checks.back_off(self);
        Ok(())
    }

    /// Waits until nothing is in flight; false when `deadline` came first. A wait that does not `check` ends
    /// by nothing else.
    pub(crate) fn wait_idle(&self, deadline: Option<Instant>, check: bool) -> Result<bool, Error> {
        if self.is_current() {
            return Err(Error::WouldDeadlock("waiting for all operations inside one of them".into()));
        }
        if clock::is_over(deadline) {
            return Ok(self.in_flight() == 0);
        }
        if self.in_flight() > 0 {
            callback::check()?;
        }
        self.end_caller_runs();
        coalesced::wake_held_back();
        self.pool.release_to_workers();
        let _noted = (self.in_flight() > 0).then(|| WaitNoted::for_any("wait_all", self, true)).flatten();
        let _blocked = wait_for::register(|| On::AnyOther);
        let _cover = self.cover();
        // A helped operation may take any time, so a wait with a deadline does not help.
        let helps = deadline.is_none() && self.helps_with_everything();
        let notifier = self.notifier_or(&self.idle);
        let unchecked = Detector::default();
        let detector = match (deadline, check) {
            (None, _) => &self.idle_checks,
            (Some(_), true) => &self.timed_checks,
            (Some(_), false) => &unchecked,
        };
        let mut checks = Checks::new(detector, notifier, self.lease_timeout);
        if self.in_flight() > 0 {
            if !helps {
                checks.stand_ins.relieve(self);
            }
            if others_without_workers(self) {
                self.want_others(&mut checks.stand_ins);
            }
        }
        loop {
            let mut patience = 0;
            while patience < PATIENCE && self.in_flight() > 0 {
                if helps && self.help_in_passing_after(|| checks.hand_over()) {
                    self.check_raised()?;
                    checks.start_over();
                    patience = 0;
                } else {
                    patience += 1;
                    thread::yield_now();
                }
            }
            let mut listening = notifier.listen();
            if self.in_flight() == 0 {
                return Ok(true);
            }
            if helps && self.has_no_workers() && self.pool.has_work() {
                continue;
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(false);
            }
            let before = self.in_flight();
            let wake = checks.next().or_else(|| self.may_be_interrupted().then(|| checks.later()));
            context::blocking(|| listening.wait_until(wake.into_iter().chain(deadline).min()));
            self.check_interrupt(&|stopped| stopped.iter().position(|op| op.core == self.id))?;
            if self.in_flight() != before {
                checks.standstill_is_over();
            } else if checks.are_due()
                && !self.is_moved_by(&mut checks.stand_ins)
                && check
                && let Some(checked) =
                    checks.paced(&self.progress_looks, |checks| checks.check_idle(self, deadline))
            {
                checked?;
            }
            checks.back_off(self);
        }
    }

    /// Called when nothing has moved for a while. Requests stand-ins for what other engines and blocked
    /// threads leave undone. Returns whether there is something to run, so that the engine does not stand
    /// still.
    pub(crate) fn is_moved_by(&self, stand_ins: &mut StandInSet) -> bool {
        foreign_fence::stand_in_for_queries();
        self.want_others(stand_ins);
        let has_work = self.pool.has_work();
        if has_work && self.has_no_free_thread() && !self.helps_without_workers() {
            stand_ins.want(self);
        }
        has_work
    }

    /// Requests stand-ins of other engines that something in flight in this engine waits for, and that have
    /// no thread for it.
    fn want_others(&self, stand_ins: &mut StandInSet) {
        if let Some(others) = self.others_looks.inspect(|| deadlock::without_free_threads(self)) {
            for core in &others {
                stand_ins.want(core);
            }
        }
    }

    /// As [`acquire_permit`](Self::acquire_permit), for at most `timeout`. With one, the wait is a future's,
    /// so it runs no operation.
    pub(crate) fn acquire_permit_within(&self, timeout: Option<Duration>) -> Result<(), Error> {
        let Some(timeout) = timeout else { return self.acquire_permit() };
        match self.try_acquire_permit() {
            Err(Error::InFlightLimit { .. }) => callback::check()?,
            other => return other,
        }
        let deadline = clock::deadline(timeout);
        let _blocked = wait_for::register(|| On::AnyOther);
        let _cover = self.cover();
        let _polls = context::polls_of_wait();
        // It notes the wait in a trace.
        let mut acquired = pin!(self.acquire_permit_async());
        while !clock::is_over(deadline) {
            let woken = Arc::new(Woken::default());
            let waker = Waker::from(Arc::clone(&woken));
            if let Poll::Ready(acquired) = acquired.as_mut().poll(&mut Context::from_waker(&waker)) {
                return acquired;
            }
            let wake = Some(Instant::now() + PAUSE);
            context::blocking(|| woken.0.wait_until(wake.into_iter().chain(deadline).min()));
            self.check_interrupt(&|_| None)?;
        }
        Err(Error::Timeout(timeout))
    }

    /// As [`acquire_permit`](Self::acquire_permit), by awaiting: no thread blocks.
    pub(crate) async fn acquire_permit_async(&self) -> Result<(), Error> {
        let mut waits = WaitsForPermit::new(self);
        let mut pending = Pending::default();
        let mut noted = None;
        std::future::poll_fn(|cx| {
            for _ in 0..2 {
                match self.try_acquire_permit() {
                    // Registers the waker before the second attempt: a permit released in between would go
                    // unnoticed otherwise.
                    Err(Error::InFlightLimit { .. }) => waits.register(cx.waker()),
                    other => return Poll::Ready(other),
                }
            }
            if noted.is_none() {
                noted = WaitNoted::for_any(IN_FLIGHT_LIMIT, self, false);
            }
            coalesced::wake_held_back();
            match pending.poll(cx, || Awaited::permit(self)) {
                Some(error) => Poll::Ready(Err(error)),
                None => Poll::Pending,
            }
        })
        .await
    }
}
