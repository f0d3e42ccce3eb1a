//! The results of a trace: files, pages, stalls and advice.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

mod advice;
mod chrome;
mod damaged;
mod failures;
mod given_up;
mod html;
#[path = "../made_up/mod.rs"]
mod made_up;
mod names;
mod observed;
mod perfetto;
mod processes;
mod programs;
mod strategies;
mod tiling;
mod unfinished;
mod with_graph;
