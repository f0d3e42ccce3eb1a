//! Relays and figures of the libraries of the machine's Python: files that run by themselves and print a line of JSON for
//! each check and figure. What a library lacks is *skipped* there, with the reason.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::Options;
use crate::failure::Failure;
use crate::record::{Figure, Record};
use crate::setup::Setup;

pub fn run(setup: &Setup, options: &Options, record: &mut Record) -> Result<(), Failure> {
    if setup.simulated {
        record.skipped("python", "real libraries find no device on the simulator");
        return Ok(());
    }
    let Some(folder) = &options.files else {
        record.skipped("python", "no --files: the Python files of the suite were not named");
        return Ok(());
    };
    let python = options.python.as_deref().unwrap_or("python3");
    let imports = Command::new(python).args(["-c", "import estafette"]).output();
    let reason = match imports {
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr).trim().lines().last().map(str::to_owned);
            Some(format!("{python} cannot import estafette: {}", text.unwrap_or_default()))
        }
        Err(error) => Some(format!("{python} does not start: {error}")),
    };
    if let Some(reason) = reason {
        record.skipped("python", &reason);
        return Ok(());
    }
    let mut files: Vec<_> = std::fs::read_dir(folder)?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("gpu_")))
        .collect();
    files.sort();
    for file in files {
        let name = file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        let mut child = Command::new(python).arg("-u").arg(&file).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().expect("piped above");
        for line in BufReader::new(output).lines() {
            let line = line?;
            if line.starts_with('{') {
                note(record, &name, &serde_json::from_str(&line)?);
            } else {
                println!("{line}");
            }
        }
        let status = child.wait()?;
        if !status.success() {
            record.failed(&name, &format!("ended with {status}"));
        }
    }
    Ok(())
}

/// One line of a file: a check, a figure or a note.
fn note(record: &mut Record, file: &str, line: &Value) {
    let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
    let name = format!("{file}: {}", text("name"));
    match line["kind"].as_str() {
        Some("passed") => record.passed(&name, &text("remark")),
        Some("skipped") => record.skipped(&name, &text("remark")),
        Some("note") => record.note(&text("name"), &text("remark")),
        Some("figure") => record.figure(Figure {
            quantity: text("name"),
            ours: text("ours"),
            baseline: text("baseline"),
            target: text("target"),
            met: line["met"].as_bool().unwrap_or(false),
        }),
        _ => record.failed(&name, &text("remark")),
    }
}
