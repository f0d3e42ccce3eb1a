//! The page as text: nothing of a trace becomes markup, and the numbers in it are the trace's. What it looks
//! like and does is tested in a browser, `tests/python/test_html.py`.

use std::io::Read;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use estafette_report::{Trace, html, merge, report};
use flate2::read::ZlibDecoder;
use proptest::prelude::*;
use serde_json::Value;

use crate::{made_up, strategies};

fn page(trace: &Trace) -> String {
    let mut bytes = Vec::new();
    html::write(trace, &report(trace), &mut bytes).expect("a vector takes everything");
    String::from_utf8(bytes).expect("it is text")
}

fn embedded(page: &str) -> Value {
    let (_, rest) = page.split_once("type=\"text/plain\">").expect("a place for the trace");
    let (text, _) = rest.split_once("</script>").expect("its end");
    let packed = BASE64_STANDARD.decode(text).expect("it is base64");
    let mut bytes = Vec::new();
    ZlibDecoder::new(&packed[..]).read_to_end(&mut bytes).expect("it is compressed");
    let (length, rest) = bytes.split_first_chunk().expect("it begins with a length");
    serde_json::from_slice(&rest[..u32::from_le_bytes(*length) as usize]).expect("it is JSON")
}

/// The counts of the elements that a page opens and closes; no trace may change them.
fn markup(page: &str) -> (usize, usize) {
    (page.matches('<').count(), page.matches("</script").count())
}

#[test]
fn the_page_refers_to_nothing_outside() {
    let page = page(&made_up::trace(70));
    assert!(page.contains("default-src 'none'"), "the policy forbids requests");
    let (before, rest) = page.split_once("type=\"text/plain\">").expect("a place for the trace");
    let (_, after) = rest.split_once("</script>").expect("its end");
    for part in [before, after] {
        for outside in ["http:", "https:", "src=\"", "url(", "@import", "fetch(", "XMLHttpRequest", "import("]
        {
            assert!(!part.contains(outside), "the page has `{outside}`");
        }
    }
    assert!(!page.contains("{{"), "every place is filled");
}

#[test]
fn names_and_report_are_embedded_as_they_are() {
    let trace = made_up::trace(700);
    let data = embedded(&page(&trace));
    assert_eq!(data["program"], "pipeline.py");
    assert!(data["names"].as_array().is_some_and(|names| names.iter().any(|name| name == "loader.decode")));
    let report = serde_json::to_value(report(&trace)).expect("a report is JSON");
    assert_eq!(data["report"], report);
    assert_eq!(data["worst"].as_array().map(Vec::len), report["worst"].as_array().map(Vec::len));
}

#[test]
fn cells_of_a_merged_trace_lead_to_their_longest_wait() {
    let first = made_up::trace(200);
    let mut second = made_up::trace(200);
    for process in &mut second.processes {
        (process.number, process.key) = (4712, !process.key);
    }
    let both = merge(vec![first, second]).expect("they are of two processes");
    let data = embedded(&page(&both));
    let matrix = report(&both).matrix;
    assert!(matrix.libraries.iter().any(|name| name.starts_with("host @")), "{:?}", matrix.libraries);
    for (waited, longest) in matrix.waited_ns.iter().flatten().zip(
        data["longestOfCells"]
            .as_array()
            .expect("rows")
            .iter()
            .flat_map(|row| row.as_array().expect("cells")),
    ) {
        assert_eq!(*waited > 0, longest.is_u64(), "{matrix:?}");
    }
}

#[test]
fn an_empty_trace_has_a_page() {
    let data = embedded(&page(&Trace::default()));
    assert_eq!(data["operations"]["id"][1], 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn nothing_of_a_trace_becomes_markup(mut trace in strategies::trace()) {
        trace.stalls.retain(|stall| stall.to > stall.from);
        let page = page(&trace);
        prop_assert_eq!(markup(&page), markup(&self::page(&Trace::default())));
        prop_assert_eq!(&embedded(&page)["program"], &Value::from(trace.program.as_str()));
    }
}
