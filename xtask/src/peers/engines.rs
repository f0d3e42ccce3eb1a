//! The engines that are compared, as data: how each is got, built and called, and what was done so that it
//! looks its best.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::workloads::{Setting, Workload, WorkloadKind};
use crate::python::{Environment, MXNET};
use crate::{install, shell};

/// A peer: a program under `benches/peers` for one engine.
#[derive(Debug)]
pub struct Peer {
    /// Its name on the command line and in tables.
    pub name: &'static str,
    pub about: &'static str,
    /// Settings by which it looks its best, and what its figures are not.
    pub best: &'static str,
    /// Its source under `benches/peers`.
    source: &'static str,
    compiler: &'static str,
    flags: &'static [&'static str],
    /// Name of the library for `pkg-config`.
    library: Option<&'static str>,
    pub packages: &'static [&'static str],
    /// True if it loads MXNet's library, from a Python environment of its own.
    mxnet: bool,
    /// Its own numbers of operations, where those of the table would be too many for it.
    own_n: fn(&Workload) -> Option<u64>,
    /// Settings in which it cannot be measured, and why.
    refuses: fn(&Workload, Setting) -> Option<&'static str>,
}

/// Every peer, in the order of the tables.
pub const PEERS: &[Peer] = &[
    Peer {
        name: "gomp",
        about: "GCC OpenMP tasks with `depend`",
        best: "a pragma for each number of reads, and the submitting thread is one of the team. Its cost grows with \
               what is pending, so the submitting thread waits after every 256 tasks where they share variables. \
               Deferred cannot have that, hence its small n (1,000,000 do not finish in time).",
        source: "openmp.cpp",
        compiler: "g++",
        flags: &["-fopenmp"],
        library: None,
        packages: &["g++"],
        mxnet: false,
        own_n: |workload| (workload.kind == WorkloadKind::Deferred).then_some(20_000),
        refuses: |_, _| None,
    },
    Peer {
        name: "libomp",
        about: "LLVM OpenMP tasks with `depend`",
        best: "the same program as gomp, built by clang, with windows of 1,024 tasks.",
        source: "openmp.cpp",
        compiler: "clang++",
        flags: &["-fopenmp"],
        library: None,
        packages: &["clang", "libomp-dev"],
        mxnet: false,
        own_n: |workload| (workload.kind == WorkloadKind::Deferred).then_some(200_000),
        refuses: |_, setting| {
            let why = "in a team of one it calls each task on the spot and looks at no dependence";
            (setting == Setting::Alone).then_some(why)
        },
    },
    Peer {
        name: "starpu",
        about: "StarPU tasks over data handles",
        best: "handles without data, one codelet per signature, no performance model, scheduler `eager`, at most \
               500 tasks pending at a time. The \
               submitting thread cannot run tasks, so *alone* has one worker beside it, and *all cores* one per core.",
        source: "starpu.cpp",
        compiler: "g++",
        flags: &[],
        library: Some("starpu-1.3"),
        packages: &["g++", "pkg-config", "libstarpu-dev"],
        mxnet: false,
        own_n: |workload| (workload.n > 200_000).then_some(200_000),
        refuses: |_, _| None,
    },
    Peer {
        name: "tbb-flow",
        about: "oneTBB flow graph, a static graph",
        best: "it tracks no data: the program derives the edges before the clock starts, and freeing the nodes is not \
               timed either, so building plus running is a floor and not the cost of a dynamic dependency engine. It has oneTBB's \
               allocator.",
        source: "tbb.cpp",
        compiler: "g++",
        // Nothing calls the allocator by name, so a linker that drops what is not needed would drop it.
        flags: &["-Wl,--no-as-needed", "-ltbbmalloc_proxy", "-ltbbmalloc"],
        library: Some("tbb"),
        packages: &["g++", "pkg-config", "libtbb-dev"],
        mxnet: false,
        own_n: |_| None,
        refuses: |_, _| None,
    },
    Peer {
        name: "mxnet",
        about: "MXNet 1.9.1's engine, through its C interface",
        best: "bare variables, no name, no deleter. *Alone* marks operations `kAsync`, so that those that are ready \
               run in the submitting thread (its one worker takes the others); *all cores* has one worker per core \
               beside the submitting thread, as MXNet's own operators would.",
        source: "mxnet.cpp",
        compiler: "g++",
        flags: &["-ldl"],
        library: None,
        packages: &["g++", "python3-venv"],
        mxnet: true,
        own_n: |_| None,
        refuses: |_, _| None,
    },
];

/// A program that is ready to be measured.
#[derive(Debug)]
pub struct Engine {
    /// Without one, it is the command `estafette bench`.
    peer: Option<&'static Peer>,
    program: PathBuf,
    /// The path of MXNet's library, for the peer that loads it.
    libmxnet: Option<PathBuf>,
}

