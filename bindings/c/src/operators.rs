//! Operators: functions with a name, from one library in the schedule of another.

use std::ffi::{c_char, c_void};

use estafette::bindings;
use estafette::operators::abi::{
    OPERATOR_ALLOCATING, OPERATOR_DESTINATION, OPERATOR_IN_PLACE, OPERATOR_INFERRED,
};
use estafette::operators::abi::{OperatorAttribute, OperatorFunction, OperatorOptions};
use estafette::operators::{Operator, OperatorKind, operators};

use crate::context::estafette_drop;
use crate::engine::{self, estafette_engine};
use crate::entry::{DONE, Refusal, array, c_text, entry, is_null, needed};
use crate::handles::Vacant;
use crate::op::estafette_op;
use crate::options;
use crate::slots::Submitted;
use crate::status::estafette_status;
use crate::submit::{estafette_submit_options, queue};
use crate::tensor::{self, estafette_tensor, tensors};

/// Facts about an operator. The texts are there during the call that gives them.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct estafette_operator_info {
    /// `sizeof(estafette_operator_info)`; newer versions have more at the end.
    pub size: u32,
    /// `ESTAFETTE_OPERATOR_DESTINATION`, `ESTAFETTE_OPERATOR_INFERRED` or `ESTAFETTE_OPERATOR_ALLOCATING`.
    pub kind: u32,
    /// `ESTAFETTE_OPERATOR_IN_PLACE` or 0.
    pub flags: u32,
    /// The number of inputs, or `ESTAFETTE_OPERATOR_ANY_NUMBER`.
    pub n_inputs: i32,
    /// The number of outputs.
    pub n_outputs: i32,
    /// 0.
    pub reserved: u32,
    /// The operator's name.
    pub name: *const c_char,
    /// The operator's origin, in words: a language, or the path of a library.
    pub origin: *const c_char,
}

/// Gets one operator after the other. It may call every function of this library.
pub type estafette_operator_callback =
    Option<unsafe extern "C" fn(context: *mut c_void, info: *const estafette_operator_info)>;

/// Registers a function as the operator `name`, for all engines of this process. `options` say how it is
/// called. `drop_context`, which may be NULL, is called once with `context` when the operator was
/// unregistered, no call of it is under way, and the work that calls have enqueued on streams is done.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL `name`, `function` or `options`, or options that
/// cannot be, which the text names; `ESTAFETTE_CONFLICT` for a name that is taken; `ESTAFETTE_FORKED`. On an
/// error the caller keeps `context`. May be called by any thread, inside of operators too.
///
/// # Safety
/// Each pointer is NULL or what its type says. The functions keep the contract of
/// `estafette_operator_function`, and may be called until `drop_context` is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_register_operator(
    name: *const c_char,
    function: OperatorFunction,
    options: *const OperatorOptions,
    context: *mut c_void,
    drop_context: estafette_drop,
) -> estafette_status {
    entry(|| {
        // SAFETY: by contract of this function.
        let (name, options) = unsafe { bindings::operators::read(name, options) }?;
        // SAFETY: by contract of this function.
        unsafe {
            bindings::operators::register_foreign(operators(), name, function, options, context, drop_context)
        }?;
        DONE
    })
}

/// Takes an operator out of the registry. Calls under way still end.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL, and when there is no such operator;
/// `ESTAFETTE_FORKED`. May be called by any thread.
///
/// # Safety
/// `name` is NULL or a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_unregister_operator(name: *const c_char) -> estafette_status {
    entry(|| {
        // SAFETY: by contract of this function.
        operators().unregister(unsafe { needed(name, "name") }?)?;
        DONE
    })
}

