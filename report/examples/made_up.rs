//! Writes made-up traces: `cargo run --package estafette-report --example made_up -- FOLDER`.
//!
//! The tests of the files look at these; so may people who have no trace of their own yet. `FOLDER/small`
//! holds 5,000 operations in every format and what the report says of them, `both.pftrace` is of two
//! processes, `large.html` has 100,000 operations, and `hostile.html` names that try to break out of the
//! page.

use std::error::Error;
use std::fs::File;
use std::path::Path;

use estafette_report::model::Text;
use estafette_report::{Trace, chrome, html, perfetto, report};

#[path = "../tests/made_up/mod.rs"]
mod made_up;

const SMALL: usize = 5_000;
const LARGE: usize = 100_000;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("give a folder to write to")?;
    let folder = Path::new(&folder);
    std::fs::create_dir_all(folder)?;
    let small = made_up::trace(SMALL);
    perfetto::write(&small, File::create(folder.join("small.pftrace"))?)?;
    chrome::write(&small, File::create(folder.join("small.json"))?)?;
    let told = report(&small);
    html::write(&small, &told, File::create(folder.join("small.html"))?)?;
    serde_json::to_writer(File::create(folder.join("small.report.json"))?, &told)?;
    // Of two processes, one behind the other.
    let both = File::create(folder.join("both.pftrace"))?;
    let mut second = made_up::trace(70);
    perfetto::write(&second, &both)?;
    for process in &mut second.processes {
        (process.number, process.key, process.started_ns) =
            (4712, !process.key, process.started_ns - 7_000_000);
    }
    perfetto::write(&second, &both)?;
    for (name, trace) in [("large.html", made_up::trace(LARGE)), ("hostile.html", hostile())] {
        html::write(&trace, &report(&trace), File::create(folder.join(name))?)?;
    }
    println!("{}", folder.display());
    Ok(())
}

/// Markup wherever a trace has a text, and something missing.
fn hostile() -> Trace {
    let markup =
        "</script><img src=x onerror=\"window.injected = true\"><!--<script>${window.injected = true}";
    let mut trace = made_up::trace(70);
    let add = |text: &mut Text| *text = format!("{text}{markup}").into();
    add(&mut trace.program);
    for counter in &mut trace.counters {
        add(&mut counter.name);
        add(&mut counter.unit);
    }
    for operation in &mut trace.operations {
        add(&mut operation.name);
        operation.site.iter_mut().for_each(|site| add(&mut site.file));
    }
    trace.tracks.iter_mut().for_each(|track| add(&mut track.name));
    trace.libraries.iter_mut().for_each(add);
    trace.variables.iter_mut().for_each(|it| add(&mut it.name));
    trace.leases.iter_mut().for_each(|it| add(&mut it.owner));
    trace.losses.damage.push(format!("truncated {markup}"));
    trace
}
