//! The programs under which calls fail, one for each language.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Languages of programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    Rust,
    C,
    Python,
}

impl Language {
    /// So many calls fail one by one; later ones are sampled. A run in Python takes ten times as long.
    pub fn each(self) -> usize {
        match self {
            Self::Rust => 1_000,
            Self::C => 200,
            Self::Python => 20,
        }
    }
}

/// The library that does the failing, and what the programs are started with.
pub struct Programs {
    failing: PathBuf,
    c: PathBuf,
    python: Option<PathBuf>,
}

impl Programs {
    /// Compiles them into `folder`.
    pub fn make(folder: &Path) -> Self {
        let failing = folder.join("libfail.so");
        compile("fail.c", &failing, |command| {
            command.args(["-shared", "-fPIC"]);
        });
        let c = folder.join("everything");
        // The shared library is built beside this program, under another name than it is installed with.
        let this = std::env::current_exe().expect("the path of this program");
        let library = this.with_file_name("libestafette_c.so");
        for name in ["libestafette.so", "libestafette.so.0"] {
            std::os::unix::fs::symlink(&library, folder.join(name)).expect("a link");
        }
        compile("everything.c", &c, |command| {
            let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bindings/c/include");
            command.arg("-I").arg(header).arg("-L").arg(folder).arg("-lestafette");
            command.arg(format!("-Wl,-rpath,{}", folder.display()));
        });
        let python = std::env::var_os("FAILING_PYTHON").map(PathBuf::from);
        if python.is_none() {
            println!("Python is left out: FAILING_PYTHON names no interpreter");
        }
        Self { failing, c, python }
    }

    /// True if this machine has what this language needs.
    pub fn has(&self, language: Language) -> bool {
        language != Language::Python || self.python.is_some()
    }

    /// Starts the program, with a folder for its output.
    pub fn command(&self, language: Language, folder: &Path) -> Command {
        let mut command = match (language, &self.python) {
            (Language::Rust, _) => {
                let mut command = Command::new(std::env::current_exe().expect("the path of this program"));
                command.arg("--child");
                command
            }
            (Language::C, _) => Command::new(&self.c),
            (Language::Python, python) => {
                let mut command = Command::new(python.as_deref().expect("chosen only with an interpreter"));
                command.arg(source("everything.py"));
                command
            }
        };
        if language != Language::Rust {
            command.env("FAILING_OBJECT", "estafette");
        }
        command.arg(folder).env("LD_PRELOAD", &self.failing);
        command
    }
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../failing-system").join(name)
}

/// Compiles one file. What `more` adds comes after it.
fn compile(name: &str, into: &Path, more: impl FnOnce(&mut Command)) {
    let mut command = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".into()));
    command.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"]);
    command.arg(source(name)).arg("-o").arg(into);
    more(&mut command);
    let status = command.arg("-ldl").status().expect("a C compiler");
    assert!(status.success(), "{command:?}");
}
