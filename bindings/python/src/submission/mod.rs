//! From a call of Python to a submission: its arguments, and how Python functions run as bodies.
//!
//! | part | what it has |
//! |---|---|
//! | `backlog` | The operations that a thread submits before it lets them run |
//! | `body` | Running the Python functions of operations |
//! | `function_kind` | What kind of function a body is, and results that no operation may have |
//! | `helping` | Whether waits run operations on the thread that waits |
//! | `on` | The queue that the function of an operation enqueues on |
//! | `on_skip` | What is called in place of a function whose operation is skipped |
//! | `operator_function` | Python functions as operators |
//! | `outcome` | The end of an operation with a Python function: its result, and what was left on its queue |
//! | `plain_call` | The call of a plain function, in the context of its submitter |
//! | `results` | Several results of one function |
//! | `running` | The plain bodies that run right now, with their threads |
//! | `scope` | Which operation the calling code belongs to |
//! | `submission_args` | What a submission asks for, read from the arguments of `submit` and `call` |
//! | `using` | What makes arrays of an operation's tensors |

pub(crate) mod backlog;
pub(crate) mod body;
pub(crate) mod function_kind;
pub(crate) mod helping;
pub(crate) mod on;
pub(crate) mod on_skip;
pub(crate) mod operator_function;
pub(crate) mod outcome;
pub(crate) mod plain_call;
pub(crate) mod results;
pub(crate) mod running;
pub(crate) mod scope;
pub(crate) mod submission_args;
pub(crate) mod using;
