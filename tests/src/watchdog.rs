//! Turns a hang into a loud failure that says who waits for whom.

#[cfg(not(estafette_shuttle))]
use std::io::Write;
#[cfg(not(estafette_shuttle))]
use std::sync::mpsc::RecvTimeoutError;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use estafette::Engine;

/// Far more than any guarded test takes, also where it gets a hundredth of a processor, and less than test
/// runners wait.
const LIMIT: Duration = Duration::from_secs(300);

/// Limit of a diagnosis that is itself stuck.
#[cfg(not(estafette_shuttle))]
const LAST_WORDS: Duration = Duration::from_secs(5);

/// While it lives, its test must not take longer than five minutes; then the process ends with a diagnosis of
/// the engine.
///
/// It ends the whole process, since nothing can end a thread that hangs.
#[derive(Debug)]
pub struct Watchdog {
    alive: Sender<()>,
}

impl Watchdog {
    /// Watches a test that uses `engine`. Holds a handle of the engine.
    pub fn of(engine: &Engine) -> Self {
        let engine = engine.clone();
        Self::with(LIMIT, move || engine.diagnose().to_string())
    }

    /// Watches a test whose engine's handles matter, or that has none.
    pub fn alone() -> Self {
        Self::with(LIMIT, || "no engine to ask".to_string())
    }

    /// In a simulation, which ends by itself when something hangs, what `diagnose` says is part of the
    /// message.
    #[cfg(estafette_shuttle)]
    pub fn with(_limit: Duration, diagnose: impl FnOnce() -> String + Send + 'static) -> Self {
        let (alive, gone) = channel();
        DESCRIPTION.with(|description| description.replace(Some((gone, Box::new(diagnose)))));
        Self { alive }
    }

    /// Watches for `limit`, then prints what `diagnose` says.
    #[cfg(not(estafette_shuttle))]
    pub fn with(limit: Duration, diagnose: impl FnOnce() -> String + Send + 'static) -> Self {
        let (alive, gone) = channel();
        let test = std::thread::current().name().unwrap_or("unnamed").to_string();
        std::thread::Builder::new()
            .name("watchdog".to_string())
            .spawn(move || watch(&gone, limit, &test, diagnose))
            .expect("a thread starts");
        Self { alive }
    }

    /// True while the watchdog watches; a call at the end of a test keeps the watchdog alive until then.
    pub fn still_watches(&self) -> bool {
        self.alive.send(()).is_ok()
    }
}

#[cfg(estafette_shuttle)]
type Description = (Receiver<()>, Box<dyn FnOnce() -> String>);

#[cfg(estafette_shuttle)]
thread_local! {
    /// Of the watchdog of the execution that this thread simulates.
    static DESCRIPTION: std::cell::RefCell<Option<Description>> = const { std::cell::RefCell::new(None) };
}

/// The watchdog's knowledge of this simulation, once.
#[cfg(estafette_shuttle)]
pub fn describe() -> String {
    let description = DESCRIPTION.with(std::cell::RefCell::take);
    description.map_or_else(String::new, |(_, describe)| describe())
}

/// Of an execution that has failed: engines that were left in the middle are not dropped.
#[cfg(estafette_shuttle)]
pub fn leak() {
    std::mem::forget(DESCRIPTION.with(std::cell::RefCell::take));
}

/// Takes back what a watchdog was given: engines, that is, which must end within their execution.
#[cfg(estafette_shuttle)]
pub fn forget() {
    drop(DESCRIPTION.with(std::cell::RefCell::take));
}

#[cfg(not(estafette_shuttle))]
fn watch(
    gone: &Receiver<()>,
    limit: Duration,
    test: &str,
    diagnose: impl FnOnce() -> String + Send + 'static,
) {
    let deadline = std::time::Instant::now() + limit;
    loop {
        match gone.recv_timeout(deadline.saturating_duration_since(std::time::Instant::now())) {
            Ok(()) => {}
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => break,
        }
    }
    let (words, said) = channel();
    let _ = std::thread::Builder::new().spawn(move || words.send(diagnose()));
    let said = said.recv_timeout(LAST_WORDS).unwrap_or_else(|_| "the diagnosis hangs as well".to_string());
    // Not `eprintln!`: the harness would capture it, and lose it with the process.
    let _ = writeln!(std::io::stderr(), "\ntest `{test}` hangs after {limit:?}:\n{said}\n");
    std::process::abort();
}
