//! The suites, as data: what each is called, needs and runs.
//!
//! A suite whose files are missing fails; only a missing tool or device may skip it, and says so.

mod ahead;
mod commands;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

pub use self::ahead::{ahead, niced};
pub use self::commands::{blocks, python_examples};
use self::commands::{
    borrowed, built, c_memcheck, c_programs, candle, cargo, checked, delegate, looks_at_reports, memcheck,
    models, names_in, play_the_driver, portable, pytest, python, random, rust_tests, sanitized_links,
    this_program,
};
use crate::python::{ALL, BORROWED, Contents, Environment, LEGACY, NIXL, OTHER, SMALL};
use crate::shell;

/// Tests that only exist for a model checker.
#[derive(Clone, Copy)]
pub struct ModelSuite {
    /// The checker; its cfg is `estafette_` and this name.
    pub checker: &'static str,
    /// Their packages, and what of them no model runs: arguments for cargo. They are the same for all models
    /// of a checker, as cargo turns on the features that the named packages ask for together.
    pub packages: &'static str,
    /// Targets of those packages.
    pub place: &'static [&'static str],
}

const LOOM: &str = "--package estafette-sync --package estafette-graph --package estafette-devices --package estafette-links \
    --package estafette --no-default-features --features estafette-graph/reduction";
/// As [`LOOM`] in the quick form: for the few models of the engine all of it would be compiled.
const LOOM_WITHOUT_ENGINE: &str = "--package estafette-sync --package estafette-graph --package estafette-devices --package estafette-links \
    --no-default-features --features estafette-graph/reduction";
const SHUTTLE: &str = "--config profile.dev.package.estafette-report.opt-level=0 \
    --config profile.dev.package.estafette-cuda-sim.opt-level=0 \
    --package estafette-devices --package tests";

/// Every place with models.
pub const MODELS: &[ModelSuite] = &[
    ModelSuite {
        checker: "loom",
        packages: LOOM,
        place: &["--lib", "--test", "loom", "--test", "loom_replay"],
    },
    ModelSuite {
        checker: "shuttle",
        packages: SHUTTLE,
        place: &["--test", "schedules", "--test", "protocols"],
    },
];

/// Models that only `--all` runs, as they take longest. Shorter models have the same parts in other pairs.
const LONG_MODELS: &[&str] = &[
    "a_job_that_meets_the_end_of_the_last_slot_is_run",
    "a_second_job_that_meets_a_worker_standing_by_is_run",
    "jobs_of_two_threads_that_meet_a_worker_standing_by_are_run",
    "a_job_that_meets_a_lock_that_is_shared_from_now_on_is_run",
];

/// Whole engines under shuttle, in a suite of their own.
pub const SIMULATION: ModelSuite =
    ModelSuite { checker: "shuttle", packages: SHUTTLE, place: &["--test", "simulation"] };

/// A cargo command with that configuration, for which a script of `xtask/rustc` compiles the packages of the
/// workspace. What they depend on is compiled without it: once for all configurations, in a folder of theirs,
/// as cargo does not tell apart the shared libraries of tests.
pub fn configured(configuration: &str, target: &Path, arguments: &[&str]) -> Command {
    let mut command = shell::cargo(&target.join(configuration), arguments);
    command.env("RUSTC_WORKSPACE_WRAPPER", shell::root().join("xtask/rustc").join(configuration));
    command.env("CARGO_BUILD_BUILD_DIR", target.join("configured"));
    command
}

impl ModelSuite {
    /// These models in the quick form.
    fn quick(&self) -> Self {
        let packages = if self.checker == "loom" { LOOM_WITHOUT_ENGINE } else { self.packages };
        Self { packages, ..*self }
    }

    /// A cargo command on these models.
    pub fn cargo(&self, target: &Path, first: &[&str], rest: &[&str]) -> Command {
        let packages: Vec<&str> = self.packages.split_whitespace().collect();
        let arguments = [first, &packages, self.place, rest].concat();
        configured(&format!("estafette_{}", self.checker), target, &arguments)
    }
}

