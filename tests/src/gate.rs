//! Operations that stay open until a test says so.

use std::time::Duration;

use estafette::{Completion, Engine, Op, Tensor, Variable};
use estafette_sync::sync::mpsc::{Receiver, TryRecvError, channel};

/// An operation that has been submitted and ends when the test opens it.
#[derive(Debug)]
pub struct Gate {
    op: Op,
    completion: Receiver<Completion>,
}

impl Gate {
    /// An operation that updates `variable`: whatever uses it afterwards waits.
    pub fn on_variable(engine: &Engine, variable: &Variable) -> Self {
        let (started, completion) = channel();
        let op = engine.op("gate").reads_vars(&[variable]).writes_vars(&[variable]);
        let op = op.run_external(move |completion| {
            // A gate that was dropped needs no completion; dropping it here fails the operation.
            let _ = started.send(completion);
        });
        Self { op: op.expect("a permit for a gate"), completion }
    }

    /// An operation that overwrites `tensors` with their own values.
    pub fn on_tensors(engine: &Engine, tensors: &[Tensor]) -> Self {
        let (started, completion) = channel();
        let op = engine.op("gate").writes(tensors).run_external(move |completion| {
            let _ = started.send(completion);
        });
        Self { op: op.expect("a permit for a gate"), completion }
    }

    pub fn op(&self) -> &Op {
        &self.op
    }

    /// Waits until it has begun, and takes its completion.
    pub fn begun(self) -> Completion {
        // In an engine without workers this is what begins it.
        loop {
            match self.completion.try_recv() {
                Ok(completion) => return completion,
                Err(TryRecvError::Disconnected) => panic!("a gate begins, unless it is skipped"),
                Err(TryRecvError::Empty) => drop(self.op.wait_timeout(Some(Duration::from_millis(1)))),
            }
        }
    }

    /// Waits until it has begun, and ends it well.
    pub fn open(self) {
        self.begun().complete(Ok(()));
    }

    /// Waits until it has begun, and lets it fail.
    pub fn fail(self, message: &str) {
        self.begun().complete(Err(message.into()));
    }
}
