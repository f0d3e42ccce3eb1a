//! Finding the library, in this order: loaded already, the file named by `ESTAFETTE_NIXL_LIBRARY`, the files
//! that the embedding program has [suggested](suggest_library), and what the loader finds by name.

use std::env;
use std::path::{Path, PathBuf};

use estafette_sync::platform::library::{self, file_name, loaded};
use estafette_sync::sync::{Mutex, OnceLock};

use super::api::Api;

const STEM: &str = "nixl_capi";
const VARIABLE: &str = "ESTAFETTE_NIXL_LIBRARY";

estafette_sync::statics! {
    static SUGGESTED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
    static API: OnceLock<Result<Api, String>> = OnceLock::new();
}

/// Names a file to look at when the library is neither loaded nor named in the environment. For programs that
/// know where their packages lie; without effect once the library has been looked for.
pub fn suggest_library(file: impl Into<PathBuf>) {
    SUGGESTED.lock().push(file.into());
}

/// Loads the library. Fails if it cannot be used.
///
/// # Errors
/// The reason, in words.
pub fn check() -> Result<(), String> {
    api().map(drop)
}

/// The functions. The library is looked for once.
pub(super) fn api() -> Result<&'static Api, String> {
    API.get_or_init(load).as_ref().map_err(Clone::clone)
}

/// For tests: the library is what `double` makes, unless it has been looked for.
#[cfg(all(test, not(any(estafette_portable, estafette_loom, estafette_shuttle))))]
pub(super) fn replace(double: fn() -> Api) {
    let _ = API.get_or_init(|| Ok(double()));
}

fn load() -> Result<Api, String> {
    let name = file_name(STEM);
    let named = env::var_os(VARIABLE).filter(|file| !file.is_empty()).map(PathBuf::from);
    let suggested = || SUGGESTED.lock().iter().find(|file| file.is_file()).cloned();
    let file =
        loaded(&name).pop().or(named.clone()).or_else(suggested).unwrap_or_else(|| PathBuf::from(&name));
    open(&file).map_err(|why| match named {
        Some(_) => format!("NIXL is not available: {why}, which {VARIABLE} names"),
        None => format!(
            "NIXL is not available: {why}; install it (`pip install --no-deps nixl-cu12`), or name its {name} in {VARIABLE}"
        ),
    })
}

fn open(file: &Path) -> Result<Api, String> {
    // SAFETY: NIXL's library is made to be loaded at any time, by any thread; a file that was named on
    // purpose is trusted to be it.
    let library = unsafe { library::open(file) }.map_err(|error| {
        let why = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        format!("cannot load {}: {why}", file.display())
    })?;
    Api::of(library)
        .map_err(|symbol| format!("{} lacks the function {symbol}; NIXL 1.5 has it", file.display()))
}
