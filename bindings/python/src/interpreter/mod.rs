//! Code around the interpreter, for speed or for safety: states of threads, calls in the faster forms of
//! CPython, exit, fork and signals. Nothing here decides what an operation or an exchange does. Each file
//! gives its reason. Where that is speed, the file has the figures of the change, from `benches/results`.
//!
//! | part | what it has |
//! |---|---|
//! | `allocator` | Settings of the C library for memory that array libraries have freed |
//! | `call_site` | Where in a Python program a call comes from |
//! | `courier` | Work for the Python lock that threads of the engine hand to a thread of its own |
//! | `dlpack_method` | `Tensor.__dlpack__` for the usual call: keywords only, and nothing asked for but a version |
//! | `exit` | The interpreter's exit, while engines and operations are still alive |
//! | `fastcall` | Calls that CPython has a faster form of than the stable interface of 3.11 knows |
//! | `finalization` | Calls of Python code that a thread may come back from when the interpreter is finalizing |
//! | `guard` | The guard between threads of the engine and the interpreter |
//! | `interrupt` | Ctrl-C during a blocking wait |
//! | `kept` | Python objects that any thread may drop |
//! | `lease_sites` | Call sites of leases: the line of Python code that takes one, and what becomes of its memory there |
//! | `once` | Values that are made once, and that a forked child never waits for |
//! | `python_lock` | The Python lock as a lock that bodies share |
//! | `thread_state` | The states that Python keeps of threads of the engine |

pub(crate) mod allocator;
pub(crate) mod call_site;
pub(crate) mod courier;
pub(crate) mod dlpack_method;
pub(crate) mod exit;
pub(crate) mod fastcall;
pub(crate) mod finalization;
pub(crate) mod guard;
pub(crate) mod interrupt;
pub(crate) mod kept;
pub(crate) mod lease_sites;
pub(crate) mod once;
pub(crate) mod python_lock;
pub(crate) mod thread_state;
