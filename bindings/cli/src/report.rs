//! `estafette report`: reports of traces.

use std::error::Error;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use estafette_report::diff::difference;
use estafette_report::shown::shown;
use estafette_report::summary::SortBy;
use estafette_report::terminal::{self, Style};
use estafette_report::{Report, Trace, csv, merge, report, report_about};

/// Columns where neither the command line nor a terminal says how many there are.
const WIDTH_DEFAULT: usize = 100;

/// Report who waited for whom in a trace, and why; of several processes on one time axis; or compare two
/// traces.
#[derive(clap::Args)]
pub(crate) struct ReportArguments {
    /// The trace, or those of several processes of a machine; with `--diff` the two traces, the earlier
    /// first.
    #[arg(value_name = "FILE", required = true, num_args = 1..)]
    files: Vec<PathBuf>,
    /// Compare two traces.
    #[arg(long, conflicts_with_all = ["short", "html", "chrome"])]
    diff: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Print the operations as comma-separated values.
    #[arg(long, conflicts_with_all = ["json", "short", "diff"])]
    csv: bool,
    /// Sort the operations by `waited` (as they are without this), `ran`, `blamed`, `count`, `slack` or
    /// `name`.
    #[arg(long, value_name = "KEY", conflicts_with = "diff", value_parser = sort_by)]
    sort: Option<SortBy>,
    /// Show only what has NAME in it: of the operations, the failures, the worst waits, the run time and the
    /// advice.
    #[arg(long, value_name = "NAME", conflicts_with = "diff")]
    operation: Option<String>,
    /// Print the summary only.
    #[arg(long, conflicts_with = "json")]
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

pub(crate) fn run(request: &ReportArguments, out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    // Other commands take it for the standard output, which has the report.
    if request.html.iter().chain(&request.chrome).any(|path| path == Path::new("-")) {
        return Err("--html and --chrome write to files, not to the standard output: name one".into());
    }
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
        (_, true) => return Err("--diff compares two traces: `estafette report --diff A B`".into()),
        (_, false) => {
            let trace = merge(traces)?;
            let report = request.report(&trace)?;
            if request.csv {
                // A table has no place for it.
                report
                    .missing
                    .iter()
                    .for_each(|missing| eprintln!("estafette report: incomplete: {missing}"));
                csv::operations(&report)
            } else if request.json {
                serde_json::to_string_pretty(&report)? + "\n"
            } else {
                terminal::text(&report, request.style())
            }
        }
    };
    Ok(out.write_all(text.as_bytes())?)
}

const SORT_KEYS: [(&str, SortBy); 6] = [
    ("waited", SortBy::Waited),
    ("ran", SortBy::Ran),
    ("blamed", SortBy::Blamed),
    ("count", SortBy::Count),
    ("slack", SortBy::Slack),
    ("name", SortBy::Name),
];

fn sort_by(key: &str) -> Result<SortBy, String> {
    let found = SORT_KEYS.iter().find(|(name, _)| *name == key);
    found
        .map(|(_, by)| *by)
        .ok_or_else(|| format!("it is one of {}", SORT_KEYS.map(|(name, _)| name).join(", ")))
}

/// A file that is damaged is reported as far as it can be read; one that cannot be read at all is an error.
fn read(path: &Path) -> Result<Trace, String> {
    estafette::trace::read(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidData => format!("{} {error}", path.display()),
        _ => format!("{}: {error}", path.display()),
    })
}

impl ReportArguments {
    /// Writes the files and makes the report that were asked for.
    fn report(&self, trace: &Trace) -> Result<Report, Box<dyn Error>> {
        self.check_files()?;
        if let Some(path) = &self.chrome {
            written(path, estafette_report::chrome::write_file(trace, path))?;
        }
        // The page has everything, whatever is printed.
        let whole = (self.html.is_some() || self.operation.is_none()).then(|| report(trace));
        if let (Some(path), Some(whole)) = (&self.html, &whole) {
            written(path, estafette_report::html::write_file(trace, whole, path))?;
        }
        let mut chosen = match (&self.operation, whole) {
            (None, Some(whole)) => whole,
            (name, _) => about(trace, name.as_deref().unwrap_or_default())?,
        };
        if let Some(by) = self.sort {
            chosen.sort(by);
        }
        Ok(chosen)
    }

    fn check_files(&self) -> Result<(), Box<dyn Error>> {
        if self.chrome.is_some() && self.chrome == self.html {
            return Err("--chrome and --html name the same file".into());
        }
        // A forgotten OUT makes the first of the traces that a shell's pattern names one.
        for path in self.chrome.iter().chain(&self.html) {
            if estafette::trace::read(path).is_ok() {
                let path = path.display();
                return Err(
                    format!("{path} is a trace and is not replaced: name another file to write to").into()
                );
            }
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

/// The report with what names `name` only.
fn about(trace: &Trace, name: &str) -> Result<Report, String> {
    let about = report_about(trace, name);
    if about.operations.is_empty() {
        let all = report(trace).operations;
        let names: Vec<_> = all.iter().map(|row| shown(&row.name).to_string()).collect();
        return Err(format!("no operation is called `{}`; there are {}", shown(name), names.join(", ")));
    }
    Ok(about)
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
