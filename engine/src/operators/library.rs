//! Shared libraries full of operators.
//!
//! A library exports one function, [`ENTRY`], of type [`OperatorEntry`]. It is called with a
//! [`OperatorRegistrar`], whose `add` takes what `estafette_register_operator` of the C interface takes. The
//! library links to no library of Estafette; it stays loaded until its last operator is out of the registry,
//! no call of it is under way, the work that calls have enqueued is over, and no result of one is left, since
//! its code deletes them.

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::Path;
use std::sync::Arc;

use estafette_report::shown::shown;
use estafette_sync::platform::library;

use crate::core::error::Error;

use super::abi::{OperatorDrop, OperatorFunction, OperatorOptions, foreign};
use super::operator::Operator;
use super::registry::Operators;

/// The name of a library's entry point.
pub const ENTRY: &CStr = c"estafette_operators";

/// The entry point: registers the library's operators. The result is NULL, or why it has failed, as a text
/// that stays valid until the library is unloaded or called again.
pub type OperatorEntry = Option<unsafe extern "C" fn(registrar: *mut OperatorRegistrar) -> *const c_char>;

/// The registrar that an entry point registers operators with. It is the library's until the entry point
/// returns.
#[repr(C)]
#[derive(Debug)]
pub struct OperatorRegistrar {
    /// `sizeof` this struct.
    pub size: u32,
    /// 0.
    pub reserved: u32,
    /// Ours.
    pub context: *mut c_void,
    /// Adds an operator. The result is NULL, or what is wrong with it, as a text that stays valid until the
    /// next call; the context is still the library's then.
    pub add: Option<
        unsafe extern "C" fn(
            registrar: *mut OperatorRegistrar,
            name: *const c_char,
            function: OperatorFunction,
            options: *const OperatorOptions,
            context: *mut c_void,
            drop_context: OperatorDrop,
        ) -> *const c_char,
    >,
}

/// A library that is loaded as long as a reference exists.
pub(super) type Library = Arc<libloading::Library>;

/// The operators that a library has added so far.
struct Collected {
    library: Library,
    origin: String,
    operators: Vec<Operator>,
    /// The text that was returned last.
    refusal: CString,
}

impl Operators {
    /// Loads a shared library and registers its operators: all of them, or none. Gives their names.
    ///
    /// A path without a slash is a name for the loader: it looks in the folders of `LD_LIBRARY_PATH` and of
    /// the system, and not in the current one. Every function that the library needs must be found when it is
    /// loaded.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the library cannot be loaded, with the loader's reason, has no entry point,
    /// registers nothing, or says that it failed; [`Error::Conflict`] for a name that is taken;
    /// [`Error::Forked`].
    ///
    /// # Safety
    /// Loading a library runs its code. Its entry point keeps the contract of [`OperatorEntry`], and its
    /// operators that of [`OperatorFunction`].
    pub unsafe fn load(&self, path: impl AsRef<Path>) -> Result<Vec<String>, Error> {
        drop(self.known()?);
        let path = path.as_ref();
        let wrong = |what: String| Error::invalid(format!("{}: {what}", path.display()));
        // SAFETY: by contract of this function.
        let library = unsafe { library::open(path) };
        let library = library.map_err(|error| wrong(format!("cannot be loaded: {}", reason(&error))))?;
        let library = Arc::new(library);
        // SAFETY: by contract of this function, what has this name is of this type.
        let entry = unsafe { library.get::<OperatorEntry>(ENTRY.to_bytes_with_nul()) };
        let entry = entry.ok().and_then(|entry| *entry);
        let entry = entry.ok_or_else(|| wrong("exports no function `estafette_operators`".into()))?;
        let mut collected = Collected {
            library: Arc::clone(&library),
            origin: path.display().to_string(),
            operators: Vec::new(),
            refusal: CString::default(),
        };
        let context = (&raw mut collected).cast();
        let mut registrar = OperatorRegistrar {
            size: size_of::<OperatorRegistrar>() as u32,
            reserved: 0,
            context,
            add: Some(add),
        };
        // SAFETY: the entry point keeps its contract; what the registrar refers to outlives the call.
        let failure = unsafe { entry(&mut registrar) };
        if !failure.is_null() {
            // SAFETY: a text, by the contract of the entry point.
            let why = unsafe { CStr::from_ptr(failure) }.to_string_lossy().into_owned();
            return Err(wrong(why));
        }
        if collected.operators.is_empty() {
            return Err(wrong("registers no operator".into()));
        }
        self.add_all(collected.operators)
    }

