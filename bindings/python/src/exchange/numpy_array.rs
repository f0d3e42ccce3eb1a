//! Arrays of NumPy without a call of Python, both ways: `__dlpack__`, `numpy.from_dlpack` and their capsules
//! cost as much as the rest of an exchange.
//!
//! Arrays are read and made as NumPy's C interface lets every extension do it: by the structs of
//! numpy/ndarraytypes.h and the table of numpy/__multiarray_api.h. Whatever DLPack may refuse goes through
//! DLPack, and is refused there.

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use std::mem::{MaybeUninit, transmute};
use std::ptr::NonNull;

use estafette::bindings::{self, OwnedMemory};
use estafette::devices::DLDevice;
use estafette::exchange::DLTensor;
use estafette::exchange::{Abi, ManagedTensor};
use estafette::{Access, DType, Layout, Scope, Tensor};
use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::classes::tensor::PyTensor;
use crate::exchange::export;
use crate::interpreter::kept::Kept;
use crate::interpreter::once::{PyOnce, intern};

/// `PyArrayObject_fields` of numpy/ndarraytypes.h, as far as it is read here.
#[repr(C)]
struct Fields {
    object: ffi::PyObject,
    data: *mut u8,
    ndim: c_int,
    shape: *const isize,
    /// In bytes.
    strides: *const isize,
    base: *mut ffi::PyObject,
    dtype: *const DTypeFields,
    flags: c_int,
    weak_references: *mut ffi::PyObject,
}

/// The beginning of `PyArray_Descr`, which is the same in NumPy 1 and 2.
#[repr(C)]
struct DTypeFields {
    object: ffi::PyObject,
    scalar: *mut ffi::PyTypeObject,
    kind: c_char,
    letter: c_char,
    byte_order: c_char,
    former_flags: c_char,
    number: c_int,
}

/// `NPY_ARRAY_WRITEABLE`.
const WRITEABLE: c_int = 0x0400;
/// `NPY_ARRAY_WARN_ON_WRITE`: of an array whose elements may be one in memory.
const WARN_ON_WRITE: c_int = 1 << 31;
/// An array with more dimensions goes through `__dlpack__`.
const NDIM_MAX: usize = 8;

/// NumPy, of a version whose C interface is known.
struct NumPy {
    class: Py<PyAny>,
    from_dlpack: Py<PyAny>,
    /// The table of its C interface, which lives as long as the process.
    table: *const *const c_void,
}

// SAFETY: the table is constant; its functions are called with the Python lock.
unsafe impl Send for NumPy {}
// SAFETY: as above.
unsafe impl Sync for NumPy {}

/// Places in the table, of numpy/__multiarray_api.h.
mod place {
    pub const VERSION: usize = 0;
    pub const DTYPE: usize = 45;
    pub const NEW: usize = 94;
    pub const SET_BASE: usize = 282;
}

type Version = unsafe extern "C" fn() -> c_uint;
type DTypeOf = unsafe extern "C" fn(c_int) -> *mut ffi::PyObject;
type New = unsafe extern "C" fn(
    class: *mut ffi::PyObject,
    dtype: *mut ffi::PyObject,
    ndim: c_int,
    shape: *const isize,
    strides: *const isize,
    data: *mut c_void,
    flags: c_int,
    object: *mut ffi::PyObject,
) -> *mut ffi::PyObject;
type SetBase = unsafe extern "C" fn(array: *mut ffi::PyObject, base: *mut ffi::PyObject) -> c_int;

impl NumPy {
    /// `None` for another version, and where it was not imported.
    fn get(py: Python<'_>) -> Option<&Self> {
        static FOUND: PyOnce<NumPy> = PyOnce::new();
        FOUND.get(py).or_else(|| FOUND.get_or_try_init(py, || Self::find(py)).ok())
    }

    fn find(py: Python<'_>) -> PyResult<Self> {
        let modules = py.import(intern!(py, "sys"))?.getattr(intern!(py, "modules"))?;
        let numpy = modules.get_item("numpy")?;
        let core = modules.get_item("numpy._core._multiarray_umath");
        let core = core.or_else(|_| modules.get_item("numpy.core._multiarray_umath"))?;
        let table = core.getattr("_ARRAY_API")?;
        // SAFETY: the capsule has no name. A table begins with a function that says its version.
        let (table, version) = unsafe {
            let table = ffi::PyCapsule_GetPointer(table.as_ptr(), std::ptr::null()).cast::<*const c_void>();
            if table.is_null() {
                return Err(PyErr::fetch(py));
            }
            (table, transmute::<*const c_void, Version>(*table.add(place::VERSION))())
        };
        if ![1, 2].contains(&(version >> 24)) {
            return Err(PyImportError::new_err("a version of NumPy whose C interface is not known"));
        }
        let class = numpy.getattr("ndarray")?.unbind();
        Ok(Self { class, from_dlpack: core.getattr("from_dlpack")?.unbind(), table })
    }

