//! The private Python environment: which interpreter, what is installed, and the wheel of the package.
//!
//! Environments are ignored by git. Each holds a copy of the locked requirements that it was made from; when
//! those change, pip brings it up to date in place.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::lint::source::read;
use crate::pgo::Trained;
use crate::shell::{self, CommandEnd};
use crate::{dist, install};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contents {
    folder: &'static str,
    /// The requirement files, without their extension.
    pub requirements: &'static str,
    /// Nothing that these depend on.
    pub bare: bool,
}

const fn with_dependencies(folder: &'static str, requirements: &'static str) -> Contents {
    Contents { folder, requirements, bare: false }
}

const fn bare(folder: &'static str, requirements: &'static str) -> Contents {
    Contents { folder, requirements, bare: true }
}

/// NumPy, tvm-ffi, ONNX Runtime, pandas, Zarr, Pillow and the test tools.
pub const SMALL: Contents = with_dependencies(".venv-small", "tests/python-env/small");
/// JAX, PyTorch, TensorFlow, pyarrow and scikit-learn too: every peer that lives with the others in one
/// process.
pub const ALL: Contents = with_dependencies(".venv", "tests/python-env/all");
/// MXNet, which needs an old NumPy.
pub const LEGACY: Contents = with_dependencies(".venv-legacy", "tests/python-env/legacy");
/// Warp, PaddlePaddle, OpenVINO, MLX and nanobind, of which one pins what JAX depends on to another version.
pub const OTHER: Contents = with_dependencies(".venv-other-peers", "tests/python-env/other-peers");
/// The tools of `cargo xtask dist`.
pub const DIST: Contents = with_dependencies(".venv-dist", "tests/python-env/dist");
/// The tools of `cargo xtask site`.
pub const SITE: Contents = with_dependencies(".venv-site", "tests/python-env/site");
/// Other people's tests.
pub const BORROWED: Contents = bare(".venv-borrowed", "tests/python-env/borrowed");
/// NIXL's library, which tensors go to other machines by.
pub const NIXL: Contents = bare(".venv-nixl", "tests/python-env/nixl");
/// MXNet's library, whose engine the benches compare ours to.
pub const MXNET: Contents = bare(".venv-mxnet", "benches/peers/mxnet");
/// The tool that resolves and installs requirements.
pub const UV: Contents = bare(".venv-uv", "tests/python-env/uv");

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Build {
    /// As the Rust tests are, from the same dependencies.
    Quick,
    Release,
}

/// Number of failures of pip before one counts: pip itself tries again to connect, but not when a download of
/// gigabytes is cut.
const PIP_TRIES: u32 = 3;

/// Pause before pip is started again.
const PIP_PAUSE: Duration = Duration::from_secs(20);

/// Limit of one run of pip.
const PIP_LIMIT: Duration = Duration::from_secs(30 * 60);

/// A virtual environment that is up to date with its requirement files.
#[derive(Clone, Debug)]
pub struct Environment {
    path: PathBuf,
}

impl Environment {
    /// Makes the environment, brings it up to date, or finds that there is nothing to do.
    pub fn prepare(contents: Contents) -> Result<Self, String> {
        // Builds ahead of their suites need one too.
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        Self::bring_up_to_date(contents)
    }

    fn bring_up_to_date(contents: Contents) -> Result<Self, String> {
        let Contents { folder, requirements, bare } = contents;
        let environment = Environment { path: shell::root().join(folder) };
        let stamp = environment.path.join("requirements-installed.txt");
        let (edited, locked) = (format!("{requirements}.in"), format!("{requirements}.txt"));
        let wanted = read(&shell::root().join(&locked))?;
        let works = shell::answers(&environment.python().to_string_lossy(), &["-c", "import pip"]);
        if works && std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
            return Ok(environment);
        }

