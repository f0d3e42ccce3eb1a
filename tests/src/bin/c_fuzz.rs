//! Programs of calls of the C interface: kept ones, then random ones.
//!
//! `c_fuzz [seconds] [seed]` replays the files in `tests/c-fuzz` and then runs random programs for so many seconds. A program that
//! fails ends the process; its bytes are in the file named at the start. `c_fuzz FILE` runs one. `c_fuzz keep [seconds] [seed]` looks
//! for programs that take steps which no kept one takes, cuts them short, and keeps them.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use tests::c_fuzz::{Taken, every_step, run};
use tests::dice::Dice;
use tests::watchdog::Watchdog;

/// A program that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let first = arguments.first().map_or("10", String::as_str);
    if first == "keep" {
        let number = |at: usize| arguments.get(at).and_then(|text| text.parse().ok());
        return match keep(number(1).unwrap_or(10), number(2).unwrap_or(1)) {
            Ok(kept) => {
                println!("{kept} programs kept");
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("c_fuzz: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let Ok(seconds) = first.parse::<u64>() else {
        return match std::fs::read(first) {
            Ok(program) => {
                guarded(&program);
                println!("{first}: as it should be");
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("c_fuzz: {first}: {error}");
                ExitCode::from(2)
            }
        };
    };
    let seed =
        arguments.get(1).and_then(|text| text.parse().ok()).unwrap_or_else(|| u64::from(std::process::id()));
    match all(seconds, seed) {
        Ok((kept, random)) => {
            println!("{kept} kept programs and {random} random ones: as they should be (seed {seed})");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("c_fuzz: {error}");
            ExitCode::FAILURE
        }
    }
}

fn guarded(program: &[u8]) -> Taken {
    let _watchdog = Watchdog::with(LIMIT, || "a program hangs".to_string());
    run(program)
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("c-fuzz")
}

fn kept_programs() -> std::io::Result<Vec<PathBuf>> {
    let mut kept: Vec<PathBuf> =
        std::fs::read_dir(folder())?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    kept.retain(|path| path.extension().is_some_and(|extension| extension == "bin"));
    kept.sort();
    Ok(kept)
}

/// Looks for programs that take new steps.
fn keep(seconds: u64, seed: u64) -> std::io::Result<usize> {
    let mut missing = every_step();
    for path in kept_programs()? {
        let taken = guarded(&std::fs::read(path)?);
        missing.retain(|step| !taken.contains(step));
    }
    let (mut dice, mut kept) = (Dice::new(seed), 0);
    let end = Instant::now() + Duration::from_secs(seconds);
    while !missing.is_empty() && Instant::now() < end {
        let mut program: Vec<u8> = (0..8 + dice.roll(200)).map(|_| dice.bits() as u8).collect();
        let new = |program: &[u8]| guarded(program).intersection(&missing).copied().collect::<Taken>();
        let found = new(&program);
        if found.is_empty() {
            continue;
        }
        // Bytes that are not needed for the new steps go.
        let mut length = program.len() / 2;
        while length > 0 {
            let mut at = 0;
            while at + length <= program.len() {
                let mut shorter = program.clone();
                shorter.drain(at..at + length);
                if new(&shorter).is_superset(&found) { program = shorter } else { at += length }
            }
            length /= 2;
        }
        std::fs::write(folder().join(format!("step-{seed}-{kept:02}.bin")), &program)?;
        missing.retain(|step| !found.contains(step));
        kept += 1;
    }
    println!("no program takes {missing:?}");
    Ok(kept)
}

fn all(seconds: u64, seed: u64) -> std::io::Result<(usize, usize)> {
    let kept = kept_programs()?;
    for path in &kept {
        println!("{}", path.display());
        guarded(&std::fs::read(path)?);
    }
    let last = std::env::temp_dir().join(format!("c-fuzz-{}.bin", std::process::id()));
    println!("seed {seed}; the program under way is in {}", last.display());
    let (mut dice, mut programs) = (Dice::new(seed), 0);
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        // The watchdog is a thread: one for many programs.
        let _watchdog = Watchdog::with(LIMIT, || "a program hangs".to_string());
        for _ in 0..50 {
            let length = 8 + dice.roll(600);
            let program: Vec<u8> = (0..length).map(|_| dice.bits() as u8).collect();
            std::fs::File::create(&last)?.write_all(&program)?;
            run(&program);
            programs += 1;
        }
    }
    std::fs::remove_file(&last)?;
    Ok((kept.len(), programs))
}
