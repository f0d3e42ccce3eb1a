//! Failures and cancellations follow the data.
//!
//! | part | what it has |
//! |---|---|
//! | `cancels` | which waits a cancel ends |
//! | `causes` | the root cause, and no wait that hangs |
//! | `follows_data` | failures follow the data, and an overwrite heals |
//! | `given_up` | what is given up leaves its queues at once |
//! | `on_skip` | what is called in place of a skipped body |
//! | `unretrieved` | failures that the program does not retrieve |

mod cancels;
mod causes;
mod follows_data;
mod given_up;
mod on_skip;
mod unretrieved;
