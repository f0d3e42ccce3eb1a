//! Operators in C: the types of their interface, and functions of that type as operators.
//!
//! These types are part of the C header `estafette.h`, which has their contracts in C's words. A library of
//! operators needs the header alone: it links to no library of Estafette.

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::NonNull;

use estafette_devices::Queue;
use estafette_report::shown::shown;
use estafette_sync::process::Generation;
use estafette_sync::valgrind;

use crate::core::error::{BodyError, BodyResult, Error};
use crate::exchange::abi::table;
use crate::exchange::callback;
use crate::exchange::layout::NDIM_MAX;
use crate::exchange::unowned;
use crate::exchange::{Abi, InvalidTensor, Layout, ManagedTensor, export};
use crate::exchange::{DLManagedTensorVersioned, DLTensor};
use crate::operation::import::Produced;
use crate::tensor::handle::Definition;

use super::invocation::Invocation;
use super::kernel::{Kernel, Run};
use super::library::Library;
use super::operator::{Operator, OperatorKind, Signature};

/// An option of a call: a name and a text.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct OperatorAttribute {
    /// The name.
    pub key: *const c_char,
    /// The value.
    pub value: *const c_char,
}

/// The function of an operator.
///
/// `outputs` has an entry per output, by kind of operator:
/// - destination, inferred: a tensor to write. It is lent for the call and has no deleter;
/// - allocating: NULL, to be replaced by a tensor that the caller owns from then on. On failure too whatever
///   is there is released by the caller.
///
/// As the function that infers, it gets lent tensors without data, and with room for 64 dimensions at
/// `dl_tensor.shape`: it writes the shape there, and sets `dl_tensor.ndim` and `dl_tensor.dtype`.
///
/// `stream` is the native stream to enqueue on, or NULL on the host. The result is NULL, or why the call has
/// failed, as a text that stays valid until this thread calls an operator again. Any thread may call it,
/// several at once.
pub type OperatorFunction = Option<
    unsafe extern "C" fn(
        inputs: *const *const DLTensor,
        n_inputs: usize,
        outputs: *mut *mut DLManagedTensorVersioned,
        n_outputs: usize,
        attributes: *const OperatorAttribute,
        n_attributes: usize,
        stream: *mut c_void,
        context: *mut c_void,
    ) -> *const c_char,
>;

/// Called once with the context of an operator that is out of the registry, when no call of it is under way
/// any more and what calls have enqueued on streams is over; never where the end of that cannot be known.
pub type OperatorDrop = Option<unsafe extern "C" fn(context: *mut c_void)>;

/// The kind of an operator that writes its results into tensors that it is given.
pub const OPERATOR_DESTINATION: u32 = 0;
/// The same, of an operator that says first what shapes and types they will have.
pub const OPERATOR_INFERRED: u32 = 1;
/// The kind of an operator that makes its results.
pub const OPERATOR_ALLOCATING: u32 = 2;
/// A flag of an operator: outputs may be inputs as well, or overlap them.
pub const OPERATOR_IN_PLACE: u32 = 1;
/// The number of inputs of an operator that takes any number.
pub const OPERATOR_ANY_NUMBER: i32 = -1;

/// The signature of an operator. Room for more is at the end: `size` says how much the caller knows of it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct OperatorOptions {
    /// `sizeof` this struct.
    pub size: u32,
    /// [`OPERATOR_DESTINATION`], [`OPERATOR_INFERRED`] or [`OPERATOR_ALLOCATING`].
    pub kind: u32,
    /// [`OPERATOR_IN_PLACE`] or 0.
    pub flags: u32,
    /// The number of inputs, or [`OPERATOR_ANY_NUMBER`].
    pub n_inputs: i32,
    /// The number of outputs, from 1 to 65,536.
    pub n_outputs: i32,
    /// Says what the outputs will look like; needed by [`OPERATOR_INFERRED`] and NULL else.
    pub infer: OperatorFunction,
}

/// The context of a library's functions.
struct OperatorContext {
    pointer: *mut c_void,
    drop: OperatorDrop,
    generation: Generation,
}

// SAFETY: the contract of registration lets any thread call the function with its context, and drop it.
unsafe impl Send for OperatorContext {}
// SAFETY: as above, several at once.
unsafe impl Sync for OperatorContext {}

