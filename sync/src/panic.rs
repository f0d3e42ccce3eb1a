//! Panics of foreign code, where no caller can receive them.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `foreign`. If it panics, drops the payload and returns the panic's text as the error.
///
/// State that `foreign` changed may be half changed. The owner of such state checks for that, usually in the
/// drop of a token that `foreign` holds.
///
/// # Errors
/// The text of the panic.
pub fn contain_panic<R>(foreign: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(foreign)).map_err(text_of_panic)
}

/// Returns the text of a panic, and drops its payload.
#[cold]
fn text_of_panic(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_string());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    drop_panic(panic);
    text.unwrap_or_else(|| "a payload that is not text".into())
}

/// Drops a panic's payload. If that panics in turn, the second payload leaks.
#[cold]
fn drop_panic(panic: Box<dyn Any + Send>) {
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(another);
    }
}

#[cfg(all(test, not(any(estafette_loom, estafette_shuttle))))]
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
        assert_eq!(contain_panic(|| 7), Ok(7));
        assert_eq!(contain_panic(|| panic!("text")), Err::<(), _>("text".to_string()));
        assert_eq!(contain_panic(|| panic!("{}", 8)), Err::<(), _>("8".to_string()));
        assert!(contain_panic(|| std::panic::panic_any(PanicsOnDrop)).is_err());
    }
}
