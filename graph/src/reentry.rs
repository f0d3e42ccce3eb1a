//! Refuses a closure that runs under a variable's lock and uses the graph again.
//!
//! Such a closure would get a second exclusive reference to the variable's state, or wait for a lock that its
//! own thread holds. In a graph that one thread owns, every use passes the [biased lock](crate::biased_lock),
//! which knows whether the thread is inside. In a shared graph a lock does not know its owner, and a note at
//! each lock would cost every operation. So the calls that lend state to a closure note the graph for their
//! thread, and a thread reads the note only when it is about to wait.
//! [`Granted::complete_into`](crate::Granted::complete_into), [`Var::try_pin`](crate::Var::try_pin) and
//! [`Var::unpin`](crate::Var::unpin) leave no note, since every operation or lease would pay for it.

use std::cell::Cell;

use estafette_sync::thread_local;

/// The graph whose state a closure of this thread has borrowed: its address.
pub(crate) type GraphAddress = *const ();

/// While this guard lives, a closure of the thread borrows state of the graph.
pub(crate) struct Lending {
    before: GraphAddress,
}

impl Lending {
    #[inline]
    pub(crate) fn of(graph: GraphAddress) -> Self {
        Self { before: LENT.with(|lent| lent.replace(graph)) }
    }
}

impl Drop for Lending {
    #[inline]
    fn drop(&mut self) {
        LENT.with(|lent| lent.set(self.before));
    }
}

/// Panics if a closure of the calling thread borrows state of the graph. NULL stands for no graph.
pub(crate) fn panic_if_lent(graph: GraphAddress) {
    if !graph.is_null() && LENT.with(Cell::get) == graph {
        panic_reentered();
    }
}

/// # Panics
/// Always.
#[cold]
pub(crate) fn panic_reentered() -> ! {
    panic!("a closure that runs under a variable's lock used the graph again");
}

thread_local! {
    static LENT: Cell<GraphAddress> = const { Cell::new(std::ptr::null()) };
}
