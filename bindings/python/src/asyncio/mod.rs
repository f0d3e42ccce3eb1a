//! `await` on event loops.
//!
//! | part | what it has |
//! |---|---|
//! | `awaiting` | `await` on asyncio's event loops, for futures of the engine |
//! | `running_loop` | The asyncio event loop that runs on the calling thread, if any |
//! | `stopped_loop` | Blocking waits on the thread of an event loop |

pub(crate) mod awaiting;
pub(crate) mod running_loop;
pub(crate) mod stopped_loop;
