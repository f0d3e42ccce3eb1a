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
//! Nodes may enqueue on queues of devices, as operations do, and be mixed with nodes on the host. What follows device work on
//! the same queue waits for nothing:
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
//!         let queue = SimQueue::from_queue(queue).expect("the queue that it was recorded with");
//!         Ok(queue.launch("kernel", 1_000, move || drop(ran.fetch_add(1, Ordering::SeqCst)))?)
//!     })?;
//! }
//! let program = builder.finish()?;
//! program.replay()?.wait()?;                   // all is issued; now a reader on the host waits for the device
//! engine.op("look").reads_vars(&[&x]).run(|[], []| Ok(()))?.wait()?;
//! assert_eq!(ran.load(Ordering::SeqCst), 3);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A program that is all on one CUDA device can be one graph of it: [`ProgramBuilder::finish_as_graph`].
//!
//! # How a replay runs
//!
//! Towards the graph a replay is one operation, which uses whatever its nodes use ([`footprint`]). Once it is granted, the
//! thread that runs it *owns* the run. It goes through the nodes in the order of recording ([`has_no_workers`]): that respects every
//! dependence, so it needs no counter and no atomic instruction.
//!
//! When there are workers, two nodes may run at once, and nodes are long enough for others to be of use ([`pace`]), the
//! run is *shared* ([`shared`]): from there on each node counts its predecessors down, and the owner invites helpers,
//! which are plain operations without accesses. Nobody waits for anybody: a thread that finds nothing to run leaves, and
//! the one that accounts for the last node completes the operation. Each run has counters of its own, so replays that only
//! read may overlap; their memory is kept by the program for the next run.
//!
//! Nodes may be on devices, or tell their end themselves ([`node`]). Then the counters are used from the beginning, and what
//! comes after device work is ordered after its fence ([`issue`]). A program that is all on one device can be one graph of it
//! ([`graph`]).
//!
//! A failure follows data, as between operations ([`failures`]).

mod alone;
mod failures;
mod footprint;
mod graph;
mod inputs;
mod issue;
mod node;
mod node_builder;
mod pace;
mod plan;
mod program;
mod program_builder;
mod run;
mod shared;

pub(crate) use inputs::{Earlier, Inputs};
pub(crate) use node::NodeRun;
pub use node_builder::{CheckedNode, NodeBuilder};
pub use program::Program;
pub use program_builder::ProgramBuilder;
