//! Relays and figures of the libraries of the machine's Python: files that run by themselves and print a line
//! of JSON for each check and figure. What a library lacks is *skipped* there, with the reason.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::record::Record;
use crate::setup::Setup;
use crate::{Options, supervise};

/// Limit of one file. Its checks have limits of their own.
const LIMIT: Duration = Duration::from_secs(100);
/// The file that is most likely to succeed comes first.
const ORDER: [&str; 7] =
    ["gpu_relays", "gpu_figures", "gpu_processes", "gpu_fences", "gpu_observe", "gpu_memory", "gpu_captures"];
/// Status of a file of which a check has failed.
const FAILED: i32 = 4;

pub fn run(setup: &Setup, options: &Options, record: &mut Record) -> Result<(), Failure> {
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
    files.sort_by_key(|file| {
        let is_it = |name: &&str| file.file_stem().is_some_and(|stem| stem == *name);
        (ORDER.iter().position(is_it).unwrap_or(ORDER.len()), file.clone())
    });
    for file in files {
        let name = file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        let mut command = Command::new(python);
        command.arg("-u").arg(&file).args(setup.simulated.then_some("--simulator"));
        // JAX would take three quarters of the memory from the others.
        command.env("XLA_PYTHON_CLIENT_PREALLOCATE", "false").stdout(Stdio::piped());
        let mut child = supervise::start(&mut command)?;
        let output = child.stdout.take().expect("piped above");
        let (lines, printed) = mpsc::channel();
        std::thread::spawn(move || {
            BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| lines.send(line))
        });
        let begin = Instant::now();
        // Ends when the file has, and whatever it has started.
        while let Ok(line) = printed.recv_timeout(LIMIT.saturating_sub(begin.elapsed())) {
            match serde_json::from_str(&line) {
                Ok(event) if line.starts_with('{') => record.add_event(&event, &format!("{name}: ")),
                _ => println!("{line}"),
            }
        }
        if begin.elapsed() >= LIMIT {
            supervise::kill(&mut child);
            record.failed(&name, &format!("hung: killed after {} s", LIMIT.as_secs()));
            continue;
        }
        let status = child.wait()?;
        // A check that failed has said so.
        if !status.success() && status.code() != Some(FAILED) {
            record.failed(&name, &format!("ended with {status}"));
        }
    }
    Ok(())
}
