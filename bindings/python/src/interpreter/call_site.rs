//! The place in a Python program that a call comes from.
//!
//! Frames are read by CPython's own functions, and the text of a place is kept, to be found by code object
//! and instruction. Before, each export formatted the text. It took 1,247 ns then; with this, and with leases
//! that are granted as they are submitted, 557 (`2026-11-21-exchange.md`). Of the 3,937 instructions of an
//! export later, 270 find its place (`2026-11-30-python-calls.md`).

use std::cell::Cell;
use std::ptr;
use std::sync::OnceLock;

use estafette::bindings;
use estafette::lease::{CallSite, LeaseOwner};
use estafette_sync::sync::Mutex;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::exchange::peers::{self, Peer};
use crate::interpreter::fastcall;
use crate::interpreter::lease_sites;
use crate::interpreter::once::intern;

/// The nearest Python frames to look at for the caller: a library that asks for us has few of its own.
const FRAMES_MAX: usize = 8;

/// Places whose text is kept. A program that exchanges in a loop does so from few; a new one takes the slot
/// of an old one.
const KEPT: usize = 128;

/// The caller of this package in Python.
pub struct Caller {
    /// The function and line outside any known library.
    pub place: LeaseOwner,
    /// True if it is this package, on behalf of the function of an operation.
    pub is_body: bool,
    /// The innermost library on the way.
    pub library: Option<&'static Peer>,
}

/// A place in code outside any known library.
struct Site {
    /// Keeps the code object, so that its address stays unique.
    code: Py<PyAny>,
    position: i32,
    place: LeaseOwner,
    is_body: bool,
}

estafette_sync::per_process! {
    static SITES: Mutex<[Option<Site>; KEPT]> = Mutex::new([const { None }; KEPT]);
}

thread_local! {
    /// The frame, which may be NULL, on which this package makes an array for the function of an operation.
    static CONVERTING: Cell<Option<*mut ffi::PyFrameObject>> = const { Cell::new(None) };
}

/// Runs `f`, which makes arrays for the function of an operation: its exports are that operation's.
pub fn converting<R>(_py: Python<'_>, f: impl FnOnce() -> R) -> R {
    struct Back(Option<*mut ffi::PyFrameObject>);

    impl Drop for Back {
        fn drop(&mut self) {
            CONVERTING.set(self.0);
        }
    }

    // SAFETY: the current frame, borrowed, or NULL; it outlasts what it calls.
    let _back = Back(CONVERTING.replace(Some(unsafe { ffi::PyEval_GetFrame() })));
    f()
}

/// Inspects the calling frames.
#[inline]
pub fn caller(py: Python<'_>) -> Caller {
    // SAFETY: the current frame, borrowed, or NULL.
    let frame = unsafe { ffi::PyEval_GetFrame() };
    if CONVERTING.get() == Some(frame) {
        return body(None);
    }
    // SAFETY: as above.
    let frame = unsafe { Bound::from_borrowed_ptr_or_opt(py, frame.cast()) };
    let found = frame.map(|frame| inspect(py, frame));
    match found {
        Some(Ok(caller)) => Caller {
            place: bindings::lease::owner_of_library(caller.place, caller.library.map(|peer| &peer.root)),
            ..caller
        },
        _ => Caller { place: "unknown Python code".into(), is_body: false, library: None },
    }
}

/// This package, for the function of an operation.
fn body(library: Option<&'static Peer>) -> Caller {
    static PLACE: OnceLock<LeaseOwner> = OnceLock::new();
    let place = PLACE.get_or_init(|| "the function of an operation".into()).clone();
    Caller { place, is_body: true, library }
}

/// The line of the calling frames, if traces note it.
pub fn traced_line(py: Python<'_>) -> Option<CallSite> {
    if bindings::is_trace_open() { bindings::lease::owner_site(&caller(py).place).cloned() } else { None }
}

