//! A link in an event loop of the program: a descriptor that is readable while something may be received.
//!
//! The descriptor waits for messages as a future does: a receive that finds nothing makes it unreadable,
//! registers it, listens, and polls once more; the link thread, which wakes futures, makes it readable again.
//! So it is readable before the first receive, and for good once the link is over.

use std::sync::Arc;
use std::task::{Wake, Waker};

use crate::link::{Link, Received, Shared};
use crate::{LinkError, platform};

/// A descriptor, and what makes it readable.
#[derive(Debug)]
pub(crate) struct Readable {
    event: Arc<Event>,
    waker: Waker,
}

#[derive(Debug)]
struct Event(platform::Waker);

impl Wake for Event {
    fn wake(self: Arc<Self>) {
        self.0.wake();
    }
}

impl Readable {
    fn new() -> std::io::Result<Self> {
        let event = Arc::new(Event(platform::Waker::new()?));
        event.0.wake();
        Ok(Self { waker: Arc::clone(&event).into(), event })
    }

    /// After a receive that has found nothing. `again` polls once more.
    pub(crate) fn rearm(
        &self,
        shared: &Shared,
        again: impl FnOnce() -> Result<Option<Received>, LinkError>,
    ) -> Result<Option<Received>, LinkError> {
        self.event.0.clear();
        shared.receivers.register(0, &self.waker);
        shared.listen();
        let result = again();
        if !matches!(result, Ok(None)) {
            self.event.0.wake();
        }
        result
    }
}

impl Link {
    /// The number of a descriptor that is readable while something may be received, or the link is over. An
    /// event loop waits for it, and then calls [`try_receive`](Self::try_receive) until that finds nothing,
    /// which makes the descriptor unreadable. It stays the link's, and ends with it; it is not to be read or
    /// written. A link has none before the first call.
    ///
    /// # Errors
    /// The system refuses a descriptor; [`LinkError::Forked`].
    pub fn descriptor(&self) -> Result<i32, LinkError> {
        self.check_process()?;
        let place = &self.shared.readable;
        if place.get().is_none() {
            let new = Readable::new().map_err(LinkError::system("making a descriptor"))?;
            // If another thread was faster, its descriptor counts.
            let _ = place.set(new);
        }
        Ok(place.get().expect("it was set").event.0.number())
    }
}
