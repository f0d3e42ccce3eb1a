//! Read/write order of operations over variables: this crate decides *who may go next*, and nothing else.
//!
//! Operations are submitted with the variables they read and write. An operation is *granted* once every earlier
//! conflicting operation has been completed; whoever runs it completes it, which hands out the operations that may
//! go next. The result is as if the operations had run one by one in submission order, with many readers at once.
//! The crate never starts a thread, never looks at a clock, never touches a device, a foreign function or an async
//! runtime, and never calls its user's code while it holds one of its locks (but the two short closures documented
//! as running *under the bit*).
//!
//! ```
//! use estafette_graph::{Graph, Mode};
//!
//! let graph: Graph<(), &str> = Graph::new();
//! let x = graph.var(());
//! let first = graph.submit("produce", [(&x, Mode::Write)]).expect("nothing is queued before it");
//! assert!(graph.submit("consume", [(&x, Mode::Read)]).is_none(), "waits for the write");
//! assert!(!x.is_quiet());
//!
//! let mut next = Vec::new();
//! first.complete(|_| (), |granted| next.push(granted));
//! let second = next.pop().expect("the read is granted by the completion of the write");
//! assert_eq!(*second.payload(), "consume");
//! second.complete(|_| (), |_| unreachable!("nothing is queued behind it"));
//! assert!(x.is_quiet());
//! ```
//!
//! How the order is kept, which races are excluded and what each memory ordering is for is written in
//! `PROTOCOL.md` beside this crate's source. [`Snapshot`] explains a stuck graph, [`program`] records operations and runs
//! them again.
#![doc(test(attr(deny(warnings))))]

mod addresses;
mod biased_lock;
mod graph;
mod graph_ref;
mod id;
mod inspect;
mod operation;
mod prefetch;
pub mod program;
mod reentry;
mod registry;
mod variable;

pub use graph::Graph;
pub use id::{OpId, VarId};
pub use inspect::dependents::Pinned;
pub use inspect::snapshot::{Blocker, Explained, Hazard, OpView, Snapshot, VarView};
pub use inspect::walk::{Step, StepKind, Walk};
pub use operation::access::Mode;
pub use operation::completed::Completed;
pub use operation::granted::{Finish, Granted, GrantedAccess};
pub use operation::op_ref::OpRef;
pub use operation::pending::PendingOp;
pub use variable::var::Var;