    /// An array of memory that `base` keeps.
    ///
    /// # Safety
    /// `base` keeps what is described: memory of the host.
    unsafe fn array<'py>(
        &self,
        described: &Described,
        base: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Described { number, ndim, shape, strides, data, flags } = described;
        // SAFETY: functions of the table of a known version, with the Python lock. They adopt a reference to
        // the type, and to the base even where they fail; by contract it keeps the memory, in which all
        // elements lie.
        unsafe {
            let of = |place: usize| *self.table.add(place);
            let dtype = transmute::<*const c_void, DTypeOf>(of(place::DTYPE))(*number);
            let (shape, strides, class) = (shape.as_ptr(), strides.as_ptr(), self.class.as_ptr());
            let new = transmute::<*const c_void, New>(of(place::NEW));
            let array =
                new(class, dtype, *ndim as c_int, shape, strides, *data, *flags, std::ptr::null_mut());
            let array = Bound::from_owned_ptr_or_err(base.py(), array)?;
            let set_base = transmute::<*const c_void, SetBase>(of(place::SET_BASE));
            if set_base(array.as_ptr(), base.into_ptr()) != 0 {
                return Err(PyErr::fetch(array.py()));
            }
            Ok(array)
        }
    }
}

/// The description that an array of NumPy is made with.
struct Described {
    number: c_int,
    ndim: usize,
    shape: [isize; NDIM_MAX],
    /// In bytes.
    strides: [isize; NDIM_MAX],
    data: *mut c_void,
    flags: c_int,
}

impl Described {
    /// `None` for a tensor that NumPy has no array of, or that has to be asked for it.
    fn of(tensor: &Tensor, read_only: bool) -> Option<Self> {
        let mut place = MaybeUninit::<DLTensor>::uninit();
        // SAFETY: the place is good, and what is written there is read while the tensor is borrowed.
        let tensor = unsafe {
            bindings::tensor::lend(tensor, NonNull::new(place.as_mut_ptr())?).ok()?;
            place.assume_init_ref()
        };
        let dtype = DType { code: tensor.dtype.code.0, bits: tensor.dtype.bits, lanes: tensor.dtype.lanes };
        let ndim = usize::try_from(tensor.ndim).ok().filter(|ndim| *ndim <= NDIM_MAX)?;
        let number = number_of(dtype).filter(|_| !tensor.data.is_null())?;
        let (mut shape, mut strides) = ([0; NDIM_MAX], [0; NDIM_MAX]);
        for index in 0..ndim {
            // SAFETY: both have an entry for each dimension.
            let (size, stride) = unsafe { (*tensor.shape.add(index), *tensor.strides.add(index)) };
            (shape[index], strides[index]) = (size as isize, stride as isize * dtype.itemsize() as isize);
        }
        let data = tensor.data.wrapping_byte_add(tensor.byte_offset as usize);
        Some(Self { number, ndim, shape, strides, data, flags: if read_only { 0 } else { WRITEABLE } })
    }

    /// True if an array of NumPy that has the right type is described.
    fn is_of(&self, array: &Bound<'_, PyAny>) -> bool {
        let fields = fields_of(array);
        // SAFETY: both have an entry for each dimension.
        let have = |index| unsafe { (*fields.shape.add(index), *fields.strides.add(index)) };
        fields.data.cast() == self.data
            && fields.ndim == self.ndim as c_int
            && fields.flags & WRITEABLE == self.flags
            && (0..self.ndim).all(|index| have(index) == (self.shape[index], self.strides[index]))
    }
}

fn references(object: &Bound<'_, PyAny>) -> ffi::Py_ssize_t {
    // SAFETY: a live object.
    unsafe { ffi::Py_REFCNT(object.as_ptr()) }
}

/// The fields of an array of NumPy.
fn fields_of<'a>(array: &'a Bound<'_, PyAny>) -> &'a Fields {
    // SAFETY: an instance of NumPy's class. The Python lock is held, so nothing changes them.
    unsafe { &*array.as_ptr().cast() }
}

