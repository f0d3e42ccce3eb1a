//! Results: checks, figures and skips, printed as they come and written as Markdown.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use estafette::devices::Device;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::setup::Setup;

enum CheckOutcome {
    Passed(String),
    Skipped(String),
    Failed(String),
}

/// A figure of the engine beside its baseline.
pub struct Figure {
    pub quantity: String,
    pub ours: String,
    pub baseline: String,
    pub target: String,
    /// True if the target is met.
    pub met: bool,
}

pub struct Record {
    simulated: bool,
    heading: Vec<(String, String)>,
    checks: Vec<(String, CheckOutcome)>,
    figures: Vec<Figure>,
    /// A file that reports every event to another process, one line of JSON each.
    events: Option<File>,
    /// True if everything was printed before, by the process that found it.
    silent: bool,
}

impl Record {
    pub fn new(simulated: bool) -> Self {
        Self {
            simulated,
            heading: Vec::new(),
            checks: Vec::new(),
            figures: Vec::new(),
            events: None,
            silent: false,
        }
    }

    /// Reports every event from here on in the file `events`.
    pub fn read_events(&mut self, events: &Path) -> Result<(), Failure> {
        self.events = Some(File::options().append(true).open(events)?);
        Ok(())
    }

    /// Takes an event that another process has reported.
    pub fn take(&mut self, event: &Value) {
        self.silent = true;
        self.add_event(event, "");
        self.silent = false;
    }

    /// The same, of things whose names begin with `prefix` here.
    pub fn add_event(&mut self, event: &Value, prefix: &str) {
        let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
        let name = format!("{prefix}{}", text("name"));
        match event["kind"].as_str() {
            Some("passed") => self.passed(&name, &text("remark")),
            Some("skipped") => self.skipped(&name, &text("remark")),
            Some("note") => self.note(&text("name"), &text("remark")),
            Some("figure") => self.figure(Figure {
                quantity: text("name"),
                ours: text("ours"),
                baseline: text("baseline"),
                target: text("target"),
                met: event["met"].as_bool().unwrap_or(false),
            }),
            _ => self.failed(&name, &text("remark")),
        }
    }

    pub fn describe(&mut self, setup: &Setup) {
        let version = setup.driver_version;
        self.note("device", setup.device.name());
        self.note("memory", &format!("{} MiB", setup.device.memory_bytes() >> 20));
        self.note("driver's CUDA version", &format!("{}.{}", version / 1000, version % 1000 / 10));
        self.note("driver", &driver_of_the_system());
        self.note("fences counted by the device", &setup.device.counts().to_string());
        self.note("memory pool", &setup.device.has_pool().to_string());
        self.note("system", &system());
        self.note("Estafette", env!("CARGO_PKG_VERSION"));
    }

    /// Something that was found out about the machine.
    pub fn note(&mut self, name: &str, value: &str) {
        self.say(|| format!("{name}: {value}"));
        self.event(&json!({"kind": "note", "name": name, "remark": value}));
        self.heading.push((name.to_owned(), value.to_owned()));
    }

    fn say(&self, line: impl FnOnce() -> String) {
        if !self.silent {
            println!("{}", line());
        }
    }

    fn event(&mut self, event: &Value) {
        if let Some(file) = &mut self.events {
            // One write, so a reader finds whole lines after a kill. A failed write cannot be reported.
            let _ = file.write_all(format!("{event}\n").as_bytes());
        }
    }

    pub fn passed(&mut self, name: &str, remark: &str) {
        self.add(name, CheckOutcome::Passed(remark.to_owned()));
    }

    pub fn skipped(&mut self, name: &str, reason: &str) {
        self.add(name, CheckOutcome::Skipped(reason.to_owned()));
    }

    pub fn failed(&mut self, name: &str, why: &str) {
        self.add(name, CheckOutcome::Failed(why.to_owned()));
    }

    fn add(&mut self, name: &str, outcome: CheckOutcome) {
        let (word, remark) = outcome.words();
        let behind = if remark.is_empty() { String::new() } else { format!(": {remark}") };
        self.say(|| format!("{word:<8} {name}{behind}"));
        let kind = word.to_lowercase();
        let event = json!({"kind": kind, "name": name, "remark": remark});
        self.event(&event);
        self.checks.push((name.to_owned(), outcome));
    }

    pub fn figure(&mut self, figure: Figure) {
        let warning = if self.simulated { "  [simulator, not a result]" } else { "" };
        let Figure { quantity, ours, baseline, target, met } = &figure;
        let verdict = if *met { "met" } else { "missed" };
        self.say(|| format!("figure   {quantity}: {ours}; {baseline}; target {target}: {verdict}{warning}"));
        let event = json!({
            "kind": "figure", "name": quantity, "ours": ours, "baseline": baseline, "target": target, "met": met,
        });
        self.event(&event);
        self.figures.push(figure);
    }

    /// Skips and missed targets are no failures.
    pub fn all_passed(&self) -> bool {
        !self.checks.iter().any(|(_, outcome)| matches!(outcome, CheckOutcome::Failed(_)))
    }

    pub fn failures(&self) -> usize {
        self.checks.iter().filter(|(_, outcome)| matches!(outcome, CheckOutcome::Failed(_))).count()
    }

