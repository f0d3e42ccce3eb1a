//! `estafette report`: reports of traces.

use std::error::Error;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use estafette_report::diff::difference;
use estafette_report::terminal::{self, Style};
use estafette_report::{Trace, file, report};

/// Columns where neither the command line nor a terminal says how many there are.
const WIDTH_DEFAULT: usize = 100;

/// Report who waited for whom in a trace, and why; or compare two traces.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The trace; with `--diff` the two traces, the earlier first.
    #[arg(value_name = "FILE", required = true, num_args = 1..=2)]
    files: Vec<PathBuf>,
    /// Compare two traces.
    #[arg(long)]
    diff: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Print the summary only.
    #[arg(long)]
    short: bool,
    /// Also write the report as a web page to OUT.
    #[arg(long, value_name = "OUT")]
    html: Option<PathBuf>,
    /// Also write the timeline in Chrome's trace format to OUT.
    #[arg(long, value_name = "OUT")]
    chrome: Option<PathBuf>,
    /// Columns of the text. Default: those of the terminal, or 100.
    #[arg(long, value_name = "N")]
    width: Option<usize>,
}

pub(crate) fn run(request: &Arguments) -> Result<(), Box<dyn Error>> {
    let traces = request.files.iter().map(|path| read(path)).collect::<Result<Vec<_>, _>>()?;
    let text = match (&traces[..], request.diff) {
        ([before, after], true) => {
            let difference = difference(&report(before), &report(after));
            if request.json {
                serde_json::to_string_pretty(&difference)? + "\n"
            } else {
                terminal::difference_text(&difference, request.style())
            }
        }
        ([trace], false) => {
            request.write_files(trace)?;
            let report = report(trace);
            if request.json {
                serde_json::to_string_pretty(&report)? + "\n"
            } else {
                terminal::text(&report, request.style())
            }
        }
        (_, true) => return Err("--diff compares two traces: `estafette report --diff A B`".into()),
        (_, false) => return Err("one trace is needed: `estafette report FILE`".into()),
    };
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        // The reader has seen enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

/// A file that is damaged is reported as far as it can be read; one that cannot be read at all is an error.
fn read(path: &Path) -> Result<Trace, String> {
    estafette::trace::read(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidData => format!("{} {error}", path.display()),
        _ => format!("{}: {error}", path.display()),
    })
}

impl Arguments {
    fn write_files(&self, trace: &Trace) -> Result<(), Box<dyn Error>> {
        if let Some(path) = &self.chrome {
            written(path, file::replace(path, |out| estafette_report::chrome::write(trace, out)))?;
        }
        if let Some(path) = &self.html {
            written(path, file::replace(path, |out| estafette_report::html::write(trace, out)))?;
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
