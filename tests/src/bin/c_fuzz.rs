//! Programs of calls of the C interface: kept ones, then random ones.
//!
//! `c_fuzz [seconds] [seed]` replays the files in `tests/c-fuzz` and then runs random programs for so many seconds. A program that
//! fails ends the process; its bytes are in the file named at the start. `c_fuzz FILE` runs one.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use tests::c_fuzz::run;
use tests::dice::Dice;
use tests::watchdog::Watchdog;

/// A program that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let first = arguments.first().map_or("10", String::as_str);
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

fn guarded(program: &[u8]) {
    let _watchdog = Watchdog::with(LIMIT, || "a program hangs".to_string());
    run(program);
}

fn all(seconds: u64, seed: u64) -> std::io::Result<(usize, usize)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("c-fuzz");
    let mut kept: Vec<PathBuf> =
        std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    kept.retain(|path| path.extension().is_some_and(|extension| extension == "bin"));
    kept.sort();
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
