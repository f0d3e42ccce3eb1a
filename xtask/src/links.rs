//! `cargo xtask links`: what a tensor costs that goes to another process, beside other means and against the
//! goals.
//!
//! The programs that measure are `links/benches/links.rs`, `benches/benches/links.rs` and
//! `benches/python/links`. In each, the means take turns. Each prints its figures as lines, which become
//! tables here. `estafette bench` runs with the feature `links` and without.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::Args;

use crate::peers::measurement::{Measurement, Quantity, Spread, percentile};
use crate::peers::{machine, markdown};
use crate::python::{ALL, Build, Environment, NIXL};
use crate::shell::{self, CommandEnd};

/// A program that still runs after this is killed.
const LIMIT: Duration = Duration::from_secs(400);
/// The most memory that a process has that is killed.
const GIB_MAX: u64 = 4;

/// Beyond which a row misses its goal.
enum Limit {
    /// The median is at most this.
    Median(f64),
    /// Every round is at most this: for what is measured too few times for a percentile.
    Each(f64),
    /// Of a hundred rounds all but one are at most this.
    P99(f64),
    /// The median is at most so much more than another row's.
    More(f64, &'static str),
    /// The median is at most this part of another row's.
    Part(f64, &'static str),
}

use Limit::{Each, Median, More, P99, Part};

/// Every goal: the row, what is known as the least that it can be here, and the goal.
const GOALS: &[(&str, &str, Limit)] = &[
    ("link: send, receive, answer; both awake", "0.24", Median(1.0)),
    ("link: the same, both idle, threads wait", "26", Median(35.0)),
    ("link: stream, window 64, per item", "0.10", Median(0.35)),
    ("Estafette; 1 KB; awake", "0.24", Median(12.0)),
    ("Estafette; 1 MB; awake", "0.24", Median(12.0)),
    ("Estafette; 64 MB; awake", "0.24", Median(12.0)),
    ("Estafette; 1 KB; idle", "26", Median(50.0)),
    ("Estafette; 1 MB; idle", "26", Median(50.0)),
    ("Estafette; 64 MB; idle", "26", Median(50.0)),
    ("Estafette; 1 MB; awake", "", Part(1.0 / 10.0, "torch.multiprocessing, shared before; 1 MB; awake")),
    ("Estafette; 1 MB; awake", "", Part(1.0 / 50.0, "Ray objects; 1 MB; awake")),
    // The goal is below the floor, which is the median of 2,000 such calls after a millisecond.
    ("Rust: from_ticket, returns", "5.1, one `futex` call that wakes a sleeping owner", Median(2.0)),
    ("Rust: from_ticket, ready", "26", Median(40.0)),
    ("Rust: first contact", "200", More(1000.0, "all pages of a segment are mapped")),
    ("bytes copied for a tensor", "0", Each(0.0)),
    // Pages of the tensor would be thousands.
    ("page faults for a tensor", "0", Median(0.05)),
    ("descriptors for 10,000 tensors, beyond segments", "", Each(8.0)),
    ("a waiter is notified of a kill", "0.17", P99(5.0)),
    ("a waiter is notified of the kill of a large process", "0.17", Each(5.0)),
    ("what the killed process used is free, after its end", "0", Each(5.0)),
    ("estafette.ray; 64 MB; awake", "", Part(1.15, "estafette.ray; 1 KB; awake")),
    ("estafette.ray; 64 MB; awake", "", Part(1.0 / 4.0, "Ray objects; 64 MB; awake")),
    ("link between actors of Ray; 1 KB; awake", "0.24", Median(12.0)),
    ("link between actors of Ray; 1 KB; idle", "26", Median(50.0)),
    ("one engine, no link: threads of links", "0", Each(0.0)),
    ("one engine, no link: descriptors", "0", Each(0.0)),
    (WITHOUT_LINKS[0].0, "1", Median(1.01)),
    (WITHOUT_LINKS[1].0, "1", Median(1.01)),
    ("NIXL: tensor of a ticket, 64 MB over TCP", "", Part(1.1, "NIXL: READ by hand, 64 MB over TCP")),
];

/// Workloads of `estafette bench` that run with links and without: the row of the ratio, and their name.
const WITHOUT_LINKS: [(&str, &str); 2] = [
    ("one engine, no link: chain, with the feature / without", "chain"),
    ("one engine, no link: fan, with the feature / without", "fan"),
];
/// Runs of each program for such a ratio.
const RATIOS: usize = 21;

/// Measures tensors that go to other processes, beside other means, and prints each goal as met or missed
///
/// The others are multiprocessing, PyTorch, ZeroMQ, Arrow, iceoryx2, Ray and Dask. It takes minutes, on a
/// machine that does nothing else.
#[derive(Debug, Default, Args)]
pub struct LinksOptions {
    /// An interpreter that has the package and the peers, instead of an environment that is made for it
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// Write the tables to benches/results/DATE-links.md
    #[arg(long)]
    save: bool,
}

/// A row of figures, one for each round.
#[derive(Debug, PartialEq)]
struct Row {
    name: String,
    /// With a space before it, where there is one.
    unit: String,
    figures: Vec<f64>,
    spread: Spread,
}

impl Row {
    /// The row of a line that says `figure`.
    fn of(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.split('\t').collect();
        let &["figure", name, unit, figures] = &fields[..] else { return None };
        let figures: Vec<f64> = figures.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
        let spread = Spread::of(figures.clone())?;
        let unit = if unit.is_empty() { String::new() } else { format!(" {}", unit.replace("us", "µs")) };
        Some(Self { name: name.to_owned(), unit, figures, spread })
    }

    fn p99(&self) -> f64 {
        percentile(self.figures.clone(), 99).expect("a row has figures")
    }

    /// The median, with the least and the greatest where there are several.
    fn text(&self) -> String {
        let Spread { median, min, max } = self.spread;
        let [median, least, greatest] = [median, min, max].map(markdown::figure);
        let unit = &self.unit;
        if self.figures.len() == 1 {
            format!("{median}{unit}")
        } else {
            format!("{median}{unit} ({least} to {greatest})")
        }
    }
}

/// All that was measured, and what was left out.
#[derive(Debug, Default)]
struct Measurements {
    rows: Vec<Row>,
    left_out: Vec<String>,
}

impl Measurements {
    fn row(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name)
    }

    /// Runs a program, and keeps its lines.
    fn run(&mut self, what: &str, command: Command) -> Result<(), String> {
        let (ended, output) = shell::collect(command, LIMIT)?;
        self.rows.extend(output.lines().filter_map(Row::of));
        let left_out = output.lines().filter_map(|line| line.strip_prefix("left out\t"));
        self.left_out.extend(left_out.map(|line| line.replace('\t', ": ")));
        if !matches!(ended, CommandEnd::Exit(status) if status.success()) {
            let last = output.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it printed nothing");
            self.left_out.push(format!("{what}: {ended}: {last}"));
        }
        Ok(())
    }

    /// Runs the workloads in two programs, which take turns.
    fn run_without_links(&mut self, target: &Path) -> Result<(), String> {
        let (with, without) = (target.join("estafette-with-links"), target.join("estafette-without-links"));
        for (program, features) in [(&without, None), (&with, Some("--features=estafette/links"))] {
            let build = ["build", "--release", "--package=estafette-cli"];
            let build: Vec<&str> = build.into_iter().chain(features).collect();
            shell::run(&mut shell::cargo(target, &build))?;
            std::fs::copy(target.join("release/estafette"), program)
                .map_err(|error| format!("{}: {error}", program.display()))?;
        }
        for (row, workload) in WITHOUT_LINKS {
            let median = |program: &PathBuf| {
                let mut command = shell::command(program);
                command.args(["bench", workload, "--n=500000", "--workers=0", "--rounds=5", "--json"]);
                let printed = shell::output(&mut command)?;
                match Measurement::find(&printed, workload)?.quantity("ns_per_op") {
                    Some(Quantity::Found(median)) => Ok(median),
                    _ => Err(format!("`{workload}` has no time")),
                }
            };
            let ratio = |_| Ok(median(&with)? / median(&without)?);
            let figures = (0..RATIOS).map(ratio).collect::<Result<Vec<_>, String>>()?;
            let spread = Spread::of(figures.clone()).expect("there are some");
            self.rows.push(Row { name: row.to_owned(), unit: String::new(), figures, spread });
        }
        Ok(())
    }

    /// True if a row is within a limit, and the limit; nothing if a row is missing.
    fn judge(&self, name: &str, limit: &Limit) -> Option<(bool, String)> {
        let row = self.row(name)?;
        let unit = &row.unit;
        Some(match limit {
            Median(most) => (row.spread.median <= *most, format!("≤ {most}{unit}")),
            P99(most) => {
                (row.p99() <= *most, format!("p99, {}{unit}, ≤ {most}{unit}", markdown::figure(row.p99())))
            }
            Each(most) => (row.spread.max <= *most, format!("each ≤ {most}{unit}")),
            More(more, other) => {
                let most = self.row(other)?.spread.median + more;
                (
                    row.spread.median <= most,
                    format!("≤ {more}{unit} + *{other}*, {}{unit}", markdown::figure(most)),
                )
            }
            Part(part, other) => {
                let most = self.row(other)?.spread.median * part;
                let part =
                    if *part < 1.0 { format!("1/{} of", (1.0 / part).round()) } else { format!("{part} ×") };
                (row.spread.median <= most, format!("≤ {part} *{other}*, {}{unit}", markdown::figure(most)))
            }
        })
    }
}

/// Builds, measures and prints the tables; true when something was measured. A goal that is missed is no
/// failure.
pub fn run(options: &LinksOptions) -> Result<bool, String> {
    let target = shell::target()?;
    let python = match &options.python {
        Some(python) => python.clone(),
        None => {
            let environment = Environment::prepare(ALL)?;
            environment.install_wheel(Build::Release)?;
            environment.python()
        }
    };
    let bench = |package: &str, last: &[&str]| {
        let arguments = ["bench", "--package", package, "--bench", "links"];
        shell::cargo(&target, &[&arguments, last].concat())
    };
    for package in ["estafette-links", "benches"] {
        shell::run(&mut bench(package, &["--no-run"]))?;
    }
    // Described now: the run itself puts load on the machine.
    let machine = machine::describe();
    let gib = memory_gib();
    let mut found = Measurements::default();
    let mut links = bench("estafette-links", &[]);
    links.env("ESTAFETTE_FIGURES", "1").env("ESTAFETTE_LINKS_GIB", gib.to_string());
    println!("links, and kills of processes of {gib} GiB");
    found.run("links", links)?;
    println!("tensors in Rust");
    found.run("tensors in Rust", bench("benches", &[]))?;
    println!("an engine without links");
    if let Err(error) = found.run_without_links(&target) {
        found.left_out.push(format!("an engine without links: {error}"));
    }
    for part in ["local", "workloads", "tickets", "ray", "dask", "nixl"] {
        println!("Python: {part}");
        let mut command = shell::command(&python);
        command.args(["benches/python/links", part]);
        if part == "nixl" {
            match Environment::prepare(NIXL).and_then(|nixl| nixl.packages()) {
                Ok(packages) => command.env("PYTHONPATH", packages),
                Err(error) => {
                    found.left_out.push(format!("nixl: {error}"));
                    continue;
                }
            };
        }
        found.run(part, command)?;
    }
    if found.rows.is_empty() {
        return Err(format!("nothing was measured: {}", found.left_out.join("; ")));
    }
    let report = report(&found, &machine, gib);
    println!("\n{report}");
    if options.save {
        machine::save("links", &report)?;
    }
    Ok(true)
}

/// Memory of a process that is killed: as the goals say, if half of the free memory is enough.
fn memory_gib() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib: u64 = line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0);
    (kib >> 21).clamp(1, GIB_MAX)
}

