//! Counts what each call costs at 100, 2,000 and 40,000 of something alive, and fails where a cost grows
//! faster than the table says. Needs valgrind. Prints the counts of a kind where one is too high.
//! `scale [ALIVE...]` counts with these kinds alone, and prints all; `scale --measure ALIVE` is what it runs
//! under callgrind.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tests::scale::judge;
use tests::scale::meter::measure;
use tests::scale::world::Alive;

/// Limit of the time of one kind. Several times what it takes; a cost that is more than linear at the last
/// size does not end.
const LIMIT: Duration = Duration::from_secs(300);

/// Kinds that are counted at the same time.
const AT_ONCE: usize = 2;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let named = |name: &String| Alive::ALL.into_iter().find(|alive| alive.name() == name);
    if let [flag, name] = &arguments[..]
        && flag == "--measure"
        && let Some(alive) = named(name)
    {
        measure(alive);
        return ExitCode::SUCCESS;
    }
    let chosen: Option<Vec<Alive>> = arguments.iter().map(named).collect();
    let Some(chosen) = chosen else {
        let known = Alive::ALL.map(Alive::name).join(" ");
        eprintln!("usage: scale [ALIVE...], of: {known}");
        return ExitCode::from(2);
    };
    let prints_all = !chosen.is_empty();
    let chosen = if prints_all { chosen } else { Alive::ALL.to_vec() };
    match count_all(&chosen, prints_all) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("scale: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Counts with each of `kinds`. Whether all is well.
fn count_all(kinds: &[Alive], prints_all: bool) -> std::io::Result<bool> {
    let next = Mutex::new(kinds.iter());
    let take = || next.lock().expect("nothing panics under it").next().copied();
    let good = std::thread::scope(|scope| {
        let counting = [(); AT_ONCE].map(|()| {
            scope.spawn(|| {
                let mut good = true;
                while let Some(alive) = take() {
                    good &= count(alive, prints_all)?;
                }
                Ok(good)
            })
        });
        counting
            .into_iter()
            .map(|thread| thread.join().expect("no thread panics"))
            .collect::<std::io::Result<Vec<bool>>>()
    })?;
    Ok(good.into_iter().all(|good| good))
}

fn count(alive: Alive, prints_all: bool) -> std::io::Result<bool> {
    let began = Instant::now();
    let folder = Folder::new(alive)?;
    let ended = run(alive, &folder.0)?;
    let counts = judge::read(&folder.0)?;
    let (lines, good) = judge::table(alive, &counts);
    let took = began.elapsed().as_secs();
    let good = good && ended;
    if prints_all || !good {
        println!("{}", lines.join("\n"));
    }
    if !ended {
        println!("it was ended, or has failed: {}", std::fs::read_to_string(folder.0.join("log"))?);
    }
    println!("{:<14} {} calls, {took} s", alive.name(), lines.len());
    Ok(good)
}

/// Runs this program under callgrind; whether it came to its end.
fn run(alive: Alive, folder: &Path) -> std::io::Result<bool> {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--instr-atstart=no", "--dump-line=no", "--fair-sched=yes"]);
    command.arg(format!("--callgrind-out-file={}", folder.join("out").display()));
    command.arg(std::env::current_exe()?).args(["--measure", alive.name()]);
    let log = std::fs::File::create(folder.join("log"))?;
    let mut child = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?;
    let deadline = Instant::now() + LIMIT;
    let success = loop {
        match child.try_wait()? {
            Some(status) => break status.success(),
            None if Instant::now() >= deadline => {
                child.kill()?;
                child.wait()?;
                break false;
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    Ok(success)
}

/// A folder that goes with its last use.
struct Folder(PathBuf);

impl Folder {
    fn new(alive: Alive) -> std::io::Result<Self> {
        let folder =
            std::env::temp_dir().join(format!("estafette-scale-{}-{}", std::process::id(), alive.name()));
        std::fs::create_dir_all(&folder)?;
        Ok(Self(folder))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // The remaining files are in a temporary folder.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