/// Feature that lets the GPU suite run without a GPU.
pub const SIMULATED: &str = "estafette-gpu-suite/simulator";

/// Settings of the simulated CUDA driver in the runs of its tests: hardware connections of a context,
/// commands that a stream takes, and nanoseconds that a call lasts. Each pair of values that matters comes
/// once. The second run has room for the most commands, and the last connections for the most streams, that a
/// test enqueues on or blocks.
const DRIVERS: [[&str; 3]; 3] = [["1", "16", "50000"], ["8", "2048", "0"], ["256", "16", "0"]];

/// The Rust tests leave out the extension: it has no interpreter to run in. Other suites name the same
/// packages, even where they use one of them: cargo turns on the features that the named packages ask for
/// together, and compiles a dependency again where these differ. The listing of interfaces takes longer to
/// compile than its test would be worth.
pub const TESTED: &[&str] = &["--workspace", "--exclude", "estafette-python", "--exclude", "api-listing"];

/// As [`TESTED`] for what is built optimized, which has the assertions of what keeps order.
const CHECKED: &[&str] =
    &["--profile", "checked", "--package", "tests", "--package", "test-programs", "--package", "examples"];

/// For how many seconds processes are killed at random moments, where that is not quick.
const KILLS_S: &str = "30";

/// The Python tests in parts that run beside each other, by the first letters that each leaves out. Tests of
/// exits mostly sleep.
const PYTHON_PARTS: [&str; 6] = ["!a-c", "!df", "!e", "!g-o", "!p", "a-p"];

/// Tests that meet the platform: fences of both sides, forks, clocks, libraries, memory and threads of the
/// host. They are built without optimization, as most of their time is the compiler's. Of the binary `engine`
/// only leases meet it.
const PORTABLE: &str = "test --config profile.dev.opt-level=0 --no-fail-fast \
    --package estafette-sync --package estafette-devices --package estafette --package tests \
    --lib --test pool --test fork --test conformance --test engine --test process --test shutdown --test trace --test waiting \
    -- --skip devices:: --skip failure:: --skip order:: --skip programs::";

pub struct Suite {
    /// Its name on the command line and in the closing table.
    pub name: &'static str,
    pub about: &'static str,
    /// Part of a plain `test`, which a newcomer waits for.
    pub quick: bool,
    /// The suites whose tests these are. It runs only where it is named.
    pub part_of: &'static [&'static str],
    pub needs: &'static [Need],
    /// A test runner closes each command with counts: if one executed no test, the suite has failed. In all
    /// suites that holds for `cargo test`.
    pub counted: bool,
    /// A suite that still runs after this time hangs, and is killed. Several times what a small machine
    /// needs.
    pub limit: Duration,
    /// Its commands, run one after the other.
    pub commands: fn(&SuiteContext) -> Vec<Command>,
}

/// Something a suite cannot run without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The Python environment, with the wheel of the package installed.
    Python,
    /// A further environment. The wheel is installed in it too, unless it is bare.
    Contents(Contents),
    /// A program, and how to get it.
    Program(&'static str, &'static str),
}

#[derive(Clone, Default)]
pub struct SuiteContext {
    pub target: PathBuf,
    /// The environments that suites have needed so far.
    pub environments: Vec<(Contents, Environment)>,
    /// Only what is quick: the small peers, and builds that the Rust tests have made.
    pub quick: bool,
}

impl SuiteContext {
    /// Contents of the environment of [`Need::Python`].
    pub fn peers(&self) -> Contents {
        if self.quick { SMALL } else { ALL }
    }

    fn python(&self) -> &Environment {
        self.environment(self.peers())
    }

    fn environment(&self, contents: Contents) -> &Environment {
        let known = self.environments.iter().find(|(known, _)| *known == contents);
        &known.expect("set up before the first suite that needs it").1
    }
}

