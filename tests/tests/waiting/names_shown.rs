//! A name may hold anything; a diagnosis, an error and a log show it, and a terminal obeys nothing of it.

use std::sync::mpsc;
use std::time::Duration;

use estafette::bindings;
use estafette::{Access, DType, Engine};

const HOSTILE: &str = "\u{1b}]0;title\u{7}\u{9b}2J\r\noperation 1 `forged` is running\u{202e}";

fn assert_shown(text: &str, lines: usize) {
    let obeyed = |character: char| (character.is_control() && character != '\n') || character == '\u{202e}';
    assert!(!text.contains(obeyed), "{text:?}");
    assert!(text.contains("\\u{1b}]0;title\\u{7}"), "{text:?}");
    assert_eq!(text.lines().count(), lines, "{text:?}");
}

#[test]
fn a_diagnosis_has_one_line_for_each_operation_whatever_its_name() {
    let engine = Engine::builder().workers(1).build().unwrap();
    let x = engine.zeros(&[1], DType::F32).unwrap();
    let lease = x.lease(Access::Read, HOSTILE).try_now().unwrap().unwrap();
    let op = engine.op(HOSTILE).writes([&x]).run(|[], [_]| Ok(())).unwrap();
    let text = engine.diagnose().to_string();
    assert_shown(&text, 2);
    assert!(engine.diagnose().operations.iter().any(|op| op.name == HOSTILE), "data has the name as it is");
    drop(lease);
    op.wait().unwrap();
}

#[test]
fn errors_show_the_names_in_them() {
    let engine = Engine::builder().workers(1).build().unwrap();
    let x = engine.zeros(&[1], DType::F32).unwrap();
    let failed = engine.op(HOSTILE).writes([&x]).run(|[], [_]| Err("broke".into())).unwrap();
    let error = failed.wait().unwrap_err();
    assert_shown(&error.to_string(), 1);
    assert_shown(&bindings::full_text(&error), 1);
    assert_eq!(error.operation().unwrap().operation(), HOSTILE);
    assert_shown(&format!("{:?}", error.operation().unwrap()), 1);
    let Err(unknown) = engine.operator(HOSTILE) else { panic!("there is none of that name") };
    assert_shown(&unknown.to_string(), 1);
    let lease = x.lease(Access::Write, HOSTILE).try_now();
    drop(lease);
    let y = engine.zeros(&[1], DType::F32).unwrap();
    let held = y.lease(Access::Read, HOSTILE).try_now().unwrap().unwrap();
    assert_shown(&format!("{}", engine.diagnose()), 1);
    drop(held);
}

#[test]
fn the_watchdog_shows_what_has_stalled() {
    let (say, hear) = mpsc::channel();
    let say = std::sync::Mutex::new(say);
    let engine = Engine::builder()
        .workers(1)
        .on_stall(Duration::from_millis(20), move |stall: estafette::wait::Stall<'_>| {
            _ = say.lock().unwrap().send(stall.to_string())
        })
        .build()
        .unwrap();
    let x = engine.zeros(&[1], DType::F32).unwrap();
    let lease = x.lease(Access::Read, "a reader").try_now().unwrap().unwrap();
    let op = engine.op(HOSTILE).writes([&x]).run(|[], [_]| Ok(())).unwrap();
    assert_shown(&hear.recv_timeout(Duration::from_secs(60)).unwrap(), 1);
    drop(lease);
    op.wait().unwrap();
}
