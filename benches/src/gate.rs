//! A gate: an operation that holds others back until it is opened.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};

use estafette::{Completion, Error as EngineError, Op};
use estafette_sync::sync::mpsc;
use estafette_sync::thread;

use crate::error::Error;

/// An operation that has started, and that ends when it is opened. Operations on the same variables wait for
/// it.
#[derive(Debug)]
pub(crate) struct Gate {
    completion: Completion,
}

impl Gate {
    /// Calls `submit` with the body of the operation, and waits until the operation has started. `workers` is
    /// the number of workers of its engine.
    pub(crate) fn close<S>(workers: usize, submit: S) -> Result<Self, Error>
    where
        S: FnOnce(Box<dyn FnOnce(Completion) + Send>) -> Result<Op, EngineError>,
    {
        let (sender, receiver) = mpsc::channel();
        let op = submit(Box::new(move |completion| {
            // The receiver is gone only if the gate was dropped; the drop of the completion then ends the
            // operation.
            let _ = sender.send(completion);
        }))?;
        // The operation is polled only without workers: a polled operation has a waker to call at its end.
        let received = if workers == 0 { start_by_polling(op, &receiver) } else { receiver.recv().ok() };
        received.map(|completion| Self { completion }).ok_or(Error::NoGate)
    }

    /// Ends the operation with success.
    pub(crate) fn open(self) {
        self.completion.complete(Ok(()));
    }
}

/// Starts the operation in an engine without workers: a poll starts it, and never blocks. `None` if the
/// operation has ended without a start.
fn start_by_polling(mut op: Op, started: &mpsc::Receiver<Completion>) -> Option<Completion> {
    loop {
        let _ = Pin::new(&mut op).poll(&mut Context::from_waker(Waker::noop()));
        match started.try_recv() {
            Ok(completion) => return Some(completion),
            Err(mpsc::TryRecvError::Disconnected) => return None,
            Err(mpsc::TryRecvError::Empty) => thread::yield_now(),
        }
    }
}
