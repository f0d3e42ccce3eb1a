//! Operators: functions with a name, that one library brings and any other has scheduled.
//!
//! An operator is called by its name, from Rust, C or Python, and a call is an operation like any other: it
//! reads its inputs, and writes its outputs or produces them. Inputs that are still promises are waited for
//! in the graph.
//!
//! ```
//! use estafette::operators::{Closure, operators};
//! use estafette::{DType, Engine};
//!
//! let double = Closure::Destination(Box::new(|inputs, outputs, _attributes| {
//!     for (y, x) in outputs[0].as_mut_slice::<f32>()?.iter_mut().zip(inputs[0].as_slice::<f32>()?) {
//!         *y = 2.0 * x;
//!     }
//!     Ok(())
//! }));
//! operators().register_closure("double", 1, 1, double)?;
//! let engine = Engine::builder().workers(1).build()?;
//! let x = engine.from_vec(vec![1.0_f32, 2.0], &[2])?;
//! let y = engine.zeros(&[2], DType::F32)?;
//! engine.operator("double")?.inputs(&[&x]).run_into(&[&y])?;
//! assert_eq!(y.to_vec::<f32>()?, [2.0, 4.0]);
//! # operators().unregister("double")?;
//! # Ok::<(), estafette::Error>(())
//! ```
//!
//! # The three kinds
//! The side that decides where results go differs among libraries, and one interface has all three kinds
//! (they are those of apache/mxnet#4735): see [`OperatorKind`].
//!
//! # One registry per process
//! A library brings its operators once, whatever the number of engines; the engine that calls one runs it. (A
//! process that has two copies of this library has two registries.) An operator that was taken out of the
//! registry stays alive while calls of it are under way and while work runs that they have enqueued, and so
//! does the shared library that it came from.
//!
//! | file | its one idea |
//! |---|---|
//! | `registry` | names and what they stand for |
//! | `operator` | facts about an operator |
//! | `attributes` | the options of a call, as text |
//! | `call` | a call as an operation of the graph |
//! | `invocation` | the call of an operator as its implementation gets it, and its end |
//! | `kernel` | functions that run where they are called, and return when they are done |
//! | `closure` | functions in Rust |
//! | [`abi`] | functions in C |
//! | [`library`] | shared libraries full of them |
//!
//! # Invariants
//!
//! - A call is an operation of the engine that it is made on; the registry orders nothing.
//! - No lock of the registry is held while a function of an operator runs.

pub mod abi;
pub mod library;

mod attributes;
mod call;
mod closure;
pub(crate) mod invocation;
mod kernel;
pub(crate) mod operator;
mod registry;

pub use attributes::Attributes;
pub use call::OperatorCall;
pub use closure::Closure;
pub use operator::{OUTPUTS_MAX, Operator, OperatorKind, Signature};
pub use registry::{Operators, operators};
