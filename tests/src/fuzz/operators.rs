//! Operators: names, counts, sizes and options of registrations, and whatever the functions of an operator
//! say.

use std::ffi::{CString, c_char, c_void};
use std::ptr;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use estafette::exchange::{DLManagedTensorVersioned as Described, DLTensor};
use estafette::operators::OUTPUTS_MAX;
use estafette::operators::abi::{
    OPERATOR_ALLOCATING, OPERATOR_DESTINATION, OPERATOR_IN_PLACE, OPERATOR_INFERRED, OperatorAttribute,
    OperatorFunction, OperatorOptions,
};
use estafette_c::estafette_status::*;
use estafette_c::*;

use crate::c_fuzz::function::{accepts, last_error, refuses};
use crate::c_fuzz::managed::Managed;
use crate::c_fuzz::shared::Shared;
use crate::c_fuzz::{Bytes, zeroed};

/// Operators of one input at a time.
const HELD_MAX: usize = 6;
const STEPS_MAX: usize = 64;
/// Dimensions that a tensor may have, and the room for them that a function which infers is given.
const NDIM_MAX: usize = 64;
/// Limit of every wait.
const LIMIT: Duration = Duration::from_secs(30);

/// Strides within the memory of a result.
static STRIDES: [i64; 2] = [0, 1];

/// Answers of an operator's functions.
struct Says {
    /// The message of their failure.
    failure: Option<CString>,
    /// Dimensions of the results, as the function that infers says.
    ndim: i32,
    dims: [i64; 4],
    dtype: DLDataType,
    /// The shape is not where it was asked for.
    is_elsewhere: bool,
    is_without_shape: bool,
    /// A field of each allocated result is spoiled.
    spoils: usize,
    /// The function that allocates leaves places empty from here on.
    makes: usize,
    /// The dimensions, in as many copies as may be asked for.
    far: Vec<i64>,
    shared: Arc<Shared>,
    allocates: bool,
}

impl Says {
    fn read(bytes: &mut Bytes<'_>, shared: &Arc<Shared>, allocates: bool) -> Self {
        let failure = bytes.one_in(6).then(|| bytes.text(32));
        let ndim = if bytes.one_in(4) { bytes.number() as i32 } else { bytes.below(4) as i32 };
        let dims = std::array::from_fn(|_| bytes.number());
        let dtype = match bytes.below(4) {
            0 => DLDataType { code: bytes.byte(), bits: bytes.byte(), lanes: bytes.number() as u16 },
            _ => DLDataType { code: 2, bits: 32, lanes: 1 },
        };
        let (is_elsewhere, is_without_shape) = (bytes.one_in(4), bytes.one_in(12));
        let (spoils, makes) = (bytes.below(12), bytes.below(6));
        let far = (0..NDIM_MAX).map(|at| dims[at % dims.len()]).collect();
        let shared = shared.clone();
        Self {
            failure,
            ndim,
            dims,
            dtype,
            is_elsewhere,
            is_without_shape,
            spoils,
            makes,
            far,
            shared,
            allocates,
        }
    }

    fn failure(&self) -> *const c_char {
        self.failure.as_ref().map_or(ptr::null(), |text| text.as_ptr())
    }

    /// True if the answer of the function that infers cannot be.
    fn is_impossible(&self) -> bool {
        let known = usize::try_from(self.ndim).unwrap_or(usize::MAX);
        self.failure.is_some()
            || known > NDIM_MAX
            || self.far.iter().take(known).any(|dim| *dim < 0)
            || (self.is_without_shape && known > 0)
            || self.dtype.lanes == 0
            || self.dtype.bits == 0
    }
}

unsafe extern "C" fn infer(
    _inputs: *const *const DLTensor,
    _n_inputs: usize,
    outputs: *mut *mut Described,
    n_outputs: usize,
    _attributes: *const OperatorAttribute,
    _n_attributes: usize,
    _stream: *mut c_void,
    context: *mut c_void,
) -> *const c_char {
    // SAFETY: the context lives until it is dropped; there are so many outputs, each with room for 64
    // dimensions.
    unsafe {
        let says = &*context.cast::<Says>();
        for at in 0..n_outputs {
            let output = &mut (**outputs.add(at)).dl_tensor;
            output.ndim = says.ndim;
            // Any code, where Rust's type of the struct has the known ones only.
            (&raw mut output.dtype).cast::<DLDataType>().write(says.dtype);
            if says.is_elsewhere {
                output.shape = says.far.as_ptr().cast_mut();
            } else {
                ptr::copy_nonoverlapping(says.far.as_ptr(), output.shape, NDIM_MAX);
            }
            if says.is_without_shape {
                output.shape = ptr::null_mut();
            }
        }
        says.failure()
    }
}

