//! Failures and cancellations follow the data.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

mod cancels;
mod causes;
mod follows_data;
mod given_up;
mod on_skip;
mod unretrieved;
