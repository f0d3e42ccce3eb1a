//! Functions that run where they are called, and return when they are done: what the three kinds have in
//! common.

use estafette_devices::Queue;
use estafette_report::shown::shown;
use estafette_sync::panic::contain_panic;

use crate::core::error::{BodyError, BodyResult};
use crate::exchange::Layout;
use crate::operation::import::Produced;
use crate::tensor::handle::Definition;
use crate::tensor::memory::{host_can_use, unwritten};

use super::invocation::Invocation;
use super::operator::{Implementation, OperatorKind};

/// A function of one of the three kinds. Its methods are called as its kind demands; the others are not.
pub(super) trait Kernel: Send + Sync + 'static {
    /// The layouts of the results: row-major, and on the device of the first input. For
    /// [`OperatorKind::Inferred`].
    fn infer(&self, call: &Invocation, inputs: &[&Definition]) -> BodyResult<Vec<Layout>>;

    /// Writes the results. For [`OperatorKind::Destination`] and [`OperatorKind::Inferred`].
    fn fill(&self, call: &Invocation, inputs: &[&Definition], outputs: &[&Definition]) -> BodyResult;

    /// Makes the results. For [`OperatorKind::Allocating`].
    fn make(&self, call: &Invocation, inputs: &[&Definition]) -> BodyResult<Vec<Produced>>;

    /// See [`Implementation::can_enqueue_on`].
    fn can_enqueue_on(&self, _queue: &dyn Queue) -> bool {
        false
    }

    /// See [`Implementation::disown`].
    fn disown(&mut self) {}
}

/// A kernel as an implementation.
pub(super) struct Run<K>(pub(super) K);

impl<K: Kernel> Implementation for Run<K> {
    fn start(&self, invocation: Invocation) {
        // Caught here, while the invocation is whole: dropped by a panic, it would not say which.
        match contain_panic(|| self.run(&invocation)) {
            Ok(result) => invocation.finish(result),
            Err(panic) => invocation.scope().end_by_panic(panic),
        }
    }

    fn can_enqueue_on(&self, queue: &dyn Queue) -> bool {
        self.0.can_enqueue_on(queue)
    }

    fn disown(&mut self) {
        self.0.disown();
    }
}

impl<K: Kernel> Run<K> {
    fn run(&self, call: &Invocation) -> BodyResult<Vec<Produced>> {
        let inputs = call.input_definitions()?;
        let kind = call.operator().signature.kind;
        if kind == OperatorKind::Allocating {
            return self.0.make(call, &inputs);
        }
        let outputs = call.output_definitions();
        if kind == OperatorKind::Inferred {
            let layouts = self.infer(call, &inputs)?;
            if outputs.is_empty() {
                return self.fill_fresh(call, &inputs, layouts);
            }
            check_fit(call, &layouts, &outputs)?;
        }
        self.0.fill(call, &inputs, &outputs)?;
        Ok(Vec::new())
    }

    fn infer(&self, call: &Invocation, inputs: &[&Definition]) -> BodyResult<Vec<Layout>> {
        let layouts = self.0.infer(call, inputs)?;
        let (name, outputs) = (&*call.operator().name, call.operator().signature.outputs);
        if layouts.len() != outputs {
            let (name, found) = (shown(name), layouts.len());
            return Err(format!("operator `{name}` described {found} outputs, not {outputs}").into());
        }
        Ok(layouts)
    }

    /// Writes to memory that is made for it.
    fn fill_fresh(
        &self,
        call: &Invocation,
        inputs: &[&Definition],
        layouts: Vec<Layout>,
    ) -> BodyResult<Vec<Produced>> {
        let core = call.core();
        let outputs = layouts
            .into_iter()
            .map(|layout| {
                let storage = unwritten(core, &layout)?;
                let data = storage.data();
                let host = host_can_use(core, layout.device(), data);
                Ok(Definition { layout, data, storage, host, read_only: false, placed: None })
            })
            .collect::<BodyResult<Vec<Definition>>>()?;
        self.0.fill(call, inputs, &outputs.iter().collect::<Vec<_>>())?;
        Ok(outputs.into_iter().map(|output| Produced::ready(output.layout, output.storage)).collect())
    }
}

/// Outputs that the caller has brought must look as the operator says.
fn check_fit(call: &Invocation, layouts: &[Layout], outputs: &[&Definition]) -> BodyResult {
    for (at, (wanted, output)) in layouts.iter().zip(outputs).enumerate() {
        let given = &output.layout;
        if (wanted.dtype(), wanted.shape()) != (given.dtype(), given.shape()) {
            return Err(BodyError::from(format!(
                "output {at} of operator `{}` is {} {:?}, but was given {} {:?} to write",
                &*call.operator().name,
                wanted.dtype(),
                wanted.shape(),
                given.dtype(),
                given.shape()
            )));
        }
    }
    Ok(())
}
