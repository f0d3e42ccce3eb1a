//! The Python package `estafette`: a thin layer that turns Python's protocols into calls of the engine. It never decides
//! what runs when, and imports no array library itself.
//!
//! | file | its one idea |
//! |---|---|
//! | `engine`, `tensor`, `exporter`, `operation`, `access`, `variable` | the classes that users see |
//! | `handle`, `order`, `arguments` | what the objects of one engine share; what a submission asks for; shapes, types and times as people write them |
//! | `import`, `export`, `capsule` | DLPack's Python protocol, both ways |
//! | `arrow` | Arrow's PyCapsule interface, both ways |
//! | `dlpack_method` | `__dlpack__` for the usual call |
//! | `buffer`, `copy` | Python's buffer protocol; copies as operations |
//! | `exchange_table`, `peer_table` | DLPack's C exchange table, ours and others' |
//! | `peers` | what we know of other libraries, by name |
//! | `sycl`, `turns` | queues of dpctl, the device table; functions on one queue take turns |
//! | `usm_array` | the SYCL USM array interface, both ways |
//! | `origin` | whether memory comes from its owner or from an export of the engine |
//! | `unordered` | exchanges that could not be ordered |
//! | `site` | where in a program a call comes from |
//! | `call_sites` | whether leases note which line takes them |
//! | `body`, `function_kind` | running Python functions as operations; which of them are asynchronous or none |
//! | `awaiting`, `suspension` | `await` on asyncio's event loops |
//! | `watch`, `helping` | what the watchdog logs; whether waits run operations on their own thread |
//! | `future` | futures of others as promises |
//! | `promise` | `__estafette_promise__`, both ways |
//! | `mxnet` | arrays of MXNet's asynchronous engine as promises |
//! | `operators`, `operator_function` | named functions: the registry, and those in Python |
//! | `gate`, `exit`, `process`, `thread_state`, `interrupt` | the end of the interpreter, the fork of the process and Ctrl-C, survived |
//! | `recording` | where the time went: the recorder, its file and its report |
//! | `error`, `report`, `unretrieved` | reports as Python objects; failures that nothing has looked at |
//! | `attached`, `fastcall` | the Python lock as a lock, and calls without detours |
//!
//! # Invariants
//!
//! - What is known of other libraries is in one table with a source for each row (`exchange/peers.rs`). An
//!   exchange that could not be ordered is noted (`exchange/unordered.rs`).
//! - The extension keeps nothing of an event loop: the futures that its tasks wait on belong to the loop.

#![allow(missing_debug_implementations, reason = "Python classes, seen from Python only")]

mod arguments;
mod asyncio;
mod classes;
mod error;
mod exchange;
mod interpreter;
mod kinds;
mod submission;
mod unretrieved;
mod watch;

use pyo3::prelude::*;

/// An exchange is a handful of small allocations, some of them aligned to cache lines, which the C library's allocator is
/// slow at.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The extension behind the package `estafette`.
#[pymodule]
mod _estafette {
    #[pymodule_export]
    use super::classes::access::{PyAccess, PyView};
    #[pymodule_export]
    use super::classes::engine::PyEngine;
    #[pymodule_export]
    use super::classes::exporter::Exporter;
    #[pymodule_export]
    use super::classes::operation::PyOperation;
    #[pymodule_export]
    use super::classes::operators::{PyOperator, PyOperators};
    #[pymodule_export]
    use super::classes::program::PyProgram;
    #[pymodule_export]
    use super::classes::recording::{begin_recording, end_recording, name_shown, read_report};
    #[pymodule_export]
    use super::classes::tensor::PyTensor;
    #[pymodule_export]
    use super::classes::variable::PyVariable;
    #[pymodule_export]
    use super::exchange::peers::peers;
    #[pymodule_export]
    use super::exchange::unordered::unordered_exchanges;
    #[pymodule_export]
    use super::interpreter::exit::{at_exit, before_threads_end};
    #[pymodule_export]
    use super::interpreter::lease_sites::record_call_sites;
    #[pymodule_export]
    use super::interpreter::process::check_interpreter;
    #[pymodule_export]
    use super::interpreter::thread_state::{after_fork_in_child, after_fork_in_parent, before_fork};
    #[pymodule_export]
    use super::kinds::barriers::hold_barriers;
    #[pymodule_export]
    use super::kinds::sycl::{devices, register_context, unregister_context};
    #[pymodule_export]
    use super::submission::helping::set_helping;

    use super::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::interpreter::dlpack_method::install(module.py())?;
        super::exchange::exchange_table::install(module.py())?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
