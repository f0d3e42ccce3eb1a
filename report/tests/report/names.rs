//! Names that hold what a terminal obeys: texts for people show them, data has them as they are.

use estafette_report::diff::difference;
use estafette_report::hand_overs::HandOver;
use estafette_report::model::{Disorder, OperationKind, Outcome};
use estafette_report::terminal::{Style, difference_text, text};
use estafette_report::{Trace, csv, perfetto, report};

use crate::made_up;

/// Clears the screen, sets the title and the clipboard, rings, forges a line, turns the direction of the
/// text; C1 too.
const HOSTILE: &str =
    "\u{1b}[2J\u{1b}]0;t\u{7}\u{1b}]52;c;eA==\u{7}\u{9b}31m\r\nforged: \u{202e}x\u{85}\u{2028}";

fn hostile(of: &str) -> String {
    format!("{of}{HOSTILE}")
}

/// A trace in which everything that has a name has a hostile one.
fn trace() -> Trace {
    let mut trace = made_up::trace(200);
    trace.program = hostile("program").into();
    trace.tracks.iter_mut().for_each(|track| track.name = hostile(&track.name).into());
    trace.libraries.iter_mut().for_each(|library| *library = hostile(library).into());
    trace.variables.iter_mut().for_each(|variable| variable.name = hostile(&variable.name).into());
    for operation in &mut trace.operations {
        operation.name = hostile(&operation.name).into();
        if let Some(site) = &mut operation.site {
            (site.file, site.function) = (hostile(&site.file).into(), hostile(&site.function).into());
        }
        if operation.kind == OperationKind::Export {
            let after = operation.site.clone();
            operation.disorder =
                Some(Box::new(Disorder { is_known: true, after, why: hostile("why").into() }));
        }
        if operation.kind == OperationKind::Operation {
            operation.outcome = Outcome::Failed(hostile("why").into());
        }
    }
    for lease in &mut trace.leases {
        lease.owner = hostile(&lease.owner).into();
        if let Some(site) = &mut lease.site {
            (site.file, site.function) = (hostile(&site.file).into(), hostile(&site.function).into());
        }
    }
    trace.losses.damage.push(hostile("damage"));
    trace
}

/// The first character that a terminal would obey, but for line breaks, and some of what is around it.
fn obeyed(text: &str) -> Option<String> {
    let is_obeyed = |character: char| {
        (character.is_control() && character != '\n')
            || "\u{202e}\u{2028}\u{2029}\u{2066}".contains(character)
    };
    let at = text.find(is_obeyed)?;
    Some(text[..at].chars().rev().take(60).collect::<String>().chars().rev().collect())
}

#[test]
fn a_terminal_obeys_nothing_of_a_trace() {
    let mut file = Vec::new();
    perfetto::write(&trace(), &mut file).unwrap();
    let trace = perfetto::read(&file);
    assert_eq!(trace.operations.len(), 200);
    let report = report(&trace);
    for style in [Style::default(), Style { width: 40, short: true, ..Style::default() }] {
        let text = text(&report, style);
        assert_eq!(obeyed(&text), None);
        assert!(
            !text.lines().any(|line| line.trim_start().starts_with("forged")),
            "no line is forged: {text}"
        );
    }
    let text = difference_text(&difference(&report, &self::report(&made_up::trace(50))), Style::default());
    assert_eq!(obeyed(&text), None);
}

#[test]
fn sentences_of_the_report_show_names_and_data_has_them_as_they_are() {
    let trace = trace();
    let report = report(&trace);
    let sentences = std::iter::once(&report.headline)
        .chain(report.worst.iter().flat_map(|row| [&row.sentence, &row.blocker]))
        .chain(report.advice.iter().map(|advice| &advice.change))
        .chain(report.run_time.iter().map(|row| &row.what))
        .chain(&report.missing);
    let hand_overs: Vec<String> = report.hand_overs.iter().map(HandOver::sentence).collect();
    assert!(!hand_overs.is_empty());
    for sentence in sentences.chain(&hand_overs) {
        assert_eq!(obeyed(sentence), None);
        assert!(!sentence.contains('\n'), "{sentence:?}");
    }
    assert!(report.headline.contains("\\u{1b}[2J"), "{}", report.headline);
    // JSON has escapes of its own; what a program reads back is the name.
    assert!(report.program.contains(HOSTILE));
    assert!(report.tensors.iter().all(|row| row.name.contains(HOSTILE)));
    let json = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<estafette_report::Report>(&json).unwrap(), report);
}

/// Columns of a terminal, for the characters that these tests use: those of Chinese and Japanese, of full
/// width, and emoji take two.
fn columns(text: &str) -> usize {
    let columns = |character: char| match character {
        '\u{300}'..='\u{36f}' => 0,
        '\u{3000}'..='\u{9fff}'
        | '\u{ac00}'..='\u{d7a3}'
        | '\u{ff00}'..='\u{ff60}'
        | '\u{1f300}'..='\u{1f9ff}' => 2,
        _ => 1,
    };
    text.chars().map(columns).sum()
}

#[test]
fn names_of_any_width_stand_in_straight_columns() {
    let mut trace = made_up::trace(200);
    let names = [
        "画像を読み込む",
        "학습",
        "ＡＢＣ",
        "cafe\u{301}",
        "🚀 step",
        "very long and 長い名前の操作がここにあります",
    ];
    for (at, operation) in trace.operations.iter_mut().enumerate() {
        operation.name = names[at % names.len()].into();
    }
    let report = report(&trace);
    for width in [60, 100] {
        let text = text(&report, Style { width, ..Style::default() });
        let (_, table) = text.split_once("\nOperations\n").unwrap();
        let rows: Vec<&str> = table.lines().take_while(|line| !line.is_empty()).collect();
        assert!(rows.len() > 4 && rows.iter().any(|row| row.contains("画像")), "{text}");
        let ends: Vec<usize> = rows.iter().map(|row| columns(row)).collect();
        assert!(ends.iter().all(|end| *end == ends[0] && *end <= width), "{ends:?}\n{text}");
    }
}

#[test]
fn comma_separated_values_keep_a_name_in_its_cell() {
    let mut trace = made_up::trace(200);
    for operation in &mut trace.operations {
        operation.name = "a, \"b\"\nforged,1".into();
    }
    let text = csv::operations(&report(&trace));
    assert!(text.lines().skip(1).all(|line| !line.starts_with("forged")), "{text}");
    assert!(text.contains("\"`a, \"\"b\"\"\\nforged,1`\",operation,"), "{text}");
    assert!(
        text.lines().all(|line| line.ends_with(|last: char| last.is_ascii_digit() || last == 's')),
        "{text}"
    );
}

#[test]
fn one_is_no_plural_and_nothing_that_stays_nothing_is_not_new() {
    let report = report(&made_up::trace(0));
    let difference = difference_text(&difference(&report, &report), Style::default());
    let waited = difference.lines().find(|line| line.trim_start().starts_with("waited")).unwrap();
    assert!(waited.ends_with("+0 %"), "{difference}");
    let waits = |totals: usize| {
        let mut report = report.clone();
        (report.totals.waits, report.totals.leases) = (totals, totals);
        text(&report, Style { width: 1_000, ..Style::default() })
    };
    assert!(
        waits(1).contains(", 1 wait, 1 lease;") && waits(2).contains(", 2 waits, 2 leases;"),
        "{}",
        waits(1)
    );
}
