//! Failed operations are counted and listed apart from those that were cancelled or skipped because of them.

use estafette_report::model::*;
use estafette_report::terminal::{self, Style};
use estafette_report::{report, report_about};

use crate::programs::{MS, Program};

fn ended(program: &mut Program, name: &str, kind: OperationKind, at: u64, outcome: Outcome) {
    program.ran(name, 0, 0, (at * MS, at * MS), &[]);
    let operation = program.0.operations.last_mut().unwrap();
    (operation.kind, operation.outcome) = (kind, outcome);
}

#[test]
fn failures_are_apart_from_what_they_lead_to() {
    use OperationKind::{Copy, Operation as Body};
    let mut program = Program::new(&["x"]);
    ended(&mut program, "decode", Body, 3, Outcome::Failed("ValueError: no image\nof 3".into()));
    ended(&mut program, "decode", Body, 4, Outcome::Failed("ValueError: no image\nof 3".into()));
    ended(&mut program, "upload", Copy, 2, Outcome::Failed("out of memory".into()));
    ended(&mut program, "train", Body, 5, Outcome::Skipped("`decode` failed".into()));
    ended(&mut program, "augment", Body, 5, Outcome::Cancelled);
    program.0.duration = 10 * MS;
    let told = report(&program.0);
    let totals = &told.totals;
    assert_eq!((totals.operations, totals.failed, totals.cancelled, totals.skipped), (4, 3, 1, 1));
    let rows: Vec<_> = told.failures.iter().map(|row| (&*row.name, row.operation, row.count)).collect();
    assert_eq!(rows, [("`upload`", 3, 1), ("`decode`", 1, 2)]);
    let text = terminal::text(&told, Style { width: 200, ..Style::default() });
    assert!(text.contains("; 3 failed; 1 cancelled; 1 skipped"), "{text}");
    assert!(text.contains("2. `decode` (2 times): ValueError: no image\\nof 3\n"), "{text}");
    assert_eq!(report_about(&program.0, "upload").failures.len(), 1);
}
