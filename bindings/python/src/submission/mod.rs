//! From a call of Python to a submission: its arguments, and how Python functions run as bodies.
//!
//! | part | what it has |
//! |---|---|
//! | `body` | Running the Python functions of operations |
//! | `function_kind` | What kind of function a body is, and results that no operation may have |
//! | `helping` | Whether waits run operations on the thread that waits |
//! | `operator_function` | Python functions as operators |
//! | `submission_args` | What a submission asks for, read from the arguments of `submit` and `call` |

pub(crate) mod body;
pub(crate) mod function_kind;
pub(crate) mod helping;
pub(crate) mod operator_function;
pub(crate) mod submission_args;
