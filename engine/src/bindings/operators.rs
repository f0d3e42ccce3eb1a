//! The registry, calls, and options of C.

use std::ffi::c_void;
use std::sync::Arc;

use crate::core::error::Error;
use crate::core::operation::Op;
use crate::engine::Engine;
use crate::operators::abi::{OperatorDrop, OperatorFunction, OperatorOptions, foreign};
use crate::operators::operator::Implementation;
use crate::operators::{Attributes, Operator, OperatorCall, Operators, Signature};
use crate::tensor::handle::Tensor;

pub use crate::operators::library::{OPTIONS_SIZE_MAX, check_rest, read};

/// Registers a function in C. On an error `drop_context` is not called: the context is still the caller's.
///
/// # Errors
/// As [`register`]; [`Error::Invalid`] for options that cannot be.
///
/// # Safety
/// The function, and the one that infers, keep the contract of [`OperatorFunction`], for any context as
/// `context` is; they and `drop_context` may be called from any thread until that has been called.
pub unsafe fn register_foreign(
    operators: &Operators,
    name: &str,
    function: OperatorFunction,
    options: &OperatorOptions,
    context: *mut c_void,
    drop_context: OperatorDrop,
) -> Result<(), Error> {
    let operator = foreign(name, "C", function, options, (context, drop_context), None)?;
    operators.add(operator).map(drop).map_err(|mut refused| {
        refused.operator.disown();
        refused.error
    })
}

/// All pairs, each with whether its value [is text](text_attribute).
pub fn typed_attributes(attributes: &Attributes) -> impl ExactSizeIterator<Item = (&str, &str, bool)> {
    attributes.attributes.iter().map(|known| (known.key.as_str(), known.value.as_str(), known.is_text))
}

/// A call of an operator that was looked up before, in `engine`.
pub fn call(engine: Engine, operator: Arc<Operator>) -> OperatorCall {
    OperatorCall::new(engine, operator)
}

/// The operator that is called.
pub fn operator_of(call: &OperatorCall) -> &Operator {
    &call.operator
}

/// As [`attribute`](OperatorCall::attribute), of an option that is text, whatever it reads like: for
/// languages whose values have types.
pub fn text_attribute(
    mut call: OperatorCall,
    key: impl Into<String>,
    value: impl Into<String>,
) -> OperatorCall {
    call.attributes.set(key, value, true);
    call
}

pub fn produce_with_op(call: OperatorCall) -> Result<(Vec<Tensor>, Op), Error> {
    call.produce_with_op()
}

pub fn register(
    operators: &Operators,
    name: &str,
    signature: Signature,
    origin: impl Into<String>,
    implementation: impl Implementation,
) -> Result<(), Error> {
    operators.register(name, signature, origin, implementation)
}

pub fn get(operators: &Operators, name: &str) -> Result<Arc<Operator>, Error> {
    operators.get(name)
}
