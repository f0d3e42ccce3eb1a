//! Time from a completion until the awaiting task runs, under tokio: on the same thread, and from another
//! thread. Tokio's oneshot channel is measured in turn, so a slow phase of the machine affects both.
//!
//! The awaiting task was polled before the completion. Across threads, its thread also had time to fall
//! asleep, as in a real wait, so the system's wake-up of a sleeping thread is most of the time for both.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::time::{Duration, Instant};

use estafette::{DType, Engine, Tensor};
use estafette_sync::hint;
use estafette_sync::sync::Arc;
use estafette_sync::sync::atomic::{AtomicBool, Ordering};
use estafette_sync::sync::mpsc;
use estafette_sync::thread;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use crate::error::Error;
use crate::gate::Gate;
use crate::record::Quantity;
use crate::spread::Spread;
use crate::workload::{Measured, Settings, Workload};

/// Default number of wake-ups of one round.
const WAKES: usize = 1_000;

/// Time for a thread to fall asleep: several times what that takes.
const SETTLE: Duration = Duration::from_micros(50);

pub(crate) const SAME: Workload = waking(
    "wake-same",
    "completion to awaiting tokio task running, same thread; and tokio's oneshot in the same run",
    |settings| run(settings, &Completer::Here),
);

pub(crate) const CROSS: Workload =
    waking("wake-cross", "the same, completed by another thread", |settings| {
        run(settings, &Completer::start()?)
    });

const fn waking(
    name: &'static str,
    about: &'static str,
    run: fn(&Settings) -> Result<Measured, Error>,
) -> Workload {
    Workload { workers: || 1, has_body: false, ..Workload::plain(name, about, WAKES, run) }
}

fn run(settings: &Settings, completer: &Completer) -> Result<Measured, Error> {
    let engine = Engine::builder().workers(settings.workers).build()?;
    let tensor = engine.zeros(&[16], DType::F32)?;
    let runtime = runtime()?;
    let (mut ours, mut oneshots) = (Vec::new(), Vec::new());
    for round in 0..=settings.rounds {
        let (our, oneshot) = runtime.block_on(round_of(settings, &engine, &tensor, completer))?;
        // The first round warms up.
        if round > 0 {
            ours.push(our);
            oneshots.push(oneshot);
        }
    }
    let (ours, oneshots) = (Quantity::of(ours), Quantity::of(oneshots));
    let quantities =
        vec![("ns_per_op", ours), ("oneshot_ns", oneshots), ("ratio_to_oneshot", ours.ratio_to(&oneshots))];
    Ok(Measured { n: settings.n, quantities })
}

/// The wake-ups of a round, of each kind in turn. Returns the median of each in nanoseconds, because a mean
/// would show only the few wake-ups that the system interrupts, which take a hundred times as long.
async fn round_of(
    settings: &Settings,
    engine: &Engine,
    tensor: &Tensor,
    completer: &Completer,
) -> Result<(f64, f64), Error> {
    let (mut ours, mut oneshots) = (Vec::with_capacity(settings.n), Vec::with_capacity(settings.n));
    for _ in 0..settings.n {
        let gate =
            Gate::close(settings.workers, |start| engine.op("gate").writes([tensor]).run_external(start))?;
        let ready = tensor.ready();
        ours.push(woken(completer, Trigger::Gate(gate), async { Ok(ready.await?) }).await?);

        let (sender, receiver) = oneshot::channel();
        let receive = async { receiver.await.map_err(|_| Error::Died("the sender of a oneshot")) };
        oneshots.push(woken(completer, Trigger::Oneshot(sender), receive).await?);
    }
    let median = |samples| Spread::of(samples).map_or(0.0, |spread| spread.median);
    Ok((median(ours), median(oneshots)))
}

/// Nanoseconds from the effect of `end` until a task that awaits `future` runs.
async fn woken<F>(completer: &Completer, end: Trigger, future: F) -> Result<f64, Error>
where
    F: Future<Output = Result<(), Error>> + Send + 'static,
{
    let polled = Arc::new(AtomicBool::new(false));
    let announce = Arc::clone(&polled);
    let task = tokio::spawn(async move {
        let mut future = pin!(future);
        let outcome = poll_fn(|cx| {
            let outcome = future.as_mut().poll(cx);
            // Release: a thread that sees the store also sees the waker of this poll.
            announce.store(true, Ordering::Release);
            outcome
        });
        outcome.await.map(|()| Instant::now())
    });
    let (began, ended) = match completer {
        Completer::Here => {
            while !polled.load(Ordering::Acquire) {
                tokio::task::yield_now().await;
            }
            let began = end.now();
            (began, task.await)
        }
        Completer::Other { ends, began } => {
            ends.send((end, polled)).map_err(|_| Error::Died("the completing thread"))?;
            let ended = task.await;
            (began.recv().map_err(|_| Error::Died("the completing thread"))?, ended)
        }
    };
    let ended = ended.map_err(|_| Error::Died("the awaiting task"))??;
    let took = ended.checked_duration_since(began).ok_or(Error::Early)?;
    Ok(took.as_nanos() as f64)
}

/// End of a wait.
enum Trigger {
    Gate(Gate),
    Oneshot(oneshot::Sender<()>),
}

impl Trigger {
    /// Ends the wait. Returns the time just before.
    fn now(self) -> Instant {
        let began = Instant::now();
        match self {
            Self::Gate(gate) => gate.open(),
            // A receiver that is gone reports that itself.
            Self::Oneshot(sender) => drop(sender.send(())),
        }
        began
    }
}

/// The thread that ends waits: the awaiting thread, or another one, which stops when this is dropped.
enum Completer {
    Here,
    Other { ends: mpsc::Sender<(Trigger, Arc<AtomicBool>)>, began: mpsc::Receiver<Instant> },
}

impl Completer {
    /// Starts another thread, which ends each wait some time after its task was polled.
    fn start() -> Result<Self, Error> {
        let (ends, jobs) = mpsc::channel::<(Trigger, Arc<AtomicBool>)>();
        let (times, began) = mpsc::channel();
        let complete = move || {
            for (end, polled) in jobs {
                while !polled.load(Ordering::Acquire) {
                    // On a single core, the task needs the core of this thread.
                    thread::yield_now();
                }
                let settled = Instant::now() + SETTLE;
                while Instant::now() < settled {
                    hint::spin_loop();
                }
                if times.send(end.now()).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new()
            .name("completer".into())
            .spawn(complete)
            .map_err(|error| Error::Start { what: "the completing thread", error })?;
        Ok(Self::Other { ends, began })
    }
}

/// A tokio runtime on the calling thread alone.
pub(crate) fn runtime() -> Result<Runtime, Error> {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .map_err(|error| Error::Start { what: "a tokio runtime", error })
}
