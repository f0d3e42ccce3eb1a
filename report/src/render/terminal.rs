//! The report for people at a terminal. It fits the width, and has colour only where it is asked for.

use std::fmt::Write;

use unicode_width::UnicodeWidthStr;

use crate::analysis::diff::Difference;
use crate::analysis::matrix::Matrix;
use crate::analysis::sentences::duration;
use crate::analysis::summary::{OperationRow, Report};
use crate::model::Nanos;
use crate::model::shown::shown;

/// Rows of a table; the rest is in the JSON.
const ROWS: usize = 12;

/// The least width that tables are made for; narrower terminals wrap.
const WIDTH_MIN: usize = 40;

/// Options of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// Columns of the terminal.
    pub width: usize,
    /// Use ANSI colours.
    pub colour: bool,
    /// Only the headline, the causes, the worst waits and the advice.
    pub short: bool,
}

impl Default for Style {
    fn default() -> Self {
        Self { width: 100, colour: false, short: false }
    }
}

/// The report as text, ending with a line break.
pub fn text(report: &Report, style: Style) -> String {
    page(style, |page| page.report(report))
}

/// Two runs compared, as text.
pub fn difference_text(difference: &Difference, style: Style) -> String {
    page(style, |page| page.difference(difference))
}

fn page(style: Style, fill: impl FnOnce(&mut Page)) -> String {
    let mut page = Page { text: String::new(), style: Style { width: style.width.max(WIDTH_MIN), ..style } };
    fill(&mut page);
    page.text
}

struct Page {
    text: String,
    style: Style,
}