fn report(found: &Measurements, machine: &str, gib: u64) -> String {
    let mut rows = Vec::new();
    for (name, floor, limit) in GOALS {
        let (measured, goal, met) = match (found.row(name), found.judge(name, limit)) {
            (Some(row), Some((is_met, goal))) => {
                (row.text(), goal, if is_met { "met" } else { "**missed**" })
            }
            _ => ("".to_owned(), "".to_owned(), "not measured"),
        };
        rows.push(vec![(*name).to_owned(), (*floor).to_owned(), goal, measured, met.to_owned()]);
    }
    let mut text = format!(
        "# Tensors between processes\n\n\
         `cargo xtask links`: medians of the rounds, with the least and the greatest. In each program the means take turns. A hand-over \
         goes to another process and back: it ends when the first process may write the tensor again. *Awake*: one hand-over behind the \
         other; *idle*: after a pause of a millisecond or half of one. No process of the Python means is bound to a core. \
         Large processes that are killed have {gib} GiB.\n\n{machine}\n## Goals\n\n{}",
        markdown::table(&["what", "floor", "goal", "measured", ""], &rows)
    );
    let states = ["awake", "idle"];
    let columns: Vec<String> =
        SIZES.iter().flat_map(|size| states.iter().map(move |state| format!("{size}; {state}"))).collect();
    text += &format!("\n## Means, in µs\n\n{}", beside(found, "hand-over", &columns));
    text += &format!(
        "\n## Other workloads, in µs\n\n\
         The mean time of a message, from its write until the next one's. A tensor is written again once all readers of it are done. \
         *Readers*: each reads the first and the last element. *Updated in place*: all elements are changed and read. *List*: the \
         tensors are one message. *Stream*: at most a window of messages is not read yet.\n\n{}",
        beside(found, "means", &WORKLOADS.map(str::to_owned))
    );
    text += "\n## All figures\n\n";
    let others: Vec<Vec<String>> = found
        .rows
        .iter()
        .filter(|row| row.name.split("; ").count() < 3 && !WORKLOADS.iter().any(|it| row.name.ends_with(it)))
        .map(|row| vec![row.name.clone(), row.text()])
        .collect();
    text += &markdown::table(&["what", "measured"], &others);
    text += "\n## Left out\n\n";
    let left_out = if found.left_out.is_empty() { &["nothing".to_owned()][..] } else { &found.left_out };
    left_out.iter().for_each(|line| text += &format!("- {line}\n"));
    text
}

