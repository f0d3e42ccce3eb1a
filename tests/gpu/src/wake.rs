//! Figure: from the device being done to the awaiting task running.
//!
//! A stream waits for a word of pinned memory, which the host sets: that moment is known on the host's own
//! clock. What follows on the stream happens a little later; how much later is measured too, by a word that
//! the stream sets and the host spins on: the *floor* under all of them, which is taken off.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};

use estafette::devices::{Fence, Queue};
use estafette_sync::sync::atomic::{AtomicBool, Ordering};
use futures::channel::oneshot;
use futures::executor::block_on;

use crate::driver::{Flag, Stream};
use crate::failure::Failure;
use crate::record::{Figure, Percentiles, Record};
use crate::setup::Setup;

const ROUNDS: usize = 400;
/// Long enough for threads that have nothing to do to fall asleep.
const SETTLE: Duration = Duration::from_millis(1);
/// So short that the engine still looks without pauses for what has just been armed.
const SOON: Duration = Duration::from_micros(20);

/// Common means of all of them: a flag that the host sets, and the work behind it.
struct Bench<'a> {
    setup: &'a Setup,
    flag: Flag,
    done: Flag,
    stream: Stream,
    queue: Arc<dyn Queue>,
}

pub fn run(setup: &Setup, record: &mut Record) -> Result<(), Failure> {
    let (flag, done) = (setup.driver.flag()?, setup.driver.flag()?);
    let bench = Bench { setup, flag, done, stream: setup.driver.stream()?, queue: setup.queue()? };
    if let Err(error) = setup.driver.wait_for(bench.stream, flag) {
        record.skipped("wake", &format!("the device does not wait for a word of the host: {error:?}"));
        return Ok(());
    }
    flag.set(1);
    setup.driver.synchronize(bench.stream)?;
    let mut times = [const { Vec::new() }; 7];
    for round in 0..if setup.simulated { 20 } else { ROUNDS } {
        let measured = [
            bench.floor()?,
            bench.called()?,
            bench.scanned()?,
            bench.synchronized()?,
            bench.awaited(SETTLE)?,
            bench.awaited(SOON)?,
            bench.polled()?,
        ];
        if round >= 5 {
            times.iter_mut().zip(measured).for_each(|(times, time)| times.push(time));
        }
    }
    let lowest = Percentiles::of(times[0].clone()).median;
    let [floor, called, scanned, synchronized, idle, soon, spinning] = times.map(Percentiles::of);
    let above = |spread: &Percentiles| spread.median - lowest;
    record.figure(Figure {
        quantity: "device done → awaiting task running, idle".to_owned(),
        ours: format!("{:.2} µs above the floor; {}", above(&idle), idle.show("µs")),
        baseline: format!(
            "above the floor: a scanner that never sleeps {:.2} µs, host callback {:.2} µs, a thread that synchronizes \
             the device {:.2} µs; floor {}",
            above(&scanned),
            above(&called),
            above(&synchronized),
            floor.show("µs")
        ),
        target: "≤ 15 µs, or ≤ 1.2 × the scanner where waking a thread takes longer".to_owned(),
        met: above(&idle) <= f64::max(15.0, 1.2 * above(&scanned)),
    });
    record.figure(Figure {
        quantity: format!(
            "device done → awaiting task running, {} µs after it began to wait",
            SOON.as_micros()
        ),
        ours: format!("{:.2} µs above the floor; {}", above(&soon), soon.show("µs")),
        baseline: format!("a scanner that never sleeps {:.2} µs above", above(&scanned)),
        target: "≤ 8 µs".to_owned(),
        met: above(&soon) <= 8.0,
    });
    record.figure(Figure {
        quantity: "device done → seen, polled while spinning".to_owned(),
        ours: format!("{:.2} µs above the floor; {}", above(&spinning), spinning.show("µs")),
        baseline: format!("floor {}", floor.show("µs")),
        target: "≤ 1.5 µs".to_owned(),
        met: above(&spinning) <= 1.5,
    });
    record.passed("wake", &called.show("µs by host callback"));
    Ok(())
}

/// Releases the stream, and notes when.
fn release(flag: Flag) -> Instant {
    let begin = Instant::now();
    flag.set(1);
    begin
}