/// Every suite, in the order in which they run. Models and random programs come early, as they run in what
/// the others leave of the processors. The counts of `scale` come when little else runs.
pub const SUITES: &[Suite] = &[
    suite("lint", "formatting, clippy, rustdoc, and what else `cargo xtask lint` looks at", 30, |_| {
        vec![this_program(&["lint"])]
    }),
    suite("rust", "unit and integration tests of the Rust packages", 30, |context| {
        let mut tests = rust_tests(&context.target, &[]);
        if context.quick {
            // Of each kind of random program one; the suite `property` runs many. Of long traces one as well,
            // and eight cases of properties that set no number. Of tensors that come and go a fifth.
            tests
                .env("PROPTEST_CASES", "8")
                .env("ESTAFETTE_SEEDS", "1")
                .env("ESTAFETTE_FEW_EXAMPLES", "1")
                .env("ESTAFETTE_TENSORS", "20000");
            // More threads than processors, as many of the tests wait for a time to pass.
            let threads = std::thread::available_parallelism().map_or(2, NonZeroUsize::get) + 2;
            tests.env("RUST_TEST_THREADS", threads.to_string());
            tests.env("NEXTEST_TEST_THREADS", threads.to_string());
        } else {
            tests.env("ESTAFETTE_KILLS_S", KILLS_S);
        }
        vec![tests]
    })
    .quick()
    .counted(),
    suite("doc", "examples in the documentation of the Rust packages", 20, |context| {
        vec![cargo(&context.target, &["test", "--doc"], TESTED)]
    })
    .quick()
    .counted(),
    suite(
        "loom",
        "every interleaving of the variable protocol and of the device primitives, within loom's bounds",
        30,
        |context| {
            let mut explore = models(&context.target, "loom", context.quick);
            if context.quick {
                // Three, which some models allow, multiply their time. With two, these models take two thirds
                // of the time of all.
                for command in &mut explore {
                    command.env("LOOM_MAX_PREEMPTIONS", "2");
                    LONG_MODELS.iter().for_each(|name| {
                        command.args(["--skip", name]);
                    });
                }
            }
            explore
        },
    )
    .quick()
    .counted(),
    suite("shuttle", "whole pools, devices and protocols of engines under random schedules", 30, |context| {
        models(&context.target, "shuttle", false)
    })
    .counted(),
    suite(
        "simulation",
        "whole engines under schedules, a clock and faults that a seed decides; failures are shortened",
        30,
        |context| {
            let mut simulate = SIMULATION.cargo(&context.target, &["test"], &[]);
            if std::env::var_os("ESTAFETTE_SEEDS").is_none() {
                simulate.env("ESTAFETTE_SEEDS", "5000");
            }
            vec![simulate]
        },
    )
    .counted(),
    suite(
        "property",
        "random programs and random steps against their oracles, optimized, with debug assertions and \
            many seeds",
        30,
        |context| random(&context.target).into(),
    )
    .counted(),
    suite(
        "failing-system",
        "each call of the system fails in turn, in Rust, C and Python: threads, memory, files, the \
            clock; nothing is lost",
        20,
        |context| {
            // The library is the one that the C program uses.
            let build = built(context, &["--lib", "--bin", "failing_system"]);
            let environment = context.python();
            let mut run = shell::command(context.target.join("debug/failing_system"));
            run.env("FAILING_PYTHON", environment.python());
            vec![build, run]
        },
    )
    .needs(&[Need::Python]),
    suite(
        "c",
        "C and C++ programs against the installed library, under AddressSanitizer too; its header and \
            build files",
        20,
        c_programs,
    )
    .quick()
    .needs(&[Need::Python, CPP, CMAKE, PKG_CONFIG]),
    suite("python", "tests of the Python package", 15, |context| {
        // More processes than processors: many of the tests wait for a time to pass.
        let parts = PYTHON_PARTS.map(|of_the_others| {
            let mut tests = pytest(context, &["bindings/python/tests"]);
            tests.args(["--ignore-glob", &format!("*/test_[{of_the_others}]*")]);
            if context.quick {
                tests.env("ESTAFETTE_FEW_EXAMPLES", "1");
            }
            tests
        });
        // The wheel of a release has no kind of the tests.
        let kinds = context.quick.then(|| pytest(context, &["tests/kinds"]));
        parts.into_iter().chain(kinds).collect()
    })
    .quick()
    .needs(&[Need::Python])
    .counted(),
    suite("kinds", "a kind of device that only tests have, in the Python package", 15, |context| {
        let features = ["build", "--package", "estafette-python", "--features", "shared-build,another-kind"];
        let mut tests = pytest(context, &["tests/kinds"]);
        tests.env("ESTAFETTE_EXTENSION", context.target.join("debug/lib_estafette.so"));
        vec![cargo(&context.target, &features, &[]), tests]
    })
    .needs(&[Need::Python])
    .counted(),
    suite("sycl", "SYCL devices on the real runtime, with the processor as the device", 15, |context| {
        let environment = context.python();
        let packages = environment.packages().unwrap_or_default();
        let mut tests = cargo(&context.target, &["test", "--test", "sycl"], TESTED);
        tests.env("ESTAFETTE_DPCTL_LIBRARY", packages.join("dpctl/libDPCTLSyclInterface.so"));
        environment.name_opencl(&mut tests);
        vec![tests]
    })
    .needs(&[Need::Python])
    .counted(),
    suite(
        "gpu-rehearsal",
        "the GPU suite on the simulated driver and in host memory: that it is in order, and no result",
        15,
        |context| {
            let environment = context.python();
            let build = built(context, &["--lib", "--bin", "gpu-suite", "--features", SIMULATED]);
            let mut suite = shell::command(context.target.join("debug/gpu-suite"));
            suite.args(["--simulator", "--files", "tests/gpu/python", "--python"]).arg(environment.python());
            play_the_driver(context, &mut suite);
            // The driver at its slowest: pinning memory and making streams wait for the whole device.
            suite.env("ESTAFETTE_CUDA_SIM_SETUP_WAITS", "1").env("ESTAFETTE_CUDA_SIM_DEPTH", "1024");
            let rehearse =
                |file: &String| python(context, &[&format!("tests/gpu/python/{file}.py"), "--rehearse"]);
            let files =
                names_in("tests/gpu/python", "py").into_iter().filter(|file| file.starts_with("gpu_"));
            let mut commands = vec![build, suite];
            commands.extend(files.map(|file| rehearse(&file)));
            commands
        },
    )
    .needs(&[Need::Python]),
    suite(
        "cuda",
        "CUDA devices on a simulated driver, which finds what nothing ordered, with few connections, \
            with short queues, and with many of both; no GPU",
        15,
        |context| {
            let runs = DRIVERS.map(|[connections, depth, call_ns]| {
                let mut tests = cargo(&context.target, &["test", "--test", "cuda*"], TESTED);
                tests.env("ESTAFETTE_CUDA_SIM_CONNECTIONS", connections);
                tests.env("ESTAFETTE_CUDA_SIM_DEPTH", depth).env("ESTAFETTE_CUDA_SIM_CALL_NS", call_ns);
                tests
            });
            runs.into()
        },
    )
    .counted(),
    suite(
        "cuda-python",
        "CUDA memory and streams in Python, with cuda.core, Numba and doubles, on a simulated driver; \
            no GPU",
        10,
        |context| {
            let build = built(context, &["--lib"]);
            let mut tests = pytest(context, &["bindings/python/cuda"]);
            play_the_driver(context, &mut tests);
            vec![build, tests]
        },
    )
    .needs(&[Need::Python])
    .counted(),
    suite("mxnet", "MXNet 1.9.1 as a peer, in an environment of its own", 5, |context| {
        let environment = context.environment(LEGACY);
        vec![environment.command(&["-m", "pytest", "-rfEs", "bindings/python/tests/test_mxnet.py"])]
    })
    .needs(&[Need::Contents(LEGACY)])
    .counted(),
    suite(
        "other-peers",
        "Warp, PaddlePaddle, OpenVINO, MLX and nanobind as peers, in an environment of their own",
        10,
        |context| {
            let environment = context.environment(OTHER);
            let run = |file: &str| {
                environment.command(&["-m", "pytest", "-rfEs", &format!("bindings/python/tests/{file}.py")])
            };
            vec![run("test_peers"), run("test_other_peers")]
        },
    )
    .needs(&[Need::Contents(OTHER), CPP])
    .counted(),
    suite("links", "links by themselves: fences and memory between processes, deaths, hostile peers", 15, |context| {
        vec![cargo(&context.target, &["test", "--package", "estafette-links", "--features", "nixl", "--tests"], &[])]
    })
    .part_of(&["rust"])
    .counted(),
    suite(
        "processes",
        "tensors between processes of one machine, in Rust and Python: order, deaths at each step, shortages, hostile peers",
        15,
        |context| {
            let targets = ["test", "--test", "links", "--test", "links_kills", "--test", "hostile_peers"];
            let mut tests = cargo(&context.target, &targets, TESTED);
            // One at a time, as some count what the process has.
            tests.args(["--", "--test-threads", "1"]).env("ESTAFETTE_KILLS_S", KILLS_S);
            let files = ["test_processes", "test_processes_staging", "test_tickets"];
            let files = files.map(|file| format!("bindings/python/tests/{file}.py"));
            vec![tests, pytest(context, &files.each_ref().map(String::as_str))]
        },
    )
    .part_of(&["rust", "python"])
    .needs(&[Need::Python])
    .counted(),
    suite(
        "mutants",
        "faults of the protocol of links, one after the other in a copy of the crate: a test or a model catches each",
        20,
        |_| vec![this_program(&["mutants"])],
    ),
    suite(
        "ray",
        "tensors between actors of Ray, on two machines too: the newest version, and the one before in \
            the environment of the other peers",
        15,
        |context| {
            let tests = ["-m", "pytest", "-rfEs", "bindings/python/clusters/test_ray.py"];
            let other = context.environment(OTHER);
            // Tests that take long and ask nothing of Ray's interface for transports run with one version.
            let few = [&tests[..], &["-k", "not thousands and not raylet and not unreachable"]].concat();
            let nixl = context.environment(NIXL).packages().unwrap_or_default();
            let mut runs = vec![python(context, &tests), other.command(&few)];
            for run in &mut runs {
                run.env("PYTHONPATH", &nixl);
            }
            runs
        },
    )
    .needs(&[Need::Python, Need::Contents(OTHER), Need::Contents(NIXL)])
    .counted(),
    suite("dask", "tensors between workers of Dask", 10, |context| {
        vec![pytest(context, &["bindings/python/clusters/test_dask.py"])]
    })
    .needs(&[Need::Python])
    .counted(),
    suite(
        "collectives",
        "collective operations of two processes with Gloo: with an order they agree and fail together, \
            without they do not",
        10,
        |context| vec![pytest(context, &["bindings/python/clusters/test_collectives.py"])],
    )
    .needs(&[Need::Python])
    .counted(),
    suite(
        "nixl",
        "tensors between machines, by NIXL: two network namespaces, for which it must run as root",
        10,
        |context| {
            let mut run = pytest(context, &["bindings/python/clusters/test_nixl.py"]);
            let nixl = context.environment(NIXL);
            run.env("PYTHONPATH", nixl.packages().unwrap_or_default());
            vec![run]
        },
    )
    .needs(&[Need::Python, Need::Contents(NIXL)])
    .counted(),
    suite("borrowed", "the DLPack tests of NumPy and CuPy, on our tensors", 5, borrowed)
        .quick()
        .needs(&[Need::Python, Need::Contents(BORROWED)])
        .counted(),
    suite(
        "stubs",
        "the type stubs of the Python package against the package itself, and type checkers on programs",
        10,
        |context| {
            let allowed = ["--allowlist", "bindings/python/stubs-allowed.txt", "--ignore-unused-allowlist"];
            let settings = ["--mypy-config-file", "bindings/python/stubs-mypy.ini"];
            vec![
                python(context, &[&["-m", "mypy.stubtest", "estafette"][..], &allowed, &settings].concat()),
                pytest(context, &["bindings/python/stubs"]),
            ]
        },
    )
    .needs(&[Need::Python]),
    suite("readme", "the Python examples of the READMEs and of docs", 5, |context| {
        let pages = [
            include_str!("../../README.md"),
            include_str!("../../bindings/python/README.md"),
            include_str!("../../docs/exchange.md"),
        ];
        pages.iter().map(|page| python(context, &["-c", &python_examples(page)])).collect()
    })
    .needs(&[Need::Python]),
    suite(
        "notebooks",
        "the tutorial, the README's example and waits in cells, in a real kernel",
        10,
        |context| vec![pytest(context, &["bindings/python/notebooks"])],
    )
    .needs(&[Need::Python])
    .counted(),
    suite("python-examples", "the Python examples", 10, |context| {
        let examples = names_in("examples/python", "py");
        let run = |name: &String| {
            let mut run = python(context, &[&format!("examples/python/{name}.py")]);
            if name == "sycl" {
                // The environment has a SYCL device, so one that is not found is no reason to skip.
                run.arg("--require");
            }
            run
        };
        examples.iter().map(run).collect()
    })
    .needs(&[Need::Python]),
    suite(
        "delegate",
        "two C++ frameworks that delegate their crossings, and Python, in one process",
        20,
        delegate,
    )
    .needs(&[Need::Python, CPP, CMAKE]),
    suite(
        "reports",
        "what a trace becomes: the file decoded with Perfetto's own schema, the files in Perfetto's UI and \
            in the viewer of chrome://tracing, and the page, without a screen",
        20,
        looks_at_reports,
    )
    .needs(&[Need::Python, CHROMIUM, CHROMEDRIVER]),
    suite("memcheck", "imports and exports with random drops, under valgrind", 20, |context| {
        let mut check = memcheck();
        check.arg(context.target.join("checked/churn")).arg("2000");
        vec![checked(&context.target), check]
    })
    .needs(&[VALGRIND]),
    suite("c-memcheck", "the C programs under valgrind: memcheck, helgrind and drd", 20, c_memcheck)
        .needs(&[VALGRIND]),
    suite(
        "links-asan",
        "processes that write, show, describe and ask for anything, against processes under \
            AddressSanitizer",
        20,
        |context| sanitized_links(&context.target).into(),
    )
    .counted(),
    suite(
        "candle",
        "the adapter of candle, whose crates take longer to compile than all others",
        20,
        |context| {
            // As an argument of cargo the name of a target, and of the documentation tests a filter.
            ["--test", "--doc"].map(|which| candle(&context.target, which)).into()
        },
    )
    .counted(),
    suite(
        "portable",
        "tests of what depends on the platform, with no form that is special to Linux or x86-64",
        20,
        |context| vec![portable(&context.target)],
    )
    .counted(),
    suite(
        "site",
        "the site of the documents: it builds without a warning, no link is dead, and a browser without \
            a network searches it",
        15,
        |context| {
            let mut look = pytest(context, &["docs/site/test_site.py"]);
            look.env("ESTAFETTE_SITE", context.target.join("site"));
            vec![this_program(&["site"]), look]
        },
    )
    .needs(&[Need::Python, CHROMIUM, CHROMEDRIVER]),
    suite("rust-examples", "the Rust examples", 20, |context| {
        let examples = names_in("examples/examples", "rs");
        let run = |name| shell::command(context.target.join("checked/examples").join(name));
        [checked(&context.target)].into_iter().chain(examples.into_iter().map(run)).collect()
    }),
    suite(
        "scale",
        "how the cost of each call grows with what is alive, in instructions counted by valgrind",
        20,
        |context| {
            let count = shell::command(context.target.join("checked/scale"));
            vec![checked(&context.target), count]
        },
    )
    .needs(&[VALGRIND]),
    suite(
        "dist",
        "the release artifacts: crates, wheel, source distribution and C library, as users take them",
        20,
        |_| vec![this_program(&["dist", "--check"])],
    )
    .needs(&[Need::Python, CMAKE, PKG_CONFIG]),
];

