//! Writes a made-up recording in every format: `cargo run --package estafette-report --example made_up -- FOLDER [OPERATIONS]`.
//!
//! The tests of the files look at these; so may people who have no recording of their own yet.

use std::error::Error;
use std::fs::File;
use std::path::Path;

use estafette_report::{chrome, html, perfetto};

#[path = "../tests/made_up/mod.rs"]
mod made_up;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("give a folder to write to")?;
    let operations: usize = arguments.next().as_deref().unwrap_or("1000").parse()?;
    let recording = made_up::recording(operations);
    let folder = Path::new(&folder);
    std::fs::create_dir_all(folder)?;
    perfetto::write(&recording, File::create(folder.join("run.pftrace"))?)?;
    chrome::write(&recording, File::create(folder.join("run.json"))?)?;
    html::write(&recording, File::create(folder.join("run.html"))?)?;
    println!("{operations} operations: {}", folder.display());
    Ok(())
}
