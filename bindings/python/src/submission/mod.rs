//! From a call of Python to a submission: its arguments, and how Python functions run as bodies.
//!
//! | part | what it has |
//! |---|---|
//! | `body` | Running the Python functions of operations |
//! | `function_kind` | The kind of function that a body is, and results that no operation may have |
//! | `helping` | The permission of a thread to run operations while it waits |
//! | `on` | The queue that the function of an operation enqueues on |
//! | `on_skip` | The callback in place of a function whose operation is skipped |
//! | `operator_function` | Python functions as operators |
//! | `option_parameters` | The options of `call` that a function has as parameters of its own |
//! | `outcome` | The end of an operation with a Python function: its result, and what was left on its queue |
//! | `plain_call` | The call of a plain function, in the context of its submitter |
//! | `results` | Several results of one function |
//! | `running` | The plain bodies that run right now, with their threads |
//! | `scope` | Which operation the calling code belongs to |
//! | `submission_args` | The options of a submission, read from the arguments of `submit` and `call` |
//! | `using` | The converter of an operation's tensors to arrays |

pub(crate) mod body;
pub(crate) mod function_kind;
pub(crate) mod helping;
pub(crate) mod on;
pub(crate) mod on_skip;
pub(crate) mod operator_function;
pub(crate) mod option_parameters;
pub(crate) mod outcome;
pub(crate) mod plain_call;
pub(crate) mod results;
pub(crate) mod running;
pub(crate) mod scope;
pub(crate) mod submission_args;
pub(crate) mod using;
