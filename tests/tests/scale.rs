//! How the program of the suite `scale` judges what callgrind has counted.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

use tests::scale::judge::{of_dump, verdict};

fn verdict_of(exponent: u32, counts: [u64; 4]) -> Option<String> {
    verdict(exponent, &counts.map(Some))
}

#[test]
fn a_cost_may_grow_as_the_table_says_and_no_faster() {
    assert_eq!(verdict_of(0, [1_000, 1_400, 1_800, 2_900]), None);
    assert_eq!(
        verdict_of(0, [1_000, 1_000, 1_000, 3_100]).unwrap(),
        "TOO STEEP from 10000 to 100000: n^0.49"
    );
    assert_eq!(verdict_of(1, [1_000, 10_000, 130_000, 1_700_000]), None);
    assert!(verdict_of(1, [1_000, 10_000, 100_000, 10_000_000]).is_some());
    assert!(verdict_of(0, [5_000, 5_000, 100_000, 5_000]).is_some(), "also where it falls again");
}

#[test]
fn what_was_not_measured_is_no_good_row() {
    assert!(verdict(0, &[Some(1), Some(1), None, None]).unwrap().contains("NOT MEASURED in time at 10000"));
}

#[test]
fn a_dump_is_read() {
    let text = "version: 1\ndesc: Trigger: Client Request: run and wait @1000\n\nevents: Ir\nfn=(1) a\n1 2\ntotals: 4711\n";
    assert_eq!(of_dump(text), Some(("run and wait", 1_000, 4_711)));
    assert_eq!(of_dump("desc: Trigger: Program termination\ntotals: 5\n"), None);
}
