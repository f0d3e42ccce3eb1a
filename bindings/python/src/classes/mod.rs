//! The classes of the package, and what the objects of one engine share.
//!
//! | part | what it has |
//! |---|---|
//! | `access` | Scoped leases: `with eng.access(...)`, `with t.read()`, `with t.write()`, and their `async` forms |
//! | `c_handles` | The C interface in this extension: its functions, and handles of what Python has |
//! | `engine` | The class `Engine`: how one is made, waited for, asked and ended |
//! | `exporter` | The class `Exporter`: what a tensor is exported through for another access than reading |
//! | `handle` | The state that the objects of one engine share |
//! | `operation` | The class `Operation`: a handle on what was submitted |
//! | `observation` | Notes of observe mode, as the file of a trace |
//! | `operators` | `eng.operators`: the registry of operators as a mapping, and operators as functions of tensors |
//! | `program` | The class `Program`: operations that are recorded once and replayed often |
//! | `promise` | Methods that `Tensor` and `Operation` have in common with futures of `concurrent.futures` |
//! | `trace` | Traces: keeps the recorder while Python wants it, writes its file, and reads files |
//! | `remote` | The classes `Door`, `Link` and `Ticket`: tensors of other processes |
//! | `report` | An engine's reports about itself, as the plain Python objects of `estafette/_reports.py` |
//! | `tensor` | The class `Tensor` |
//! | `variable` | The class `Variable` |

pub(crate) mod access;
pub(crate) mod c_handles;
pub(crate) mod engine;
pub(crate) mod exporter;
pub(crate) mod handle;
pub(crate) mod observation;
pub(crate) mod operation;
pub(crate) mod operators;
pub(crate) mod program;
pub(crate) mod promise;
pub(crate) mod remote;
pub(crate) mod report;
pub(crate) mod tensor;
pub(crate) mod trace;
pub(crate) mod variable;
