//! Calls to code that is not ours and may panic, where nobody is left to receive the panic.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// After so many payloads that panic when dropped, the next one is leaked: somebody does it on purpose.
const PAYLOADS_DROPPED: usize = 3;

/// Runs `f`; a panic is logged with `what` and goes no further. Returns whether `f` returned normally.
///
/// Used where a panic has nowhere to go: in a deleter called by a foreign library (unwinding into it is
/// undefined) and on the reaper thread (one bad deleter must not end all others).
pub(super) fn contain_panic(what: &'static str, f: impl FnOnce()) -> bool {
    let Err(payload) = catch_unwind(AssertUnwindSafe(f)) else { return true };
    tracing::error!(what, message = message_of(payload.as_ref()), "panic contained");
    // The payload is user data, whose own drop may panic again, with a payload of its own.
    let mut payload = payload;
    for _ in 0..PAYLOADS_DROPPED {
        match catch_unwind(AssertUnwindSafe(move || drop(payload))) {
            Ok(()) => return false,
            Err(next) => payload = next,
        }
    }
    std::mem::forget(payload);
    false
}

fn message_of(payload: &(dyn Any + Send)) -> &str {
    if let Some(text) = payload.downcast_ref::<&'static str>() {
        text
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text
    } else {
        "a panic without a text"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct PanicsOnDrop;
    impl Drop for PanicsOnDrop {
        fn drop(&mut self) {
            panic!("while dropping the payload");
        }
    }

    #[test]
    fn a_panic_stays_inside_even_when_its_payload_panics_too() {
        assert!(contain_panic("test", || ()));
        assert!(!contain_panic("test", || panic!("text")));
        assert!(!contain_panic("test", || std::panic::panic_any(PanicsOnDrop)));
    }
}