/// Loads the shared library at `path`, and registers its operators: all of them, or none. The library exports
/// a function `estafette_operators` of type `estafette_operator_entry`. It stays loaded as long as one of
/// them is registered or under way, or a result of one is alive. A path without a slash is looked for in
/// `LD_LIBRARY_PATH` and the folders of the system, and not in the current one; every function that the
/// library needs must be found when it is loaded. `count`, which may be NULL, gets how many there are.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL `path`, or a library that cannot be loaded, has no
/// such function, registers nothing, or reports a failure, whose reason is in the text; `ESTAFETTE_CONFLICT`
/// for a name that is taken; `ESTAFETTE_FORKED`. May be called by any thread.
///
/// # Safety
/// Each pointer is NULL or what its type says; the library is what is written here, and may be trusted like
/// one that the program is linked to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_load_operators(
    path: *const c_char,
    count: *mut usize,
) -> estafette_status {
    entry(|| {
        // SAFETY: by contract of this function.
        let names = unsafe { operators().load(needed(path, "path")?) }?;
        if !count.is_null() {
            // SAFETY: writable, by contract.
            unsafe { count.write(names.len()) };
        }
        DONE
    })
}

/// Calls `callback` with each operator of this process, by name.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL `callback`; `ESTAFETTE_FORKED`. May be called by any
/// thread.
///
/// # Safety
/// `callback` is NULL or does not throw.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_list_operators(
    callback: estafette_operator_callback,
    context: *mut c_void,
) -> estafette_status {
    entry(|| {
        let callback = callback.ok_or_else(|| is_null("callback"))?;
        for operator in operators().list()? {
            let (name, origin) = (c_text(&operator.name), c_text(&operator.origin));
            let mut info = describe(&operator);
            (info.name, info.origin) = (name.as_ptr(), origin.as_ptr());
            // SAFETY: by contract of this function; the texts outlive the call.
            unsafe { callback(context, &info) };
        }
        DONE
    })
}

fn describe(operator: &Operator) -> estafette_operator_info {
    let signature = operator.signature;
    let kind = match signature.kind {
        OperatorKind::Destination => OPERATOR_DESTINATION,
        OperatorKind::Inferred => OPERATOR_INFERRED,
        OperatorKind::Allocating => OPERATOR_ALLOCATING,
    };
    let count = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    estafette_operator_info {
        size: size_of::<estafette_operator_info>() as u32,
        kind,
        flags: if signature.in_place { OPERATOR_IN_PLACE } else { 0 },
        n_inputs: signature.inputs.map_or(estafette::operators::abi::OPERATOR_ANY_NUMBER, count),
        n_outputs: count(signature.outputs),
        reserved: 0,
        name: std::ptr::null(),
        origin: std::ptr::null(),
    }
}

/// Submits a call of the operator `name`, as an operation of that name: it reads `inputs`, and begins when
/// they are there.
///
/// Either all entries of `outputs` are tensors, which it overwrites, or all are NULL: then the call produces
/// its results, and each entry becomes a promise of one, which the caller owns and gives up by
/// `estafette_tensor_release`. An array may be NULL when its count is 0.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL `engine` or `name`, a handle that is not in use, for
/// an operator that there is not (the text has names that are near), a number of inputs or outputs that is
/// not the operator's, outputs that are not all of one kind, outputs given to an operator that allocates them
/// or not given to one that does not, or an attribute that is no text; `ESTAFETTE_CONFLICT` for outputs that
/// overlap another operand of an operator that does not work in place, or may not be written;
/// `ESTAFETTE_WOULD_DEADLOCK`, `ESTAFETTE_LEASE_HELD`, `ESTAFETTE_SHUTDOWN`, `ESTAFETTE_FORKED` as
/// `estafette_submit`. A failure of the operator itself is reported at its outputs. May be called by any
/// thread, inside of operations too.
///
/// # Safety
/// Each pointer but handles is NULL or what its type says; `outputs` may be written.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "C has no other way")]
pub unsafe extern "C" fn estafette_call_operator(
    engine: *mut estafette_engine,
    name: *const c_char,
    inputs: *const *mut estafette_tensor,
    n_inputs: usize,
    outputs: *mut *mut estafette_tensor,
    n_outputs: usize,
    attributes: *const OperatorAttribute,
    n_attributes: usize,
) -> estafette_status {
    let (options, op) = (std::ptr::null(), std::ptr::null_mut());
    // SAFETY: by contract of this function.
    unsafe {
        estafette_call_operator_with(
            engine,
            options,
            name,
            inputs,
            n_inputs,
            outputs,
            n_outputs,
            attributes,
            n_attributes,
            op,
        )
    }
}

