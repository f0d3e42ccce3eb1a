//! The command `estafette bench`, as a user or a script calls it.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

use std::process::{Command, Output};

use serde_json::Value;

/// Operations of each run: enough for a whole row of the widest stencil.
const N: &str = "128";

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_estafette")).arg("bench").args(arguments).output().unwrap()
}

/// The records that a call prints.
fn records(arguments: &[&str]) -> Vec<Value> {
    let output = bench(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Message of a call that is refused.
fn refusal(arguments: &[&str]) -> String {
    let output = bench(arguments);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// The spreads and the numbers that a workload measures beside the time per operation.
fn further_quantities(workload: &str) -> (&'static [&'static str], &'static [&'static str]) {
    match workload.split('-').next() {
        Some("contended") => (&["one_thread_ns"], &["speedup"]),
        Some("deferred") => (&["push_ns", "run_ns", "warm_ns_per_op", "warm_push_ns", "warm_run_ns"], &[]),
        Some("wake") => (&["oneshot_ns"], &["ratio_to_oneshot"]),
        _ => (&[], &[]),
    }
}

fn assert_spread(record: &Value, name: &str) {
    let of =
        |part: &str| record[name][part].as_f64().unwrap_or_else(|| panic!("no {name}.{part} in {record}"));
    assert!(0.0 < of("min") && of("min") <= of("median") && of("median") <= of("max"), "{record}");
}

fn assert_positive(record: &Value, name: &str) {
    assert!(record[name].as_f64().is_some_and(|number| number > 0.0), "no {name} in {record}");
}

#[test]
fn every_listed_workload_gives_a_record_with_its_quantities() {
    let listed = String::from_utf8(bench(&["--list"]).stdout).unwrap();
    let names: Vec<_> = listed.lines().map(|line| line.split_whitespace().next().unwrap()).collect();
    assert!(names.contains(&"chain") && names.contains(&"python"));
    // Benchmarks of the effective granularity have a test of their own, as they take a second each.
    for name in names.into_iter().filter(|name| *name != "python" && !name.starts_with("metg")) {
        let records = records(&[name, "--n", N, "--rounds", "3", "--json"]);
        let [record] = &records[..] else { panic!("{name}: {} records", records.len()) };
        assert_eq!(record["workload"], name);
        assert_eq!(record["engine"], "estafette");
        assert_eq!(record["rounds"], 3);
        assert!(record["n"].as_u64().is_some_and(|n| n > 0) && record["workers"].is_u64(), "{record}");
        assert_spread(record, "ns_per_op");
        let (spreads, numbers) = further_quantities(name);
        spreads.iter().for_each(|quantity| assert_spread(record, quantity));
        numbers.iter().for_each(|quantity| assert_positive(record, quantity));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn pending_operations_take_memory() {
    let record = &records(&["deferred", "--n", "50000", "--rounds", "0", "--json"])[0];
    // Less than a pointer each would be no operation, and more than 10 kB each a leak.
    let bytes = record["bytes_per_op"].as_f64().unwrap();
    assert!((8.0..10_000.0).contains(&bytes), "{record}");
}

#[test]
fn the_effective_granularity_is_found_or_said_to_be_never() {
    // On a machine whose cores do other work, no length of bodies makes them busy: then it is null, but it is
    // there. All of the group once: each takes a second.
    for (workload, workers) in [("metg-trivial", "0"), ("metg", "1")] {
        for record in records(&[workload, "--n", N, "--rounds", "1", "--workers", workers, "--json"]) {
            assert!(record.get("metg_us").is_some(), "{record}");
            if !record["metg_us"].is_null() {
                assert_spread(&record, "metg_us");
            }
            assert_positive(&record, "cores");
            if workers == "0" {
                assert_eq!(record["cores"], 1, "{record}");
            }
        }
    }
}

#[test]
fn a_group_gives_a_record_for_each_of_its_workloads() {
    let names: Vec<_> = records(&["stencil", "--n", N, "--rounds", "1", "--json"])
        .iter()
        .map(|r| r["workload"].clone())
        .collect();
    assert_eq!(names, ["stencil-8", "stencil-32", "stencil-64"]);
}

#[test]
fn options_reach_the_workload() {
    let arguments =
        ["independent", "--n", "200", "--workers", "1", "--rounds", "2", "--body", "20000", "--json"];
    let record = &records(&arguments)[0];
    assert_eq!((&record["n"], &record["workers"], &record["rounds"]), (&200.into(), &1.into(), &2.into()));
    // Two threads share bodies of 20 µs. A machine that slows down after calibration makes this more, never
    // much less.
    assert!(record["ns_per_op"]["median"].as_f64().unwrap() > 5_000.0, "{record}");
}

#[test]
fn without_a_measured_round_there_is_no_time_and_that_is_said() {
    let record = &records(&["chain", "--n", N, "--rounds", "0", "--json"])[0];
    assert!(record["ns_per_op"].is_null() && record.get("ns_per_op").is_some(), "{record}");
    let text = String::from_utf8(bench(&["chain", "--n", N, "--rounds", "0"]).stdout).unwrap();
    assert!(text.contains("no measured round"), "{text}");
}

#[test]
fn for_people_there_is_a_heading_and_a_line() {
    let text = String::from_utf8(bench(&["chain", "--n", N]).stdout).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].starts_with("workload") && lines[1].starts_with("chain"), "{text}");
}

#[test]
fn what_makes_no_sense_is_refused_with_exit_code_2() {
    for (arguments, message) in [
        (&[][..], "required arguments were not provided"),
        (&["chian"], "no workload `chian`"),
        (&["python"], "benches/python/bench.py"),
        (&["chain", "random"], "unexpected argument 'random'"),
        (&["chain", "--n"], "a value is required for '--n <N>'"),
        (&["chain", "--n", "0"], "invalid value '0' for '--n <N>': not a whole number from 1 to 100000000"),
        (&["chain", "--n", "many"], "invalid value 'many' for '--n <N>'"),
        (&["chain", "--n", "-5"], "unexpected argument '-5'"),
        (
            &["chain", "--workers", "1.5"],
            "invalid value '1.5' for '--workers <WORKERS>': not a whole number from 0 to 1024",
        ),
        (&["chain", "--rounds", "99999999999999999999"], "for '--rounds <ROUNDS>'"),
        (&["chain", "--body", "1us"], "for '--body <NS>'"),
        (&["wake", "--body", "10"], "`--body` means nothing to the workload `wake-same`"),
        (&["chain", "--fast"], "unexpected argument '--fast'"),
    ] {
        let said = refusal(arguments);
        assert!(said.contains(message), "{arguments:?}: {said}");
    }
}