impl Drop for OperatorContext {
    fn drop(&mut self) {
        if let Some(drop) = self.drop {
            // SAFETY: called once, after the last call, as registration promises.
            self.generation.release(|| callback::run(|| unsafe { drop(self.pointer) }));
        }
    }
}

/// An operator in C.
struct ForeignOperator {
    function: OperatorFunction,
    infer: OperatorFunction,
    // Dropped before the library, whose code does that.
    context: OperatorContext,
    library: Option<Library>,
}

/// Makes an operator of a function in C.
pub(crate) fn foreign(
    name: &str,
    origin: &str,
    function: OperatorFunction,
    options: &OperatorOptions,
    (pointer, drop): (*mut c_void, OperatorDrop),
    library: Option<Library>,
) -> Result<Operator, Error> {
    if function.is_none() {
        return Err(Error::invalid(format!("operator `{}`: its function is NULL", shown(name))));
    }
    let signature = signature(name, options)?;
    // From here on nothing fails, so the context is ours.
    let context = OperatorContext { pointer, drop, generation: Generation::current() };
    let foreign = ForeignOperator { function, infer: options.infer, context, library };
    Ok(Operator::new(name.into(), signature, origin.to_string(), Run(foreign)))
}

fn signature(name: &str, options: &OperatorOptions) -> Result<Signature, Error> {
    let wrong = |what: String| Err(Error::invalid(format!("operator `{}`: {what}", shown(name))));
    let size = size_of::<OperatorOptions>();
    if (options.size as usize) < size {
        return wrong(format!("size of its options is {}, less than {size}", options.size));
    }
    let kind = match options.kind {
        OPERATOR_DESTINATION => OperatorKind::Destination,
        OPERATOR_INFERRED => OperatorKind::Inferred,
        OPERATOR_ALLOCATING => OperatorKind::Allocating,
        other => return wrong(format!("kind {other} is unknown")),
    };
    if options.flags & !OPERATOR_IN_PLACE != 0 {
        return wrong(format!("flags {:#x} are unknown", options.flags & !OPERATOR_IN_PLACE));
    }
    let inputs = match options.n_inputs {
        OPERATOR_ANY_NUMBER => None,
        count => match usize::try_from(count) {
            Ok(count) => Some(count),
            Err(_) => return wrong(format!("{count} inputs")),
        },
    };
    let Ok(outputs) = usize::try_from(options.n_outputs) else {
        return wrong(format!("{} outputs", options.n_outputs));
    };
    match (kind, options.infer) {
        (OperatorKind::Inferred, None) => {
            return wrong("is inferred, but has no function that infers".into());
        }
        (OperatorKind::Destination | OperatorKind::Allocating, Some(_)) => {
            return wrong(format!("has a function that infers, but is {kind}"));
        }
        _ => {}
    }
    let signature = Signature { kind, inputs, outputs, in_place: options.flags & OPERATOR_IN_PLACE != 0 };
    signature.check(name)?;
    Ok(signature)
}

impl ForeignOperator {
    /// Calls one of the functions.
    fn call(
        &self,
        function: OperatorFunction,
        call: &Invocation,
        inputs: &[&Definition],
        outputs: &mut [*mut DLManagedTensorVersioned],
    ) -> BodyResult {
        let Some(function) = function else { return Err("the operator has no such function".into()) };
        // The definitions live until the call is over, which is what lending asks; the operation may read
        // them.
        let described: Vec<DLManagedTensorVersioned> =
            inputs.iter().map(|input| unowned::lent(&input.layout, input.data)).collect();
        let inputs: Vec<*const DLTensor> = described.iter().map(|input| &raw const input.dl_tensor).collect();
        let texts: Vec<(CString, CString)> = call
            .attributes()
            .iter()
            .map(|(key, value)| Ok((CString::new(key)?, CString::new(value)?)))
            .collect::<BodyResult<_>>()?;
        let attributes: Vec<OperatorAttribute> = texts
            .iter()
            .map(|(key, value)| OperatorAttribute { key: key.as_ptr(), value: value.as_ptr() })
            .collect();
        // SAFETY: the registrant promised that the function keeps its contract; everything that it is lent is
        // alive.
        let failure = valgrind::foreign(|| unsafe {
            function(
                inputs.as_ptr(),
                inputs.len(),
                outputs.as_mut_ptr(),
                outputs.len(),
                attributes.as_ptr(),
                attributes.len(),
                std::ptr::with_exposed_provenance_mut(call.stream()),
                self.context.pointer,
            )
        });
        if failure.is_null() {
            return Ok(());
        }
        // SAFETY: the contract says that it is a text, valid until this thread calls an operator again.
        let text = unsafe { CStr::from_ptr(failure) }.to_string_lossy();
        Err(BodyError::from(text.into_owned()))
    }
}