const SIZES: [&str; 3] = ["1 KB", "1 MB", "64 MB"];

/// Workloads of `benches/python/links` other than a hand-over.
const WORKLOADS: [&str; 6] = [
    "4 readers, 1 MB",
    "updated in place, 1 MB",
    "list of 1,000, 1 KB",
    "stream, 1 KB, window 1",
    "stream, 1 KB, window 8",
    "stream, 1 KB, window 64",
];

/// The means that were measured for one of the columns at least, in the order in which that was.
fn means<'a>(found: &'a Measurements, columns: &[impl AsRef<str>]) -> Vec<&'a str> {
    let mut means = Vec::new();
    for (mean, column) in found.rows.iter().filter_map(|row| row.name.split_once("; ")) {
        if columns.iter().any(|it| it.as_ref() == column) && !means.contains(&mean) {
            means.push(mean);
        }
    }
    means
}

/// A table with a row for each of the means, in microseconds.
fn beside(found: &Measurements, what: &str, columns: &[String]) -> String {
    let cell = |mean: &str, column: &String| {
        let row = found.row(&format!("{mean}; {column}"));
        row.map(|row| row.text().replace(" µs", "")).unwrap_or_default()
    };
    let rows: Vec<Vec<String>> = means(found, columns)
        .into_iter()
        .map(|mean| {
            [mean.to_owned()].into_iter().chain(columns.iter().map(|column| cell(mean, column))).collect()
        })
        .collect();
    let columns: Vec<String> = columns.iter().map(|column| column.replace("; ", ", ")).collect();
    let heading: Vec<&str> = [what].into_iter().chain(columns.iter().map(String::as_str)).collect();
    markdown::table(&heading, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lint::source;

    fn found(lines: &[&str]) -> Measurements {
        Measurements { rows: lines.iter().filter_map(|line| Row::of(line)).collect(), left_out: Vec::new() }
    }

    #[test]
    fn lines_become_rows_and_other_output_does_not() {
        let row = Row::of("figure\tEstafette; 1 KB; idle\tus\t3 1.5 2").unwrap();
        assert_eq!((row.text().as_str(), row.spread.median), ("2.00 µs (1.50 to 3.00)", 2.0));
        for other in ["figure\tx\tus\t", "figure\tx\tus\t1 x", "figure x us 1", "left out\tx\ty"] {
            assert_eq!(Row::of(other), None, "{other}");
        }
    }

    #[test]
    fn a_goal_is_met_missed_or_not_measured() {
        let found = found(&["figure\ta\tus\t1 2 30", "figure\tb\tus\t100"]);
        let met = |name, limit| found.judge(name, &limit).map(|(is_met, _)| is_met);
        assert_eq!([met("a", Median(2.0)), met("a", Median(1.9))], [Some(true), Some(false)]);
        let kills: Vec<_> = (0..200).map(|kill| if kill % 100 < 99 { "1" } else { "30" }).collect();
        let kills = self::found(&[&format!("figure\tkills\tms\t{}", kills.join(" "))]);
        let met_by_kills = |limit| kills.judge("kills", &limit).map(|(is_met, _)| is_met);
        assert_eq!([P99(1.0), P99(0.9), Each(1.0)].map(met_by_kills), [Some(true), Some(false), Some(false)]);
        assert_eq!([met("a", Each(30.0)), met("a", Each(29.0))], [Some(true), Some(false)]);
        assert_eq!([met("a", Part(0.02, "b")), met("a", Part(0.01, "b"))], [Some(true), Some(false)]);
        assert_eq!([met("b", More(98.0, "a")), met("b", More(97.0, "a"))], [Some(true), Some(false)]);
        assert_eq!([met("c", Median(1.0)), met("a", Part(1.0, "c"))], [None, None]);
    }

    #[test]
    fn tables_have_a_row_for_each_of_the_means() {
        let found = found(&[
            "figure\tArrow; 1 MB; awake\tus\t1 2 3",
            "figure\tZeroMQ; 4 readers, 1 MB\tus\t5",
            "figure\tlink: send; both awake\tus\t4",
        ]);
        let report = report(&found, "", 1);
        let tables: Vec<&str> = report.split("\n## ").collect();
        let rows = [
            ("Means", "| Arrow "),
            ("Other workloads", "| ZeroMQ "),
            ("All figures", "| link: send; both awake | 4.00 µs"),
        ];
        for (title, row) in rows {
            let with: Vec<_> = tables.iter().filter(|table| table.contains(row)).collect();
            assert!(with.len() == 1 && with[0].starts_with(title), "{report}");
        }
        assert!(report.contains("| 2.00 (1.00 to 3.00) |") && report.contains("| 5.00 "), "{report}");
        assert_eq!(report.matches("5.00").count(), 1, "{report}");
    }

    #[test]
    fn every_row_of_a_goal_and_every_workload_is_one_that_a_program_prints() {
        let root = shell::root();
        let mut files = source::files(&root.join("benches/python/links"), "py").unwrap();
        files.extend(["links/benches/links.rs", "benches/benches/links.rs"].map(|path| root.join(path)));
        let programs: String = files.iter().map(|file| source::read(file).unwrap()).collect();
        for (row, _, _) in GOALS {
            if WITHOUT_LINKS.iter().any(|(name, _)| name == row) {
                continue;
            }
            let part = row.split("; ").next().unwrap_or(row);
            assert!(programs.contains(part), "{row}");
        }
        for workload in WORKLOADS {
            assert!(programs.contains(workload), "{workload}");
        }
    }
}