    /// All that came out, once more in one place.
    pub fn print_table(&self) {
        println!("\n{}", self.markdown());
        let count = |word| self.checks.iter().filter(|(_, outcome)| outcome.words().0 == word).count();
        println!(
            "{} passed, {} failed, {} skipped, {} figures",
            count("passed"),
            count("FAILED"),
            count("skipped"),
            self.figures.len()
        );
    }

    fn markdown(&self) -> String {
        let mut text = String::new();
        for (name, value) in &self.heading {
            let _ = writeln!(text, "- {name}: {value}");
        }
        text.push_str(
            "\n## Figures\n\n| quantity | ours | baseline, same run | target | |\n|---|---|---|---|---|\n",
        );
        for figure in &self.figures {
            let met = if figure.met { "met" } else { "**missed**" };
            let cells = [&figure.quantity, &figure.ours, &figure.baseline, &figure.target];
            let [quantity, ours, baseline, target] = cells.map(|text| cell(text));
            let _ = writeln!(text, "| {quantity} | {ours} | {baseline} | {target} | {met} |");
        }
        text.push_str("\n## Checks\n\n| check | outcome | |\n|---|---|---|\n");
        for (name, outcome) in &self.checks {
            let (word, remark) = outcome.words();
            let _ = writeln!(text, "| {} | {word} | {} |", cell(name), cell(remark));
        }
        text
    }

    /// Writes the record, which says so if it is of some steps only or of a simulator.
    pub fn write(&self, path: &Path, only: &[String]) -> Result<(), Failure> {
        let name = path.file_stem().map_or_else(Default::default, |stem| stem.to_string_lossy());
        let mut text = format!("# {name}\n\nMade by `cargo xtask gpu`, or by its package.");
        if self.simulated {
            text.push_str(" **On the simulated driver: nothing here is a result.**");
        }
        if !only.is_empty() {
            let _ = write!(text, " Only these steps: {}.", only.join(", "));
        }
        let _ = write!(text, "\n\n{}", self.markdown());
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        Ok(std::fs::write(path, text)?)
    }
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

impl CheckOutcome {
    fn words(&self) -> (&'static str, &str) {
        match self {
            Self::Passed(remark) => ("passed", remark),
            Self::Skipped(reason) => ("skipped", reason),
            Self::Failed(why) => ("FAILED", why),
        }
    }
}

/// The kernel module's description of itself.
fn driver_of_the_system() -> String {
    let file = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    file.lines().next().map_or_else(|| "unknown".to_owned(), |line| line.trim().to_owned())
}

fn system() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown processor");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{cores} cores, {}", model.trim_start_matches([' ', '\t', ':']))
}

/// The median, and the tenth and ninetieth percentile, of measured values.
#[derive(Clone, Copy, Debug)]
pub struct Percentiles {
    pub median: f64,
    pub low: f64,
    pub high: f64,
}

impl Percentiles {
    pub fn of(values: Vec<f64>) -> Self {
        let at = |percent| benches::percentile(values.clone(), percent).unwrap_or(f64::NAN);
        Self { median: at(50), low: at(10), high: at(90) }
    }

    /// In a unit, with the spread behind.
    pub fn show(&self, unit: &str) -> String {
        format!("{:.3} {unit} [{:.3} to {:.3}]", self.median, self.low, self.high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_leave_out_the_rare() {
        let values = (0..=100).map(f64::from).rev().collect();
        let Percentiles { median, low, high } = Percentiles::of(values);
        assert_eq!((low, median, high), (10.0, 50.0, 90.0));
        assert!(Percentiles::of(Vec::new()).median.is_nan());
    }

    #[test]
    fn what_a_process_tells_is_taken_as_it_was() {
        let path = std::env::temp_dir().join(format!("estafette-gpu-events-{}.jsonl", std::process::id()));
        std::fs::write(&path, "").expect("a file in the folder for such");
        let mut told = Record::new(false);
        told.read_events(&path).expect("it is there");
        told.note("device", "a");
        told.failed("bad", "two\nlines");
        told.figure(Figure {
            quantity: "q".into(),
            ours: "1".into(),
            baseline: "2".into(),
            target: "3".into(),
            met: true,
        });
        let events = std::fs::read_to_string(&path).expect("just written");
        std::fs::remove_file(&path).expect("just read");
        let mut taken = Record::new(false);
        for line in events.lines() {
            taken.take(&serde_json::from_str(line).expect("a line of JSON"));
        }
        assert_eq!(taken.markdown(), told.markdown());
        assert_eq!((events.lines().count(), taken.failures()), (3, 1));
    }

    #[test]
    fn a_record_names_what_failed_and_what_was_skipped() {
        let mut record = Record::new(false);
        record.passed("good", "");
        record.skipped("absent", "no `a|b` here");
        assert!(record.all_passed());
        record.failed("bad", "two\nlines");
        assert!(!record.all_passed());
        let path = std::env::temp_dir().join(format!("estafette-gpu-record-{}.md", std::process::id()));
        record.write(&path, &[]).expect("a file in the folder for such");
        let text = std::fs::read_to_string(&path).expect("just written");
        std::fs::remove_file(&path).expect("just read");
        assert!(text.contains("| absent | skipped | no `a\\|b` here |"), "{text}");
        assert!(text.contains("| bad | FAILED | two lines |"), "{text}");
    }
}