impl Page {
    fn line(&mut self, line: &str) {
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    fn title(&mut self, title: &str) {
        self.text.push('\n');
        if self.style.colour {
            let _ = writeln!(self.text, "\x1b[1m{title}\x1b[0m");
        } else {
            self.line(title);
        }
    }

    /// A paragraph, broken at spaces; further lines are set in by `hang`.
    fn paragraph(&mut self, first: &str, words: &str, hang: usize) {
        let words = shown(words).to_string();
        let mut line = first.to_owned();
        let mut empty = true;
        for word in words.split_whitespace() {
            if !empty && width(&line) + 1 + width(word) > self.style.width {
                self.line(&line);
                line = " ".repeat(hang);
                empty = true;
            }
            if !empty {
                line.push(' ');
            }
            line.push_str(word);
            empty = false;
        }
        self.line(&line);
    }

    fn report(&mut self, report: &Report) {
        self.paragraph("", &report.headline, 0);
        let totals = &report.totals;
        let mut about = format!(
            "{}: {} in {}, {}, {}; ran {}, waited {}",
            shown(&report.program),
            count(totals.operations, "operation"),
            duration(report.duration_ns),
            count(totals.waits, "wait"),
            count(totals.leases, "lease"),
            duration(totals.running_ns),
            duration(totals.waited_ns)
        );
        for (number, what) in [
            (totals.failed, "failed"),
            (totals.cancelled, "cancelled"),
            (totals.skipped, "skipped"),
            (totals.unfinished, "unfinished"),
        ] {
            if number > 0 {
                let _ = write!(about, "; {number} {what}");
            }
        }
        self.paragraph("", &about, 0);
        for clocks in &report.clocks {
            self.paragraph("clocks: ", clocks, 8);
        }
        for missing in &report.missing {
            self.paragraph("incomplete: ", missing, 12);
        }
        self.failures(report);
        self.causes(report);
        self.title("Worst waits");
        for (at, row) in report.worst.iter().enumerate() {
            self.paragraph(&format!("{:3}. ", at + 1), &row.sentence, 5);
        }
        if report.worst.is_empty() {
            self.line("  none");
        }
        self.hand_overs(report);
        self.with_graph(report);
        if !self.style.short {
            self.matrix(&report.matrix);
            self.exchanges(report);
            self.operations(report);
            self.tensors(report);
            self.run_time(report);
        }
        self.advice(report);
    }

    fn failures(&mut self, report: &Report) {
        if report.failures.is_empty() {
            return;
        }
        self.title("First failures");
        for (at, row) in report.failures.iter().enumerate() {
            let times = if row.count > 1 { format!(" ({} times)", row.count) } else { String::new() };
            self.paragraph(&format!("{:3}. ", at + 1), &format!("{}{times}: {}", row.name, row.why), 5);
        }
    }

    fn causes(&mut self, report: &Report) {
        self.title("Causes of waiting, at the root");
        let most = report.causes.iter().map(|row| row.waited_ns).max().unwrap_or(0).max(1);
        let room = self.style.width.saturating_sub(40).min(40);
        for row in &report.causes {
            let filled = (row.waited_ns as f64 / most as f64 * room as f64).round() as usize;
            let bar = "█".repeat(filled);
            let bar = if self.style.colour { format!("\x1b[36m{bar}\x1b[0m") } else { bar };
            let line = format!(
                "  {:<13}{:>9}  {:>6} {}  {bar}",
                shown(&row.cause).to_string(),
                duration(row.waited_ns),
                row.waits,
                if row.waits == 1 { "wait " } else { "waits" }
            );
            self.line(&line);
        }
    }

    fn matrix(&mut self, matrix: &Matrix) {
        if matrix.libraries.is_empty() {
            return;
        }
        self.title("Library by library: rows waited for columns");
        let mut rows = vec![std::iter::once(String::new()).chain(matrix.libraries.iter().cloned()).collect()];
        for (library, cells) in matrix.libraries.iter().zip(&matrix.waited_ns) {
            let cells = cells.iter().map(|time| if *time == 0 { "·".into() } else { duration(*time) });
            rows.push(std::iter::once(library.clone()).chain(cells).collect());
        }
        self.table(&rows);
    }

    fn exchanges(&mut self, report: &Report) {
        if report.exchanges.is_empty() {
            return;
        }
        self.title("Handed over, library by library");
        let titles = ["", "times", "bytes", "copies", "copied bytes", "waited"];
        self.first_rows(titles, &report.exchanges, |row| {
            let numbers = [row.count as u64, row.bytes, row.copies as u64, row.copied_bytes];
            let cells = numbers.map(|number| number.to_string());
            let name = format!("{} → {}", row.producer, row.consumer);
            std::iter::once(name).chain(cells).chain([duration(row.waited_ns)]).collect()
        });
    }

    fn hand_overs(&mut self, report: &Report) {
        if report.hand_overs.is_empty() {
            return;
        }
        self.title("Handed over between streams");
        for row in report.hand_overs.iter().take(ROWS) {
            self.paragraph("  ", &row.sentence(), 4);
        }
        self.more(report.hand_overs.len());
    }

    fn with_graph(&mut self, report: &Report) {
        if report.with_graph.changes.is_empty() {
            return;
        }
        self.title("What Estafette would change");
        let gain = |saves: Nanos| match saves * 100 > report.duration_ns {
            true => format!("the run takes {} less", duration(saves)),
            false => "the run takes as long, since something else holds it up".to_owned(),
        };
        for (at, change) in report.with_graph.changes.iter().enumerate() {
            let text = format!("{}: {}", change.sentence(), gain(change.saves_ns));
            self.paragraph(&format!("{:3}. ", at + 1), &text, 5);
        }
        if report.with_graph.changes.len() > 1 {
            self.paragraph("  ", &format!("all of these: {}", gain(report.with_graph.saves_ns)), 4);
        }
    }

    fn operations(&mut self, report: &Report) {
        // Waits, exports and imports are done by the engine for the program. They are listed apart from what
        // the program has named.
        let is_own = |row: &&OperationRow| matches!(row.kind.as_str(), "operation" | "copy");
        let (own, others): (Vec<_>, Vec<_>) = report.operations.iter().partition(is_own);
        for (title, of_kind) in [("Operations", own), ("Waits, exports and imports", others)] {
            if of_kind.is_empty() {
                continue;
            }
            self.title(title);
            self.first_rows(["", "count", "ran", "waited", "blamed", "slack"], &of_kind, |row| {
                let times = [row.running_ns, row.waited_ns, row.blamed_ns, row.slack_ns].map(duration);
                [row.name.clone(), row.count.to_string()].into_iter().chain(times).collect()
            });
        }
    }

    fn tensors(&mut self, report: &Report) {
        self.title("Tensors, by waiting");
        self.first_rows(["", "bytes", "uses", "waited", "leased"], &report.tensors, |row| {
            let cells = [row.name.clone(), row.bytes.to_string(), row.accesses.to_string()];
            cells.into_iter().chain([row.waited_ns, row.leased_ns].map(duration)).collect()
        });
    }

    fn more(&mut self, rows: usize) {
        if rows > ROWS {
            self.line(&format!("  … and {} more", rows - ROWS));
        }
    }

    fn run_time(&mut self, report: &Report) {
        self.title("What the run time was spent on, along whatever held up the end");
        for row in report.run_time.iter().take(ROWS) {
            self.paragraph(&format!("  {:>9}  ", duration(row.time_ns)), &row.what, 13);
        }
        self.more(report.run_time.len());
        let path = &report.critical_path;
        let names = path.names.iter().take(ROWS).cloned().collect::<Vec<_>>().join(" → ");
        let more = if path.names.len() > ROWS { " → …" } else { "" };
        let text = format!(
            "critical path: {} in {}: {names}{more}",
            duration(path.length_ns),
            count(path.count, "operation")
        );
        self.paragraph("  ", &text, 4);
        let barriers = &report.barriers;
        let text = format!(
            "a global barrier at each of {} would have waited {} more ({} longer, the worst by {})",
            count(barriers.hand_overs, "hand-over"),
            duration(barriers.extra_ns),
            barriers.longer,
            duration(barriers.worst_ns)
        );
        self.paragraph("  ", &text, 4);
    }

    fn advice(&mut self, report: &Report) {
        self.title("What would help most");
        for (at, advice) in report.advice.iter().enumerate() {
            let text = format!("{} (saves at most {})", advice.change, duration(advice.saves_ns));
            self.paragraph(&format!("{:3}. ", at + 1), &text, 5);
        }
        if report.advice.is_empty() {
            self.line("  nothing that this trace shows");
        }
    }

    fn difference(&mut self, difference: &Difference) {
        let change = |before: Nanos, after: Nanos| {
            let sign = match (before, after) {
                (0, 0) => "+0 %".into(),
                (0, _) => "new".into(),
                _ => format!("{:+.0} %", (after as f64 / before as f64 - 1.0) * 100.0),
            };
            vec![duration(before), duration(after), sign]
        };
        let mut rows = vec![words(["", "before", "after", "change"])];
        for (name, both) in [
            ("run time", difference.duration_ns),
            ("waited", difference.waited_ns),
            ("critical path", difference.critical_path_ns),
        ] {
            rows.push(std::iter::once(name.to_owned()).chain(change(both.before, both.after)).collect());
        }
        self.table(&rows);
        for (which, missing) in [("before", &difference.missing_before), ("after", &difference.missing_after)]
        {
            for missing in missing {
                self.paragraph("incomplete: ", &format!("{which}: {missing}"), 12);
            }
        }
        for (title, changes) in [
            ("Waiting by cause", &difference.causes),
            ("Waiting by operation", &difference.operations),
            ("Running by operation", &difference.running),
        ] {
            if changes.is_empty() {
                continue;
            }
            self.title(title);
            self.first_rows(["", "before", "after", "change"], changes, |row| {
                std::iter::once(row.name.clone()).chain(change(row.before, row.after)).collect()
            });
        }
    }

    /// A table of the first things, and how many more there are.
    fn first_rows<T, const N: usize>(
        &mut self,
        titles: [&str; N],
        things: &[T],
        row: impl Fn(&T) -> Vec<String>,
    ) {
        let rows = things.iter().take(ROWS).map(row);
        self.table(&std::iter::once(words(titles)).chain(rows).collect::<Vec<_>>());
        self.more(things.len());
    }

    /// The first column gets what the others leave, and is cut where it must be.
    fn table(&mut self, rows: &[Vec<String>]) {
        let rows: Vec<Vec<String>> =
            rows.iter().map(|row| row.iter().map(|cell| shown(cell).to_string()).collect()).collect();
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let widest =
            |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| width(cell)).max();
        let widths: Vec<usize> = (0..columns).map(|column| widest(column).unwrap_or(0)).collect();
        let others: usize = widths.iter().skip(1).map(|width| width + 2).sum();
        let first =
            widths.first().copied().unwrap_or(0).min(self.style.width.saturating_sub(others + 2).max(8));
        for row in &rows {
            let mut line = String::from("  ");
            for (column, cell) in row.iter().enumerate() {
                if column == 0 {
                    let cell = cut(cell, first);
                    let _ = write!(line, "{cell}{}", " ".repeat(first.saturating_sub(width(&cell))));
                } else {
                    let _ = write!(line, "  {}{cell}", " ".repeat(widths[column] - width(cell)));
                }
            }
            self.line(&line);
        }
    }
}

fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).into()
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// Columns that a terminal takes: two for most characters of Chinese, Japanese and Korean and for emoji, none
/// for combining ones.
fn width(text: &str) -> usize {
    UnicodeWidthStr::width(text)
}

fn cut(text: &str, to: usize) -> String {
    if width(text) <= to {
        return text.to_owned();
    }
    let mut cut = String::new();
    for character in text.chars() {
        cut.push(character);
        if width(&cut) >= to {
            cut.pop();
            break;
        }
    }
    cut.push('…');
    cut
}
