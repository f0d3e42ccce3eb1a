//! Place of the shared library, and its way into the process.

use std::ffi::{CStr, CString, c_void};
use std::path::{Path, PathBuf};

/// The reason that there is no simulated driver.
#[derive(Debug, thiserror::Error)]
pub enum SimulatorError {
    /// Cargo has not built it, or it was moved.
    #[error("there is no {name} beside {beside}; name it in ESTAFETTE_CUDA_SIM")]
    NotBuilt {
        /// The file's name.
        name: &'static str,
        /// Around which it was looked for.
        beside: String,
    },
    /// The loader refused it.
    #[error("the simulated driver cannot be loaded: {0}")]
    Loader(String),
    /// Another driver was loaded before.
    #[error("this process has a CUDA driver already, so the simulated one cannot take its place")]
    DriverLoaded,
    /// A function that shall be missing is not there anyway.
    #[error("the simulated driver has no function {0}")]
    NoFunction(String),
    /// The copy that lacks functions cannot be written.
    #[error("cannot write a copy of the simulated driver: {0}")]
    Copy(#[from] std::io::Error),
}

const FILE: &str = "libestafette_cuda_sim.so";

/// The loaded library. It stays for as long as the process does.
#[derive(Debug)]
pub(crate) struct Library(*mut c_void);

// SAFETY: a handle of the loader may be used from any thread.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

/// The path of the shared library: what `ESTAFETTE_CUDA_SIM` says, else where cargo puts it for this program.
///
/// # Errors
///
/// Fails if it is not there.
pub fn path() -> Result<PathBuf, SimulatorError> {
    if let Some(named) = std::env::var_os("ESTAFETTE_CUDA_SIM") {
        return Ok(named.into());
    }
    let program = std::env::current_exe()?;
    // Tests lie in `deps` with it, examples beside that folder, programs above it.
    let places =
        program.ancestors().skip(1).take(2).flat_map(|folder| [folder.to_owned(), folder.join("deps")]);
    let mut found = places.map(|folder| folder.join(FILE)).filter(|file| file.is_file());
    found.next().ok_or_else(|| SimulatorError::NotBuilt { name: FILE, beside: program.display().to_string() })
}

impl Library {
    pub(crate) fn open(missing: &[&str]) -> Result<Self, SimulatorError> {
        // SAFETY: asks only whether a library of that name is loaded.
        let present = unsafe { libc::dlopen(c"libcuda.so".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if !present.is_null() && !has(present, c"cusim_calls") {
            return Err(SimulatorError::DriverLoaded);
        }
        let original = path()?;
        let handle = if missing.is_empty() {
            load(&original)?
        } else {
            let copy = Crippled::write(&original, missing)?;
            load(&copy.0)?
        };
        Ok(Self(handle))
    }

    /// The function of that name, which is there.
    pub(crate) fn find(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the handle is never closed.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!address.is_null(), "the simulated driver is older than its client: no {name:?}");
        address
    }

    /// # Safety
    ///
    /// The library's function of that name has the type `F`.
    pub(crate) unsafe fn function<F: Copy>(&self, name: &CStr) -> F {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        // SAFETY: not null, of the same size, and of the right type as the caller says.
        unsafe { std::mem::transmute_copy(&self.find(name)) }
    }
}

fn has(library: *mut c_void, name: &CStr) -> bool {
    // SAFETY: the handle is open.
    !unsafe { libc::dlsym(library, name.as_ptr()) }.is_null()
}

fn load(path: &Path) -> Result<*mut c_void, SimulatorError> {
    let name = CString::new(path.as_os_str().as_encoded_bytes())
        .map_err(|_| SimulatorError::Loader("its path has a zero byte".to_owned()))?;
    // SAFETY: the library's initializers are Rust's own.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if handle.is_null() {
        // SAFETY: after a failure the loader has a text for this thread.
        let text = unsafe { CStr::from_ptr(libc::dlerror()) };
        return Err(SimulatorError::Loader(text.to_string_lossy().into_owned()));
    }
    Ok(handle)
}

/// A copy of the library in which the loader does not find some functions. The file goes when it is loaded.
struct Crippled(PathBuf);

impl Crippled {
    fn write(original: &Path, missing: &[&str]) -> Result<Self, SimulatorError> {
        let mut bytes = std::fs::read(original)?;
        for name in missing {
            // In the table of names each stands between zero bytes. A name with another first letter is
            // never asked for, while the loader still looks for the old one in the place for its hash.
            let pattern = [b"\0", name.as_bytes(), b"\0"].concat();
            let places: Vec<usize> =
                (0..bytes.len() - pattern.len()).filter(|at| bytes[*at..].starts_with(&pattern)).collect();
            if places.is_empty() {
                return Err(SimulatorError::NoFunction((*name).to_owned()));
            }
            for at in places {
                bytes[at + 1] = b'-';
            }
        }
        let copy = std::env::temp_dir().join(format!("estafette-cuda-sim-{}.so", std::process::id()));
        std::fs::write(&copy, bytes)?;
        Ok(Self(copy))
    }
}

impl Drop for Crippled {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
