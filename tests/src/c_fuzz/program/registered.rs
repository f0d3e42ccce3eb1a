//! Calls about operators: registrations, right and wrong, and calls of functions that keep their word or do
//! not.

use std::ffi::CString;
use std::sync::atomic::AtomicU64;

use super::operations::inspect_handle;
use super::*;
use estafette::exchange::DLTensor;
use estafette::operators::abi::{
    OPERATOR_ALLOCATING, OPERATOR_DESTINATION, OPERATOR_IN_PLACE, OPERATOR_INFERRED, OperatorAttribute,
    OperatorFunction, OperatorOptions,
};

/// Kinds of calls here.
pub(super) const CALLS: usize = 5;

/// Names are the process's, so no two programs use the same.
static NAMES: AtomicU64 = AtomicU64::new(0);

pub(super) struct Registered {
    name: CString,
    outputs: usize,
    allocates: bool,
}

/// Actions of an operator's function.
#[derive(Clone, Copy)]
enum Does {
    Well,
    Fails,
    /// It says that all is well, and has made nothing.
    MakesNothing,
    FailsWithResult,
}

struct OperatorContext {
    does: Does,
    allocates: bool,
    shared: Arc<Shared>,
}

/// The function of every operator here; as the one that infers it says nothing of the outputs, which is
/// wrong.
unsafe extern "C" fn operate(
    _inputs: *const *const DLTensor,
    _n_inputs: usize,
    outputs: *mut *mut estafette::exchange::DLManagedTensorVersioned,
    n_outputs: usize,
    _attributes: *const OperatorAttribute,
    _n_attributes: usize,
    _stream: *mut c_void,
    context: *mut c_void,
) -> *const c_char {
    // SAFETY: the library calls this with the context, before that is dropped.
    let context = unsafe { &*context.cast::<OperatorContext>() };
    let fails = matches!(context.does, Does::Fails | Does::FailsWithResult);
    let makes = matches!(context.does, Does::Well | Does::FailsWithResult);
    if context.allocates && makes {
        for at in 0..n_outputs {
            Shared::count(&context.shared.imported);
            // SAFETY: there are so many places.
            unsafe { outputs.add(at).write(Managed::new(&context.shared, LENGTH, false).cast()) };
        }
    }
    if fails { c"the operator says no".as_ptr() } else { ptr::null() }
}

unsafe extern "C" fn drop_operator(context: *mut c_void) {
    // SAFETY: made by `Box::into_raw`, and given away once.
    let context = unsafe { Box::from_raw(context.cast::<OperatorContext>()) };
    context.shared.dropped.fetch_add(1, SeqCst);
}

/// Counts operators whose description cannot be.
unsafe extern "C" fn inspect(context: *mut c_void, info: *const estafette_operator_info) {
    // SAFETY: there during the call; the context is a number of `list`.
    unsafe {
        let named = !(*info).name.is_null() && !(*info).origin.is_null() && (*info).n_outputs > 0;
        *context.cast::<u64>() += u64::from(named);
    }
}

impl Program {
    /// Takes one of the steps. Returns the step, unless it had no effect.
    pub(super) fn registered(&mut self, bytes: &mut Bytes<'_>) -> Option<usize> {
        let call = bytes.below(CALLS);
        match call {
            0 => self.register(bytes),
            1 | 2 => self.call_operator(bytes),
            3 => self.unregister(bytes),
            _ => self.list_or_load(bytes),
        }
        .map(|()| call)
    }

    fn register(&mut self, bytes: &mut Bytes<'_>) -> Option<()> {
        if self.operators.len() >= HELD_MAX {
            return None;
        }
        let does = [Does::Well, Does::Fails, Does::MakesNothing, Does::FailsWithResult][bytes.below(4)];
        let kind = [OPERATOR_DESTINATION, OPERATOR_ALLOCATING, OPERATOR_INFERRED, 7][bytes.below(4)];
        let infer: OperatorFunction = if bytes.one_in(3) { Some(operate) } else { None };
        let options = OperatorOptions {
            size: [size_of::<OperatorOptions>() as u32, 3, u32::MAX][bytes.below(16).saturating_sub(13)],
            kind,
            flags: [0, OPERATOR_IN_PLACE, 6][bytes.below(8).saturating_sub(5)],
            n_inputs: [1, 0, -1, -2][bytes.below(4)],
            n_outputs: [1, 2, 0, i32::MIN][bytes.below(8).saturating_sub(4)],
            infer,
        };
        let is_known = matches!(kind, OPERATOR_DESTINATION | OPERATOR_ALLOCATING | OPERATOR_INFERRED);
        let valid = options.size as usize == size_of::<OperatorOptions>()
            && is_known
            && options.flags & !OPERATOR_IN_PLACE == 0
            && options.n_inputs >= -1
            && options.n_outputs > 0
            && infer.is_some() == (kind == OPERATOR_INFERRED);
        let taken = if bytes.one_in(6) { self.operators.first() } else { None };
        let is_taken = taken.is_some();
        let number = NAMES.fetch_add(1, SeqCst);
        let name = taken.map_or_else(
            || CString::new(format!("fuzz.{}.{number}", std::process::id())).expect("no NUL"),
            |taken| taken.name.clone(),
        );
        let allocates = kind == OPERATOR_ALLOCATING;
        let context =
            Box::into_raw(Box::new(OperatorContext { does, allocates, shared: self.shared.clone() }));
        Shared::count(&self.shared.contexts);
        // SAFETY: as the interface wants it, or wrong in a way that it promises to see.
        let got = unsafe {
            let wrong = estafette_register_operator(
                ptr::null(),
                Some(operate),
                &raw const options,
                ptr::null_mut(),
                None,
            );
            refuses(wrong, "an operator without a name");
            let wrong =
                estafette_register_operator(name.as_ptr(), None, &raw const options, ptr::null_mut(), None);
            allowed(wrong, &[ESTAFETTE_INVALID], "an operator without a function");
            estafette_register_operator(
                name.as_ptr(),
                Some(operate),
                &raw const options,
                context.cast(),
                Some(drop_operator),
            )
        };
        let expected = match (valid, is_taken) {
            (false, _) => ESTAFETTE_INVALID,
            (true, true) => ESTAFETTE_CONFLICT,
            (true, false) => ESTAFETTE_OK,
        };
        expect(got, expected, "register an operator");
        if got == ESTAFETTE_OK {
            self.operators.push(Registered { name, outputs: options.n_outputs as usize, allocates });
        } else {
            self.shared.contexts.fetch_sub(1, SeqCst);
            // SAFETY: made above, and not taken.
            drop(unsafe { Box::from_raw(context) });
        }
        (got == ESTAFETTE_OK).then_some(())
    }