const VALGRIND: Need = Need::Program("valgrind", "on Debian: `apt-get install valgrind`");
const CPP: Need = Need::Program("g++", "on Debian: `apt-get install g++`");
const CMAKE: Need = Need::Program("cmake", "on Debian: `apt-get install cmake make`");
const CHROMIUM: Need = Need::Program("chromium", "on Debian: `apt-get install chromium`");
const CHROMEDRIVER: Need = Need::Program("chromedriver", "on Debian: `apt-get install chromium-driver`");
const PKG_CONFIG: Need = Need::Program("pkg-config", "on Debian: `apt-get install pkg-config`");

/// A suite that is not quick, needs nothing and is not counted, with its limit in minutes.
const fn suite(
    name: &'static str,
    about: &'static str,
    minutes: u64,
    commands: fn(&SuiteContext) -> Vec<Command>,
) -> Suite {
    let limit = Duration::from_secs(60 * minutes);
    Suite { name, about, quick: false, part_of: &[], needs: &[], counted: false, limit, commands }
}

impl Suite {
    const fn quick(self) -> Self {
        Self { quick: true, ..self }
    }

    const fn part_of(self, part_of: &'static [&'static str]) -> Self {
        Self { part_of, ..self }
    }

    const fn needs(self, needs: &'static [Need]) -> Self {
        Self { needs, ..self }
    }

    const fn counted(self) -> Self {
        Self { counted: true, ..self }
    }
}

