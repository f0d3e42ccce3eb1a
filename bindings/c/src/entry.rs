//! The way into every function: panics end here, errors become a status, arguments are checked.

use std::borrow::Cow;
use std::ptr::NonNull;

use estafette::Error;
use estafette::bindings;
use estafette_sync::panic::contain_panic;
use estafette_sync::process::Generation;
use estafette_sync::sync::OnceLock;
use estafette_sync::valgrind;

use crate::last_error;
use crate::status::estafette_status;

/// The reason why a call does not return `ESTAFETTE_OK`, with a text for the calling thread.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: estafette_status,
    pub(crate) message: String,
}

impl Refusal {
    pub(crate) fn new(status: estafette_status, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    /// An argument is wrong.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(estafette_status::ESTAFETTE_INVALID, message)
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self { status: estafette_status::of(&error), message: bindings::full_text(&error) }
    }
}

/// The result of a function's inside: a status that needs no text, or a refusal.
pub(crate) type Answer = Result<estafette_status, Refusal>;

/// The answer of a function that was done.
pub(crate) const DONE: Answer = Ok(estafette_status::ESTAFETTE_OK);

/// The process that used the library first: handles are its own.
static FIRST_GENERATION: OnceLock<Generation> = OnceLock::new();

/// True if handles belong to a process that this one was forked from, and locks may be held for ever.
pub(crate) fn is_forked() -> bool {
    FIRST_GENERATION.get().is_some_and(|first| first.is_inherited())
}

/// As [`is_forked`]; a process that uses the library first is registered.
#[inline]
pub(crate) fn is_forked_else_register() -> bool {
    FIRST_GENERATION.get_or_init(Generation::current).is_inherited()
}

/// The engine's own text says to make an engine, which C cannot do there.
const FORKED: &str =
    "this process was forked from one that used the library, so it cannot use the library; start it by exec";

/// Runs the inside of a function that uses handles, which a forked child has not got.
#[inline]
pub(crate) fn entry<S>(inside: impl FnOnce() -> Result<S, Refusal>) -> estafette_status
where
    S: Into<estafette_status>,
{
    if is_forked_else_register() {
        return store_error(Refusal::new(estafette_status::ESTAFETTE_FORKED, FORKED));
    }
    entry_anywhere(inside)
}

/// As [`entry`], of a function that does nothing for a NULL handle, in a forked child too.
pub(crate) fn entry_unless_null<H>(
    handle: *mut H,
    inside: impl FnOnce() -> Result<(), Refusal>,
) -> estafette_status {
    if handle.is_null() { entry_anywhere(|| Ok(())) } else { entry(inside) }
}

/// Runs the inside of a function that a forked child may call too.
#[inline]
pub(crate) fn entry_anywhere<S>(inside: impl FnOnce() -> Result<S, Refusal>) -> estafette_status
where
    S: Into<estafette_status>,
{
    valgrind::before();
    let status = match contain_panic(inside) {
        Ok(Ok(status)) => status.into(),
        Ok(Err(refusal)) => store_error(refusal),
        Err(panic) => panicked(panic),
    };
    valgrind::after();
    status
}

#[cold]
fn store_error(refusal: Refusal) -> estafette_status {
    last_error::set(&refusal.message);
    refusal.status
}

#[cold]
fn panicked(text: String) -> estafette_status {
    store_error(Refusal::new(estafette_status::ESTAFETTE_INTERNAL, format!("a bug in the library: {text}")))
}

/// The place of a result.
pub(crate) fn place<T>(pointer: *mut T, name: &str) -> Result<NonNull<T>, Refusal> {
    NonNull::new(pointer).ok_or_else(|| is_null(name))
}

/// An array of `count` things; NULL is legal when there are none.
///
/// # Safety
/// `first` is NULL or the start of `count` values that stay as they are during the call.
pub(crate) unsafe fn array<'a, T>(first: *const T, count: usize, name: &str) -> Result<&'a [T], Refusal> {
    if count == 0 {
        return Ok(&[]);
    }
    if count > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(Refusal::invalid(format!("{name}: {count} entries are more than memory holds")));
    }
    if first.is_null() {
        return Err(Refusal::invalid(format!("{name} is NULL with a count of {count}")));
    }
    // SAFETY: by contract of this function.
    Ok(unsafe { std::slice::from_raw_parts(first, count) })
}

/// A field or an argument that is 0 or 1.
pub(crate) fn flag(name: &str, value: i32) -> Result<bool, Refusal> {
    match value {
        0 | 1 => Ok(value == 1),
        other => Err(Refusal::invalid(format!("{name} is {other}"))),
    }
}

/// A text; NULL gives `otherwise`.
///
/// # Safety
/// `text` is NULL or ends with a NUL.
pub(crate) unsafe fn text<'a>(
    text: *const std::ffi::c_char,
    otherwise: &'a str,
    name: &str,
) -> Result<&'a str, Refusal> {
    if text.is_null() {
        return Ok(otherwise);
    }
    // SAFETY: by contract of this function.
    let text = unsafe { std::ffi::CStr::from_ptr(text) };
    text.to_str().map_err(|_| Refusal::invalid(format!("{name} is not UTF-8")))
}

/// A text that must not be NULL.
///
/// # Safety
/// `text` is NULL or ends with a NUL, and stays as it is during `'a`.
pub(crate) unsafe fn needed<'a>(text: *const std::ffi::c_char, name: &str) -> Result<&'a str, Refusal> {
    if text.is_null() {
        return Err(is_null(name));
    }
    // SAFETY: by contract of this function.
    unsafe { self::text(text, "", name) }
}

/// The reason why something has failed. What is not UTF-8, as a text of the system may be, is replaced, since
/// the failure has to get through.
///
/// # Safety
/// `message` is NULL or ends with a NUL.
pub(crate) unsafe fn reason<'a>(message: *const std::ffi::c_char) -> Cow<'a, str> {
    if message.is_null() {
        return Cow::Borrowed("no reason was given");
    }
    // SAFETY: by contract of this function.
    unsafe { std::ffi::CStr::from_ptr(message) }.to_string_lossy()
}

#[cold]
pub(crate) fn is_null(name: &str) -> Refusal {
    Refusal::invalid(format!("{name} is NULL"))
}

/// A text for C: what follows a NUL would be lost, so there is none in it.
pub(crate) fn c_text(text: &str) -> std::ffi::CString {
    std::ffi::CString::new(text.replace('\0', " ")).unwrap_or_default()
}