/// As `estafette_call_operator`, with options (NULL for the defaults), and with a handle of the operation to
/// `*op`, which may be NULL, to query, wait for or cancel. The caller gives it up by `estafette_op_release`.
/// Of the options, `name` and `on_skip` must be 0; `on` is for calls that are given their outputs.
///
/// Returns as `estafette_call_operator`, and `ESTAFETTE_IN_FLIGHT_LIMIT`; `ESTAFETTE_INVALID` for a wrong
/// option, and with `on` for an operator that works on the host.
///
/// # Safety
/// As for `estafette_call_operator`; `options` is NULL or as long as its size says; `op` is NULL or may be
/// written.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "C has no other way")]
pub unsafe extern "C" fn estafette_call_operator_with(
    engine: *mut estafette_engine,
    options: *const estafette_submit_options,
    name: *const c_char,
    inputs: *const *mut estafette_tensor,
    n_inputs: usize,
    outputs: *mut *mut estafette_tensor,
    n_outputs: usize,
    attributes: *const OperatorAttribute,
    n_attributes: usize,
    op: *mut *mut estafette_op,
) -> estafette_status {
    entry(|| {
        let engine = engine::engine(engine)?;
        // SAFETY: by contract of this function.
        let (options, inputs, attributes, places) = unsafe {
            (
                options::read(options)?,
                tensors(inputs, n_inputs, "inputs")?,
                array(attributes, n_attributes, "attributes")?,
                array(outputs.cast_const(), n_outputs, "outputs")?,
            )
        };
        options.check_reserved()?;
        if !options.name.is_null() || options.on_skip.is_some() {
            return Err(Refusal::invalid(
                "estafette_submit_options: a call has the operator's name, and no on_skip",
            ));
        }
        // SAFETY: by contract of this function.
        let mut call = engine.operator(unsafe { needed(name, "name") }?)?;
        call = call.inputs(&inputs.iter().collect::<Vec<_>>()).priority(options.priority);
        for attribute in attributes {
            // SAFETY: by contract of this function.
            let (key, value) = unsafe {
                let key = needed(attribute.key, "the key of an attribute")?;
                (key, needed(attribute.value, key)?)
            };
            call = call.attribute(key, value);
        }
        if options.nonblocking()? {
            call = call.without_waiting();
        }
        if let Some(queue) = queue(&engine, options.on)? {
            call = call.on(&queue);
        }
        // Nothing that can be refused comes after the submission.
        let handle = if op.is_null() { None } else { Some(Submitted::reserve()?) };
        let submitted = if !places.is_empty() && places.iter().all(|place| place.is_null()) {
            let operator = bindings::operators::operator_of(&call);
            let (name, has) = (&*operator.name, operator.signature.outputs);
            if has != n_outputs {
                let message = format!("operator `{name}` has {has} outputs, not {n_outputs}");
                return Err(Refusal::invalid(message));
            }
            let vacant = places.iter().map(|_| tensor::reserve()).collect::<Result<Vec<Vacant<_>>, _>>()?;
            let (results, submitted) = bindings::operators::produce_with_op(call)?;
            for (at, (tensor, vacant)) in results.into_iter().zip(vacant).enumerate() {
                // SAFETY: `outputs` may be written, by contract.
                unsafe { outputs.add(at).write(vacant.fill(tensor)) };
            }
            submitted
        } else {
            // SAFETY: by contract of this function.
            let given = unsafe { tensors(outputs.cast_const(), n_outputs, "outputs") }?;
            call.run_into(&given.iter().collect::<Vec<_>>())?
        };
        if let Some(handle) = handle {
            // SAFETY: writable, by contract.
            unsafe { op.write(handle.fill(submitted)) };
        }
        DONE
    })
}