pub fn list() {
    for suite in SUITES {
        let mut needs: Vec<&str> = suite
            .needs
            .iter()
            .map(|need| match need {
                Need::Contents(LEGACY) => "Python 3.11 or 3.12",
                Need::Contents(BORROWED) => "wheels with tests",
                Need::Contents(NIXL) => "NIXL",
                Need::Python | Need::Contents(_) => "Python",
                Need::Program(name, _) => name,
            })
            .collect();
        if needs.is_empty() {
            needs.push("nothing");
        }
        let quick = if suite.quick { "quick" } else { "" };
        let part_of = suite.part_of.iter().map(|whole| format!("; part of {whole}")).collect::<String>();
        println!("{:<16} {:<5} {} (needs {}{part_of})", suite.name, quick, suite.about, needs.join(", "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lint::source;

    #[test]
    fn names_of_suites_are_unique_and_fit_their_column() {
        let mut names: Vec<_> = SUITES.iter().map(|suite| suite.name).collect();
        assert!(names.iter().all(|name| name.len() <= 16));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), SUITES.len());
    }

    #[test]
    fn what_a_suite_is_a_part_of_is_a_whole_suite() {
        for whole in SUITES.iter().flat_map(|suite| suite.part_of) {
            assert!(SUITES.iter().any(|suite| suite.name == *whole && suite.part_of.is_empty()), "{whole}");
        }
    }

    #[test]
    fn each_long_model_is_there() {
        let text = source::read(&shell::root().join("devices/src/cpu/models.rs")).expect("it is text");
        for model in LONG_MODELS {
            assert!(text.contains(&format!("fn {model}()")), "{model}");
        }
    }

    #[test]
    fn each_package_that_is_named_for_loom_has_models() {
        for package in LOOM.split_whitespace().filter_map(|word| word.strip_prefix("estafette")) {
            let folder = if package.is_empty() { "engine" } else { &package[1..] };
            if package.contains('/') {
                // A feature.
                continue;
            }
            let sources = source::files(&shell::root().join(folder).join("src"), "rs").expect("it is there");
            let mut texts = sources.iter().map(|path| source::read(path).expect("it is text"));
            assert!(texts.any(|text| text.contains("mod models")), "{folder} has no model");
        }
    }
}
