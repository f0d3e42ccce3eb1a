//! A trace that goes through a Perfetto trace comes back as it was; what is left of a damaged one is true.

use std::sync::LazyLock;

use estafette_report::attribution::attribute;
use estafette_report::{Trace, perfetto};
use proptest::prelude::*;

use crate::{made_up, strategies};

fn bytes(trace: &Trace) -> Vec<u8> {
    let mut bytes = Vec::new();
    perfetto::write(trace, &mut bytes).expect("a vector takes everything");
    bytes
}

#[test]
fn a_pipeline_comes_back_as_it_was() {
    let trace = made_up::trace(3_000);
    assert_eq!(perfetto::read(&bytes(&trace)), trace);
}

#[test]
fn an_operation_with_its_waits_and_dependences_costs_less_than_two_hundred_bytes() {
    let trace = made_up::trace(10_000);
    let each = bytes(&trace).len() / 10_000;
    assert!((20..200).contains(&each), "{each} bytes per operation");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_trace_comes_back_as_it_was(trace in strategies::trace()) {
        prop_assert_eq!(perfetto::read(&bytes(&trace)), trace);
    }

    #[test]
    fn what_is_attributed_as_it_is_written_is_what_attribution_says(trace in strategies::trace()) {
        let mut trace = trace;
        // As an engine makes them: leases are of operations.
        let operations = trace.operations.len() as u64;
        trace.leases.retain(|lease| lease.id < operations);
        let mut streamed = Vec::new();
        perfetto::attribute_and_write(&trace, &mut streamed).expect("a vector takes everything");
        attribute(&mut trace);
        trace.stalls.sort_by_key(|stall| (stall.waiter, stall.from, stall.access, stall.to));
        trace.counters.retain(|counter| !counter.samples.is_empty());
        prop_assert_eq!(perfetto::read(&streamed), trace);
    }

    #[test]
    fn a_truncated_file_gives_what_was_before_the_cut(trace in strategies::trace(), at in 0.0..1.0_f64) {
        let whole = bytes(&trace);
        let cut = (whole.len() as f64 * at) as usize;
        let part = perfetto::read(&whole[..cut]);
        prop_assert!(part.operations.iter().all(|operation| known(operation, &trace)));
        prop_assert!(part.stalls.iter().all(|stall| trace.stalls.contains(stall)));
        // The last thing in a file is a copy of its head, so nothing else may be missing.
        if part.operations.len() < trace.operations.len() {
            prop_assert!(!part.losses.damage.is_empty());
        }
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        let part = perfetto::read(&bytes);
        prop_assert!(bytes.is_empty() || !part.losses.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_changed_byte_costs_a_block_at_most(at in 0.0..1.0_f64, value in any::<u8>()) {
        static WHOLE: LazyLock<Vec<u8>> = LazyLock::new(|| bytes(&made_up::trace(2_500)));
        let mut damaged = WHOLE.clone();
        let at = (damaged.len() as f64 * at) as usize;
        damaged[at] = value;
        let left = perfetto::read(&damaged);
        prop_assert!(left.operations.len() > 1_000, "{} operations are left", left.operations.len());
        prop_assert!(left.operations.len() == 2_500 || !left.losses.damage.is_empty());
    }
}

/// True if this operation is in the trace, apart from tracks and libraries whose names may have been lost.
fn known(operation: &estafette_report::model::Operation, trace: &Trace) -> bool {
    trace.operation(operation.id).is_some_and(|whole| {
        (&whole.name, whole.submitted, whole.done, &whole.accesses)
            == (&operation.name, operation.submitted, operation.done, &operation.accesses)
    })
}

#[test]
fn a_truncated_file_says_where_it_ends_and_what_is_missing() {
    let whole = bytes(&made_up::trace(500));
    let part = perfetto::read(&whole[..whole.len() / 2]);
    assert!((50..450).contains(&part.operations.len()), "{} operations", part.operations.len());
    assert_eq!(part.program, "pipeline.py");
    let told = part.losses.damage.join("\n");
    assert!(told.contains("truncated at byte "), "{told}");
    assert!(told.contains(&format!("only {} of 500 operations", part.operations.len())), "{told}");
}

#[test]
fn after_damage_reading_goes_on_at_the_next_block() {
    let trace = made_up::trace(4_000);
    let mut damaged = bytes(&trace);
    let middle = damaged.len() / 2;
    damaged[middle..middle + 4_000].fill(0xff);
    let part = perfetto::read(&damaged);
    assert!((2_000..4_000).contains(&part.operations.len()), "{} operations", part.operations.len());
    let told = part.losses.damage.join("\n");
    assert!(
        told.contains("unreadable from byte ") || told.contains("could not be read: the one at byte "),
        "{told}"
    );
    let last = trace.operations.last().expect("there are operations");
    assert_eq!(part.operation(last.id), Some(last), "what follows the damage is read again");
}

#[test]
fn a_lost_head_is_read_from_its_copy_at_the_end() {
    let trace = made_up::trace(20_000);
    let mut damaged = bytes(&trace);
    damaged[..4_000].fill(0);
    let part = perfetto::read(&damaged);
    assert_eq!((&part.program, &part.tracks), (&trace.program, &trace.tracks));
    assert!(!part.losses.damage.is_empty());
}

#[test]
fn a_file_of_something_else_is_called_that() {
    for bytes in [&b""[..], b"{\"traceEvents\": []}", b"\x0a\x02\x40\x00"] {
        let part = perfetto::read(bytes);
        let told = part.losses.damage.join("\n");
        assert!(told.contains("no trace of estafette"), "{told}");
    }
}

#[test]
fn a_time_that_cannot_be_is_refused_and_reported() {
    let mut trace = made_up::trace(70);
    trace.operations[3].done = Some(1 << 60);
    let part = perfetto::read(&bytes(&trace));
    assert_eq!(part.operations.len(), 69);
    let told = part.losses.damage.join("\n");
    assert!(told.contains("1 operation could not be read") && told.contains("1152921504606846976"), "{told}");
}
