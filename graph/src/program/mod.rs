//! Programs: operations that are recorded once and run many times.
//!
//! | part | what is in it |
//! |---|---|
//! | `log`: [`ProgramLog`] | the operations with their accesses, as a plain list |
//! | `reduction` | the fewest dependences that keep the recorded order |
//! | `order`: [`ProgramOrder`] | the successors of each operation: computed once, constant from then on |
//! | `countdown`: [`Countdown`] | one run, by any number of threads |
//!
//! A single thread needs no countdown: the order of recording respects every dependence.
//!
//! ```
//! use estafette_graph::program::{Countdown, ProgramLog, ProgramOrder};
//! use estafette_graph::{AccessMode, VarId};
//!
//! let (x, y) = (VarId::new(1), VarId::new(2));
//! let mut log = ProgramLog::new();
//! log.push([(x, AccessMode::Write)]);
//! log.push([(x, AccessMode::Read), (y, AccessMode::Write)]);
//! log.push([(x, AccessMode::Read)]);
//!
//! let order = ProgramOrder::of(&log);
//! let mut run = Countdown::new(order.len());
//! run.restart(&order, 0);
//! let first = run.take().expect("the first operation waits for none");
//! assert_eq!(run.take(), None);
//! let released = run.ended(&order, first);
//! assert_eq!((released.next, released.listed), (Some(1), 1)); // one for the caller, one for any thread that takes it
//! assert_eq!(run.take(), Some(2));
//! assert!(run.account(3), "these were all");
//! ```

mod countdown;
mod log;
mod order;
#[cfg(feature = "reduction")]
mod reduction;

pub use countdown::{Countdown, Released};
pub use log::ProgramLog;
pub use order::ProgramOrder;
