//! Threads that live as long as the process, and what belongs to them.

use estafette_sync::sync::Mutex;
use estafette_sync::{daemon, stack};

use crate::LinkError;

/// A value that a process has one of, once there is one, and true if its threads run.
pub(crate) type Single<T> = Mutex<Option<(&'static T, bool)>>;

/// The value of the process, made now if there is none. `start` starts its threads; if that fails, the next
/// call tries again.
pub(crate) fn started<T>(
    single: &Single<T>,
    new: impl FnOnce() -> Result<T, LinkError>,
    start: impl FnOnce(&'static T) -> Result<(), LinkError>,
) -> Result<&'static T, LinkError> {
    let mut known = single.lock();
    if known.is_none() {
        *known = Some((Box::leak(Box::new(new()?)), false));
    }
    let (it, is_running) = known.as_mut().expect("made above");
    if !*is_running {
        start(*it)?;
        *is_running = true;
    }
    Ok(*it)
}

/// Starts a thread that lives as long as the process.
pub(crate) fn start(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), LinkError> {
    daemon(stack::thread(name).spawn(body).map_err(LinkError::system("starting a thread"))?);
    Ok(())
}