unsafe extern "C" fn operate(
    _inputs: *const *const DLTensor,
    _n_inputs: usize,
    outputs: *mut *mut Described,
    n_outputs: usize,
    attributes: *const OperatorAttribute,
    n_attributes: usize,
    _stream: *mut c_void,
    context: *mut c_void,
) -> *const c_char {
    // SAFETY: as for `infer`; attributes are texts.
    unsafe {
        let says = &*context.cast::<Says>();
        for at in 0..n_attributes {
            assert!(!(*attributes.add(at)).key.is_null() && !(*attributes.add(at)).value.is_null());
        }
        for at in (0..n_outputs).take(if says.allocates { says.makes } else { 0 }) {
            let made = Managed::new(&says.shared, 8, false);
            Shared::count(&says.shared.imported);
            match says.spoils {
                1 => (*made).version = [2, 0],
                2 => (*made).ndim = says.ndim.clamp(i32::MIN, 1),
                3 => (*made).shape = ptr::null_mut(),
                4 => {
                    // An element is not wider than the memory has room for.
                    let bytes = usize::from(says.dtype.bits).div_ceil(8) * usize::from(says.dtype.lanes);
                    let lanes = if bytes <= 4 { says.dtype.lanes } else { 0 };
                    ((*made).code, (*made).bits, (*made).lanes) = (says.dtype.code, says.dtype.bits, lanes);
                }
                5 => (*made).device = [says.dims[0] as i32, says.dims[1] as i32],
                6 => (*made).data = ptr::null_mut(),
                // Never longer than the memory: results are read.
                7 => *(*made).shape = says.dims[0].min(8),
                8 => (*made).byte_offset = u64::MAX,
                9 => (*made).strides = (&raw const STRIDES[says.dims[0] as usize % 2]).cast_mut(),
                _ => {}
            }
            outputs.add(at).write(made.cast());
        }
        says.failure()
    }
}

unsafe extern "C" fn drop_context(context: *mut c_void) {
    // SAFETY: made by `Box::into_raw`, and given away once.
    let says = unsafe { Box::from_raw(context.cast::<Says>()) };
    says.shared.dropped.fetch_add(1, SeqCst);
}

/// Looks for the operators of an input while they are listed, and takes one of them out.
struct Search {
    names: Vec<CString>,
    found: usize,
    removes: Option<CString>,
}

unsafe extern "C" fn find(context: *mut c_void, info: *const estafette_operator_info) {
    // SAFETY: there during the call.
    unsafe {
        let search = &mut *context.cast::<Search>();
        let name = std::ffi::CStr::from_ptr((*info).name);
        search.found += usize::from(search.names.iter().any(|known| known.as_c_str() == name));
        if let Some(name) = search.removes.take() {
            accepts(estafette_unregister_operator(name.as_ptr()), "unregister inside");
        }
    }
}

struct Registered {
    name: CString,
    options: OperatorOptions,
    /// True if its calls cannot succeed; the context itself is the registry's.
    is_impossible: bool,
    ndim: i32,
    dims: Vec<i64>,
}

struct OperatorWorld {
    shared: Arc<Shared>,
    engine: *mut estafette_engine,
    registered: Vec<Registered>,
}

fn engine() -> *mut estafette_engine {
    static ENGINE: OnceLock<usize> = OnceLock::new();
    let create = || {
        let options = estafette_engine_options {
            workers: 1,
            in_flight_limit: 64,
            lease_timeout_ns: 1_000_000_000,
            ..zeroed!(estafette_engine_options)
        };
        let mut engine = ptr::null_mut();
        // SAFETY: everything is as the interface wants it.
        let got = unsafe { estafette_engine_create(&raw const options, &raw mut engine) };
        accepts(got, "create");
        engine as usize
    };
    *ENGINE.get_or_init(create) as *mut estafette_engine
}

