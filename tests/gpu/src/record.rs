//! What came out: checks, figures and skips, printed as they come and written as Markdown.

use std::fmt::Write;
use std::path::Path;

use estafette::devices::Device;

use crate::failure::Failure;
use crate::setup::Setup;

enum Outcome {
    Passed(String),
    Skipped(String),
    Failed(String),
}

/// A figure of ours beside what it is compared with.
pub struct Figure {
    pub quantity: String,
    pub ours: String,
    pub baseline: String,
    pub target: String,
    /// Whether the target is met.
    pub met: bool,
}

pub struct Record {
    simulated: bool,
    heading: Vec<(String, String)>,
    checks: Vec<(String, Outcome)>,
    figures: Vec<Figure>,
}

impl Record {
    pub fn new(setup: &Setup) -> Self {
        let version = setup.driver_version;
        let heading = vec![
            ("device".to_owned(), setup.device.name().to_owned()),
            ("memory".to_owned(), format!("{} MiB", setup.device.memory_bytes() >> 20)),
            ("driver's CUDA version".to_owned(), format!("{}.{}", version / 1000, version % 1000 / 10)),
            ("driver".to_owned(), driver_of_the_system()),
            ("fences counted by the device".to_owned(), setup.device.counts().to_string()),
            ("memory pool".to_owned(), setup.device.has_pool().to_string()),
            ("system".to_owned(), system()),
        ];
        let record = Self { simulated: setup.simulated, heading, checks: Vec::new(), figures: Vec::new() };
        for (name, value) in &record.heading {
            println!("{name}: {value}");
        }
        record
    }

    /// Something that was found out about the machine.
    pub fn note(&mut self, name: &str, value: &str) {
        println!("{name}: {value}");
        self.heading.push((name.to_owned(), value.to_owned()));
    }

    pub fn passed(&mut self, name: &str, remark: &str) {
        self.add(name, Outcome::Passed(remark.to_owned()));
    }

    pub fn skipped(&mut self, name: &str, reason: &str) {
        self.add(name, Outcome::Skipped(reason.to_owned()));
    }

    pub fn failed(&mut self, name: &str, why: &str) {
        self.add(name, Outcome::Failed(why.to_owned()));
    }

    fn add(&mut self, name: &str, outcome: Outcome) {
        let (word, remark) = outcome.words();
        println!("{word:<8} {name}{}", if remark.is_empty() { String::new() } else { format!(": {remark}") });
        self.checks.push((name.to_owned(), outcome));
    }

    pub fn figure(&mut self, figure: Figure) {
        let warning = if self.simulated { "  [simulator, not a result]" } else { "" };
        let Figure { quantity, ours, baseline, target, met } = &figure;
        let verdict = if *met { "met" } else { "missed" };
        println!("figure   {quantity}: {ours}; {baseline}; target {target}: {verdict}{warning}");
        self.figures.push(figure);
    }

    /// Skips and missed targets are no failures.
    pub fn all_passed(&self) -> bool {
        !self.checks.iter().any(|(_, outcome)| matches!(outcome, Outcome::Failed(_)))
    }

    pub fn print_summary(&self) {
        let count = |word| self.checks.iter().filter(|(_, outcome)| outcome.words().0 == word).count();
        println!(
            "{} passed, {} failed, {} skipped, {} figures",
            count("passed"),
            count("FAILED"),
            count("skipped"),
            self.figures.len()
        );
    }

    pub fn write(&self, path: &Path) -> Result<(), Failure> {
        let name = path.file_stem().map_or_else(Default::default, |stem| stem.to_string_lossy());
        let mut text = format!("# {name}\n\nMade by `cargo xtask gpu`, or by its package.\n\n");
        for (name, value) in &self.heading {
            let _ = writeln!(text, "- {name}: {value}");
        }
        text.push_str(
            "\n## Figures\n\n| quantity | ours | baseline, same run | target | |\n|---|---|---|---|---|\n",
        );
        for figure in &self.figures {
            let met = if figure.met { "met" } else { "**missed**" };
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {met} |",
                figure.quantity, figure.ours, figure.baseline, figure.target
            );
        }
        text.push_str("\n## Checks\n\n| check | outcome | |\n|---|---|---|\n");
        for (name, outcome) in &self.checks {
            let (word, remark) = outcome.words();
            let _ = writeln!(text, "| {name} | {word} | {} |", remark.replace('|', "\\|").replace('\n', " "));
        }
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        Ok(std::fs::write(path, text)?)
    }
}

impl Outcome {
    fn words(&self) -> (&'static str, &str) {
        match self {
            Self::Passed(remark) => ("passed", remark),
            Self::Skipped(reason) => ("skipped", reason),
            Self::Failed(why) => ("FAILED", why),
        }
    }
}

/// What the kernel module says of itself.
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

/// Median and the tenth and ninetieth part of measured values.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    pub median: f64,
    pub low: f64,
    pub high: f64,
}

impl Spread {
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |part: usize| values.get(values.len() * part / 10).copied().unwrap_or(f64::NAN);
        Self { median: at(5), low: at(1), high: at(9) }
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
    fn a_spread_leaves_out_the_rare() {
        let values = (0..=100).map(f64::from).rev().collect();
        let Spread { median, low, high } = Spread::of(values);
        assert_eq!((low, median, high), (10.0, 50.0, 90.0));
        assert!(Spread::of(Vec::new()).median.is_nan());
    }

    #[test]
    fn a_record_names_what_failed_and_what_was_skipped() {
        let mut record =
            Record { simulated: false, heading: Vec::new(), checks: Vec::new(), figures: Vec::new() };
        record.passed("good", "");
        record.skipped("absent", "no `a|b` here");
        assert!(record.all_passed());
        record.failed("bad", "two\nlines");
        assert!(!record.all_passed());
        let path = std::env::temp_dir().join(format!("estafette-gpu-record-{}.md", std::process::id()));
        record.write(&path).expect("a file in the folder for such");
        let text = std::fs::read_to_string(&path).expect("just written");
        std::fs::remove_file(&path).expect("just read");
        assert!(text.contains("| absent | skipped | no `a\\|b` here |"), "{text}");
        assert!(text.contains("| bad | FAILED | two lines |"), "{text}");
    }
}
