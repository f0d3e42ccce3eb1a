//! Programs and their replays.
//!
//! | part | what it has |
//! |---|---|
//! | `on_devices` | nodes on devices, and nodes that other threads complete |
//! | `replay` | recorded once, replayed as one operation |

mod on_devices;
mod replay;
