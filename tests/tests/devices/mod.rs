//! Fences and queues, on the simulated device, and a kind of device that only a test knows.
//!
//! | part | what it has |
//! |---|---|
//! | `another_kind` | a kind of device that only tests know |
//! | `fences` | the guarantees, in virtual time |
//! | `queues` | what is settled on a device and what on the host, counted in driver calls |

mod another_kind;
mod fences;
mod queues;
