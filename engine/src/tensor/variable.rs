//! Plain variables: order without memory.

use crate::core::operation::OpVar;
use crate::core::var_state::VarState;

/// A resource without memory of its own whose uses the engine orders: a file, a counter, a device setting.
///
/// A clone is another handle to the same variable.
#[derive(Clone)]
pub struct Variable {
    pub(crate) var: OpVar,
}

impl Variable {
    pub(crate) fn new() -> Self {
        Self { var: crate::core::engine_core::graph().var(VarState::default()) }
    }

    /// A mutex for bodies: the variable serializes the bodies of its writers only. Their device work and
    /// their failures do not affect later writers.
    pub(crate) fn mutex() -> Self {
        Self { var: crate::core::engine_core::graph().var(VarState::mutex()) }
    }

    /// Identity in traces and diagnoses.
    pub(crate) fn id(&self) -> u64 {
        self.var.id().get()
    }

    /// Number of writes that have finished. In a forked child of the process whose variable this is, 0.
    pub fn version(&self) -> u64 {
        version_of(&self.var)
    }
}

pub(super) fn version_of(var: &OpVar) -> u64 {
    // Locks of what is inherited may be held for ever.
    if var.is_inherited() { 0 } else { var.with_ordering_state(|state, _| state.version()) }
}

impl std::fmt::Debug for Variable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Variable({})", self.id())
    }
}
