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
//! `PROTOCOL.md` beside this crate's source. [`snapshot`] explains a stuck graph, [`recording`] analyses one after
//! the fact with petgraph, [`replay`] is for running a recording again.
#![doc(test(attr(deny(warnings))))]

mod access;
mod accesses;
mod addresses;
mod bias;
mod block;
mod collapse;
mod dead;
mod dependents;
mod draft;
mod ended;
mod granted;
mod graph;
mod hold;
mod id;
mod magazine;
mod op_ref;
mod owner;
mod prefetch;
mod queue;
pub mod recording;
mod reentry;
mod registry;
pub mod replay;
mod slab;
pub mod snapshot;
mod split;
mod submit;
mod survey;
mod targets;
mod var;
mod walk;
mod withdraw;
mod word;

pub use access::Mode;
pub use dependents::Pinned;
pub use draft::Draft;
pub use ended::Ended;
pub use granted::{Finish, Granted, GrantedAccess};
pub use graph::Graph;
pub use id::{OpId, VarId};
pub use op_ref::OpRef;
pub use snapshot::{Blocker, Explained, Hazard, OpView, Snapshot, VarView};
pub use var::Var;
pub use walk::{Step, Walk, What};
