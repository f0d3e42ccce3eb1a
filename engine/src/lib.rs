//! **Estafette** orchestrates tensor exchange as a dependency graph: every tensor is a promise that can be asked whether
//! it is ready, awaited, chained on, and handed to another library, and its memory goes back to its owner only when
//! the last reader and writer are really done. It never stops the world: only a host consumer waits, and only for its
//! own data.
//!
//! ```
//! use estafette::{DType, Engine};
//!
//! let engine = Engine::builder().workers(2).build()?;
//! let x = engine.from_vec(vec![1.0_f32, 2.0, 3.0], &[3])?;
//! let y = engine.zeros(&[3], DType::F32)?;
//! engine.op("double").reads([&x]).writes([&y]).run(|[x], [mut y]| {
//!     for (y, x) in y.as_mut_slice::<f32>()?.iter_mut().zip(x.as_slice::<f32>()?) {
//!         *y = 2.0 * x;
//!     }
//!     Ok(())
//! })?;
//! y.wait()?;                                   // or `y.ready().await`
//! assert_eq!(y.to_vec::<f32>()?, [2.0, 4.0, 6.0]);
//! # Ok::<(), estafette::Error>(())
//! ```
//!
//! # Promises
//!
//! What an operation produces is a tensor at once, and has memory later. Asynchronous bodies get owned guards:
//!
//! ```
//! # use estafette::{Engine, Produced};
//! # let engine = Engine::builder().workers(1).build()?;
//! let x = engine.from_vec(vec![3_i64, 1, 2], &[3])?;
//! let sorted = engine.op("sort").reads([&x]).produce_async(|[x]| async move {
//!     let mut values = x.as_slice::<i64>()?.to_vec();
//!     values.sort();
//!     Ok(Produced::from_vec(values, &[3])?)
//! })?;
//! futures::executor::block_on(sorted.ready())?;   // any executor
//! assert_eq!(sorted.to_vec::<i64>()?, [1, 2, 3]);
//! # Ok::<(), estafette::Error>(())
//! ```
//!
//! # Exchange
//!
//! An exported tensor is under a lease until its consumer calls the deleter. A failure follows the data, and every waiter
//! gets its root cause:
//!
//! ```
//! # use estafette::{Access, Engine};
//! # let engine = Engine::builder().workers(1).build()?;
//! let x = engine.from_vec(vec![1.0_f64, 2.0], &[2])?;
//! let exported = futures::executor::block_on(x.export(Access::Read))?;   // for another library
//! let write = engine.op("write").writes([&x]).run(|[], [_x]| Err("out of paper".into()))?;
//! assert!(!x.is_ready());                                                // it waits for the lease
//! drop(exported);                                                        // the consumer calls the deleter
//! assert!(write.wait().unwrap_err().to_string().ends_with("failed: out of paper"));
//! assert!(x.wait().unwrap_err().to_string().contains("out of paper"));
//! # Ok::<(), estafette::Error>(())
//! ```
//!
//! # How it fits together
//!
//! An [`Engine`] accepts operations ([`Engine::op`]) that declare which tensors they read and write. The graph decides
//! who may go next; fences of the devices say when it is done. Results are the same as if the operations had run one
//! by one in the order of submission.
//!
//! Other libraries' memory comes in by [`Engine::import`] and goes out by [`Tensor::export`], as DLPack structs. An
//! export is a *lease*: engine writes wait until it is returned.
//!
//! This crate never blocks a device, never runs foreign code under a lock, and has no `unsafe` outside the modules that
//! touch foreign memory (`exchange`, `export`, `arrow`, `operators`, `views`, `guards`, `copy`), the coarse clock, and those that make an
//! operation or a lease cost next to nothing (`body`, `builder`, `late`, `core_ref`, `operation`, `lease`).

mod admission;
mod admitted;
mod arrow;
mod awaits;
mod bell;
mod blocked;
mod bodies;
mod body;
mod builder;
mod clock;
mod completion;
mod consumer;
mod contained;
mod context;
mod copy;
mod core;
mod core_ref;
mod diagnose;
mod disjoint;
mod doom;
mod engine;
mod error;
pub mod exchange;
mod export;
mod guards;
mod holders;
mod import;
pub mod journal;
mod late;
mod lease;
mod lease_all;
mod lease_for;
mod lease_info;
mod lease_wait;
mod live;
mod look;
mod operands;
mod operation;
pub mod operators;
mod own_leases;
#[cfg(not(estafette_shuttle))]
mod own_runtime;
mod per_device;
mod produce;
mod quiet;
mod ready;
mod regions;
mod replay;
mod run;
mod signal;
mod stand_in;
mod state;
mod stream;
mod stuck;
mod submit;
mod taker;
mod tell;
mod tensor;
mod underway;
mod unretrieved;
mod variable;
mod views;
mod wait;
mod wakers;
mod watched;
mod withdraw;

pub use admitted::Admitted;
pub use builder::OpBuilder;
pub use completion::{Completion, Scope};
pub use consumer::Consumer;
pub use context::{set_helping, without_helping};
pub use diagnose::{Blocked, Diagnosis, Status, Waiting};
pub use engine::{Engine, EngineBuilder, STACK_SIZES, ShutdownReport, Stats, WORKERS_MAX};
pub use error::{BodyError, BodyResult, Error, FailureKind, LeaseHeld, OperationError};
pub use estafette_devices as devices;
pub use exchange::{Abi, DType, Element, InvalidTensor, Layout, ManagedTensor, Release, ReleaseStatus};
pub use export::ExportOptions;
pub use guards::{ReadGuard, WriteGuard};
pub use import::Produced;
pub use lease::{Access, Lease};
pub use lease_info::LeaseInfo;
pub use live::{Live, Stall};
#[doc(hidden)]
pub use look::looked_at;
pub use operands::{Operands, Tensors};
pub use operation::Op;
pub use ready::{Ready, Writable};
pub use regions::Origin;
pub use replay::{CheckedNode, NodeBuilder, Program, Recorder};
pub use stream::Acquisition;
pub use submit::lost;
pub use taker::{CallSite, Taker};
pub use tensor::{Tensor, TensorState};
pub use unretrieved::{Unretrieved, on_unretrieved};
pub use variable::Variable;
pub use views::{View, ViewMut};
