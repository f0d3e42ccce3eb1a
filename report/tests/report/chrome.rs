//! Chrome JSON: it parses, its intervals lie side by side, its arrows have both ends and run forwards.

use std::collections::HashMap;

use estafette_report::{Trace, chrome};
use proptest::prelude::*;
use serde_json::Value;

use crate::{made_up, strategies};

fn events(trace: &Trace) -> Vec<Value> {
    let mut bytes = Vec::new();
    chrome::write(trace, &mut bytes).expect("a vector takes everything");
    let trace: Value = serde_json::from_slice(&bytes).expect("it is JSON");
    trace["traceEvents"].as_array().expect("it has events").clone()
}

fn check(events: &[Value]) {
    let time = |event: &Value| event["ts"].as_f64().expect("it has a time");
    let named: Vec<&Value> =
        events.iter().filter(|it| it["name"] == "thread_name").map(|it| &it["tid"]).collect();
    let mut end_of: HashMap<u64, f64> = HashMap::new();
    let mut flows: HashMap<u64, (Option<f64>, Option<f64>)> = HashMap::new();
    for event in events {
        match event["ph"].as_str().expect("it has a phase") {
            "X" => {
                assert!(named.contains(&&event["tid"]), "a thread without a name: {event}");
                let end = end_of.entry(event["tid"].as_u64().expect("a thread")).or_insert(0.0);
                let (from, lasts) = (time(event), event["dur"].as_f64().expect("a duration"));
                // Sums of doubles are off by a part in 2^52.
                assert!(from >= *end * (1.0 - 1e-12), "{event} overlaps the one before");
                *end = from + lasts;
            }
            "s" => flows.entry(event["id"].as_u64().expect("an id")).or_default().0 = Some(time(event)),
            "f" => flows.entry(event["id"].as_u64().expect("an id")).or_default().1 = Some(time(event)),
            "C" => assert!(event["args"].as_object().is_some_and(|args| args.len() == 1)),
            "i" | "M" => {}
            other => panic!("unknown phase {other}"),
        }
    }
    for (id, (start, end)) in flows {
        let (start, end) = (start.expect("a start"), end.expect("an end"));
        assert!(start <= end, "flow {id} runs backwards");
    }
}

#[test]
fn a_pipeline_has_an_interval_per_operation_lease_and_stall() {
    let trace = made_up::trace(2_000);
    let events = events(&trace);
    check(&events);
    let lasting = events.iter().filter(|event| event["ph"] == "X").count();
    assert_eq!(lasting, trace.operations.len() + trace.leases.len() + trace.stalls.len());
    assert_eq!(events.iter().filter(|event| event["ph"] == "s").count(), trace.edges.len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_trace_becomes_a_sound_file(trace in strategies::trace()) {
        check(&events(&trace));
    }
}
