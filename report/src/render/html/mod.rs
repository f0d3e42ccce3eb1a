//! The report as one page that needs nothing else: no server, no network, no other file.
//!
//! The page is written by hand: `page.html` is its frame, `style.css` its looks, `script/` what it does. The
//! trace travels inside as JSON and packed columns (`column.rs`), compressed, in base64. Nothing of a trace
//! is ever written as markup: names go into the JSON, and from there into text nodes. A content security
//! policy in the page forbids every request.
//!
//! | part | what it has |
//! |---|---|
//! | `column` | columns of numbers, packed into bytes |
//! | `data` | the report and the trace, as the page gets them |
//! | `wait_parts` | waits, in as many parts as a page can hold |

mod column;
mod data;
mod wait_parts;

use std::io::{self, Write};
use std::path::Path;

use base64::prelude::BASE64_STANDARD;
use base64::write::EncoderWriter;
use flate2::Compression;
use flate2::write::ZlibEncoder;

use crate::format::file;
use crate::{Report, Trace};

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("style.css");

/// In this order: what a file uses when it is loaded comes before it.
const SCRIPTS: &[&str] = &[
    include_str!("script/data.js"),
    include_str!("script/words.js"),
    include_str!("script/colors.js"),
    include_str!("script/rows.js"),
    include_str!("script/paint.js"),
    include_str!("script/timeline.js"),
    include_str!("script/panels.js"),
    include_str!("script/details.js"),
    include_str!("script/main.js"),
];

/// The first line of every page.
const HEAD: &str = "<!doctype html><!-- a report of Estafette -->\n";

/// Writes the page about `trace`, whose report this is, to the file `path`, which is replaced if it is such a
/// page.
///
/// # Errors
/// Errors of the system; `AlreadyExists` for a file that is no such page and not empty.
pub fn write_file(trace: &Trace, report: &Report, path: &Path) -> io::Result<()> {
    file::replace_alike(path, HEAD.as_bytes(), |out| write(trace, report, out))
}

/// Refuses a path that [`write_file`] refuses, as far as that can be seen before there is a trace.
///
/// # Errors
/// As those of [`write_file`].
pub fn check_file(path: &Path) -> io::Result<()> {
    file::check_alike(path, HEAD.as_bytes())
}

/// Writes the page about `trace`, whose report this is.
///
/// # Errors
///
/// Errors of `out`.
pub fn write(trace: &Trace, report: &Report, out: impl Write) -> io::Result<()> {
    let mut out = io::BufWriter::new(out);
    let mut rest = PAGE;
    while let Some((before, after)) = rest.split_once("{{") {
        let (place, after) = after.split_once("}}").unwrap_or((after, ""));
        out.write_all(before.as_bytes())?;
        match place {
            "style" => out.write_all(STYLE.as_bytes())?,
            "script" => SCRIPTS.iter().try_for_each(|script| out.write_all(script.as_bytes()))?,
            _ => embed(trace, report, &mut out)?,
        }
        rest = after;
    }
    out.write_all(rest.as_bytes())?;
    out.flush()
}

/// The data that the page shows: the length of the JSON in four bytes (the lowest first), the JSON, the
/// columns. A script element can hold base64 as it is.
fn embed(trace: &Trace, report: &Report, out: impl Write) -> io::Result<()> {
    let (json, columns) = data::of(trace, report);
    let json = serde_json::to_vec(&json).map_err(io::Error::from)?;
    let length =
        u32::try_from(json.len()).map_err(|_| io::Error::other("names of more than four gigabytes"))?;
    let mut packed = ZlibEncoder::new(EncoderWriter::new(out, &BASE64_STANDARD), Compression::default());
    packed.write_all(&length.to_le_bytes())?;
    packed.write_all(&json)?;
    packed.write_all(&columns.0)?;
    packed.finish()?.finish().map(drop)
}
