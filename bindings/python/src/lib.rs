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
//! | `origin` | whether memory comes from its owner or from an export of ours |
//! | `unordered` | exchanges that nobody could order |
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
//! | `recording` | where the time went: the journal, its file and its report |
//! | `error`, `report`, `unretrieved` | reports as Python objects; failures that nothing has looked at |
//! | `attached`, `fastcall` | the Python lock as a lock, and calls without detours |

#![allow(missing_debug_implementations, reason = "Python classes, seen from Python only")]

mod access;
mod arguments;
mod array_interface;
mod arrow;
mod attached;
mod awaiting;
mod barriers;
mod body;
mod buffer;
mod buffer_import;
mod call_sites;
mod capsule;
mod copy;
mod cuda_array;
mod dlpack_method;
mod dtype;
mod engine;
mod error;
mod exchange_table;
mod exit;
mod export;
mod exporter;
mod fastcall;
mod function_kind;
mod future;
mod gate;
mod handle;
mod helping;
mod import;
mod interrupt;
mod mxnet;
mod operation;
mod operator_function;
mod operators;
mod order;
mod origin;
mod peer_table;
mod peers;
mod process;
mod program;
mod promise;
mod recording;
mod report;
mod running_loop;
mod site;
mod stream;
mod suspension;
mod sycl;
mod tensor;
mod thread_state;
mod turns;
mod typestr;
mod unordered;
mod unretrieved;
mod usm_array;
mod variable;
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
    use super::access::{PyAccess, PyView};
    #[pymodule_export]
    use super::barriers::hold_barriers;
    #[pymodule_export]
    use super::call_sites::record_call_sites;
    #[pymodule_export]
    use super::engine::PyEngine;
    #[pymodule_export]
    use super::exit::{at_exit, before_threads_end};
    #[pymodule_export]
    use super::exporter::Exporter;
    #[pymodule_export]
    use super::helping::set_helping;
    #[pymodule_export]
    use super::operation::PyOperation;
    #[pymodule_export]
    use super::operators::{PyOperator, PyOperators};
    #[pymodule_export]
    use super::peers::peers;
    #[pymodule_export]
    use super::process::check_interpreter;
    #[pymodule_export]
    use super::program::PyProgram;
    #[pymodule_export]
    use super::recording::{begin_recording, end_recording, name_shown, read_report};
    #[pymodule_export]
    use super::sycl::{devices, register_context, unregister_context};
    #[pymodule_export]
    use super::tensor::PyTensor;
    #[pymodule_export]
    use super::thread_state::{after_fork_in_child, after_fork_in_parent, before_fork};
    #[pymodule_export]
    use super::unordered::unordered_exchanges;
    #[pymodule_export]
    use super::variable::PyVariable;

    use super::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::dlpack_method::install(module.py())?;
        super::exchange_table::install(module.py())?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
