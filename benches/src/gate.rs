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
    /// Submits the operation with `submit`, which gets its body, and waits until it has started.
    pub(crate) fn close<S>(submit: S) -> Result<Self, Error>
    where
        S: FnOnce(Box<dyn FnOnce(Completion) + Send>) -> Result<Op, EngineError>,
    {
        let (sender, receiver) = mpsc::channel();
        let mut op = submit(Box::new(move |completion| {
            // Nobody listens only when this gate was given up, and then the completion ends it by being dropped.
            let _ = sender.send(completion);
        }))?;
        loop {
            match receiver.try_recv() {
                Ok(completion) => return Ok(Self { completion }),
                Err(mpsc::TryRecvError::Disconnected) => return Err(Error::NoGate),
                // Without workers the operation starts when somebody waits: a poll helps, and never blocks.
                Err(mpsc::TryRecvError::Empty) => {
                    let _ = Pin::new(&mut op).poll(&mut Context::from_waker(Waker::noop()));
                    thread::yield_now();
                }
            }
        }
    }

    /// Ends the operation, well.
    pub(crate) fn open(self) {
        self.completion.complete(Ok(()));
    }
}
