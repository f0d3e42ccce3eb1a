//! `cargo xtask test`: set up, run the suites one after the other while later ones are built, end with a line
//! for each.

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::counts::Counts;
use crate::dist;
use crate::python::{self, BORROWED, Build, Contents, Environment, LEGACY};
use crate::shell::{self, CommandEnd};
use crate::suites::{Need, SUITES, Suite, SuiteContext, ahead, niced};

/// Sets up what is missing, runs the suites, and ends with a line for each
#[derive(Debug, Default, Args)]
pub struct TestOptions {
    /// Every suite, with all Python peers (JAX, PyTorch, TensorFlow and others); else the quick ones
    #[arg(long)]
    all: bool,
    /// A skipped suite or test is a failure, unless its reason starts with "no GPU" or "no free-threaded
    /// Python"
    #[arg(long)]
    require: bool,
    /// Only the named suites, which `cargo xtask suites` lists
    #[arg(long = "suite", value_name = "NAME", num_args = 1.., value_parser = PossibleValuesParser::new(SUITES.iter().map(|suite| suite.name)))]
    suites: Vec<String>,
}

impl TestOptions {
    /// Suites named on the command line run even when they are not quick.
    fn chosen(&self) -> Vec<&'static Suite> {
        let named = |suite: &Suite| self.suites.iter().any(|name| name == suite.name);
        let wanted = |suite: &&Suite| {
            let is_whole = suite.part_of.is_empty();
            if self.suites.is_empty() { is_whole && (suite.quick || self.all) } else { named(suite) }
        };
        SUITES.iter().filter(wanted).collect()
    }
}

enum SuiteOutcome {
    Passed(Counts),
    Failed(String),
    Skipped(String),
}

struct Line {
    suite: &'static str,
    outcome: SuiteOutcome,
    took: Duration,
    /// The end of what a command that failed printed.
    last: Vec<String>,
}

impl Line {
    fn of(
        suite: &Suite,
        mut outcome: SuiteOutcome,
        require: bool,
        start: Instant,
        last: Vec<String>,
    ) -> Self {
        if let (true, SuiteOutcome::Skipped(reason)) = (require, &outcome)
            && !excused(reason)
        {
            outcome = SuiteOutcome::Failed(format!("required, but skipped: {reason}"));
        }
        Self { suite: suite.name, outcome, took: start.elapsed(), last }
    }
}

/// Lines of a failed command that are printed again at the end, where a reader of a long log begins.
const LAST_LINES: usize = 40;

/// Runs the chosen suites; true when none failed.
pub fn run(options: &TestOptions) -> Result<bool, String> {
    let target = shell::target()?;
    let quick = !options.all && options.chosen().iter().all(|suite| suite.quick);
    let mut context = SuiteContext { target, quick, ..SuiteContext::default() };
    let mut lines = Vec::new();
    // Each set-up is tried once; if it fails, every suite that needs it reports why.
    let mut set_up = SetUp::downloading(&options.chosen(), &context);
    let ahead = Ahead::start(&options.chosen(), &context);
    let threads = [BESIDE, IDLE].map(|names| SuiteThread::start(names, options.require));
    for suite in options.chosen() {
        let start = Instant::now();
        println!("\n== {}: {}", suite.name, suite.about);
        let mut last = Vec::new();
        let thread = threads.iter().find(|thread| thread.names.contains(&suite.name));
        let outcome = match missing(suite) {
            Some(reason) => SuiteOutcome::Skipped(reason),
            None => match (set_up.prepare(suite, &mut context), thread) {
                (Ok(()), Some(thread)) => {
                    println!("it runs beside the next suites");
                    thread.run(suite, &context)?;
                    continue;
                }
                (Ok(()), None) => {
                    run_suite(suite, &context, options.require, &mut last, &mut |text| print!("{text}"))
                }
                (Err(reason), _) => SuiteOutcome::Failed(format!("no Python environment: {reason}")),
            },
        };
        lines.push(Line::of(suite, outcome, options.require, start, last));
        lines.extend(threads.iter().flat_map(|thread| thread.ended.try_iter()).map(Ran::shown));
    }
    for thread in threads {
        lines.append(&mut thread.finish()?);
    }
    lines.sort_by_key(|line| SUITES.iter().position(|suite| suite.name == line.suite));
    ahead.stop();
    Ok(close(&lines))
}

