//! `estafette report`: what a recording says.

use std::error::Error;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use estafette::trace;
use estafette_report::diff::difference;
use estafette_report::terminal::{self, Style};
use estafette_report::{Trace, file, report};
use lexopt::prelude::*;

/// Columns when nobody says how many there are.
const WIDTH_DEFAULT: usize = 100;

/// What the command line asks for.
#[derive(Default)]
struct Request {
    files: Vec<PathBuf>,
    json: bool,
    short: bool,
    diff: bool,
    html: Option<PathBuf>,
    chrome: Option<PathBuf>,
    width: Option<usize>,
}

pub(crate) fn run(arguments: &mut lexopt::Parser) -> Result<(), Box<dyn Error>> {
    let request = Request::parse(arguments)?;
    let recordings = request.files.iter().map(|path| read(path)).collect::<Result<Vec<_>, _>>()?;
    let text = match (&recordings[..], request.diff) {
        ([before, after], true) => {
            let difference = difference(&report(before), &report(after));
            if request.json {
                serde_json::to_string_pretty(&difference)? + "\n"
            } else {
                terminal::difference_text(&difference, request.style())
            }
        }
        ([recording], false) => {
            request.write_files(recording)?;
            let report = report(recording);
            if request.json {
                serde_json::to_string_pretty(&report)? + "\n"
            } else {
                terminal::text(&report, request.style())
            }
        }
        (_, true) => return Err("--diff compares two recordings: `estafette report --diff A B`".into()),
        (_, false) => return Err("one recording is needed: `estafette report FILE`".into()),
    };
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        // Whoever reads has seen enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

/// A file that is damaged is reported as far as it can be read; one that cannot be read at all is an error.
fn read(path: &Path) -> Result<Trace, String> {
    trace::read(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidData => format!("{} {error}", path.display()),
        _ => format!("{}: {error}", path.display()),
    })
}

impl Request {
    fn parse(arguments: &mut lexopt::Parser) -> Result<Self, Box<dyn Error>> {
        let mut request = Self::default();
        while let Some(argument) = arguments.next()? {
            match argument {
                Long("json") => request.json = true,
                Long("short") => request.short = true,
                Long("diff") => request.diff = true,
                Long("html") => request.html = Some(arguments.value()?.into()),
                Long("chrome") => request.chrome = Some(arguments.value()?.into()),
                Long("width") => request.width = Some(arguments.value()?.parse()?),
                Value(file) => request.files.push(file.into()),
                other => return Err(other.unexpected().into()),
            }
        }
        Ok(request)
    }

    fn write_files(&self, recording: &Trace) -> Result<(), Box<dyn Error>> {
        if let Some(path) = &self.chrome {
            written(path, file::replace(path, |out| estafette_report::chrome::write(recording, out)))?;
        }
        if let Some(path) = &self.html {
            written(path, file::replace(path, |out| estafette_report::html::write(recording, out)))?;
        }
        Ok(())
    }

    fn style(&self) -> Style {
        let terminal = std::io::stdout().is_terminal();
        let wanted = self.width.or_else(|| std::env::var("COLUMNS").ok()?.parse().ok());
        let width = wanted.or_else(|| terminal.then(terminal_width).flatten()).unwrap_or(WIDTH_DEFAULT);
        let colour = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Style { width, colour, short: self.short }
    }
}

/// An error of a file names it.
fn written(path: &Path, result: std::io::Result<()>) -> Result<(), String> {
    result.map_err(|error| format!("{}: {error}", path.display()))
}

/// Columns of the terminal that is written to.
fn terminal_width() -> Option<usize> {
    let (_, columns) = console::Term::stdout().size_checked()?;
    Some(columns.into())
}
