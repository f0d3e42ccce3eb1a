//! Where in a Python program a call comes from.

use estafette::Taker;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::attached::Attached;
use crate::fastcall;
use crate::peers::{self, Peer};

/// The nearest Python frames to look at for the caller: a library that asks for us has few of its own.
const FRAMES_MAX: usize = 8;

/// Places whose text is kept. A program that exchanges in a loop does so from few; a new one takes the slot of an old one.
const KEPT: usize = 128;

/// Who calls into this package from Python.
pub struct Caller {
    /// The function and line outside any known library.
    pub place: Taker,
    /// The innermost library on the way.
    pub library: Option<&'static Peer>,
}

/// A place in code outside any known library.
struct Site {
    /// Keeps the code object, so that its address is nobody else's.
    code: Py<PyAny>,
    position: i32,
    place: Taker,
}

static SITES: Attached<[Option<Site>; KEPT]> = Attached::new([const { None }; KEPT]);

/// Looks at the calling frames.
pub fn caller(py: Python<'_>) -> Caller {
    // SAFETY: the current frame, borrowed, or NULL.
    let frame = unsafe { Bound::from_borrowed_ptr_or_opt(py, ffi::PyEval_GetFrame().cast()) };
    let found = frame.map(|frame| look(py, frame));
    match found {
        Some(Ok(caller)) => caller,
        _ => Caller { place: "unknown Python code".into(), library: None },
    }
}

fn look<'py>(py: Python<'py>, mut frame: Bound<'py, PyAny>) -> PyResult<Caller> {
    let mut library: Option<&'static Peer> = None;
    for _ in 0..FRAMES_MAX {
        let (code, position) = (code_of(&frame), fastcall::position(&frame));
        if let Some(place) = kept(py, &code, position) {
            return Ok(Caller { place, library });
        }
        let module = frame.getattr(intern!(py, "f_globals"))?.get_item(intern!(py, "__name__"))?;
        let peer = module.cast::<PyString>()?.to_str().ok().and_then(peers::of_module);
        let next = frame.getattr(intern!(py, "f_back"))?;
        if peer.is_none() || next.is_none() {
            let place = text(&frame, &code)?;
            if peer.is_none() {
                keep(py, Site { code: code.unbind(), position, place: place.clone() });
            }
            return Ok(Caller { place, library });
        }
        library = library.or(peer);
        frame = next;
    }
    let place = text(&frame, &code_of(&frame))?;
    Ok(Caller { place, library })
}

fn code_of<'py>(frame: &Bound<'py, PyAny>) -> Bound<'py, PyAny> {
    // SAFETY: a live frame; its code is a new reference and never NULL.
    unsafe { Bound::from_owned_ptr(frame.py(), ffi::PyFrame_GetCode(frame.as_ptr().cast()).cast()) }
}

/// "function (file:line)".
fn text(frame: &Bound<'_, PyAny>, code: &Bound<'_, PyAny>) -> PyResult<Taker> {
    let py = frame.py();
    // SAFETY: a live frame.
    let line = unsafe { ffi::PyFrame_GetLineNumber(frame.as_ptr().cast()) };
    let file = code.getattr(intern!(py, "co_filename"))?;
    let file = file.cast::<PyString>()?.to_str()?;
    let file = file.rsplit(['/', '\\']).next().unwrap_or(file);
    let name = code.getattr(intern!(py, "co_name"))?;
    Ok(format!("{} ({file}:{line})", name.cast::<PyString>()?.to_str()?).into())
}

fn slot(code: &Bound<'_, PyAny>, position: i32) -> usize {
    // Objects are aligned to 16 bytes, and code objects are some hundred bytes long.
    let address = code.as_ptr() as usize >> 4;
    (address ^ (address >> 7)).wrapping_add(position as usize) % KEPT
}

fn kept(py: Python<'_>, code: &Bound<'_, PyAny>, position: i32) -> Option<Taker> {
    // SAFETY: compares addresses and clones a text.
    unsafe {
        SITES.with(py, |sites| {
            let site = sites[slot(code, position)].as_ref()?;
            (site.code.as_ptr() == code.as_ptr() && site.position == position).then(|| site.place.clone())
        })
    }
}

fn keep(py: Python<'_>, site: Site) {
    let slot = slot(site.code.bind(py), site.position);
    // SAFETY: exchanges two values; the old one is dropped afterwards.
    let old = unsafe { SITES.with(py, |sites| sites[slot].replace(site)) };
    drop(old);
}
