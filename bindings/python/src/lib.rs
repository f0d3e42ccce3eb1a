//! The Python package `estafette`: a thin layer that turns Python's protocols into calls of the engine. It
//! never decides what runs when, and imports no array library itself.
//!
//! | folder | what it has |
//! |---|---|
//! | `classes` | the classes that users see, and what the objects of one engine share |
//! | `submission` | from a call of Python to a submission; Python functions as bodies |
//! | `exchange` | memory from other libraries and to them; what is known of peers |
//! | `kinds` | code for one kind of device: streams, queues, array interfaces |
//! | `asyncio` | `await` on event loops |
//! | `interpreter` | thread states, fast calls, exit, fork and signals |
//!
//! Beside them: `arguments` (shapes, types and times as people write them), `command` (the command
//! `estafette`), `error` and `unretrieved` (failures as exceptions, and failures that nothing has looked at),
//! `log` (warnings and errors of the engine in Python's log).
//!
//! # Invariants
//!
//! - What is known of other libraries has a row and a source (`exchange/peers.rs`, `kinds/*/peers.rs`). An
//!   exchange that could not be ordered is noted (`exchange/unordered.rs`).
//! - The extension keeps nothing of an event loop: the futures that its tasks wait on belong to the loop.

#![allow(missing_debug_implementations, reason = "Python classes, seen from Python only")]

mod arguments;
mod asyncio;
mod classes;
mod command;
mod error;
mod exchange;
mod interpreter;
mod kinds;
mod log;
mod submission;
mod unretrieved;

use pyo3::prelude::*;

/// An exchange is a handful of small allocations, some of them aligned to cache lines, which the C library's
/// allocator is slow at.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The extension behind the package `estafette`. An interpreter that can do without its lock turns the lock
/// on when it loads the extension: no test has run without, and these places rest on the lock:
///
/// - `exchange/numpy_array.rs` reads fields of NumPy's arrays, which the program may change, and takes a
///   reference count of 1 for sole use.
/// - `exchange/peer_table.rs` and `exchange/exchange_table.rs`: functions of the tables are called with the
///   lock.
/// - `interpreter/once.rs`: a thread that has the lock keeps others from forking.
/// - `submission/scope.rs` reads the number of scopes with relaxed order: the lock makes scopes that were
///   made before visible.
/// - `interpreter/interrupt.rs` and `submission/running.rs`: a thread that is interrupted cannot end
///   meanwhile.
#[pymodule(gil_used = true)]
mod _estafette {
    #[pymodule_export]
    use super::classes::{
        access::{PyAccess, PyView},
        c_handles::{c_api, engine_from_c},
        engine::{
            PyEngine, engine_states,
            remote::{failed, from_tickets},
        },
        exporter::Exporter,
        observation::write_observation,
        operation::PyOperation,
        operators::{PyOperator, PyOperators},
        program::PyProgram,
        promise::{call_back, wait_any},
        remote::{PyDoor, PyLink, PyTicket, declare_dead},
        tensor::PyTensor,
        trace::{
            begin_trace, check_output, end_trace, name_shown, read_chrome, read_report, replace_file,
            set_program_name, snapshot_trace,
        },
        variable::PyVariable,
    };
    #[pymodule_export]
    use super::interpreter::{
        exit::{at_exit, before_threads_end},
        lease_sites::record_call_sites,
        thread_state::{after_fork_in_child, after_fork_in_parent, before_fork, check_interpreter},
    };
    #[pymodule_export]
    use super::kinds::{
        barriers::hold_barriers,
        device_table::{device_text, devices, register_context, unregister_context},
        kind_modules,
    };
    #[pymodule_export]
    use super::{
        asyncio::stopped_loop::{may_block, stand_for},
        command::command,
        error::kept_errors,
        exchange::{dtype::name_of, peers::peers, unordered::unordered_exchanges},
        submission::{helping::set_helping, plain_call::run_in_spans},
    };

    use super::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        // PyO3 asks once, in a thread without the lock, whether there is an interpreter. Finalizers run when
        // the answer would be no.
        module.py().detach(|| Python::attach(|_| ()));
        super::interpreter::fastcall::install()?;
        super::log::install(module.py())?;
        super::interpreter::guard::install(module.py())?;
        super::interpreter::dlpack_method::install(module.py())?;
        super::exchange::exchange_table::install(module.py())?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
