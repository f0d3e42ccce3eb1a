//! Structs of options: they begin with their size, so that they can grow.

use estafette::bindings;

use crate::entry::Refusal;

/// A struct of plain numbers and pointers whose first field is its `size` (`uint32_t`), and for which all
/// bytes zero are the defaults.
///
/// # Safety
/// The type is `repr(C)`, its first field is the size, and any bytes are a value.
pub(crate) unsafe trait SizedOptions: Copy {
    /// The type's name in C.
    const NAME: &'static str;
    /// The size of the type's first version.
    const FIRST: usize;
}

/// Implements [`SizedOptions`], whose contract the caller vouches for, with the size of the first version.
macro_rules! sized_options {
    (unsafe $name:ident, $first:literal) => {
        // SAFETY: by contract of this macro.
        unsafe impl crate::options::SizedOptions for $name {
            const NAME: &'static str = stringify!($name);
            const FIRST: usize = $first;
        }
    };
}
pub(crate) use sized_options;

/// Reads options that may be shorter than ours (older) or longer (newer, if what is new in them is zero).
/// NULL gives zeros.
///
/// # Safety
/// `options` is NULL, or valid for as many bytes as its size says.
pub(crate) unsafe fn read<T: SizedOptions>(options: *const T) -> Result<T, Refusal> {
    // SAFETY: any bytes are a value, says the trait.
    let mut ours: T = unsafe { std::mem::zeroed() };
    if options.is_null() {
        return Ok(ours);
    }
    // SAFETY: the size comes first.
    let size = unsafe { options.cast::<u32>().read() } as usize;
    if size < T::FIRST {
        return Err(Refusal::invalid(format!("{}: size is {size}, less than {}", T::NAME, T::FIRST)));
    }
    // SAFETY: the caller's struct is `size` bytes long, ours is at least as long as what is copied; any bytes
    // are a value.
    unsafe {
        bindings::operators::check_rest(options, size)
            .map_err(|what| Refusal::invalid(format!("{}: {what}", T::NAME)))?;
        let known = size.min(size_of::<T>());
        std::ptr::copy_nonoverlapping(options.cast::<u8>(), (&raw mut ours).cast::<u8>(), known);
    }
    Ok(ours)
}