impl ForeignOperator {
    /// A result whose deleter is the library's code: the library stays loaded until that has run.
    fn with_library(&self, made: ManagedTensor) -> Result<ManagedTensor, InvalidTensor> {
        let Some(library) = self.library.clone() else { return Ok(made) };
        let (layout, data) = (made.describe()?, made.data());
        let flags = made.flags();
        let owner = move || {
            drop(made);
            drop(library);
        };
        // SAFETY: the owner keeps what the library has described, until the deleter is called.
        Ok(unsafe { export(&layout, data, flags, Abi::Versioned, owner) })
    }
}

impl Kernel for ForeignOperator {
    /// Without a stream to enqueue on, the function would work on the host.
    fn can_enqueue_on(&self, queue: &dyn Queue) -> bool {
        queue.handle() != 0
    }

    fn disown(&mut self) {
        self.context.drop = None;
    }

    fn infer(&self, call: &Invocation, inputs: &[&Definition]) -> BodyResult<Vec<Layout>> {
        let count = call.operator().signature.outputs;
        let mut dims = vec![[0_i64; NDIM_MAX]; count];
        let mut blanks: Vec<DLManagedTensorVersioned> =
            dims.iter_mut().map(|dims| unowned::blank(call.device(), dims)).collect();
        let mut outputs: Vec<*mut DLManagedTensorVersioned> =
            blanks.iter_mut().map(|blank| &raw mut *blank).collect();
        self.call(self.infer, call, inputs, &mut outputs)?;
        let describe = |(at, blank): (usize, &mut DLManagedTensorVersioned)| {
            // SAFETY: the struct is ours; the function has left its shape, or put another one of `ndim`
            // entries there.
            let layout = unsafe { table::layout_of(NonNull::from(&mut blank.dl_tensor)) };
            layout.map_err(|error| named(call, at, "described wrongly", &error))
        };
        blanks.iter_mut().enumerate().map(describe).collect()
    }

    fn fill(&self, call: &Invocation, inputs: &[&Definition], outputs: &[&Definition]) -> BodyResult {
        // As for the inputs of `call`; the operation may write them.
        let mut lent: Vec<DLManagedTensorVersioned> =
            outputs.iter().map(|output| unowned::lent(&output.layout, output.data)).collect();
        let mut outputs: Vec<*mut DLManagedTensorVersioned> =
            lent.iter_mut().map(|output| &raw mut *output).collect();
        self.call(self.function, call, inputs, &mut outputs)
    }

    fn make(&self, call: &Invocation, inputs: &[&Definition]) -> BodyResult<Vec<Produced>> {
        let mut outputs = vec![std::ptr::null_mut(); call.operator().signature.outputs];
        let outcome = self.call(self.function, call, inputs, &mut outputs);
        // Owned at once, so that whatever is there is released if anything is wrong with any of it.
        let owned: Vec<_> = outputs
            .into_iter()
            // SAFETY: the contract says that each is NULL or a valid struct that is ours now.
            .map(|output| unsafe { ManagedTensor::from_raw(output.cast(), Abi::Versioned) })
            .collect();
        outcome?;
        let produced = owned.into_iter().enumerate().map(|(at, made)| match made {
            Ok(made) => match self.with_library(made) {
                Ok(made) => Ok(Produced::from(made)),
                Err(error) => Err(named(call, at, "given wrongly", &error)),
            },
            Err(error) => Err(named(call, at, "given wrongly", &error)),
        });
        produced.collect()
    }
}

fn named(call: &Invocation, at: usize, how: &str, error: &dyn std::fmt::Display) -> BodyError {
    format!("output {at} of operator `{}` was {how}: {error}", shown(&call.operator().name)).into()
}