        println!("Python environment {folder}: {}", download_size(&read(&shell::root().join(edited))?));
        if works {
            // Whatever happens from here on, the environment is not what the stamp says.
            let _ = std::fs::remove_file(&stamp);
        } else {
            let mut make = shell::command(interpreter()?);
            make.args(["-m", "venv", "--clear"]).arg(&environment.path);
            shell::run(&mut make)?;
        }
        // pip installs uv, and uv all else.
        let uv = if contents == UV { None } else { Self::bring_up_to_date(UV).ok() };
        environment.download(&locked, bare, uv.as_ref())?;
        install::write(&stamp, &wanted)?;
        Ok(environment)
    }

    /// Installs what a requirement file names. A file with another hash is refused. uv takes a fifth of pip's
    /// processor time. pip has settings of its own, such as another index, so it tries where uv fails.
    fn download(&self, file: &str, bare: bool, by: Option<&Environment>) -> Result<(), String> {
        if let Some(uv) = by {
            let (ended, _) = self.install_by(uv.uv(self), file, bare)?;
            let _ = dist::remove_folder(&self.cache());
            if ended.is_success() {
                return Ok(());
            }
            println!("uv installs {file}: {ended}; pip tries");
        }
        let mut tries = 0;
        loop {
            let mut pip = self.command(&["-m", "pip", "install", "--disable-pip-version-check"]);
            // Gigabytes that are installed once need no second copy in pip's cache. Python compiles what is
            // imported.
            pip.args(["--no-cache-dir", "--no-compile", "--progress-bar", "off"]);
            let (ended, error) = self.install_by(pip, file, bare)?;
            if ended.is_success() {
                return Ok(());
            }
            tries += 1;
            let what = format!("pip installs {file}: {ended}: {error}");
            if tries == PIP_TRIES {
                return Err(what);
            }
            println!("{what}; it is tried again");
            std::thread::sleep(PIP_PAUSE);
        }
    }

    /// End of `install`, with the last error that it has printed, which says what went wrong.
    fn install_by(
        &self,
        mut install: Command,
        file: &str,
        bare: bool,
    ) -> Result<(CommandEnd, String), String> {
        install.args(["--require-hashes", "--requirement", file]).args(bare.then_some("--no-deps"));
        let mut error = String::new();
        let ended = shell::watch(install, PIP_LIMIT, |line| {
            if line.starts_with("ERROR:") {
                line.clone_into(&mut error);
            }
        })?;
        Ok((ended, error))
    }

    /// The uv of this environment, as it installs into another one. Its cache is linked into the environment,
    /// and removed afterwards: in the folder for temporary files it would lie on another disk, or in memory.
    fn uv(&self, into: &Environment) -> Command {
        let mut install = self.command(&["-m", "uv", "pip", "install", "--quiet", "--system-certs"]);
        install.arg("--python").arg(into.python()).arg("--cache-dir").arg(into.cache());
        install
    }

    fn cache(&self) -> PathBuf {
        self.path.join("uv-cache")
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The version of its interpreter, as (major, minor).
    pub fn version(&self) -> Result<(u32, u32), String> {
        version_of(&self.python().to_string_lossy())
    }

    pub fn packages(&self) -> Result<PathBuf, String> {
        let (major, minor) = self.version()?;
        Ok(self.path.join(format!("lib/python{major}.{minor}/site-packages")))
    }

    pub fn python(&self) -> PathBuf {
        self.path.join("bin").join("python")
    }

    /// A run of the environment's interpreter, in the root.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = shell::command(self.python());
        // Packages that lie elsewhere must not decide what a test sees. Without compiled modules, each
        // interpreter that a test starts compiles all that it imports.
        command.args(arguments).env_remove("PYTHONPATH").env_remove("PYTHONDONTWRITEBYTECODE");
        self.name_opencl(&mut command);
        command
    }

    /// Makes the OpenCL runtime of the environment, if it has one, the only one that a process sees: another
    /// driver on the machine has no memory that SYCL could share, and has crashed TensorFlow beside dpctl.
    pub fn name_opencl(&self, command: &mut Command) {
        let driver = self.path.join("lib").join("libintelocl.so");
        if driver.exists() {
            command.env("OCL_ICD_FILENAMES", driver).env("OCL_ICD_VENDORS", "/none");
        }
    }

    /// Builds the wheel of `bindings/python`, with that package's features alone.
    pub fn build_wheel(&self, how: Build) -> Result<PathBuf, String> {
        self.build_wheel_by(how, None)
    }

    /// The same, optimized by a profile if there is one.
    pub fn build_wheel_by(&self, how: Build, trained: Option<&Trained>) -> Result<PathBuf, String> {
        let folder = wheel_folder()?;
        let mut build = self.wheel_command(how, &folder)?;
        if let Some(trained) = trained {
            trained.apply(&mut build)?;
        }
        shell::run(&mut build)?;
        dist::file_with(&folder, ".whl")
    }

    /// The command that builds the wheel into `folder`.
    pub fn wheel_command(&self, how: Build, folder: &Path) -> Result<Command, String> {
        let mut build = self.command(&["-m", "maturin", "build"]);
        match how {
            Build::Release => build.args(["--profile", "wheel"]),
            Build::Quick => build.args(["--profile", "dev", "--features", "shared-build,another-kind"]),
        };
        build.args(["--manifest-path", "bindings/python/Cargo.toml", "--interpreter"]).arg(self.python());
        build.arg("--out").arg(folder).env("CARGO_TARGET_DIR", shell::target()?);
        Ok(build)
    }

    pub fn install_wheel(&self, how: Build) -> Result<(), String> {
        self.install(&self.build_wheel(how)?)
    }

    /// Installs a wheel that is there, in place of any earlier one.
    pub fn install(&self, wheel: &Path) -> Result<(), String> {
        let mut install = self.command(&["-m", "pip", "install", "--disable-pip-version-check", "--quiet"]);
        install.args(["--no-index", "--no-deps", "--force-reinstall"]).arg(wheel);
        shell::run(&mut install)
    }
}