    fn call_operator(&mut self, bytes: &mut Bytes<'_>) -> Option<()> {
        if self.tensors.len() + 3 >= HELD_MAX || self.is_full() {
            return None;
        }
        let at = bytes.below(self.operators.len());
        let operator = self.operators.get(at)?;
        let inputs: Vec<_> = pick(&self.tensors, bytes).into_iter().take(bytes.below(3)).collect();
        let count = if bytes.one_in(8) { bytes.below(4) } else { operator.outputs };
        let given = bytes.below(3);
        let mut outputs: Vec<_> = (0..count)
            .map(|at| match given {
                0 => ptr::null_mut(),
                1 => pick(&self.tensors, bytes).unwrap_or(ptr::null_mut()),
                // Of both kinds.
                _ if at == 0 => ptr::null_mut(),
                _ => pick(&self.tensors, bytes).unwrap_or(ptr::null_mut()),
            })
            .collect();
        let produces = outputs.iter().all(|output| output.is_null());
        let mixed = !produces && outputs.iter().any(|output| output.is_null());
        let attributes = [
            OperatorAttribute { key: c"axis".as_ptr(), value: c"1".as_ptr() },
            OperatorAttribute { key: c"axis".as_ptr(), value: ptr::null() },
            OperatorAttribute { key: ptr::null(), value: c"\xff".as_ptr() },
        ];
        let from = bytes.below(8).saturating_sub(5);
        let name = if bytes.one_in(10) { c"fuzz.nothing of that name".into() } else { operator.name.clone() };
        // Failures of the function are seen at the outputs.
        Shared::count(&self.shared.failures);
        let mut op = ptr::null_mut();
        let (engine, name, named) = (self.engine, name.as_ptr(), usize::from(bytes.one_in(2)));
        let (given, results) = (inputs.as_ptr(), outputs.as_mut_ptr());
        let (inputs, count_of, attributes) = (inputs.len(), outputs.len(), attributes[from..].as_ptr());
        // SAFETY: as the interface wants it, or wrong in a way that it promises to see.
        let got = unsafe {
            if self.tensors.len().is_multiple_of(2) {
                estafette_call_operator(engine, name, given, inputs, results, count_of, attributes, named)
            } else {
                estafette_call_operator_with(
                    engine,
                    ptr::null(),
                    name,
                    given,
                    inputs,
                    results,
                    count_of,
                    attributes,
                    named,
                    &raw mut op,
                )
            }
        };
        inspect_handle(op);
        allowed(
            got,
            &[
                ESTAFETTE_OK,
                ESTAFETTE_INVALID,
                ESTAFETTE_CONFLICT,
                ESTAFETTE_LEASE_HELD,
                ESTAFETTE_WOULD_DEADLOCK,
            ],
            "call an operator",
        );
        let is_allowed = !mixed && count == operator.outputs && (produces || !operator.allocates);
        assert!(is_allowed || got != ESTAFETTE_OK, "a wrong call of an operator was accepted");
        if got == ESTAFETTE_OK && produces {
            assert!(outputs.iter().all(|output| !output.is_null()), "a result is missing");
            self.tensors.extend(outputs);
        }
        (got == ESTAFETTE_OK).then_some(())
    }

    fn unregister(&mut self, bytes: &mut Bytes<'_>) -> Option<()> {
        let operator = take(&mut self.operators, bytes)?;
        operator.unregister();
        Some(())
    }

    fn list_or_load(&mut self, bytes: &mut Bytes<'_>) -> Option<()> {
        let (mut seen, mut count) = (0_u64, 0);
        let paths = [c"/nowhere/libfuzz.so".as_ptr(), c"/dev/null".as_ptr(), c"\xff".as_ptr(), ptr::null()];
        // SAFETY: as the interface wants it, or wrong in a way that it promises to see.
        unsafe {
            let got = estafette_list_operators(None, ptr::null_mut());
            refuses(got, "list without a callback");
            let got = estafette_list_operators(Some(inspect), (&raw mut seen).cast());
            accepts(got, "list");
            let got = estafette_load_operators(paths[bytes.below(4)], &raw mut count);
            refuses(got, "a library that is none");
        }
        assert!(seen >= self.operators.len() as u64, "an operator is not listed, or not described");
        Some(())
    }
}

impl Registered {
    pub(super) fn unregister(self) {
        // SAFETY: a text.
        unsafe {
            accepts(estafette_unregister_operator(self.name.as_ptr()), "unregister");
            let again = estafette_unregister_operator(self.name.as_ptr());
            refuses(again, "unregister twice");
            refuses(estafette_unregister_operator(ptr::null()), "no name");
        }
    }
}