/// True if instances of `class` are read here.
pub fn is_understood(class: &Bound<'_, PyType>) -> bool {
    NumPy::get(class.py()).is_some_and(|numpy| numpy.class.is(class))
}

/// An operand of the running operation as `using` makes an array of it, which is `numpy.from_dlpack`; `None`
/// for any other function, and for a tensor that has to be asked for that. The array is dropped before what
/// takes it back.
pub fn lend<'a, 'py>(
    using: &Bound<'py, PyAny>,
    scope: &'a Scope,
    tensor: &Bound<'py, PyTensor>,
) -> PyResult<Option<(Bound<'py, PyAny>, Lent<'a, 'py>)>> {
    let py = using.py();
    // SAFETY: a live object.
    if unsafe { ffi::PyCFunction_Check(using.as_ptr()) } == 0 {
        return Ok(None);
    }
    let Some(numpy) = NumPy::get(py).filter(|numpy| numpy.from_dlpack.is(using)) else { return Ok(None) };
    let Ok(inner) = tensor.get().tensor(py) else { return Ok(None) };
    if !inner.device().is_ok_and(|device| device == DLDevice::CPU) {
        return Ok(None);
    }
    // NumPy refuses a refused array once more, at its own question.
    let Some(access) = bindings::scope::lend(scope, inner) else { return Ok(None) };
    let mut lent = Lent { scope, tensor: tensor.clone(), made: None };
    let Some(described) = Described::of(inner, access == Access::Read) else { return Ok(None) };
    let unused = tensor.get().unused_array.lock().take().map(|array| array.into_bound(py));
    let array = match unused.filter(|array| described.is_of(array)) {
        Some(array) => array,
        // SAFETY: the operation keeps the memory until the view is taken back; then the base does, unless
        // nothing has it.
        None => unsafe {
            let base = ffi::PyCapsule_New(NonNull::<c_void>::dangling().as_ptr(), LENT.as_ptr(), None);
            numpy.array(&described, Bound::from_owned_ptr_or_err(py, base)?)?
        },
    };
    lent.made = Some(Made::of(&array));
    export::count();
    Ok(Some((array, lent)))
}

/// An array that the function of an operation has. Once this is dropped, an array that the function has kept
/// has a lease.
pub struct Lent<'a, 'py> {
    scope: &'a Scope,
    tensor: Bound<'py, PyTensor>,
    made: Option<Made<'py>>,
}

/// An array as it was made.
struct Made<'py> {
    array: Bound<'py, PyAny>,
    /// Has the memory, where the array has it.
    base: Bound<'py, PyAny>,
    dtype: *const DTypeFields,
    flags: c_int,
}

impl<'py> Made<'py> {
    /// `array` is one that this module has made.
    fn of(array: &Bound<'py, PyAny>) -> Self {
        let fields = fields_of(array);
        // SAFETY: it has a base, which lives.
        let base = unsafe { Bound::from_borrowed_ptr(array.py(), fields.base) };
        Self { array: array.clone(), base, dtype: fields.dtype, flags: fields.flags }
    }

    /// True if nothing else has the array, its base or a weak reference to it, and it is as it was but for
    /// its shape.
    fn is_unused(&self) -> bool {
        let fields = fields_of(&self.array);
        references(&self.array) == 1
            && references(&self.base) == 2
            && fields.base == self.base.as_ptr()
            && fields.weak_references.is_null()
            && (fields.dtype, fields.flags) == (self.dtype, self.flags)
    }
}

impl Drop for Lent<'_, '_> {
    fn drop(&mut self) {
        let py = self.tensor.py();
        // In a forked child all of it is the parent's.
        let Ok(tensor) = self.tensor.get().tensor(py) else { return };
        let kept = self.made.take().and_then(|made| {
            if made.is_unused() {
                let before = self.tensor.get().unused_array.lock().replace(made.array.unbind());
                drop(before);
                return None;
            }
            let Made { array, base, .. } = made;
            drop(array);
            // Whatever has the memory from the array has the base, itself or by an array.
            (references(&base) > 1).then_some(base)
        });
        let Ok(managed) = bindings::scope::take_back(self.scope, tensor, kept.is_some()) else {
            // The operation has not ended before its function. If it had, the memory would stay.
            return std::mem::forget(tensor.clone());
        };
        if let Some((base, managed)) = kept.zip(managed) {
            // SAFETY: the capsule is this module's, and owns the struct from here on.
            unsafe {
                ffi::PyCapsule_SetPointer(base.as_ptr(), managed.into_raw());
                ffi::PyCapsule_SetDestructor(base.as_ptr(), Some(release));
            }
        }
    }
}

