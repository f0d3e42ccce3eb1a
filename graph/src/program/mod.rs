//! Running a recorded program again: its order is worked out once, and each run only counts down.
//!
//! [`Order`] is what never changes: who comes after whom. [`Countdown`] is one run of it by any number of threads. A
//! single thread needs no countdown: the order of log respects every dependence.
//!
//! ```
//! use estafette_graph::program::ProgramLog;
//! use estafette_graph::program::{Countdown, ProgramOrder};
//! use estafette_graph::{Mode, OpId, VarId};
//!
//! let (x, y) = (VarId::new(1), VarId::new(2));
//! let mut log = ProgramLog::new();
//! log.submitted(OpId::new(1), "load", [(x, Mode::Write)], 0);
//! log.submitted(OpId::new(2), "copy", [(x, Mode::Read), (y, Mode::Write)], 0);
//! log.submitted(OpId::new(3), "print", [(x, Mode::Read)], 0);
//!
//! let order = ProgramOrder::of(&log);
//! let mut run = Countdown::new(order.len());
//! run.restart(&order, 0);
//! let first = run.take().expect("nothing comes before the first operation");
//! assert_eq!(run.take(), None);
//! let freed = run.ended(&order, first);
//! assert_eq!((freed.next, freed.listed), (Some(1), 1));   // one for the caller, one for whoever takes it
//! assert_eq!(run.take(), Some(2));
//! assert!(run.account(3), "these were all");
//! ```

mod analysis;
mod countdown;
mod log;
mod order;
mod reduction;

pub use analysis::{CriticalPath, Dependence, OrderGraph, OrderViolation};
pub use countdown::{Countdown, Released};
pub use log::{LoggedOp, ProgramLog};
pub use order::ProgramOrder;
