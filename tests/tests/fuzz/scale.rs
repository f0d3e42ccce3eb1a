//! The verdicts of the program of the suite `scale` on what callgrind has counted.

use tests::scale::judge::{of_dump, verdict};
use tests::scale::meter::SIZES;

fn verdict_of(exponent: u32, counts: [u64; 3]) -> Option<String> {
    verdict(exponent, &counts.map(Some))
}

#[test]
fn a_cost_may_grow_as_the_table_says_and_no_faster() {
    assert_eq!(verdict_of(0, [1_000, 1_400, 2_900]), None);
    assert_eq!(verdict_of(0, [1_000, 1_000, 3_100]).unwrap(), "TOO STEEP from 2000 to 40000: n^0.38");
    assert_eq!(verdict_of(1, [1_000, 26_000, 680_000]), None);
    assert!(verdict_of(1, [1_000, 20_000, 4_000_000]).is_some());
    assert!(verdict_of(0, [5_000, 100_000, 5_000]).is_some(), "also where it falls again");
}

#[test]
fn one_instruction_for_each_thing_alive_shows_in_a_call_of_ten_thousand() {
    assert!(verdict_of(0, SIZES.map(|n| 10_000 + n as u64)).unwrap().contains("TOO STEEP"));
}

#[test]
fn what_was_not_measured_is_no_good_row() {
    assert!(verdict(0, &[Some(1), Some(1), None]).unwrap().contains("NOT MEASURED in time at 40000"));
}

#[test]
fn a_dump_is_read() {
    let text = "version: 1\ndesc: Trigger: Client Request: run and wait @1000\n\nevents: Ir\nfn=(1) a\n1 2\ntotals: 4711\n";
    assert_eq!(of_dump(text), Some(("run and wait", 1_000, 4_711)));
    assert_eq!(of_dump("desc: Trigger: Program termination\ntotals: 5\n"), None);
}
