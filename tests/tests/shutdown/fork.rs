//! Guarantee 10: a forked child gets a clear error for what it inherited, has engines of its own, and the
//! parent is unaffected.

use std::process::Command;

/// Runs the program `forked`, and checks that child and parent are well.
fn forks(how: &str) {
    let output = Command::new(env!("CARGO_BIN_EXE_forked")).arg(how).output().unwrap();
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{error}", output.status);
    assert!(out.contains("child and parent are well"), "{out}");
    assert!(error.is_empty(), "quietly: {error}");
}

#[test]
fn children_that_are_forked_at_any_moment_work_with_engines_of_their_own() {
    forks("many");
}

#[test]
fn a_forked_child_gets_a_clear_error_leaks_quietly_and_leaves_the_parent_alone() {
    // The hazard is a thread that holds a lock at the moment of the fork, so the test forks more than once.
    for round in 0..20 {
        forks(if round % 2 == 0 { "leave" } else { "exit" });
    }
}
