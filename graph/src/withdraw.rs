//! Withdrawal: an operation that waits leaves its queues as if it had not been submitted.
//!
//! An operation that nothing needs any more (a request that timed out, a question that was dropped) must not keep others
//! waiting until its turn comes. While its variables' bits are held together, no access of it can be granted, so it either
//! waits, and is taken out, or has been granted already, and stays.

use crate::access::Mode;
use crate::block::Block;
use crate::collapse::Group;
use crate::ended::Ended;
use crate::granted::{Granted, HandOver, go_on};
use crate::op_ref::OpRef;
use crate::submit;
use crate::var::{Var, VarNode};

impl<V, T> OpRef<V, T> {
    /// Takes the operation out of its queues if it waits: it will never be granted, and what waited behind it may go on. False
    /// if it is granted or over, or was withdrawn before: then nothing has happened.
    ///
    /// `vars` are handles of the variables that the operation was submitted with, in any order; others may be among them. `ready`
    /// gets every operation that is granted by this, while no bit is held; operations that wait for the same variable come in the
    /// order of their submission. The variables' `V` and flags are not touched.
    ///
    /// If `ready` panics, the remaining operations are still handed to it.
    ///
    /// # Panics
    /// If the operation waits and a variable that it was submitted with is not among `vars`.
    #[must_use = "an operation that was not withdrawn is granted, or will be"]
    pub fn withdraw(&self, vars: &[&Var<V, T>], ready: impl FnMut(Granted<V, T>)) -> bool {
        // A withdrawn operation and a completed one look as a granted one does.
        if self.as_block().is_granted() {
            return false;
        }
        let mut ended = Ended::new();
        let withdrawn = self.leave_queues(vars, &mut ended);
        HandOver::new(&mut ended, ready).rest();
        // Gives the operation's reference to itself up; ours keeps the payload.
        drop(ended.take_shared());
        withdrawn
    }

    fn leave_queues(&self, vars: &[&Var<V, T>], ended: &mut Ended<V, T>) -> bool {
        // SAFETY: our reference keeps the block, whose accesses are constant. Each of the operation's variables is one of
        // `vars` or what one of those forwards to, so the handles keep it alive, also where the operation is over and the
        // address was used again. All bits are taken in the order of submitters, each is given back once, and while they are
        // held nobody else grants or completes an access of the operation.
        unsafe {
            let accesses = Block::accesses(self.block());
            for access in accesses {
                let node = access.as_ref().target().node();
                let kept = vars.iter().any(|var| VarNode::leads_to(var.node(), node));
                assert!(kept, "{} uses a variable that was not named for its withdrawal", self.id());
            }
            let section = submit::enter(accesses);
            for access in accesses {
                // The word is read again when the bit is given back.
                let _ = access.as_ref().target().node().as_ref().state.lock_within(&section);
            }
            let waits = !self.as_block().is_granted();
            if waits {
                // Over. No other step looks at the counter of an operation that is in no queue.
                self.as_block().set_pending(0);
                ended.own = Some(self.block());
            }
            for access in accesses {
                let target = access.as_ref().target();
                let mut locked = VarNode::held(target.node());
                if waits {
                    if locked.word.group() && target.is_exclusive() {
                        Group::withdraws(&mut locked, access);
                    }
                    locked.queue(|queue| queue.withdraw(access, target.is_exclusive()));
                    go_on(&section, &mut locked, target.is_exclusive(), ended);
                    if locked.word.group() {
                        // No write was completed, but the queue may be empty now.
                        Group::completed(&mut locked, Mode::Read, &mut ended.rare().dead);
                    }
                    debug_assert!(!locked.word.orphaned(), "a handle keeps the variable");
                }
            }
            waits
        }
    }
}
