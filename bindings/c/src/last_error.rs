//! The text of the calling thread's latest error.

use std::cell::Cell;
use std::ffi::c_char;

/// Bytes that a text may have, its end included; longer ones are cut.
const LENGTH: usize = 2048;

thread_local! {
    /// In one place for as long as the thread lives: a pointer that was read before a call shows the text of
    /// that call. That place is not in the thread's block of variables, where a library that is loaded late
    /// finds little room.
    static LAST: Box<Cell<[u8; LENGTH]>> = Box::new(Cell::new([0; LENGTH]));
}

/// Keeps `message` for this thread.
pub(crate) fn set(message: &str) {
    let length = message.floor_char_boundary(LENGTH - 1);
    // A thread that ends has no place for a text any more.
    let _ = LAST.try_with(|last| {
        let last: &Cell<[u8]> = &**last;
        let places = last.as_slice_of_cells();
        for (place, byte) in places.iter().zip(&message.as_bytes()[..length]) {
            // C would lose the text behind a NUL.
            place.set(if *byte == 0 { b' ' } else { *byte });
        }
        places[length].set(0);
    });
}

/// The reason why the latest call of this thread that returned an error, `ESTAFETTE_TIMEOUT` or
/// `ESTAFETTE_IN_FLIGHT_LIMIT` did so, in words (UTF-8, at most 2,047 bytes); empty when there was none.
/// Other calls leave it as it is.
///
/// Never NULL. The place is the library's, always the same for one thread, and valid until that thread ends;
/// the thread's next error overwrites the text. May be called in a forked child.
#[unsafe(no_mangle)]
pub extern "C" fn estafette_last_error() -> *const c_char {
    LAST.try_with(|last| last.as_ptr().cast_const().cast()).unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get() -> String {
        // SAFETY: the text ends, and is this thread's.
        unsafe { std::ffi::CStr::from_ptr(estafette_last_error()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn texts_are_cut_between_characters_and_hold_no_nul() {
        assert_eq!(get(), "");
        set("a\0b");
        assert_eq!(get(), "a b");
        let long = "é".repeat(LENGTH);
        set(&long);
        assert_eq!(get(), "é".repeat((LENGTH - 1) / 2));
        set("short");
        assert_eq!(get(), "short");
    }
}
