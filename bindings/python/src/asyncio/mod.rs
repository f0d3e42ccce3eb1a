//! `await` on event loops.
//!
//! | part | what it has |
//! |---|---|
//! | `asyncio_future` | The object that a task is suspended on: a future in asyncio's sense, as far as tasks need one |
//! | `awaiting` | `await` on asyncio's event loops, for futures of the engine |
//! | `running_loop` | The asyncio event loop that runs on the calling thread, if any |
//! | `stopped_loop` | Blocking waits on the thread of an event loop |

pub(crate) mod asyncio_future;
pub(crate) mod awaiting;
pub(crate) mod running_loop;
pub(crate) mod stopped_loop;