impl OperatorWorld {
    fn register(&mut self, bytes: &mut Bytes<'_>) {
        if self.registered.len() >= HELD_MAX {
            return;
        }
        let name = match self.registered.first() {
            Some(taken) if bytes.one_in(6) => taken.name.clone(),
            _ => bytes.text(24),
        };
        let kind = [OPERATOR_DESTINATION, OPERATOR_ALLOCATING, OPERATOR_INFERRED, bytes.number() as u32]
            [bytes.below(9) / 2 % 4];
        let size = size_of::<OperatorOptions>() as u32;
        let infers = if bytes.one_in(8) { kind != OPERATOR_INFERRED } else { kind == OPERATOR_INFERRED };
        let options = OperatorOptions {
            size: if bytes.one_in(6) { bytes.number() as u32 } else { size },
            kind,
            flags: if bytes.one_in(4) { bytes.number() as u32 } else { 0 },
            n_inputs: if bytes.one_in(4) { bytes.number() as i32 } else { 0 },
            n_outputs: if bytes.one_in(4) { bytes.number() as i32 } else { 1 + bytes.below(2) as i32 },
            infer: if infers { Some(infer) } else { None },
        };
        let is_possible = name.to_str().is_ok_and(|name| !name.is_empty())
            && options.size >= size
            && [OPERATOR_DESTINATION, OPERATOR_INFERRED, OPERATOR_ALLOCATING].contains(&kind)
            && options.flags & !OPERATOR_IN_PLACE == 0
            && options.n_inputs >= -1
            && (1..=OUTPUTS_MAX as i32).contains(&options.n_outputs)
            && infers == (kind == OPERATOR_INFERRED);
        let is_taken = self.registered.iter().any(|known| known.name == name);
        let function: OperatorFunction = if bytes.one_in(16) { None } else { Some(operate) };
        let says = Says::read(bytes, &self.shared, kind == OPERATOR_ALLOCATING);
        let (is_impossible, ndim, dims) = (says.is_impossible(), says.ndim, says.far.clone());
        let says = Box::into_raw(Box::new(says));
        Shared::count(&self.shared.contexts);
        // SAFETY: as the interface wants it, or wrong in a way that it promises to see.
        let got = unsafe {
            let (name, drop_context) = (name.as_ptr(), Some(drop_context as _));
            estafette_register_operator(name, function, &raw const options, says.cast(), drop_context)
        };
        let is_possible = is_possible && function.is_some();
        if got == ESTAFETTE_OK {
            assert!(
                is_possible && !is_taken,
                "an operator that cannot be is accepted: {name:?}, {options:?}"
            );
            self.registered.push(Registered { name, options, is_impossible, ndim, dims });
            return;
        }
        let expected = if is_possible { ESTAFETTE_CONFLICT } else { ESTAFETTE_INVALID };
        assert!(!is_possible || is_taken, "an operator is refused: {}", last_error());
        assert!(got == expected, "{got:?} for {expected:?}: {}", last_error());
        assert!(!last_error().is_empty());
        self.shared.contexts.fetch_sub(1, SeqCst);
        // SAFETY: made above, and not taken.
        drop(unsafe { Box::from_raw(says) });
    }