impl Bench<'_> {
    /// The device sets a word, and the host spins on it.
    fn floor(&self) -> Result<f64, Failure> {
        self.flag.set(0);
        self.done.set(0);
        self.setup.driver.wait_for(self.stream, self.flag)?;
        self.setup.driver.set_by(self.stream, self.done)?;
        std::thread::sleep(SETTLE);
        let begin = release(self.flag);
        while self.done.get() == 0 {
            std::hint::spin_loop();
        }
        let time = microseconds(begin);
        self.setup.driver.synchronize(self.stream)?;
        Ok(time)
    }

    /// The driver calls a function, which wakes the task.
    fn called(&self) -> Result<f64, Failure> {
        unsafe extern "C" fn wake(sender: *mut c_void) {
            // SAFETY: the box below, given to this one call.
            let sender = unsafe { Box::from_raw(sender.cast::<oneshot::Sender<()>>()) };
            let _ = sender.send(());
        }
        let (sender, receiver) = oneshot::channel::<()>();
        self.flag.set(0);
        self.setup.driver.wait_for(self.stream, self.flag)?;
        let argument = Box::into_raw(Box::new(sender)).cast();
        // SAFETY: the function takes the box, and is called once.
        unsafe { self.setup.driver.call(self.stream, wake, argument) }?;
        let time = asleep_until(self.flag, SETTLE, receiver);
        self.setup.driver.synchronize(self.stream)?;
        Ok(time)
    }

    /// The device sets a word. A thread that never sleeps sees it, and wakes the task.
    fn scanned(&self) -> Result<f64, Failure> {
        let (sender, receiver) = oneshot::channel::<()>();
        self.flag.set(0);
        self.done.set(0);
        self.setup.driver.wait_for(self.stream, self.flag)?;
        self.setup.driver.set_by(self.stream, self.done)?;
        let done = self.done;
        let scanner = std::thread::spawn(move || {
            while done.get() == 0 {
                std::hint::spin_loop();
            }
            let _ = sender.send(());
        });
        let time = asleep_until(self.flag, SETTLE, receiver);
        scanner.join().expect("the scanner does not panic");
        self.setup.driver.synchronize(self.stream)?;
        Ok(time)
    }

    /// A thread waits in the driver for the whole device, and wakes the task.
    fn synchronized(&self) -> Result<f64, Failure> {
        let (sender, receiver) = oneshot::channel::<()>();
        self.flag.set(0);
        self.setup.driver.wait_for(self.stream, self.flag)?;
        let driver = self.setup.driver;
        let waiter = std::thread::spawn(move || {
            let outcome = driver.synchronize_context();
            let _ = sender.send(());
            outcome
        });
        let time = asleep_until(self.flag, SETTLE, receiver);
        waiter.join().expect("the waiting thread does not panic")?;
        Ok(time)
    }

    /// A fence of the engine behind the same wait.
    fn fence(&self) -> Result<Fence, Failure> {
        self.flag.set(0);
        self.setup.driver.wait_for(self.queue.native(), self.flag)?;
        Ok(self.queue.record()?)
    }

    /// A task on a sleeping thread awaits the fence, for so long before the device is released.
    fn awaited(&self, before: Duration) -> Result<f64, Failure> {
        let fence = self.fence()?;
        Ok(asleep_until(self.flag, before, fence.settled()))
    }

    /// A thread asks until it is done.
    fn polled(&self) -> Result<f64, Failure> {
        let fence = self.fence()?;
        // The first query announces later queries to the device.
        let _ = fence.is_done();
        std::thread::sleep(SETTLE);
        let begin = release(self.flag);
        while !fence.is_done() {
            std::hint::spin_loop();
        }
        Ok(microseconds(begin))
    }
}

fn microseconds(begin: Instant) -> f64 {
    begin.elapsed().as_secs_f64() * 1e6
}

/// Awaits a future on a thread of its own, which waits for so long before the device is released. How long
/// after the release it runs again.
fn asleep_until(flag: Flag, before: Duration, future: impl Future + Send + 'static) -> f64 {
    let begun = Arc::new(AtomicBool::new(false));
    let begins = begun.clone();
    let waiter = std::thread::spawn(move || {
        begins.store(true, Ordering::Release);
        let _ = block_on(future);
        Instant::now()
    });
    while !begun.load(Ordering::Acquire) {
        std::hint::spin_loop();
    }
    let start = Instant::now();
    // A sleep would take several times as long as a short pause.
    while start.elapsed() < before {
        std::hint::spin_loop();
    }
    let begin = release(flag);
    let end = waiter.join().expect("the waiting thread does not panic");
    end.saturating_duration_since(begin).as_secs_f64() * 1e6
}
