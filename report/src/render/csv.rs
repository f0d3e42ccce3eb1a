//! The operations of a report as comma-separated values (RFC 4180), for spreadsheets and data frames.

use crate::analysis::summary::Report;

/// One line for each name and kind, behind a line with the names of the columns, which are those of the JSON.
pub fn operations(report: &Report) -> String {
    let mut text = String::from("name,kind,count,running_ns,waited_ns,blamed_ns,slack_ns\r\n");
    for row in &report.operations {
        let numbers = [row.count as u64, row.running_ns, row.waited_ns, row.blamed_ns, row.slack_ns];
        let cells =
            [quoted(&row.name), row.kind.clone()].into_iter().chain(numbers.map(|number| number.to_string()));
        text.push_str(&cells.collect::<Vec<_>>().join(","));
        text.push_str("\r\n");
    }
    text
}

/// A text with what would end it; within quotes it may have anything.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\r', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