fn inspect<'py>(py: Python<'py>, mut frame: Bound<'py, PyAny>) -> PyResult<Caller> {
    let mut library: Option<&'static Peer> = None;
    for _ in 0..FRAMES_MAX {
        let (code, position) = (code_of(&frame), fastcall::position(&frame));
        if let Some((place, is_body)) = kept(&code, position) {
            return Ok(Caller { place, is_body, library });
        }
        // Code that is run by `exec` may have no module.
        let module = frame.getattr(intern!(py, "f_globals"))?.get_item(intern!(py, "__name__")).ok();
        let module = module.as_ref().and_then(|module| module.cast::<PyString>().ok()?.to_str().ok());
        let is_body = module == Some("estafette._body");
        let is_ours = !is_body && module.is_some_and(is_between);
        let peer = module.and_then(peers::of_module);
        let next = frame.getattr(intern!(py, "f_back"))?;
        let below = if next.is_none() { ptr::null_mut() } else { next.as_ptr().cast() };
        if peer.is_some() && CONVERTING.get() == Some(below) {
            return Ok(body(library.or(peer)));
        }
        if next.is_none() || peer.is_none() && !is_ours {
            let place = text(&frame, &code)?;
            if peer.is_none() && !is_ours {
                keep(py, Site { code: code.unbind(), position, place: place.clone(), is_body });
            }
            return Ok(Caller { place, is_body, library });
        }
        library = library.or(peer);
        frame = next;
    }
    let place = text(&frame, &code_of(&frame))?;
    Ok(Caller { place, is_body: false, library })
}

/// True if a module only stands between a program and this package: its own files, and what pickles tensors
/// for other processes.
fn is_between(module: &str) -> bool {
    matches!(module.split('.').next(), Some("estafette" | "multiprocessing"))
}

fn code_of<'py>(frame: &Bound<'py, PyAny>) -> Bound<'py, PyAny> {
    // SAFETY: a live frame; its code is a new reference and never NULL.
    unsafe { Bound::from_owned_ptr(frame.py(), ffi::PyFrame_GetCode(frame.as_ptr().cast()).cast()) }
}

/// "function (file:line)".
fn text(frame: &Bound<'_, PyAny>, code: &Bound<'_, PyAny>) -> PyResult<LeaseOwner> {
    let py = frame.py();
    // SAFETY: a live frame.
    let line = unsafe { ffi::PyFrame_GetLineNumber(frame.as_ptr().cast()) };
    let file = code.getattr(intern!(py, "co_filename"))?;
    let file = file.cast::<PyString>()?.to_str()?;
    let short = file.rsplit(['/', '\\']).next().unwrap_or(file);
    let name = code.getattr(intern!(py, "co_name"))?;
    let name = name.cast::<PyString>()?.to_str()?;
    let place = LeaseOwner::from(format!("{name} ({short}:{line})"));
    Ok(if lease_sites::are_recorded() {
        let line = line.try_into().unwrap_or_default();
        bindings::lease::owner_at(place, CallSite { file: file.to_owned(), line, function: name.to_owned() })
    } else {
        place
    })
}

fn slot(code: &Bound<'_, PyAny>, position: i32) -> usize {
    // Objects are aligned to 16 bytes, and code objects are some hundred bytes long.
    let address = code.as_ptr() as usize >> 4;
    (address ^ (address >> 7)).wrapping_add(position as usize) % KEPT
}

fn kept(code: &Bound<'_, PyAny>, position: i32) -> Option<(LeaseOwner, bool)> {
    let sites = SITES.lock();
    let site = sites[slot(code, position)].as_ref()?;
    let same = site.code.as_ptr() == code.as_ptr() && site.position == position;
    // A site that was kept before the switch was turned is formatted anew.
    let is_current = bindings::lease::owner_site(&site.place).is_some() == lease_sites::are_recorded();
    (same && is_current).then(|| (site.place.clone(), site.is_body))
}

fn keep(py: Python<'_>, site: Site) {
    let slot = slot(site.code.bind(py), site.position);
    let old = SITES.lock()[slot].replace(site);
    drop(old);
}