/// Suites that leave a processor idle: they wait, or compile one example after the other. They run one after
/// the other, and the suites after them at the same time. Ray is not among them: its own limits of time are
/// short.
const BESIDE: &[&str] = &["doc", "c", "dask", "collectives", "nixl", "stubs"];

/// Suites that need a processor and no certain time: models, random programs, and mutants of which each is
/// compiled. They run likewise, at a low priority, in what the other suites leave.
const IDLE: &[&str] = &["loom", "shuttle", "simulation", "property", "mutants"];

/// A thread that runs suites beside others.
struct SuiteThread {
    names: &'static [&'static str],
    suites: mpsc::Sender<(&'static Suite, SuiteContext)>,
    ended: mpsc::Receiver<Ran>,
    runner: JoinHandle<()>,
}

/// A suite that ran beside others, with its output.
struct Ran(&'static Suite, Line, String);

impl Ran {
    /// Prints the output, which nothing interrupts.
    fn shown(self) -> Line {
        let Self(suite, line, output) = self;
        println!("\n== {}: {} (it ran beside other suites)\n{output}", suite.name, suite.about);
        line
    }
}

impl SuiteThread {
    fn start(names: &'static [&'static str], require: bool) -> Self {
        let (suites, given) = mpsc::channel::<(&'static Suite, SuiteContext)>();
        let (ran, ended) = mpsc::channel();
        let runner = std::thread::spawn(move || {
            for (suite, context) in given {
                let start = Instant::now();
                let (mut last, mut output) = (Vec::new(), String::new());
                let outcome =
                    run_suite(suite, &context, require, &mut last, &mut |text| output.push_str(text));
                let line = Line::of(suite, outcome, require, start, last);
                // The receiver is gone where the run has failed.
                let _ = ran.send(Ran(suite, line, output));
            }
        });
        Self { names, suites, ended, runner }
    }

    fn run(&self, suite: &'static Suite, context: &SuiteContext) -> Result<(), String> {
        let gone = |_| format!("the thread that runs `{}` has panicked", suite.name);
        self.suites.send((suite, context.clone())).map_err(gone)
    }

    /// The lines of the suites that are still running or to be run, when they have ended.
    fn finish(self) -> Result<Vec<Line>, String> {
        drop(self.suites);
        let lines = self.ended.iter().map(Ran::shown).collect();
        self.runner
            .join()
            .map_err(|_| "the thread of suites that run beside others has panicked".to_owned())?;
        Ok(lines)
    }
}

/// Builds what later suites run, while the tests of earlier ones leave a processor idle.
struct Ahead {
    stopped: Arc<AtomicBool>,
    builder: JoinHandle<()>,
}

impl Ahead {
    /// The first suite builds for itself, and so do those that are skipped.
    fn start(suites: &[&'static Suite], context: &SuiteContext) -> Self {
        let stopped = Arc::new(AtomicBool::new(false));
        let later: Vec<_> = suites.iter().skip(1).filter(|suite| missing(suite).is_none()).copied().collect();
        let (target, quick, stop) = (context.target.clone(), context.quick, Arc::clone(&stopped));
        let builder = std::thread::spawn(move || {
            for suite in later {
                for command in ahead(suite.name, &target, quick) {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    // The suite's own command shows the failure.
                    let _ = shell::collect(command, suite.limit);
                }
            }
        });
        Self { stopped, builder }
    }

    /// Every suite has had its turn, so whatever is still being built is not needed. It is the last.
    fn stop(self) {
        self.stopped.store(true, Ordering::Relaxed);
        let _ = self.builder.join();
    }
}

/// Excuses that `--require` accepts: a device that the machine does not have, and an interpreter that the
/// package is not built for.
const EXCUSES: [&str; 2] = ["no GPU", "no free-threaded Python"];

fn excused(reason: &str) -> bool {
    EXCUSES.iter().any(|excuse| reason.starts_with(excuse))
}

fn missing(suite: &Suite) -> Option<String> {
    suite.needs.iter().find_map(|need| match need {
        Need::Program(name, remedy) if !shell::answers(name, &["--version"]) => {
            Some(format!("{name} is not installed ({remedy})"))
        }
        // The set-up reports a missing interpreter.
        Need::Contents(LEGACY) => python::interpreter_version().ok().and_then(too_new_for_mxnet),
        _ => None,
    })
}

/// The newest Python that a NumPy before 2.0 exists for which MXNet 1.9.1 can live with.
const MXNET_PYTHON_MAX: (u32, u32) = (3, 12);

fn too_new_for_mxnet((major, minor): (u32, u32)) -> Option<String> {
    let (known_major, known_minor) = MXNET_PYTHON_MAX;
    ((major, minor) > MXNET_PYTHON_MAX).then(|| {
        format!(
            "MXNet 1.9.1 needs NumPy 1.26 or older, which has no wheel for Python {major}.{minor} (newest: \
             {known_major}.{known_minor}; name one in ESTAFETTE_PYTHON)"
        )
    })
}

/// Result of the set-up of what suites need.
struct SetUp {
    /// Fills the environments while the first suites compile, and compiles the wheel while they run.
    downloads: Option<JoinHandle<()>>,
    tried: Vec<(Need, Result<(), String>)>,
    wheel: PathBuf,
}

impl SetUp {
    /// Begins to download what `suites` need. The suite that needs a failed download tries it again, and
    /// reports a failure.
    fn downloading(suites: &[&Suite], context: &SuiteContext) -> Self {
        let mut all = Vec::new();
        for need in suites.iter().filter(|suite| missing(suite).is_none()).flat_map(|suite| suite.needs) {
            let contents = contents(need, context);
            if !all.contains(&contents) {
                all.push(contents);
            }
        }
        let (first, quick) = (context.peers(), context.quick);
        let download = move || {
            for contents in all.into_iter().flatten() {
                let environment = Environment::prepare(contents);
                if quick && contents == first {
                    let _ = environment.and_then(|environment| compile_wheel(&environment));
                }
            }
        };
        Self { downloads: Some(std::thread::spawn(download)), tried: Vec::new(), wheel: PathBuf::new() }
    }

    /// Sets up what `suite` needs and is not there yet.
    fn prepare(&mut self, suite: &Suite, context: &mut SuiteContext) -> Result<(), String> {
        suite.needs.iter().try_for_each(|need| self.once(*need, context))
    }

    fn once(&mut self, need: Need, context: &mut SuiteContext) -> Result<(), String> {
        if let Some((_, tried)) = self.tried.iter().find(|(tried, _)| *tried == need) {
            return tried.clone();
        }
        let tried = match contents(&need, context) {
            Some(contents) => self.set_up(contents, context),
            None => Ok(()),
        };
        self.tried.push((need, tried.clone()));
        tried
    }

    fn set_up(&mut self, contents: Contents, context: &mut SuiteContext) -> Result<(), String> {
        if let Some(downloads) = self.downloads.take() {
            // Downloads that it could not do are done below.
            let _ = downloads.join();
        }
        let is_first = contents == context.peers();
        if !is_first && !contents.bare {
            // For its wheel.
            self.once(Need::Python, context)?;
        }
        let environment = Environment::prepare(contents)?;
        if is_first {
            self.wheel = if context.quick {
                environment.build_wheel(Build::Quick)?
            } else {
                // The wheel of a release.
                dist::wheel(&python::wheel_folder()?, None)?
            };
        }
        if !contents.bare {
            environment.install(&self.wheel)?;
        }
        context.environments.push((contents, environment));
        Ok(())
    }
}

/// Builds the wheel of the quick form. What cargo has compiled here, the build for the suites uses.
fn compile_wheel(environment: &Environment) -> Result<(), String> {
    let build = environment.wheel_command(Build::Quick, &python::wheel_folder()?)?;
    // Above the builds and models that run in what the suites leave: the next suite may wait for it.
    shell::collect(niced(&build, "5", false), WHEEL_LIMIT).map(drop)
}

/// The environment that is needed, if it is one.
fn contents(need: &Need, context: &SuiteContext) -> Option<Contents> {
    match need {
        Need::Python => Some(context.peers()),
        // The quick form runs only what lies in the first environment.
        Need::Contents(BORROWED) if context.quick => None,
        Need::Contents(contents) => Some(*contents),
        Need::Program(..) => None,
    }
}

/// Suites whose commands run at once: each keeps one processor busy, and they share nothing.
const AT_ONCE: &[&str] = &["property", "python", "borrowed"];

/// A build of the wheel that takes longer hangs.
const WHEEL_LIMIT: Duration = Duration::from_secs(20 * 60);

/// The priority of [`IDLE`] suites: above that of builds, so that what is built is used, and a tenth of what
/// the other suites get.
const NICENESS: &str = "10";

#[derive(Default)]
struct Seen {
    /// It has to execute a test.
    counted: bool,
    counts: Counts,
    end: VecDeque<String>,
}

impl Seen {
    fn read_line(&mut self, line: &str) {
        self.counts.read_line(line);
        if self.end.len() == LAST_LINES {
            self.end.pop_front();
        }
        self.end.push_back(line.to_owned());
    }
}

/// Runs the commands of one suite. Their output goes to `show`; the end of what a failed one printed is added
/// to `last`.
fn run_suite(
    suite: &Suite,
    context: &SuiteContext,
    require: bool,
    last: &mut Vec<String>,
    show: &mut dyn FnMut(&str),
) -> SuiteOutcome {
    let mut total = Counts::default();
    let mut problems = Vec::new();
    let deadline = Instant::now() + suite.limit;
    let commands = (suite.commands)(context);
    if commands.is_empty() {
        problems.push("there is nothing to run".to_owned());
    }
    let steps: Vec<Vec<Command>> = match AT_ONCE.contains(&suite.name) {
        true => vec![commands],
        false => commands.into_iter().map(|command| vec![command]).collect(),
    };
    'steps: for commands in steps {
        let is_counted = |command| is_given(command, "test") || suite.counted && !is_given(command, "build");
        let mut seen: Vec<Seen> =
            commands.iter().map(|command| Seen { counted: is_counted(command), ..Seen::default() }).collect();
        let commands = match IDLE.contains(&suite.name) {
            true => commands.iter().map(|command| niced(command, NICENESS, false)).collect(),
            false => commands,
        };
        let left = deadline.saturating_duration_since(Instant::now());
        let all_ended =
            shell::watch_at_once(commands, left, show, |number, line| seen[number].read_line(line));
        for (seen, ended) in seen.into_iter().zip(all_ended) {
            if !matches!(&ended, Ok(CommandEnd::Exit(status)) if status.success()) {
                last.extend(seen.end);
            }
            // Each command of a suite counts for itself, so that models of one crate do not hide that another
            // has none.
            let no_test = seen.counted && seen.counts.executed() == 0 && seen.counts.reasons.is_empty();
            total.merge(seen.counts);
            match ended {
                Ok(CommandEnd::Exit(status)) if status.success() => {
                    if no_test {
                        problems.push("a command executed no test".to_owned());
                    }
                }
                Ok(CommandEnd::Exit(status)) => problems.push(status.to_string()),
                Ok(CommandEnd::OverLimit) => {
                    problems
                        .push(format!("killed after its limit of {} minutes", suite.limit.as_secs() / 60));
                    break 'steps;
                }
                Err(message) => problems.push(message),
            }
        }
    }
    judge(require, total, problems)
}

/// True if the first argument of a command is `what`: cargo's `build` runs no test, its `test` always does.
fn is_given(command: &Command, what: &str) -> bool {
    command.get_args().next().is_some_and(|first| first == what)
}

/// Outcome of a suite by its counts, and by what went wrong in it.
fn judge(require: bool, counts: Counts, mut problems: Vec<String>) -> SuiteOutcome {
    if counts.failed > 0 {
        let names = match counts.failures.join(", ") {
            names if names.is_empty() => names,
            names => format!(" ({names})"),
        };
        problems.insert(0, format!("{} of {} tests failed{names}", counts.failed, counts.executed()));
    }
    if require {
        let refused = counts.reasons.iter().filter(|reason| !excused(reason));
        problems.extend(refused.map(|reason| format!("required, but a test was skipped: {reason}")));
        match counts.unexplained() {
            0 => {}
            left_out => {
                problems.push(format!("required, but {left_out} tests were left out without a reason"))
            }
        }
    }
    match counts.reasons.first() {
        _ if !problems.is_empty() => SuiteOutcome::Failed(problems.join("; ")),
        Some(reason) if counts.executed() == 0 => SuiteOutcome::Skipped(reason.clone()),
        _ => SuiteOutcome::Passed(counts),
    }
}

/// Prints the closing table; true when nothing failed.
fn close(lines: &[Line]) -> bool {
    for line in lines.iter().filter(|line| !line.last.is_empty()) {
        println!("\n== {} failed; its last lines:", line.suite);
        line.last.iter().for_each(|text| println!("{text}"));
    }
    println!("\n== result");
    lines.iter().for_each(|line| println!("{line}"));
    let count = |wanted: fn(&SuiteOutcome) -> bool| lines.iter().filter(|line| wanted(&line.outcome)).count();
    let failed = count(|outcome| matches!(outcome, SuiteOutcome::Failed(_)));
    println!(
        "{} passed, {failed} failed, {} skipped",
        count(|outcome| matches!(outcome, SuiteOutcome::Passed(_))),
        count(|outcome| matches!(outcome, SuiteOutcome::Skipped(_))),
    );
    failed == 0
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<16} ", self.suite)?;
        match &self.outcome {
            SuiteOutcome::Passed(counts) => {
                write!(f, "passed: ")?;
                if counts.executed() > 0 {
                    write!(f, "{} tests, ", counts.executed())?;
                }
                if counts.skipped > 0 {
                    write!(f, "{} skipped, ", counts.skipped)?;
                }
                write!(f, "{:.1} s", self.took.as_secs_f64())?;
                // Reasons of single skipped tests belong beside the word "passed".
                counts.reasons.iter().try_for_each(|reason| write!(f, "; skipped: {reason}"))
            }
            SuiteOutcome::Failed(reason) => write!(f, "failed: {reason} ({:.1} s)", self.took.as_secs_f64()),
            SuiteOutcome::Skipped(reason) => write!(f, "skipped: {reason}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    fn counts(passed: u64, failed: u64, reasons: &[&str]) -> Counts {
        let reasons: Vec<String> = reasons.iter().map(|&reason| reason.to_owned()).collect();
        let left_out = reasons.len() as u64;
        Counts { passed, failed, skipped: left_out, reasons, explained: left_out, ..Counts::default() }
    }

    fn line(outcome: SuiteOutcome) -> String {
        Line { suite: "some", outcome, took: Duration::from_millis(1500), last: Vec::new() }.to_string()
    }

    #[test]
    fn suites_that_run_at_once_exist() {
        for name in AT_ONCE.iter().chain(BESIDE).chain(IDLE) {
            assert!(SUITES.iter().any(|suite| suite.name == *name), "{name}");
        }
    }

    #[test]
    fn names_follow_the_suite_flag_until_the_next_flag() {
        let options: TestOptions = parse(&["--suite", "rust", "doc", "--all", "--require"]).unwrap();
        assert_eq!((options.all, options.require), (true, true));
        assert_eq!(options.suites, ["rust", "doc"]);
        assert!(parse::<TestOptions>(&["rust"]).is_err(), "a name without its flag");
        assert!(parse::<TestOptions>(&["--suite"]).is_err(), "a flag without its name");
        let unknown = parse::<TestOptions>(&["--suite", "rusty"]).unwrap_err();
        assert!(unknown.to_string().contains("'rusty'"), "{unknown}");
    }

    #[test]
    fn a_named_suite_runs_even_when_it_is_not_quick() {
        let slow = SUITES.iter().find(|suite| !suite.quick).expect("some suite is slow").name;
        let names = |arguments: &[&str]| -> Vec<&str> {
            parse::<TestOptions>(arguments).unwrap().chosen().iter().map(|suite| suite.name).collect()
        };
        assert_eq!(names(&["--suite", slow]), [slow]);
        assert!(!names(&[]).contains(&slow));
        let is_whole = |suite: &&Suite| suite.part_of.is_empty();
        assert_eq!(names(&["--all"]).len(), SUITES.iter().filter(is_whole).count(), "each test once");
        assert_eq!(names(&["--suite", "links"]), ["links"]);
    }

    fn run_scripts(counted: bool, commands: fn(&SuiteContext) -> Vec<Command>) -> String {
        let suite = some("some", counted, commands);
        let context = SuiteContext { target: "nowhere".into(), ..SuiteContext::default() };
        match run_suite(suite, &context, false, &mut Vec::new(), &mut |_| ()) {
            SuiteOutcome::Passed(counts) => format!("passed {}", counts.executed()),
            SuiteOutcome::Failed(reason) | SuiteOutcome::Skipped(reason) => reason,
        }
    }

    fn some(
        name: &'static str,
        counted: bool,
        commands: fn(&SuiteContext) -> Vec<Command>,
    ) -> &'static Suite {
        let limit = Duration::from_secs(60);
        Box::leak(Box::new(Suite {
            name,
            about: "",
            quick: true,
            part_of: &[],
            needs: &[],
            counted,
            limit,
            commands,
        }))
    }

    #[test]
    fn suites_beside_others_keep_their_output_and_their_outcomes() {
        let beside = SuiteThread::start(&[], true);
        let context = SuiteContext { target: "nowhere".into(), ..SuiteContext::default() };
        beside.run(some("bad", false, |_| vec![shell::command("false")]), &context).unwrap();
        beside.run(some("good", false, |_| vec![echo("test result: ok. 3 passed")]), &context).unwrap();
        let first = beside.ended.recv().unwrap();
        assert!(matches!(first.1.outcome, SuiteOutcome::Failed(_)));
        let second = beside.ended.recv().unwrap();
        assert!(
            second.2.contains("echo test result") && second.2.ends_with("ok. 3 passed\n"),
            "{}",
            second.2
        );
        assert!(second.1.to_string().starts_with("good             passed: 3 tests"));
        assert!(beside.finish().unwrap().is_empty());
    }

    fn echo(line: &str) -> Command {
        let mut command = shell::command("echo");
        command.arg(line);
        command
    }

    #[test]
    fn a_runner_that_executed_no_test_has_failed_even_beside_one_that_did() {
        let commands =
            |_: &SuiteContext| vec![echo("test result: ok. 3 passed"), echo("test result: ok. 0 passed")];
        assert_eq!(run_scripts(true, commands), "a command executed no test");
        assert_eq!(run_scripts(false, commands), "passed 3");
        assert_eq!(run_scripts(false, |_| Vec::new()), "there is nothing to run");
        let built = |_: &SuiteContext| vec![echo("build"), echo("test result: ok. 3 passed")];
        assert_eq!(run_scripts(true, built), "passed 3", "what builds runs no test");
        let other = |_: &SuiteContext| vec![echo("installed"), echo("test")];
        assert_eq!(
            run_scripts(false, other),
            "a command executed no test",
            "cargo's tests are counted everywhere"
        );
    }

    #[test]
    fn a_command_that_fails_fails_its_suite() {
        let outcome = run_scripts(false, |_| vec![shell::command("false"), echo("more")]);
        assert_eq!(outcome, "exit status: 1");
    }

    #[test]
    fn failed_tests_are_reported_with_the_exit_status() {
        let outcome = line(judge(false, counts(4, 1, &[]), vec!["exit status: 100".into()]));
        assert_eq!(outcome, "some             failed: 1 of 5 tests failed; exit status: 100 (1.5 s)");
    }

    #[test]
    fn skipped_tests_pass_openly_unless_they_are_required() {
        let some = || counts(2, 0, &["no GPU: no driver", "no module named jax"]);
        let open = line(judge(false, some(), Vec::new()));
        assert_eq!(
            open,
            "some             passed: 2 tests, 2 skipped, 1.5 s; skipped: no GPU: no driver; skipped: no module named jax"
        );
        let required = line(judge(true, some(), Vec::new()));
        assert_eq!(
            required,
            "some             failed: required, but a test was skipped: no module named jax (1.5 s)"
        );
        let reasons = ["no GPU: no driver", "no free-threaded Python: this one has its lock"];
        assert!(matches!(judge(true, counts(2, 0, &reasons), Vec::new()), SuiteOutcome::Passed(_)));
    }

    #[test]
    fn tests_left_out_without_a_reason_fail_where_every_test_is_required() {
        let some = || Counts { passed: 2, skipped: 3, explained: 1, ..Counts::default() };
        assert!(matches!(judge(false, some(), Vec::new()), SuiteOutcome::Passed(_)));
        let required = line(judge(true, some(), Vec::new()));
        assert_eq!(
            required,
            "some             failed: required, but 2 tests were left out without a reason (1.5 s)"
        );
    }

    #[test]
    fn mxnet_is_left_out_where_its_numpy_does_not_exist() {
        assert_eq!(too_new_for_mxnet((3, 12)), None);
        assert!(too_new_for_mxnet((3, 13)).is_some_and(|reason| reason.contains("Python 3.13")));
    }

    #[test]
    fn a_suite_whose_every_test_is_skipped_is_skipped() {
        assert_eq!(
            line(judge(true, counts(0, 0, &["no GPU"]), Vec::new())),
            "some             skipped: no GPU"
        );
    }
}
