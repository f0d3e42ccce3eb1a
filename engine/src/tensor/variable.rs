//! Plain variables: order without memory.

use crate::core::operation::OpVar;
use crate::core::var_state::VarState;

/// Something that order is kept for and that has no memory of its own: a file, a counter, a device setting.
///
/// Cloning gives another handle to the same variable.
#[derive(Clone)]
pub struct Variable {
    pub(crate) var: OpVar,
}

impl Variable {
    pub(crate) fn new() -> Self {
        Self { var: crate::core::engine_core::graph().var(VarState::default()) }
    }

    /// A variable that the bodies of its writers take turns by, and nothing else: device work that one leaves behind is in nobody's
    /// way, and its failure neither.
    pub fn for_turns() -> Self {
        Self { var: crate::core::engine_core::graph().var(VarState::for_turns()) }
    }

    /// Identity in traces and diagnoses.
    pub fn id(&self) -> u64 {
        self.var.id().get()
    }

    /// Number of writes that have finished.
    pub fn version(&self) -> u64 {
        self.var.with_ordering_state(|state, _| state.version())
    }
}

impl std::fmt::Debug for Variable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Variable({})", self.id())
    }
}
