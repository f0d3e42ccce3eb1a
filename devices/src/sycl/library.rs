//! Finding the library, in this order: loaded already (so that the runtime of Python's dpctl is shared), the
//! file named by `ESTAFETTE_DPCTL_LIBRARY`, the file that the embedding program has
//! [suggested](suggest_library) (the one in the environment that its packages come from), and what the loader
//! finds by name.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{env, fs};

use estafette_sync::platform::library::{self, file_name, loaded};
use estafette_sync::sync::Mutex;

use super::api::Api;

const STEM: &str = "DPCTLSyclInterface";
const VARIABLE: &str = "ESTAFETTE_DPCTL_LIBRARY";

/// The reason why there is no SYCL in this process.
#[derive(Clone, Debug, thiserror::Error)]
#[error("SYCL is not available: {0}")]
pub struct SyclUnavailable(pub(super) String);

estafette_sync::statics! {
    static SUGGESTED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
}

/// Names a file to look at when the library is neither loaded nor named in the environment. For programs that
/// know where their packages lie; without effect once the library has been looked for.
pub fn suggest_library(file: impl Into<PathBuf>) {
    SUGGESTED.lock().push(file.into());
}

pub(super) fn is_loaded() -> bool {
    !loaded(&file_name(STEM)).is_empty()
}

/// Loads the library, or takes the one that is there.
pub(super) fn load() -> Result<Api, SyclUnavailable> {
    let (library, place) = open()?;
    Api::of(library).map_err(|symbol| {
        SyclUnavailable(format!("{place} lacks the function {symbol}; dpctl 0.18 or newer has it"))
    })
}

fn open() -> Result<(libloading::Library, String), SyclUnavailable> {
    let name = file_name(STEM);
    if let Some(file) = loaded(&name).pop() {
        return open_file(&file);
    }
    if let Some(file) = env::var_os(VARIABLE).filter(|file| !file.is_empty()) {
        let file = PathBuf::from(file);
        return open_file(&file)
            .map_err(|SyclUnavailable(why)| SyclUnavailable(format!("{VARIABLE}: {why}")));
    }
    let suggested = SUGGESTED.lock().clone();
    if let Some(file) = suggested.iter().find(|file| file.is_file()) {
        return open_file(file);
    }
    open_file(Path::new(&name)).map_err(|SyclUnavailable(why)| {
        SyclUnavailable(format!("{why}; install dpctl, or name its {name} in {VARIABLE}"))
    })
}

fn open_file(file: &Path) -> Result<(libloading::Library, String), SyclUnavailable> {
    refuse_second_runtime(file)?;
    // SAFETY: dpctl's library and the SYCL runtime that it needs are made to be loaded at any time, by any
    // thread; a file that was named on purpose is trusted to be it.
    let library = unsafe { library::open(file) }
        .map_err(|error| SyclUnavailable(format!("cannot load {}: {}", file.display(), chain(&error))))?;
    Ok((library, file.display().to_string()))
}

/// An error with what the loader had to say.
fn chain(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// Two SYCL runtimes in one process know nothing of each other's contexts and memory. A file that needs
/// another one than is there is not loaded: the loader shares libraries by the names that are written in the
/// files.
fn refuse_second_runtime(file: &Path) -> Result<(), SyclUnavailable> {
    let runtimes = loaded(&file_name("sycl"));
    let Some(runtime) = runtimes.first() else { return Ok(()) };
    let name = runtime.file_name().map(OsString::from).unwrap_or_default();
    // A name that the loader is to find itself is not read: it says what it finds only by loading it.
    let Ok(content) = fs::read(file) else { return Ok(()) };
    let needed = name.as_encoded_bytes();
    if content.windows(needed.len()).any(|window| window == needed) {
        return Ok(());
    }
    Err(SyclUnavailable(format!(
        "{} needs another SYCL runtime than {}, which this process has already",
        file.display(),
        runtime.display()
    )))
}

impl SyclUnavailable {
    pub(super) fn no_device() -> Self {
        let mut why = "the runtime knows no device".to_owned();
        for variable in ["OCL_ICD_FILENAMES", "OCL_ICD_VENDORS", "ONEAPI_DEVICE_SELECTOR"] {
            if let Some(value) = env::var_os(variable) {
                why += &format!("; {variable}={}", value.to_string_lossy());
            }
        }
        Self(why)
    }
}
