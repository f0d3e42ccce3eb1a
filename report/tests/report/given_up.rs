//! Requests that were given up before their turn were in the way only until then, and hide nothing that was
//! in the way for longer.

use estafette_report::Report;
use estafette_report::model::*;

use crate::programs::{MS, Program};

/// A lease that was asked for at `from` and given up at `to`.
fn given_up(program: &mut Program, from: u64, to: u64, mode: AccessMode) {
    let lease = program.part("lease", OperationKind::Export, from, &[(1, mode)]);
    (lease.issued, lease.done, lease.outcome) = (Some(to), Some(to), Outcome::Cancelled);
}

fn waits_of(report: &Report, name: &str) -> Vec<(String, String, u64)> {
    let of_it = report.worst.iter().filter(|row| row.sentence.starts_with(name));
    of_it.map(|row| (row.cause.clone(), row.blocker.clone(), row.waited_ns / MS)).collect()
}

#[test]
fn a_writer_waits_for_what_stood_before_a_lease_that_was_given_up() {
    // first |------100------|     lease |-5..10-|     second submitted at 6
    for mode in [AccessMode::Read, AccessMode::Write] {
        let mut program = Program::new(&["x"]);
        program.ran("first", 0, 0, (0, 100 * MS), &[(1, AccessMode::Write)]);
        given_up(&mut program, 5 * MS, 10 * MS, mode);
        program.ran("second", 0, 6 * MS, (100 * MS, 110 * MS), &[(1, AccessMode::Write)]);
        let told = program.report(110 * MS);
        assert_eq!(waits_of(&told, "`second`"), [("computing".into(), "`first`".into(), 94)], "{mode:?}");
    }
}

#[test]
fn a_reader_waits_for_a_writing_lease_until_that_is_given_up() {
    // reader |------100------|     lease |-5..10-|     second, which reads, from 6: nothing else is in its way
    let mut program = Program::new(&["x"]);
    program.ran("reader", 0, 0, (0, 100 * MS), &[(1, AccessMode::Read)]);
    given_up(&mut program, 5 * MS, 10 * MS, AccessMode::Write);
    program.ran("second", 1, 6 * MS, (10 * MS, 20 * MS), &[(1, AccessMode::Read)]);
    let told = program.report(100 * MS);
    // At the root, since the lease itself waited for the reader.
    assert_eq!(waits_of(&told, "`second`"), [("computing".into(), "`reader`".into(), 4)]);
}
