//! `estafette bench`: runs workloads and prints what they measure. The workloads are in the package `benches`.

use std::error::Error;
use std::str::FromStr;

use benches::{Record, Settings, WORKLOADS, Workload, named};
use estafette::engine::WORKERS_MAX;
use estafette::trace::{Recorder, TraceOptions};
use lexopt::prelude::*;

/// Measured runs unless told otherwise: an odd number, so that the median is one of them.
const ROUNDS_DEFAULT: usize = 5;

/// Limits of the options. Beyond them a number is a slip, and the machine would pay for it.
const N_MAX: usize = 100_000_000;
const BODY_NS_MAX: u64 = 1_000_000_000;
const ROUNDS_MAX: usize = 100_000;

/// Memory of the recorder with `--trace`: enough for a few million operations.
const TRACE_BYTES: usize = 4 << 30;

/// Measured by a program of its own.
const SCRIPTS: &[(&str, &str)] = &[("python", "benches/python/bench.py")];

/// What the command line asks for; what it leaves out is the workload's to say.
#[derive(Default)]
struct Request {
    name: Option<String>,
    list: bool,
    json: bool,
    n: Option<usize>,
    workers: Option<usize>,
    body_ns: Option<u64>,
    rounds: Option<usize>,
    trace: bool,
}

pub(crate) fn run(arguments: &mut lexopt::Parser) -> Result<(), Box<dyn Error>> {
    let request = Request::parse(arguments)?;
    if request.list {
        list();
        return Ok(());
    }
    let workloads = request.workloads()?;
    if !request.json {
        println!("{}", Record::heading());
    }
    for workload in workloads {
        let recorder = request.trace.then(|| {
            let memory_max = Some(TRACE_BYTES);
            Recorder::open(TraceOptions { memory_max, ..TraceOptions::default() })
        });
        let recorder = recorder.transpose()?;
        let record = workload.measure(&request.settings(workload))?;
        if let Some(lost) = recorder.map(|recorder| recorder.lost()).filter(|lost| *lost > 0) {
            return Err(format!(
                "the recorder has lost {lost} entries, which cost less than those it kept; use fewer rounds or a smaller --n"
            )
            .into());
        }
        println!("{}", if request.json { record.json() } else { record.text() });
    }
    Ok(())
}

impl Request {
    fn parse(arguments: &mut lexopt::Parser) -> Result<Self, Box<dyn Error>> {
        let mut request = Self::default();
        while let Some(argument) = arguments.next()? {
            match argument {
                Long("list") => request.list = true,
                Long("json") => request.json = true,
                Long("trace") => request.trace = true,
                Long("n") => request.n = Some(number(arguments, "--n", 1, N_MAX)?),
                Long("workers") => request.workers = Some(number(arguments, "--workers", 0, WORKERS_MAX)?),
                Long("body") => request.body_ns = Some(number(arguments, "--body", 0, BODY_NS_MAX)?),
                Long("rounds") => request.rounds = Some(number(arguments, "--rounds", 0, ROUNDS_MAX)?),
                Value(name) if request.name.is_none() => request.name = Some(name.string()?),
                other => return Err(other.unexpected().into()),
            }
        }
        Ok(request)
    }

    /// The workloads of the given name that can do what is asked.
    fn workloads(&self) -> Result<Vec<&'static Workload>, String> {
        let Some(name) = &self.name else {
            return Err("`bench` needs the name of a workload; `estafette bench --list` shows them".into());
        };
        if let Some((name, script)) = SCRIPTS.iter().find(|(script, _)| script == name) {
            return Err(format!("the workload `{name}` is a script: run `python {script}`"));
        }
        let workloads = named(name);
        if workloads.is_empty() {
            return Err(format!("no workload `{name}`; `estafette bench --list` shows them"));
        }
        match workloads.iter().find(|workload| self.body_ns.is_some() && !workload.has_body) {
            Some(workload) => Err(format!("`--body` means nothing to the workload `{}`", workload.name)),
            None => Ok(workloads),
        }
    }

    fn settings(&self, workload: &Workload) -> Settings {
        Settings {
            n: self.n.unwrap_or(workload.n),
            workers: self.workers.unwrap_or_else(workload.workers),
            body_ns: self.body_ns.unwrap_or(0),
            rounds: self.rounds.unwrap_or(ROUNDS_DEFAULT),
        }
    }
}

/// The whole number that follows an option.
fn number<T>(arguments: &mut lexopt::Parser, option: &str, least: T, most: T) -> Result<T, Box<dyn Error>>
where
    T: FromStr + PartialOrd + std::fmt::Display,
{
    let text = arguments.value()?;
    let text = text.to_string_lossy();
    match text.parse() {
        Ok(number) if number >= least && number <= most => Ok(number),
        _ => Err(format!("`{option}` takes a whole number from {least} to {most}, not `{text}`").into()),
    }
}

fn list() {
    for Workload { name, about, n, workers, .. } in WORKLOADS {
        println!("{name:<22} {about} (n {n}, workers {})", workers());
    }
    for (name, script) in SCRIPTS {
        println!("{name:<22} calls from Python: run `python {script}`");
    }
}
