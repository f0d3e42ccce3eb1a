//! One fuzz target under libFuzzer, with the feedback of an instrumented build: what `cargo xtask fuzz` runs.
//!
//! `ESTAFETTE_FUZZ_TARGET` names the target. The arguments are those of libFuzzer: `-help=1` lists them, and
//! a file is one input to run.
#![no_main]

use std::sync::OnceLock;

use tests::counting::Counting;
use tests::fuzz::{FuzzTarget, TARGETS};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static CHOSEN: OnceLock<&FuzzTarget> = OnceLock::new();

fn choose() -> &'static FuzzTarget {
    let name = std::env::var("ESTAFETTE_FUZZ_TARGET").unwrap_or_default();
    TARGETS.iter().find(|target| target.name == name).unwrap_or_else(|| {
        let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        panic!("ESTAFETTE_FUZZ_TARGET is `{name}`, and not one of {}", names.join(", "))
    })
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (CHOSEN.get_or_init(choose).run)(bytes));