    /// Adds all operators, or none. A library has no business with its contexts any more once its entry point
    /// has returned, so those that are refused are dropped.
    fn add_all(&self, operators: Vec<Operator>) -> Result<Vec<String>, Error> {
        let mut added: Vec<Arc<Operator>> = Vec::new();
        for operator in operators {
            match self.add(operator) {
                Ok(operator) => added.push(operator),
                Err(refused) => {
                    added.iter().for_each(|operator| self.remove(operator));
                    return Err(refused.error);
                }
            }
        }
        Ok(added.iter().map(|operator| operator.name.to_string()).collect())
    }
}

/// The loader's reason, which is the source of an error of `libloading`.
fn reason(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// [`OperatorRegistrar::add`].
unsafe extern "C" fn add(
    registrar: *mut OperatorRegistrar,
    name: *const c_char,
    function: OperatorFunction,
    options: *const OperatorOptions,
    context: *mut c_void,
    drop_context: OperatorDrop,
) -> *const c_char {
    if registrar.is_null() {
        return c"the registrar is NULL".as_ptr();
    }
    // SAFETY: the library passes on what its entry point got, while that has not returned, on one thread.
    let collected = unsafe { &mut *(*registrar).context.cast::<Collected>() };
    // SAFETY: NULL, or readable texts and options, as the contract of registration says.
    let added = unsafe { read(name, options) }.and_then(|(name, options)| {
        if collected.operators.iter().any(|known| *known.name == *name) {
            return Err(Error::Conflict(format!("operator `{}` is registered twice", shown(name))));
        }
        let library = Some(Arc::clone(&collected.library));
        foreign(name, &collected.origin, function, options, (context, drop_context), library)
    });
    match added {
        Ok(operator) => {
            collected.operators.push(operator);
            std::ptr::null()
        }
        Err(error) => {
            // A message has a NUL only if a name has one, which no text in C has.
            collected.refusal = CString::new(error.to_string()).unwrap_or_default();
            collected.refusal.as_ptr()
        }
    }
}

/// The struct that a registration passes, checked for NULL.
///
/// # Errors
/// [`Error::Invalid`] names the argument.
///
/// # Safety
/// The pointers are NULL, or to a text and to options that stay as they are during `'a`.
#[doc(hidden)]
pub unsafe fn read<'a>(
    name: *const c_char,
    options: *const OperatorOptions,
) -> Result<(&'a str, &'a OperatorOptions), Error> {
    if name.is_null() {
        return Err(Error::invalid("the name of an operator is NULL"));
    }
    // SAFETY: not NULL, so a text.
    let name = unsafe { CStr::from_ptr(name) };
    let name = name.to_str().map_err(|_| Error::invalid("the name of an operator is not UTF-8"))?;
    let wrong = |what: &str| Error::invalid(format!("operator `{}`: its options{what}", shown(name)));
    // SAFETY: NULL or readable.
    let known = unsafe { options.as_ref() }.ok_or_else(|| wrong(" are NULL"))?;
    // SAFETY: as long as they say.
    unsafe { check_rest(options, known.size as usize) }.map_err(|what| wrong(&format!(": {what}")))?;
    Ok((name, known))
}

/// The most that a struct of options may be long: as much as a page, like Linux's structs that grow. A size
/// beyond that is one that was never set, and what is behind the struct must not be read.
#[doc(hidden)]
pub const OPTIONS_SIZE_MAX: usize = 4096;

/// Checks what `size` bytes of options have behind those of an `O`: newer fields must be zero.
///
/// # Errors
/// The mistake in them.
///
/// # Safety
/// `options` is valid for `size` bytes.
#[doc(hidden)]
pub unsafe fn check_rest<O>(options: *const O, size: usize) -> Result<(), String> {
    if size > OPTIONS_SIZE_MAX {
        return Err(format!(
            "size is {size}, more than {OPTIONS_SIZE_MAX}; set all bytes to zero first, then the size"
        ));
    }
    let known = size.min(size_of::<O>());
    // SAFETY: by contract of this function.
    let rest = unsafe { std::slice::from_raw_parts(options.cast::<u8>().add(known), size - known) };
    if rest.iter().any(|byte| *byte != 0) {
        return Err(format!(
            "sets fields behind its first {known} bytes, which this version of the library does not know"
        ));
    }
    Ok(())
}
