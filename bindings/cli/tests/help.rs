//! Help at every level, and the refusal of an unknown command.

use std::process::{Command, Output, Stdio};

fn estafette(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_estafette")).args(arguments).output().expect("the command starts")
}

#[test]
fn every_level_has_help_that_names_its_options() {
    for (command, named) in [
        (&[][..], &["devices", "demo", "report", "bench", "--version"][..]),
        (&["devices"], &["--help"]),
        (&["demo"], &["--tensors"]),
        (
            &["report"],
            &[
                "--diff",
                "--json",
                "--csv",
                "--sort",
                "--operation",
                "--short",
                "--html",
                "--chrome",
                "--width",
            ],
        ),
        (&["bench"], &["--list", "--json", "--n", "--workers", "--body", "--rounds", "--trace"]),
    ] {
        for flag in ["--help", "-h"] {
            let output = estafette(&[command, &[flag]].concat());
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(output.status.success() && output.stderr.is_empty(), "{command:?} {flag}");
            for name in named {
                assert!(text.contains(name), "{command:?} {flag} does not name {name}: {text}");
            }
        }
    }
    let without = estafette(&[]);
    assert!(without.status.success());
    assert!(String::from_utf8(without.stdout).unwrap().contains("Usage: estafette"));
}

#[test]
fn an_unknown_command_is_refused_with_exit_code_2() {
    let output = estafette(&["bensch"]);
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("'bensch'") && text.contains("'bench'"), "{text}");
}

#[test]
fn a_command_of_the_python_package_is_said_to_be_there() {
    for arguments in [&["merge", "a", "-o", "b"][..], &["observe"], &["top"], &["config"], &["help", "merge"]]
    {
        let output = estafette(arguments);
        assert_eq!(output.status.code(), Some(2));
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains("Python package") && text.contains("python -m estafette"), "{text}");
    }
}

#[test]
fn devices_are_listed_or_it_is_said_why_there_are_none() {
    let output = estafette(&["devices"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{text}");
    let has = |what: &str| text.lines().any(|line| line.starts_with(what));
    assert!(has("cpu:0 "), "{text}");
    assert!(has("cuda:0 ") != has("CUDA is not available: "), "{text}");
}

#[test]
fn an_output_that_is_read_no_further_is_no_error_and_one_that_cannot_be_written_is() {
    for arguments in [
        &["devices"][..],
        &["demo", "--tensors", "3"],
        &["bench", "--list"],
        &["bench", "chain", "--n", "10", "--rounds", "1"],
    ] {
        let run = |out: Stdio| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_estafette"));
            let output = command.args(arguments).stdout(out).stderr(Stdio::piped()).spawn();
            output.and_then(|child| child.wait_with_output()).expect("the command starts")
        };
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = run(writer.into());
        assert!(output.status.success() && output.stderr.is_empty(), "{arguments:?}: {output:?}");
        let output = run(std::fs::File::create("/dev/full").unwrap().into());
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.starts_with("estafette: No space left on device"), "{arguments:?}: {text}");
    }
}
