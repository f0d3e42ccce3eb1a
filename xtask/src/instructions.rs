//! Instructions per operation, counted by callgrind: a figure without noise, which shows what a change does
//! to the length of the path even on a machine that is busy. It says nothing about what an instruction costs.
//!
//! A workload is run four times: with one run and with two, each with fewer and with more operations. The
//! second run alone is the difference of the first kind, free of the start of the process, of making the
//! lists of operations and of a cold engine. The difference of the second kind takes away what a run costs
//! however short it is.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::peers::machine;
use crate::shell;

/// Counted workloads. All on one thread, so that the count does not depend on the order of threads.
const WORKLOADS: &[&str] = &["chain", "random", "ready-is", "ready-await"];

/// Operations of the shorter and of the longer run: both more than the engine's in-flight limit of 4,096, so
/// each operation between them needs the permit of another one.
const FEWER: u64 = 100_000;
const MORE: u64 = 200_000;

/// File to which `--save` appends a row.
const TABLE: &str = "benches/results/instructions.md";

/// Counts all workloads and prints the table; true, as there is nothing to fail but errors.
pub fn run(save: bool) -> Result<bool, String> {
    if !shell::answers("valgrind", &["--version"]) {
        return Err(
            "instructions are counted by valgrind, which is missing; on Debian: `apt-get install valgrind`"
                .into(),
        );
    }
    let target = shell::target()?;
    shell::run(&mut shell::cargo(&target, &["build", "--release", "--package", "estafette-cli"]))?;
    let program = target.join("release/estafette");
    let mut found = Vec::new();
    for workload in WORKLOADS {
        let per_op = per_operation(|n, rounds| count(&program, workload, n, rounds))?;
        println!("{workload:<14} {per_op:>9.1} instructions per operation");
        found.push(per_op);
    }
    if save {
        let row = row(&machine::date()?, &commit()?, &found);
        append(&shell::root().join(TABLE), &row)?;
        println!("saved to {TABLE}");
    }
    Ok(true)
}

/// Instructions of one operation more; `count` gives those of a process that does `n` operations once and
/// then `rounds` times again.
fn per_operation(mut count: impl FnMut(u64, u64) -> Result<u64, String>) -> Result<f64, String> {
    let mut second_run = |n| {
        let (once, twice) = (count(n, 0)?, count(n, 1)?);
        twice.checked_sub(once).ok_or_else(|| format!("two runs of {n} took fewer instructions than one"))
    };
    let (fewer, more) = (second_run(FEWER)?, second_run(MORE)?);
    let difference = more
        .checked_sub(fewer)
        .ok_or_else(|| format!("{MORE} operations took fewer instructions than {FEWER}"))?;
    Ok(difference as f64 / (MORE - FEWER) as f64)
}

fn count(program: &Path, workload: &str, n: u64, rounds: u64) -> Result<u64, String> {
    let mut command = shell::command("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(program);
    command.args(["bench", workload, "--workers", "0"]);
    command.args(["--n", &n.to_string(), "--rounds", &rounds.to_string()]);
    let output =
        command.stdout(Stdio::null()).output().map_err(|error| format!("cannot start valgrind: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("`estafette bench {workload}` under valgrind: {}\n{said}", output.status));
    }
    collected(&said).ok_or_else(|| format!("valgrind gave no count:\n{said}"))
}

/// The count in what callgrind says at its end: `==PID== Collected : COUNT`.
fn collected(said: &str) -> Option<u64> {
    let count = said.lines().find_map(|line| line.split_once("Collected :"))?.1;
    count.trim().parse().ok()
}

fn row(date: &str, commit: &str, found: &[f64]) -> String {
    let found: Vec<String> = found.iter().map(|per_op| format!("{per_op:.1}")).collect();
    format!("| {date} | {commit} | {} |", found.join(" | "))
}

/// The heading of the table; a file with other columns is not appended to.
fn heading() -> String {
    let rule = "|---".repeat(2 + WORKLOADS.len());
    format!("| date | commit | {} |\n{rule}|", WORKLOADS.join(" | "))
}

fn append(table: &PathBuf, row: &str) -> Result<(), String> {
    let error = |error: std::io::Error| format!("cannot save to {}: {error}", table.display());
    let text = std::fs::read_to_string(table).map_err(error)?;
    if !text.contains(&heading()) {
        return Err(format!("{} has no table with these columns:\n{}", table.display(), heading()));
    }
    let mut file = OpenOptions::new().append(true).open(table).map_err(error)?;
    writeln!(file, "{row}").map_err(error)
}

/// The commit that is measured; a `+` says that files have been changed since.
fn commit() -> Result<String, String> {
    let git = |arguments: &[&str]| shell::output(shell::command("git").args(arguments));
    let commit = git(&["rev-parse", "--short", "HEAD"])?;
    let changed = if git(&["status", "--porcelain"])?.is_empty() { "" } else { "+" };
    Ok(format!("{}{changed}", commit.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_lists_warm_up_and_fixed_costs_cancel_out() {
        let (start, list, cold, fixed, warm) = (1_000_000, 30, 700, 5_000, 412);
        let counted =
            per_operation(|n, rounds| Ok(start + n * list + fixed + n * cold + rounds * (fixed + n * warm)));
        assert_eq!(counted, Ok(412.0));
    }

    #[test]
    fn a_count_that_shrinks_is_an_error_and_not_a_figure() {
        assert!(per_operation(|_, rounds| Ok(100 - rounds)).is_err());
        assert!(per_operation(|n, rounds| Ok(1_000_000 - n + rounds * (MORE - n))).is_err());
    }

    #[test]
    fn the_count_is_read_from_what_callgrind_says() {
        let said = "==7== Callgrind, a call-graph\n==7== \n==7== Events    : Ir\n==7== Collected : 123456\n==7== \n==7== I   refs:      123,456\n";
        assert_eq!(collected(said), Some(123_456));
        assert_eq!(collected("==7== Callgrind"), None);
    }

    #[test]
    fn the_saved_table_has_the_columns_that_rows_have() {
        let table = std::fs::read_to_string(shell::root().join(TABLE)).unwrap();
        assert!(table.contains(&heading()), "{}", heading());
        let columns = |line: &str| line.matches('|').count();
        let row = row("2026-01-01", "abc", &vec![1.0; WORKLOADS.len()]);
        assert!(heading().lines().all(|line| columns(line) == columns(&row)));
    }
}
