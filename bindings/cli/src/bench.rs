//! `estafette bench`: runs workloads and prints what they measure. The workloads are in the package
//! `benches`.

use std::error::Error;
use std::io::{self, Write};
use std::str::FromStr;

use benches::{Record, Settings, WORKLOADS, Workload, named};
use estafette::bindings;
use estafette::engine::WORKERS_MAX;
use estafette::trace::{Recorder, TraceOptions};

/// Memory of the recorder with `--trace`: enough for a few million operations.
const TRACE_BYTES: usize = 4 << 30;

/// Measured by a program of its own.
const SCRIPTS: &[(&str, &str)] = &[("python", "benches/python/bench.py")];

/// Measure a workload, or each of a group.
///
/// A workload runs once to warm up and then ROUNDS times; the figures are the median and the spread.
#[derive(clap::Args)]
pub(crate) struct BenchArguments {
    /// The workload or the group; `--list` shows them.
    #[arg(required_unless_present = "list")]
    name: Option<String>,
    /// List the workloads.
    #[arg(long)]
    list: bool,
    /// Print one JSON object per workload.
    #[arg(long)]
    json: bool,
    /// Operations per run. Default: the workload's.
    #[arg(long, value_parser = within::<usize, 1, 100_000_000>)]
    n: Option<usize>,
    /// Workers of the engine; with 0 the submitting thread runs everything. Default: the workload's.
    #[arg(long, value_parser = within::<usize, 0, { WORKERS_MAX as u64 }>)]
    workers: Option<usize>,
    /// Nanoseconds that each body takes. Default: 0.
    #[arg(long, value_name = "NS", value_parser = within::<u64, 0, 1_000_000_000>)]
    body: Option<u64>,
    /// Measured runs.
    #[arg(long, default_value_t = 5, value_parser = within::<usize, 0, 100_000>)]
    rounds: usize,
    /// Measure while stalls are recorded.
    #[arg(long)]
    trace: bool,
}

pub(crate) fn run(request: &BenchArguments, out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    if request.list {
        return Ok(list(out)?);
    }
    let workloads = request.workloads()?;
    if !request.json {
        writeln!(out, "{}", Record::heading())?;
    }
    for workload in workloads {
        let recorder = request.trace.then(|| {
            let memory_max = Some(TRACE_BYTES);
            Recorder::open(TraceOptions { memory_max, ..TraceOptions::default() })
        });
        let recorder = recorder.transpose()?;
        let record = workload.measure(&request.settings(workload))?;
        if let Some(lost) = recorder.map(|recorder| bindings::lost_events(&recorder)).filter(|lost| *lost > 0)
        {
            return Err(format!(
                "the recorder has lost {lost} events, which cost less than those it kept; use fewer rounds or a smaller --n"
            )
            .into());
        }
        writeln!(out, "{}", if request.json { record.json() } else { record.text() })?;
    }
    Ok(())
}

impl BenchArguments {
    /// The workloads of the given name that can do what is asked.
    fn workloads(&self) -> Result<Vec<&'static Workload>, String> {
        let name = self.name.as_deref().unwrap_or_default();
        if let Some((name, script)) = SCRIPTS.iter().find(|(script, _)| *script == name) {
            return Err(format!("the workload `{name}` is a script: run `python {script}`"));
        }
        let workloads = named(name);
        if workloads.is_empty() {
            return Err(format!("no workload `{name}`; `estafette bench --list` shows them"));
        }
        match workloads.iter().find(|workload| self.body.is_some() && !workload.has_body) {
            Some(workload) => Err(format!("`--body` means nothing to the workload `{}`", workload.name)),
            None => Ok(workloads),
        }
    }

    fn settings(&self, workload: &Workload) -> Settings {
        Settings {
            n: self.n.unwrap_or(workload.n),
            workers: self.workers.unwrap_or_else(workload.workers),
            body_ns: self.body.unwrap_or(0),
            rounds: self.rounds,
        }
    }
}

/// Parses a whole number within limits. A number beyond them is a slip, and the machine would pay for it.
fn within<T: FromStr + PartialOrd + TryFrom<u64>, const LEAST: u64, const MOST: u64>(
    text: &str,
) -> Result<T, String> {
    let limit = |limit: u64| T::try_from(limit).ok();
    match text.parse() {
        Ok(number)
            if limit(LEAST).is_some_and(|least| number >= least)
                && limit(MOST).is_some_and(|most| number <= most) =>
        {
            Ok(number)
        }
        _ => Err(format!("not a whole number from {LEAST} to {MOST}")),
    }
}

fn list(out: &mut impl Write) -> io::Result<()> {
    for Workload { name, about, n, workers, .. } in WORKLOADS {
        writeln!(out, "{name:<22} {about} (n {n}, workers {})", workers())?;
    }
    for (name, script) in SCRIPTS {
        writeln!(out, "{name:<22} calls from Python: run `python {script}`")?;
    }
    Ok(())
}
