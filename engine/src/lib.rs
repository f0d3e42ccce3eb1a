//! **Estafette** is an asynchronous scheduling engine for tensor exchange. Operations declare which tensors
//! they read and write. The engine runs them in the order that these declarations demand.
//!
//! Every tensor is a promise: a program can query whether the tensor is ready, await it, chain operations on
//! it, and hand it to another library. The memory goes back to its owner only when the last reader and the
//! last writer are done. The engine never stops the world: only a host consumer waits, and only for its own
//! data.
//!
//! There is one graph per process, for ever, whatever the number of engines. So tensors of one engine are
//! ordered correctly in operations of another engine. An [`Engine`] is a handle to workers, devices and
//! limits.
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
//! An operation returns its result as a tensor at once; the tensor gets its memory later. Asynchronous bodies
//! get owned guards:
//!
//! ```
//! # use estafette::{Engine, Produced};
//! # let engine = Engine::builder().workers(1).build()?;
//! let x = engine.from_vec(vec![3_i64, 1, 2], &[3])?;
//! let sorted = engine.op("sort").reads([&x]).produce_future(|[x]| async move {
//!     let mut values = x.view().to_vec::<i64>()?;
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
//! An exported tensor is under a lease until its consumer calls the deleter. A failure follows the data:
//! every waiter gets the root cause.
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
//! An [`Engine`] accepts operations ([`Engine::op`]) that declare which tensors they read and write. The
//! graph decides which operation may run next; fences of the devices show when its device work is done.
//! Results are the same as if the operations had run one by one in the order of submission.
//!
//! The names that most programs use stand here. The others stand in the module of their subject:
//! [`operation`], [`program`], [`lease`], [`tensor`], [`wait`], [`mod@engine`], [`exchange`], [`operators`],
//! [`trace`], [`report`], [`devices`] and, with the feature `links`, `remote`. Five modules have no names of
//! their own for programs:
//!
//! | part | what it has |
//! |---|---|
//! | `adapters` | arrays and streams of other crates, each behind a feature |
//! | `bindings` | what only the bindings and the tests use; not stable |
//! | `copy` | copies of tensors, as operations |
//! | `core` | the state that the handles of one engine share |
//! | `export` | memory for other libraries |
//!
//! [`Engine::import`] adopts memory of other libraries, and [`Tensor::export`] hands memory out, both as
//! DLPack structs. An export is a *lease*: engine writes wait until the consumer returns the lease.
//!
//! # Features
//!
//! | feature | what it adds | default |
//! |---|---|---|
//! | `cuda`, `sycl` | devices of these kinds, in [`devices`]; their libraries are looked for at run time | yes |
//! | `nvtx` | bodies as ranges of NVTX, where a profiler such as Nsight Systems takes them | yes |
//! | `operators` | `operators`: functions with a name, also from shared libraries | yes |
//! | `report` | files of traces, and reports of them, in [`report`] | yes |
//! | `arrow`, `ndarray` | arrays of these crates become tensors, and operands and leases become arrays | no |
//! | `candle` | tensors of this crate become tensors, and operands are copied to its tensors | no |
//! | `cudarc` | slices of device memory of this crate become tensors, and leases become views for its streams | no |
//! | `dlpark` | managed tensors of this crate, and with its features arrays of candle, image and safetensors | no |
//! | `futures` | `Pipeline`: a `Sink` of inputs and a `Stream` of results, with back-pressure | no |
//! | `links` | [`remote`]: tensors of other processes on this machine (Linux) | no |
//! | `nixl` | [`remote`]: tensors of other machines, through NIXL, whose library is looked for at run time | no |
//! | `half`, `num-complex` | numbers of these crates as [`Element`]s | no |
//! | `tokio` | a tokio runtime for asynchronous bodies; without it one thread of the engine polls them | yes |
//!
//! Without any, an engine has the host and the simulated device. The order of operations never depends on a
//! feature.
//!
//! This crate never blocks a device, but for the [quarantine](exchange::quarantine), and never runs foreign
//! code under a lock. `unsafe` is where memory of others is touched and where an operation costs next to
//! nothing; each block says why it is sound.

mod adapters;
#[doc(hidden)]
pub mod bindings;
mod copy;
mod core;
pub mod engine;
pub mod exchange;
mod export;
pub mod lease;
pub mod operation;
#[cfg(feature = "operators")]
pub mod operators;
pub mod program;
#[cfg(feature = "links")]
pub mod remote;
pub mod tensor;
pub mod trace;
pub mod wait;

#[cfg(feature = "cudarc")]
pub use adapters::cudarc::CudarcLease;
#[cfg(feature = "futures")]
pub use adapters::pipeline::Pipeline;
pub use core::error::{BodyError, BodyResult, Error, FailureKind};
pub use core::operation::Op;
pub use engine::Engine;
pub use estafette_devices as devices;
pub use estafette_report as report;
pub use exchange::{DType, Element, Layout, ManagedTensor};
pub use export::ExportOptions;
pub use lease::{Access, Lease};
pub use operation::completion::{Completion, Scope};
pub use operation::import::{ImportOptions, Produced};
pub use program::Program;
pub use tensor::handle::Tensor;
pub use tensor::variable::Variable;
pub use tensor::views::{View, ViewMut};
