//! Read/write order of operations over variables: this crate decides *which operation may run next*, and
//! nothing else.
//!
//! Operations are submitted with the variables they read and write. An operation is *granted* once every
//! earlier conflicting operation has been completed. Its completion returns the operations that are granted
//! next. The result is as if the operations had run one by one in submission order, with many readers at
//! once.
//!
//! The crate never starts a thread, never reads a clock, and never calls a device, a foreign function or an
//! async runtime. It calls its user's closures while it holds no lock, but for the short closures documented
//! as running *under the lock*.
//!
//! | part | what is in it |
//! |---|---|
//! | `variable/` | variables: lock, queue of accesses, pins, collapse |
//! | `operation/` | operations: memory, submission, grant, completion, withdrawal |
//! | `inspect/` | the waits of operations: steps, walks, snapshots |
//! | [`program`] | operations that are recorded once and run many times |
//! | `graph.rs`, `registry.rs` | the graph, what keeps it alive, the list of its variables |
//! | `biased_lock.rs`, `reentry.rs` | one thread without locked instructions; closures that use the graph are refused |
//! | `addresses.rs`, `id.rs` | maps and sets of addresses; names of operations and variables |
//!
//! ```
//! use estafette_graph::{Graph, AccessMode};
//!
//! let graph: Graph<(), &str> = Graph::new();
//! let x = graph.var(());
//! let first = graph.op("produce", [(&x, AccessMode::Write)]).submit_unreferenced().expect("nothing is queued before it");
//! assert!(graph.op("consume", [(&x, AccessMode::Read)]).submit_unreferenced().is_none(), "waits for the write");
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
//! `PROTOCOL.md` beside this crate's source states how the order is kept, which races are excluded and why
//! each memory ordering is what it is.
//!
//! # Invariants
//!
//! - An operation joins all its queues at one moment: it holds the locks of all its variables together,
//!   taken in address order. Submissions are linearizable, and crossing submitters cannot deadlock.
//! - Granted accesses are a prefix of each queue and stay in it until they complete, so a stall can be
//!   explained.
//! - Nothing foreign runs under a lock of a variable. Payloads, wakers and deleters are dropped or called
//!   without one. A closure that runs under a lock and uses the graph is refused.
//! - An access costs two locked instructions, and none while one thread uses the graph alone. An operation
//!   of up to four accesses allocates nothing on the heap.
//! - A completion publishes what it leaves in a variable before it grants anything.
//! - A replay has the meaning of the recorded program: the dependences that it leaves out follow from the
//!   others.
#![doc(test(attr(deny(warnings))))]

#[macro_use(debug_as)]
extern crate estafette_sync;

mod addresses;
mod biased_lock;
mod graph;
mod id;
mod inspect;
mod operation;
pub mod program;
mod reentry;
mod registry;
mod variable;

pub use graph::Graph;
pub use id::{OpId, VarId};
pub use inspect::snapshot::{Dependency, Explained, Hazard, OpView, Snapshot, VarView};
pub use inspect::walk::{Step, StepKind, Walk};
pub use operation::access::AccessMode;
pub use operation::completed::Completed;
pub use operation::granted::{Finish, Granted, GrantedAccess};
pub use operation::op_ref::OpRef;
pub use operation::pending::PendingOp;
pub use variable::var::Var;