/// An empty folder for a wheel.
pub fn wheel_folder() -> Result<PathBuf, String> {
    let folder = shell::target()?.join("xtask-wheel");
    // A folder that an earlier version left there must not be taken for this one.
    dist::remove_folder(&folder)?;
    Ok(folder)
}

/// A Python 3.11 or newer that can make virtual environments.
pub fn interpreter() -> Result<PathBuf, String> {
    if let Some(chosen) = std::env::var_os("ESTAFETTE_PYTHON") {
        return match usable(&chosen.to_string_lossy()) {
            Ok(path) => Ok(path),
            Err(why) => Err(format!("ESTAFETTE_PYTHON={}: {why}", chosen.to_string_lossy())),
        };
    }
    let names = ["python3", "python3.13", "python3.12", "python3.11", "python3.14", "python"];
    let mut refused = Vec::new();
    for name in names {
        match usable(name) {
            Ok(path) => return Ok(path),
            Err(why) => refused.push(format!("  {name}: {why}")),
        }
    }
    Err(format!(
        "no Python 3.11 or newer that can make virtual environments; install one (on Debian: `apt-get install \
         python3 python3-venv`) or name one in ESTAFETTE_PYTHON; looked at\n{}",
        refused.join("\n")
    ))
}

/// The version of the interpreter that [`Environment::prepare`] would take, as (major, minor).
pub fn interpreter_version() -> Result<(u32, u32), String> {
    version_of(&interpreter()?.to_string_lossy())
}

fn version_of(python: &str) -> Result<(u32, u32), String> {
    let script = "import sys; print(sys.version_info[0], sys.version_info[1])";
    let text = shell::output(shell::command(python).args(["-c", script]))?;
    let mut numbers = text.split_whitespace().map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Ok((major, minor)),
        _ => Err(format!("{python} does not tell its version")),
    }
}

/// The full path of the interpreter called `name`, or why it will not do.
fn usable(name: &str) -> Result<PathBuf, String> {
    let script = "import sys; v = sys.version_info; print('%d.%d' % v[:2]); print(sys.executable); \
                  assert v >= (3, 11); import ensurepip, venv";
    let output = shell::command(name)
        .args(["-c", script])
        .stderr(Stdio::null())
        .output()
        .map_err(|error| format!("does not start ({error})"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines = text.lines();
    let (Some(version), Some(path)) = (lines.next(), lines.next()) else {
        return Err("does not run a line of Python".to_owned());
    };
    if output.status.success() {
        return Ok(PathBuf::from(path));
    }
    let minor = version.strip_prefix("3.").and_then(|minor| minor.parse::<u32>().ok());
    Err(if minor.is_some_and(|minor| minor >= 11) {
        format!("{version} without its venv module (on Debian: `apt-get install python3-venv`)")
    } else {
        format!("is {version}")
    })
}

/// A requirement file's statement about the size of the download.
fn download_size(requirements: &str) -> String {
    match requirements.lines().find_map(|line| line.strip_prefix("# download: ")) {
        Some(size) => format!("downloading {size}"),
        None => "downloading packages of unknown size".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_is_shown_where_a_file_says_it() {
        assert_eq!(download_size("# x\n# download: 2 GB\n"), "downloading 2 GB");
        assert_eq!(download_size("numpy==1"), "downloading packages of unknown size");
    }

    #[test]
    fn an_interpreter_that_is_not_there_is_refused_with_a_reason() {
        assert!(usable("no-such-python").is_err_and(|why| why.contains("does not start")));
        assert!(usable("true").is_err_and(|why| why.contains("does not run")));
    }
}