impl Peer {
    /// Compiles the program, into `target`; an error says what to do about it.
    pub fn build(&'static self, target: &Path) -> Result<Engine, String> {
        let remedy = || format!("on Debian: `apt-get install {}`", self.packages.join(" "));
        if !shell::answers(self.compiler, &["--version"]) {
            return Err(format!("there is no {}; {}", self.compiler, remedy()));
        }
        let mut library_flags = Vec::new();
        if let Some(library) = self.library {
            library_flags =
                pkg_config(library, &["--cflags", "--libs"]).map_err(|why| format!("{why}; {}", remedy()))?;
        }
        let libmxnet = if self.mxnet { Some(libmxnet()?) } else { None };

        let folder = target.join("peers");
        install::make_folder(&folder)?;
        let program = folder.join(format!("peer-{}", self.name));
        let mut compile = shell::command(self.compiler);
        compile.args(["-std=c++20", "-O3", "-march=native", "-Wall", "-Wextra"]);
        compile.arg(format!("benches/peers/{}", self.source)).arg("-o").arg(&program);
        compile.args(self.flags).args(library_flags);
        shell::run(&mut compile).map_err(|why| format!("does not compile ({why}); {}", remedy()))?;
        Ok(Engine { peer: Some(self), program, libmxnet })
    }
}

/// The name of our own engine in tables.
pub const OURS: &str = "estafette";

impl Engine {
    /// Builds our own command, and asks whether it has the benches.
    pub fn ours(target: &Path) -> Result<Self, String> {
        shell::run(&mut shell::cargo(target, &["build", "--release", "--package", "estafette-cli"]))?;
        let program = target.join("release").join("estafette");
        if !shell::answers(&program.to_string_lossy(), &["bench", "--list"]) {
            return Err("`estafette bench --list` does not answer".to_owned());
        }
        Ok(Self { peer: None, program, libmxnet: None })
    }

    pub fn name(&self) -> &'static str {
        self.peer.map_or(OURS, |peer| peer.name)
    }

    /// The reason that it cannot be measured in this setting, if so.
    pub fn refuses(&self, workload: &Workload, setting: Setting) -> Option<&'static str> {
        (self.peer?.refuses)(workload, setting)
    }

    /// One process: a warm-up, and one round that counts.
    pub fn command(&self, workload: &Workload, setting: Setting, cores: usize) -> Command {
        let own = self.peer.and_then(|peer| (peer.own_n)(workload));
        self.call(workload, setting, cores, own.unwrap_or(workload.n))
    }

    /// A run that compares the engine's result with the sequential one, with `n` operations.
    pub fn check(&self, workload: &Workload, setting: Setting, cores: usize, n: u64) -> Command {
        let mut command = self.call(workload, setting, cores, n);
        command.arg("check");
        command
    }

    fn call(&self, workload: &Workload, setting: Setting, cores: usize, n: u64) -> Command {
        let mut command = shell::command(&self.program);
        let (n, threads) = (n.to_string(), setting.threads(cores));
        if self.peer.is_none() {
            let workers = (threads - 1).to_string();
            command.args([
                "bench",
                workload.name,
                "--n",
                &n,
                "--workers",
                &workers,
                "--rounds",
                "1",
                "--json",
            ]);
            return command;
        }
        command.args([workload.name, &n, &threads.to_string(), "1"]);
        if let Some(path) = &self.libmxnet {
            command.env("PEERS_LIBMXNET", path);
        }
        command
    }
}

/// The version of a library that `pkg-config` knows.
pub fn library_version(peer: &Peer) -> Option<String> {
    pkg_config(peer.library?, &["--modversion"]).ok()?.first().cloned()
}

/// Answer of `pkg-config`, word by word.
fn pkg_config(library: &str, questions: &[&str]) -> Result<Vec<String>, String> {
    let answer = shell::output(shell::command("pkg-config").args(questions).arg(library))?;
    Ok(answer.split_whitespace().map(str::to_owned).collect())
}

/// MXNet's library in its environment, which is made if need be.
fn libmxnet() -> Result<PathBuf, String> {
    let environment = Environment::prepare(MXNET)?;
    let script = "import importlib.util as u; print(u.find_spec('mxnet').submodule_search_locations[0])";
    let folder = shell::output(&mut environment.command(&["-c", script]))?;
    let library = Path::new(folder.trim()).join("libmxnet.so");
    if library.is_file() { Ok(library) } else { Err(format!("there is no {}", library.display())) }
}

#[cfg(test)]
mod tests {
    use super::super::workloads::WORKLOADS;
    use super::*;

    #[test]
    fn every_peer_has_its_source_and_a_name_of_its_own() {
        for (index, peer) in PEERS.iter().enumerate() {
            assert!(shell::root().join("benches/peers").join(peer.source).is_file(), "{}", peer.source);
            assert!(PEERS[..index].iter().all(|other| other.name != peer.name && peer.name != OURS));
        }
    }

    #[test]
    fn no_peer_is_given_more_than_the_table_says() {
        for peer in PEERS {
            for workload in WORKLOADS {
                assert!((peer.own_n)(workload).is_none_or(|n| 0 < n && n < workload.n));
            }
        }
    }

    #[test]
    fn ours_is_called_with_one_worker_less_than_there_are_threads() {
        let ours = Engine { peer: None, program: "estafette".into(), libmxnet: None };
        let chain = &WORKLOADS[0];
        let arguments = |setting| {
            let command = ours.command(chain, setting, 4);
            command.get_args().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(arguments(Setting::Alone), "bench chain --n 500000 --workers 0 --rounds 1 --json");
        assert_eq!(arguments(Setting::AllCores), "bench chain --n 500000 --workers 3 --rounds 1 --json");
    }

    #[test]
    fn a_library_that_is_not_there_is_named() {
        assert!(pkg_config("no-such-library", &["--libs"]).is_err());
    }
}
