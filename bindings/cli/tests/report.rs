//! `estafette report`, from outside: what it prints, and what it says of files that are not whole.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use estafette::trace::{Recorder, TraceOptions};
use estafette::{DType, Engine};

/// Records two operations of which one waits for the other, and gives the file.
fn recorded(folder: &Path, name: &str, slow: Duration) -> PathBuf {
    // One recorder at a time is kept per process, and each test that records is the only one of its file.
    let engine = Engine::builder().workers(1).build().unwrap();
    let recorder = Recorder::open(TraceOptions::default()).unwrap();
    let x = engine.zeros(&[1], DType::F32).unwrap();
    x.call_in_report("batch");
    let produce = engine.op("produce").writes([&x]);
    produce
        .run(move |[], [_x]| {
            std::thread::sleep(slow);
            Ok(())
        })
        .unwrap();
    engine.op("consume").reads([&x]).run(|[_x], []| Ok(())).unwrap();
    engine.wait_all(None).unwrap();
    let path = folder.join(name);
    estafette_report::perfetto::write(&recorder.finish(), fs::File::create(&path).unwrap()).unwrap();
    path
}

fn estafette(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_estafette"))
        .arg("report")
        .args(arguments)
        .env_remove("COLUMNS")
        .output()
        .unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn refusal(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn a_trace_is_reported_for_people_and_for_programs() {
    let folder = std::env::temp_dir().join(format!("estafette-report-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let fast = recorded(&folder, "fast.pftrace", Duration::from_millis(5));
    let slow = recorded(&folder, "slow.pftrace", Duration::from_millis(800));
    let (fast, slow) = (fast.to_str().unwrap(), slow.to_str().unwrap());

    let report = text(&estafette(&[slow]));
    assert!(report.lines().next().unwrap().contains("computing (`produce`)"), "{report}");
    assert!(report.contains("Library by library") && !report.contains('\x1b'), "{report}");
    let short = text(&estafette(&[slow, "--short", "--width", "90"]));
    assert!(!short.contains("Library by library"), "{short}");
    assert!(short.lines().all(|line| line.chars().count() <= 90), "{short}");

    let json: serde_json::Value = serde_json::from_str(&text(&estafette(&[slow, "--json"]))).unwrap();
    assert_eq!((json["schema"].as_u64(), json["totals"]["operations"].as_u64()), (Some(2), Some(2)));
    assert_eq!(json["causes"].as_array().unwrap().len(), 6);
    assert!(json["run_time"].as_array().unwrap().iter().all(|row| row["time_ns"].is_u64()));

    let values = text(&estafette(&[slow, "--csv", "--sort", "name"]));
    let rows: Vec<Vec<&str>> = values.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(rows[0][..3], ["name", "kind", "count"]);
    let own: Vec<&str> = rows.iter().filter(|row| row[1] == "operation").map(|row| row[0]).collect();
    assert_eq!(own, ["`consume`", "`produce`"]);
    let table = |arguments: &[&str]| {
        let report = text(&estafette(&[&[slow], arguments].concat()));
        let (_, table) = report.split_once("\nOperations\n").unwrap();
        let table = table.split("\n\n").next().unwrap();
        table.lines().skip(1).map(|line| line.split('`').nth(1).unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(table(&["--sort", "ran"]), ["produce", "consume"]);
    assert_eq!(table(&["--sort", "waited"]), ["consume", "produce"]);
    assert_eq!(table(&["--operation", "prod"]), ["produce"]);
    let about = text(&estafette(&[slow, "--operation", "prod"]));
    assert!(about.contains("make `produce` faster"), "{about}");
    let refused = refusal(&estafette(&[slow, "--operation", "absent"]));
    assert!(
        refused.contains("no operation is called `absent`") && refused.contains("`produce`"),
        "{refused}"
    );
    assert!(refusal(&estafette(&[slow, "--sort", "size"])).contains("waited, ran, blamed"));

    let difference = text(&estafette(&["--diff", fast, slow]));
    assert!(difference.contains("`produce`") && difference.contains("+"), "{difference}");
    let json: serde_json::Value =
        serde_json::from_str(&text(&estafette(&["--diff", fast, slow, "--json"]))).unwrap();
    assert!(json["duration_ns"]["after"].as_u64() > json["duration_ns"]["before"].as_u64());

    let refused = refusal(&estafette(&[fast, slow]));
    let twice = format!("two traces are of process {}", std::process::id());
    assert!(refused.contains(&twice), "{refused}");

    let (page, chrome) = (folder.join("page.html"), folder.join("trace.json"));
    text(&estafette(&[slow, "--html", page.to_str().unwrap(), "--chrome", chrome.to_str().unwrap()]));
    // The suite `reports` looks at the page in a browser: the page is compressed.
    let page = fs::read_to_string(&page).unwrap();
    assert!(page.trim_start().to_lowercase().starts_with("<!doctype html>") && page.contains("</html>"));
    serde_json::from_str::<serde_json::Value>(&fs::read_to_string(&chrome).unwrap()).unwrap();

    let whole = fs::read(slow).unwrap();
    let cut = folder.join("cut.pftrace");
    fs::write(&cut, &whole[..whole.len() - 7]).unwrap();
    let report = text(&estafette(&[cut.to_str().unwrap()]));
    assert!(report.contains("incomplete: "), "{report}");
    let difference = text(&estafette(&["--diff", cut.to_str().unwrap(), slow]));
    assert!(difference.contains("incomplete: before: "), "{difference}");
    let values = estafette(&["--csv", cut.to_str().unwrap()]);
    assert!(text(&values).lines().all(|line| !line.contains("incomplete")), "{values:?}");
    assert!(String::from_utf8_lossy(&values.stderr).contains("incomplete: "), "{values:?}");
    fs::write(&cut, [0xff; 64]).unwrap();
    let refused = refusal(&estafette(&[cut.to_str().unwrap()]));
    assert!(refused.contains("cut.pftrace is no trace"), "{refused}");
    fs::write(&cut, []).unwrap();
    let refused = refusal(&estafette(&[cut.to_str().unwrap()]));
    assert!(refused.contains("cut.pftrace is empty"), "{refused}");
    let refused = refusal(&estafette(&[folder.join("absent").to_str().unwrap()]));
    assert!(refused.contains("absent"), "{refused}");
    // `--html *.pftrace`: the pattern's first file is OUT.
    for option in ["--html", "--chrome"] {
        let refused = refusal(&estafette(&[option, fast, slow]));
        assert!(refused.contains("fast.pftrace is a trace and is not replaced"), "{refused}");
    }
    text(&estafette(&["--short", fast]));
    let page = folder.join("page");
    let page = page.to_str().unwrap();
    assert!(refusal(&estafette(&["--html", page, "--chrome", page, slow])).contains("the same file"));
    text(&estafette(&["--html", page, slow]));
    text(&estafette(&["--html", page, slow])); // a former page is replaced
    let chrome = chrome.to_str().unwrap();
    text(&estafette(&["--chrome", chrome, slow]));
    let other = folder.join("program.py");
    for (option, content) in [("--html", "import numpy"), ("--html", "<!doctype html>"), ("--chrome", "{}")] {
        fs::write(&other, content).unwrap();
        let refused = refusal(&estafette(&[option, other.to_str().unwrap(), slow]));
        assert!(refused.contains("program.py: ") && refused.contains("is not replaced"), "{refused}");
        assert_eq!(fs::read_to_string(&other).unwrap(), content);
    }

    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn what_is_not_asked_for_rightly_is_refused_with_how_to_ask() {
    assert!(refusal(&estafette(&[])).contains("estafette report <FILE>"));
    assert!(refusal(&estafette(&["--diff", "/dev/null"])).contains("/dev/null"));
    assert!(refusal(&estafette(&["--width", "many", "x"])).contains("many"));
    assert!(refusal(&estafette(&["--colour"])).contains("--colour"));
    for option in [&["--html", "page"][..], &["--chrome", "trace"], &["--short"]] {
        let refused = refusal(&estafette(&[option, &["--diff", "a", "b"]].concat()));
        assert!(refused.contains(option[0]) && refused.contains("cannot be used with"), "{refused}");
    }
    assert!(refusal(&estafette(&["--short", "--json", "a"])).contains("cannot be used with"));
    for option in ["--html", "--chrome"] {
        let refused = refusal(&estafette(&["/dev/null", option, "-"]));
        assert!(refused.contains("not to the standard output"), "{refused}");
    }
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let refused = refusal(&estafette(&[text.to_str().unwrap()]));
    assert!(
        refused.contains("it does not begin as a trace does") && !refused.contains("truncated"),
        "{refused}"
    );
}
