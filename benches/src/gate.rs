//! Holding operations back until told otherwise.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};

use estafette::{Completion, Error as EngineError, Op};
use estafette_sync::sync::mpsc;
use estafette_sync::thread;

use crate::error::Error;

/// An operation that has started and ends when told to. What uses the same variables waits for it.
#[derive(Debug)]
pub(crate) struct Gate {
    completion: Completion,
}

impl Gate {
    /// Submits the operation with `submit`, which gets its body, and waits until it has started; `workers` are those of
    /// its engine.
    pub(crate) fn close<S>(workers: usize, submit: S) -> Result<Self, Error>
    where
        S: FnOnce(Box<dyn FnOnce(Completion) + Send>) -> Result<Op, EngineError>,
    {
        let (sender, receiver) = mpsc::channel();
        let op = submit(Box::new(move |completion| {
            // Nobody listens only when this gate was given up, and then the completion ends it by being dropped.
            let _ = sender.send(completion);
        }))?;
        // Only where somebody must: an operation that has been polled has someone to tell at its end.
        let received = if workers == 0 { started_by_us(op, &receiver) } else { receiver.recv().ok() };
        received.map(|completion| Self { completion }).ok_or(Error::NoGate)
    }

    /// Ends the operation, well.
    pub(crate) fn open(self) {
        self.completion.complete(Ok(()));
    }
}

/// Without workers an operation starts when somebody waits: a poll helps, and never blocks. `None` when it has ended
/// without a start.
fn started_by_us(mut op: Op, started: &mpsc::Receiver<Completion>) -> Option<Completion> {
    loop {
        let _ = Pin::new(&mut op).poll(&mut Context::from_waker(Waker::noop()));
        match started.try_recv() {
            Ok(completion) => return Some(completion),
            Err(mpsc::TryRecvError::Disconnected) => return None,
            Err(mpsc::TryRecvError::Empty) => thread::yield_now(),
        }
    }
}
