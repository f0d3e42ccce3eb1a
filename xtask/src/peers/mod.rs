//! `cargo xtask peers`: the same workloads on our engine and on others, one after the other in every round.
//!
//! Machines drift, so only figures of one interleaved run are compared: a round runs every engine once, in a
//! process of its own that warms up first. Peers never decide whether a change is good, so this is no part of
//! the tests.

mod engines;
pub mod machine;
pub mod markdown;
pub mod measurement;
mod tables;
mod workloads;

use std::process::Command;
use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::shell::{self, CommandEnd};
use engines::{Engine, OURS, PEERS, Peer};
use measurement::Measurement;
use tables::Results;
use workloads::{WORKLOADS, Workload};

/// A process that still runs after this is killed, and its measurement given up.
const LIMIT: Duration = Duration::from_secs(120);

/// Operations of a workload that is only checked.
const CHECK_N: u64 = 4_000;

/// Runs the benches' workloads on our engine and on others, interleaved, and prints tables of both
///
/// The others are GCC and LLVM OpenMP, StarPU, oneTBB and MXNet's engine. One that cannot be built is
/// reported as missing.
#[derive(Debug, Args)]
pub struct PeersOptions {
    /// Runs of each workload by every engine: five are the fewest whose median does not hang on one of them
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// These peers; ours is always there
    #[arg(long, value_name = "PEER,...", value_delimiter = ',', value_parser = PossibleValuesParser::new(PEERS.iter().map(|peer| peer.name)))]
    only: Vec<String>,
    /// These workloads
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = PossibleValuesParser::new(WORKLOADS.iter().map(|it| it.name)))]
    workloads: Vec<String>,
    /// Measure nothing; compare each peer's result with the sequential one
    #[arg(long)]
    check: bool,
    /// Install the Debian packages that the peers need (apt-get, as root)
    #[arg(long)]
    install: bool,
    /// Write the tables to benches/results/DATE-peers.md
    #[arg(long)]
    save: bool,
}

impl PeersOptions {
    /// The peers that were asked for, in the order of their table.
    fn peers(&self) -> impl Iterator<Item = &'static Peer> {
        PEERS.iter().filter(|peer| self.only.is_empty() || self.only.iter().any(|name| name == peer.name))
    }

    /// The workloads that were asked for, in the order of their table.
    fn workloads(&self) -> impl Iterator<Item = &'static Workload> {
        let named = |it: &Workload| self.workloads.iter().any(|name| name == it.name);
        WORKLOADS.iter().filter(move |it| self.workloads.is_empty() || named(it))
    }
}

/// Installs what was asked for, builds, and checks or measures; true when every check passed or anything was
/// measured.
pub fn run(options: &PeersOptions) -> Result<bool, String> {
    if options.install {
        install(options)?;
    }
    let target = shell::target()?;
    let mut missing = Vec::new();
    let mut built = Vec::new();
    for peer in options.peers() {
        match peer.build(&target) {
            Ok(program) => built.push(program),
            Err(why) => missing.push(format!("{} ({}): {why}", peer.name, peer.about)),
        }
    }
    if options.check {
        let passed = check(options, &built);
        missing.iter().for_each(|line| println!("missing: {line}"));
        return Ok(passed);
    }
    // Described now: the run itself puts load on the machine.
    let machine = machine::describe();
    match Engine::ours(&target) {
        Ok(ours) => built.insert(0, ours),
        Err(why) => missing.push(format!("{OURS} (our own): {why}")),
    }
    if built.is_empty() {
        missing.iter().for_each(|line| println!("missing: {line}"));
        return Err("there is no engine to measure".to_owned());
    }

    let results = measure(options, &built);
    let report = report(options, &results, &machine, &missing);
    println!("\n{report}\n## For the README\n\n{SHORT_CAPTION}\n\n{}", results.short());
    if options.save {
        machine::save("peers", &report)?;
    }
    Ok(true)
}

/// Installs the Debian packages of the peers.
fn install(options: &PeersOptions) -> Result<(), String> {
    let mut packages: Vec<&str> = options.peers().flat_map(|peer| peer.packages).copied().collect();
    packages.sort_unstable();
    packages.dedup();
    let mut command = shell::command("apt-get");
    command.args(["install", "--yes", "--no-install-recommends"]).args(&packages);
    command.env("DEBIAN_FRONTEND", "noninteractive");
    shell::run(&mut command)
}

/// Compares every peer's result with the sequential one, at a small size; true when all are the same.
fn check(options: &PeersOptions, peers: &[Engine]) -> bool {
    let (mut passed, mut failed) = (0, 0);
    for peer in peers {
        for workload in options.workloads() {
            for &setting in workload.settings() {
                let what = format!("{}, {}, {}", peer.name(), workload.name, setting.name());
                if let Some(why) = peer.refuses(workload, setting) {
                    println!("left out: {what}: {why}");
                    continue;
                }
                match output(peer.check(workload, setting, machine::cores(), CHECK_N)) {
                    Ok(_) => passed += 1,
                    Err(why) => {
                        println!("failed: {what}: {why}");
                        failed += 1;
                    }
                }
            }
        }
    }
    println!("peers: {passed} checks passed, {failed} failed");
    failed == 0 && passed > 0
}

