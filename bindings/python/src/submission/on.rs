//! The queue that the function of an operation enqueues on.

use std::sync::Arc;

use estafette::devices::Queue;
use pyo3::prelude::*;

use crate::interpreter::kept::Kept;
use crate::kinds;

/// The queue that a function enqueues on.
pub struct On {
    pub queue: Arc<dyn Queue>,
    /// The owner of a foreign queue, kept until the end of the operation is marked there.
    _owner: Option<Kept<Py<PyAny>>>,
}

impl On {
    /// A queue of the engine.
    pub fn ours(queue: Arc<dyn Queue>) -> Arc<Self> {
        Arc::new(Self { queue, _owner: None })
    }

    /// A foreign queue, which `owner` keeps alive.
    pub fn theirs(queue: Arc<dyn Queue>, owner: &Bound<'_, PyAny>) -> Arc<Self> {
        Arc::new(Self { queue, _owner: Some(Kept::new(owner.clone().unbind())) })
    }

    /// The name of a queue that coroutines cannot run on; `None` if they can on this one.
    pub fn without_coroutines(&self) -> Option<&'static str> {
        let kind = kinds::of(self.queue.device());
        kind.current_stream(&*self.queue).and_then(|_| kind.queue_name())
    }
}
