//! Programs: operations that are recorded once and run many times.
//!
//! ```
//! use estafette::{DType, Engine};
//!
//! let engine = Engine::builder().workers(2).build()?;
//! let x = engine.from_vec(vec![1.0_f32, 2.0], &[2])?;
//! let y = engine.zeros(&[2], DType::F32)?;
//!
//! let mut builder = engine.program("step");
//! builder.op("copy").reads([&x]).writes([&y]).run(|[x], [mut y]| {
//!     y.as_mut_slice::<f32>()?.copy_from_slice(x.as_slice()?);
//!     Ok(())
//! })?;
//! builder.op("add").reads([&y]).updates([&x]).run(|[y], [], [mut x]| {
//!     for (x, y) in x.as_mut_slice::<f32>()?.iter_mut().zip(y.as_slice::<f32>()?) {
//!         *x += y;
//!     }
//!     Ok(())
//! })?;
//! let program = builder.finish()?;
//!
//! for _ in 0..3 {
//!     program.replay()?;                       // one operation, ordered with all others by what it uses
//! }
//! assert_eq!(x.to_vec::<f32>()?, [8.0, 16.0]);
//! # Ok::<(), estafette::Error>(())
//! ```
//!
//! # On a device
//!
//! Nodes may enqueue on queues of devices, as operations do, and be mixed with host nodes. A node waits for
//! no earlier node on the same in-order queue:
//!
//! ```
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicU32, Ordering};
//! use estafette::Engine;
//! use estafette::devices::Queue;
//! use estafette::devices::sim::{SimDevice, SimOptions, SimPace, SimQueue};
//!
//! let device = SimDevice::new(SimOptions { pace: SimPace::Immediate, ..SimOptions::default() })?;
//! let engine = Engine::builder().workers(1).device(device.clone()).build()?;
//! let queue: Arc<dyn Queue> = device.queue(false);
//! let (x, ran) = (engine.var(), Arc::new(AtomicU32::new(0)));
//!
//! let mut builder = engine.program("step");
//! for _ in 0..3 {
//!     let ran = Arc::clone(&ran);
//!     builder.op("kernel").writes_vars(&[&x]).on(&queue).run_on(move |queue, [], []| {
//!         let ran = Arc::clone(&ran);
//!         let queue = SimQueue::from_queue(queue).expect("the recorded queue");
//!         Ok(queue.launch("kernel", 1_000, move || drop(ran.fetch_add(1, Ordering::SeqCst)))?)
//!     })?;
//! }
//! let program = builder.finish()?;
//! program.replay()?.wait()?;                   // all nodes are issued; a host reader waits for the device
//! engine.op("look").reads_vars(&[&x]).run(|[], []| Ok(()))?.wait()?;
//! assert_eq!(ran.load(Ordering::SeqCst), 3);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A program that is all on one CUDA device can be one graph of it: [`ProgramBuilder::finish_as_graph`].
//!
//! # How a replay runs
//!
//! For the graph a replay is one operation, whose accesses are those of all its nodes. The thread that runs
//! the granted operation *owns* the run. It runs the nodes in the order of recording, which respects every
//! dependence, so it needs no counter and no atomic instruction.
//!
//! The run becomes *shared* if there are workers, two nodes may run at the same time, and nodes are long
//! enough. From there on each node counts its predecessors down, and the owner invites helpers, which are
//! operations without accesses. No thread waits for another: a thread that finds no ready node leaves, and
//! the thread that accounts for the last node completes the operation. Each run has its own counters, so
//! replays that only read may overlap; the program keeps the counters' memory for later runs.
//!
//! A run with device nodes, or with nodes that report their end, is shared from the beginning, and fences
//! order what comes after device work. A program that is all on one device can be one graph of it.
//!
//! | part | contents |
//! |---|---|
//! | `program_builder` | recording: nodes, their accesses, and the order between them |
//! | `node_builder` | the description of a node |
//! | `node` | the body of a node, and a running node that reports its end |
//! | `footprint` | the accesses of a whole program |
//! | `plan` | the state that all runs of a program share |
//! | `handle` | the handle of a program; submission of replays |
//! | `run` | one run, from grant to completion |
//! | `alone` | a run by one thread |
//! | `shared` | a run by several threads |
//! | `pace` | the choice between these two |
//! | `issue` | nodes on devices, and nodes that report their end |
//! | `failures` | failures within a run: they follow data, as between operations |
//! | `graph` | programs that are one graph of their device |
//!
//! # Invariants
//!
//! - No thread waits inside a replay: a thread without a node leaves, and the reactor or the node's end
//!   resumes the rest.
//! - A run gives its countdown to the next run only when its last thread has left it.

mod alone;
mod failures;
mod footprint;
mod graph;
mod handle;
mod issue;
mod node;
pub(crate) mod node_builder;
mod pace;
mod plan;
mod program_builder;
mod run;
mod shared;

pub use handle::Program;
pub(crate) use node::NodeRun;
pub use node_builder::NodeBuilder;
pub use program_builder::ProgramBuilder;