/// Runs all rounds. What fails once is given up, and so is what takes too long: the rest of the run goes on.
fn measure(options: &PeersOptions, engines: &[Engine]) -> Results {
    let mut results = Results::default();
    let cores = machine::cores();
    for round in 1..=options.rounds {
        for workload in options.workloads() {
            println!("round {round} of {}: {}", options.rounds, workload.name);
            for engine in engines {
                for &setting in workload.settings() {
                    let series = &mut results.entry(engine.name(), workload, setting).series;
                    if series.trouble.is_some() {
                        continue;
                    }
                    if let Some(why) = engine.refuses(workload, setting) {
                        series.trouble = Some(format!("left out: {why}"));
                        continue;
                    }
                    let found = output(engine.command(workload, setting, cores))
                        .and_then(|output| Measurement::find(&output, workload.name));
                    match found {
                        Ok(measurement) => series.rounds.push(measurement),
                        Err(why) => series.trouble = Some(why),
                    }
                }
            }
        }
    }
    results
}

/// Output of a command, if it ended well and in time.
fn output(command: Command) -> Result<String, String> {
    match shell::collect(command, LIMIT)? {
        (CommandEnd::OverLimit, _) => Err(format!("did not finish in {} s", LIMIT.as_secs())),
        (CommandEnd::Exit(status), output) if status.success() => Ok(output),
        (CommandEnd::Exit(status), output) => {
            let last = output.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it printed nothing");
            Err(format!("{status}: {last}"))
        }
    }
}

/// The whole report, in Markdown.
fn report(options: &PeersOptions, results: &Results, machine: &str, missing: &[String]) -> String {
    let mut text = format!(
        "# Estafette and its peers\n\n\
         Medians over {} interleaved rounds, with the least and the greatest, and × how many times ours that is in the \
         same setting. In each round every engine runs each workload in a new process, which warms up once and keeps \
         the next run; *deferred* counts the first run, and the next one as warm. *Alone*: the submitting thread runs \
         everything, or one worker does where an engine cannot do that. *All cores*: {} threads run operations. Bodies \
         are empty, but for METG. A process may take {} s.\n\n{machine}\n",
        options.rounds,
        machine::cores(),
        LIMIT.as_secs()
    );
    text += &results.tables();
    text += &format!("### Operations per run\n\n{}\n", results.sizes());
    text += "### How each peer was made to look its best\n\n";
    for peer in options.peers() {
        text += &format!("- **{}**, {}: {}\n", peer.name, peer.about, peer.best);
    }
    text += "\n### Missing or given up\n\n";
    let mut troubles = missing.to_vec();
    troubles.extend(results.troubles());
    if troubles.is_empty() {
        troubles.push("nothing".to_owned());
    }
    troubles.iter().for_each(|line| text += &format!("- {line}\n"));
    text += CAVEATS;
    text
}

const SHORT_CAPTION: &str = "Medians; for each engine the better of *alone* and *all cores*.";

const CAVEATS: &str = "\n### Caveats\n\n\
    - Compare figures of one run only, and look at the range before believing a ratio: cores that others use, and \
    workers that sleep in one round and are awake in the next, move a median by a factor of two.\n\
    - METG asks for all cores at once: while something else keeps one of two cores busy, no engine can reach it.\n\
    - Engines with their own n were given fewer operations than ours, because more would take them too long; that is in \
    their favour.\n\
    - Bytes are what the process grew by while everything was pending, so an allocator's slack counts too.\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_choose_peers_and_workloads_in_the_order_of_the_tables() {
        let options: PeersOptions =
            crate::parse(&["--rounds", "7", "--only", "tbb-flow,gomp", "--workloads", "chain", "--save"])
                .unwrap();
        let peers: Vec<&str> = options.peers().map(|peer| peer.name).collect();
        assert_eq!(peers, ["gomp", "tbb-flow"]);
        assert_eq!((options.workloads().count(), options.rounds, options.save), (1, 7, true));
        let all: PeersOptions = crate::parse(&[]).unwrap();
        assert_eq!((all.peers().count(), all.workloads().count()), (PEERS.len(), WORKLOADS.len()));
    }

    #[test]
    fn what_the_options_do_not_know_is_named() {
        for (arguments, expected) in
            [(["--only", "hpx"], "gomp"), (["--workloads", "chain,"], "metg-fft"), (["--rounds", "0"], "'0'")]
        {
            let error = crate::parse::<PeersOptions>(&arguments).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_program_that_fails_is_reported_by_its_last_line() {
        let shell = |script: &str| {
            let mut command = shell::command("sh");
            command.args(["-c", script]);
            command
        };
        assert_eq!(output(shell("echo '{}'")), Ok("{}\n".to_owned()));
        let error = output(shell("echo one; echo two >&2; echo; exit 3")).unwrap_err();
        assert!(error.ends_with("3: two"), "{error}");
    }

    #[test]
    fn the_report_names_what_is_missing() {
        let options: PeersOptions = crate::parse(&["--only", "gomp"]).unwrap();
        let missing = ["gomp: there is no g++".to_owned()];
        let report = report(&options, &Results::default(), "- machine: x\n", &missing);
        assert!(report.contains("### Missing or given up\n\n- gomp: there is no g++\n"), "{report}");
        assert!(report.contains("- machine: x\n"));
    }
}