    fn call(&mut self, bytes: &mut Bytes<'_>) {
        let at = bytes.below(self.registered.len());
        let Some(operator) = self.registered.get(at) else { return };
        let own = usize::try_from(operator.options.n_outputs).unwrap_or(0);
        let count = if own > 8 || bytes.one_in(8) { bytes.below(8) } else { own };
        let keys: Vec<_> = (0..bytes.below(4)).map(|_| (bytes.text(6), bytes.text(6))).collect();
        let attributes: Vec<_> = keys
            .iter()
            .map(|(key, value)| OperatorAttribute { key: key.as_ptr(), value: value.as_ptr() })
            .collect();
        let mut outputs = vec![ptr::null_mut(); count];
        // SAFETY: as the interface wants it, or wrong in a way that it promises to see.
        let got = unsafe {
            estafette_call_operator(
                self.engine,
                operator.name.as_ptr(),
                ptr::null(),
                0,
                outputs.as_mut_ptr(),
                outputs.len(),
                attributes.as_ptr(),
                attributes.len(),
            )
        };
        let is_possible = count == own
            && operator.options.n_inputs <= 0
            && operator.options.kind != OPERATOR_DESTINATION
            && keys.iter().all(|(key, value)| key.to_str().is_ok() && value.to_str().is_ok());
        if got != ESTAFETTE_OK {
            assert!(!is_possible, "a call is refused: {got:?}, {}", last_error());
            return;
        }
        assert!(is_possible, "a wrong call of {:?} is accepted", operator.name);
        for output in outputs {
            let got = estafette_wait(output, LIMIT.as_nanos() as u64);
            assert!(matches!(got, ESTAFETTE_OK | ESTAFETTE_FAILED), "{got:?}: {}", last_error());
            if operator.options.kind == OPERATOR_INFERRED && got == ESTAFETTE_OK {
                assert!(!operator.is_impossible, "a result that cannot be is made");
                let (mut ndim, mut shape) = (0, [0; NDIM_MAX]);
                // SAFETY: as the interface wants it.
                let got = unsafe {
                    estafette_tensor_shape(output, shape.as_mut_ptr(), NDIM_MAX as i32, &raw mut ndim)
                };
                accepts(got, "the shape");
                let known = ndim as usize;
                assert_eq!((ndim, &shape[..known]), (operator.ndim, &operator.dims[..known]));
            }
            accepts(estafette_tensor_release(output), "release");
        }
    }

    fn unregister(&mut self, bytes: &mut Bytes<'_>) {
        if bytes.one_in(4) {
            let name = bytes.text(24);
            if self.registered.iter().all(|known| known.name != name) {
                // SAFETY: a text.
                let got = unsafe { estafette_unregister_operator(name.as_ptr()) };
                refuses(got, "no such operator");
            }
        } else if !self.registered.is_empty() {
            let operator = self.registered.swap_remove(bytes.below(self.registered.len()));
            // SAFETY: a text.
            let got = unsafe { estafette_unregister_operator(operator.name.as_ptr()) };
            accepts(got, "unregister");
        }
    }

    fn list(&mut self, bytes: &mut Bytes<'_>) {
        let names: Vec<CString> = self.registered.iter().map(|operator| operator.name.clone()).collect();
        let count = names.len();
        let removed = (bytes.one_in(2) && count > 0).then(|| self.registered.swap_remove(0).name);
        let mut search = Search { names, found: 0, removes: removed };
        // SAFETY: as the interface wants it.
        let got = unsafe { estafette_list_operators(Some(find), (&raw mut search).cast()) };
        accepts(got, "list");
        assert_eq!(search.found, count, "operators that are listed");
    }
}

pub(super) fn run(bytes: &[u8]) {
    let mut bytes = Bytes::new(bytes);
    let mut world = OperatorWorld { shared: Arc::default(), engine: engine(), registered: Vec::new() };
    for _ in 0..STEPS_MAX {
        if bytes.is_over() {
            break;
        }
        match bytes.below(8) {
            0..3 => world.register(&mut bytes),
            3..6 => world.call(&mut bytes),
            6 => world.unregister(&mut bytes),
            _ => world.list(&mut bytes),
        }
    }
    for operator in world.registered.drain(..) {
        // SAFETY: a text.
        let got = unsafe { estafette_unregister_operator(operator.name.as_ptr()) };
        accepts(got, "unregister at the end");
    }
    let deadline = Instant::now() + LIMIT;
    let shared = &world.shared;
    loop {
        let contexts = (shared.dropped.load(SeqCst), shared.contexts.load(SeqCst));
        let results = (shared.deleted.load(SeqCst), shared.imported.load(SeqCst));
        assert!(contexts.0 <= contexts.1 && results.0 <= results.1, "{contexts:?}, {results:?}");
        if contexts.0 == contexts.1 && results.0 == results.1 {
            return;
        }
        assert!(Instant::now() < deadline, "contexts {contexts:?} and results {results:?} did not come back");
        accepts(estafette_flush_deleters(LIMIT.as_nanos() as u64), "flush");
        std::thread::yield_now();
    }
}