/// The name of capsules that are bases of arrays of NumPy.
const LENT: &CStr = c"estafette lends";

/// The destructor of such a capsule that owns a struct.
unsafe extern "C" fn release(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this with the capsule, which owns the struct.
    unsafe {
        let raw = ffi::PyCapsule_GetPointer(capsule, LENT.as_ptr());
        drop(ManagedTensor::from_raw(raw, Abi::Versioned));
    }
}

/// Takes an array as `__dlpack__(max_version=(1, 3))` gives it, but without a struct; `None` for one that has
/// to be asked for that, and for one that may not be written where it is to be `writable`.
///
/// # Safety
/// The class of `array` is [understood](is_understood).
pub unsafe fn take(array: &Bound<'_, PyAny>, writable: Option<bool>) -> Option<OwnedMemory> {
    // SAFETY: by contract an instance of NumPy's class, with these fields; the Python lock is held, so
    // nothing changes them.
    let (fields, dtype) = unsafe {
        let fields = &*array.as_ptr().cast::<Fields>();
        (fields, &*fields.dtype)
    };
    let ndim = usize::try_from(fields.ndim).ok().filter(|ndim| *ndim <= NDIM_MAX)?;
    let element = dtype_of(dtype)?;
    let is_read_only = fields.flags & WRITEABLE == 0;
    if fields.flags & WARN_ON_WRITE != 0 || is_read_only && writable == Some(true) {
        return None;
    }
    let itemsize = element.itemsize() as isize;
    let (mut shape, mut strides) = ([0; NDIM_MAX], [0; NDIM_MAX]);
    for index in 0..ndim {
        // SAFETY: both have an entry for each dimension.
        let (size, stride) = unsafe { (*fields.shape.add(index), *fields.strides.add(index)) };
        if size == 0 || stride % itemsize != 0 {
            return None;
        }
        (shape[index], strides[index]) = (size as i64, (stride / itemsize) as i64);
    }
    let layout = Layout::strided(element, DLDevice::CPU, &shape[..ndim], &strides[..ndim]).ok()?;
    let (is_read_only, owner) = (is_read_only || writable == Some(false), Kept::new(array.clone().unbind()));
    // SAFETY: NumPy vouches for the memory as long as the array lives.
    unsafe { OwnedMemory::of_host(layout, fields.data, is_read_only, owner) }.ok()
}

/// NumPy's numbers of element types (`NPY_TYPES`), and what they are on this machine. Of two numbers for one,
/// NumPy's own import gives the first.
const NUMBERS: [(c_int, DType); 16] = {
    const LONG: [(c_int, DType); 4] = if size_of::<c_long>() == 8 {
        [(7, DType::I64), (9, DType::I64), (8, DType::U64), (10, DType::U64)]
    } else {
        [(7, DType::I32), (9, DType::I64), (8, DType::U32), (10, DType::U64)]
    };
    [
        LONG[0],
        LONG[1],
        LONG[2],
        LONG[3],
        (5, DType::I32),
        (6, DType::U32),
        (0, DType::BOOL),
        (1, DType::I8),
        (2, DType::U8),
        (3, DType::I16),
        (4, DType::U16),
        (11, DType::F32),
        (12, DType::F64),
        (14, DType::C64),
        (15, DType::C128),
        (23, DType::F16),
    ]
};

fn number_of(dtype: DType) -> Option<c_int> {
    NUMBERS.iter().find(|(_, known)| *known == dtype).map(|(number, _)| *number)
}

/// The element types by NumPy's numbers.
const BY_NUMBER: [Option<DType>; 24] = {
    let mut types = [None; 24];
    let mut at = 0;
    while at < NUMBERS.len() {
        types[NUMBERS[at].0 as usize] = Some(NUMBERS[at].1);
        at += 1;
    }
    types
};

/// The element type that is in the byte order of this machine.
fn dtype_of(dtype: &DTypeFields) -> Option<DType> {
    let foreign = if cfg!(target_endian = "little") { b'>' } else { b'<' };
    let known = usize::try_from(dtype.number).ok().and_then(|number| *BY_NUMBER.get(number)?);
    known.filter(|_| dtype.byte_order as u8 != foreign)
}
