//! The files of traces: the unfinished one that a process leaves which ends before, and the one that is
//! replaced when the new one is whole.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::MutexGuard;
use std::time::{Duration, Instant};
use tests::ops::exclusive;

use estafette::trace::{self, Recorder, TraceOptions};
use estafette::{Access, DType, Engine};
use estafette_report::Trace;
use estafette_report::model::{Operation, Outcome};

/// A folder of its own, removed at the end.
pub struct Folder(pub PathBuf, #[allow(dead_code, reason = "held")] MutexGuard<'static, ()>);

impl Folder {
    pub fn new(name: &str) -> Self {
        let alone = exclusive();
        let path = std::env::temp_dir().join(format!("estafette-files-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path, alone)
    }

    pub fn names(&self) -> Vec<String> {
        let names = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<String> =
            names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn open() -> Recorder {
    Recorder::open(TraceOptions { program: Some("tests".into()), ..TraceOptions::default() }).unwrap()
}

/// So many operations, a tensor with a name, a lease, and a failure.
fn work(engine: &Engine, steps: usize) {
    let x = engine.zeros(&[4], DType::F32).unwrap();
    x.call_in_report("batch");
    for _ in 0..steps {
        engine.op("step").updates([&x]).run(|[], [], [_]| Ok(())).unwrap();
    }
    engine.wait_all(None).unwrap();
    drop(x.lease(Access::Read, "a reader").try_now().unwrap().unwrap());
    let failed = engine.op("broken").run(|[], []| Err("broke".into())).unwrap();
    assert!(failed.wait().is_err());
    engine.wait_all(None).unwrap();
}

#[test]
fn saving_costs_the_same_for_each_lease_however_often_its_tensor_was_described() {
    let folder = Folder::new("described");
    let engine = Engine::builder().workers(1).build().unwrap();
    // A thread remembers described tensors by the lower bits of their numbers.
    let tensors: Vec<_> = (0..257).map(|_| engine.zeros(&[4], DType::F32).unwrap()).collect();
    let recorder = open().to_file(folder.0.join("run.pftrace")).unwrap();
    for _ in 0..10_000 {
        for tensor in [&tensors[0], &tensors[256]] {
            drop(tensor.lease(Access::Read, "a reader").try_now().unwrap().unwrap());
        }
    }
    let began = Instant::now();
    recorder.save().unwrap();
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    let trace = trace::read(&folder.0.join("run.pftrace")).unwrap();
    assert_eq!(trace.leases.len(), 20_000);
    assert!(trace.variables.iter().all(|variable| variable.bytes == Some(16)));
}

/// A copy of the unfinished file, as a process leaves it that is killed now; once it has an operation of that
/// name, and the ends of so many. Threads are written one after the other, so what one has noted may come
/// later than what another one has noted after it.
fn torso(unfinished: &Path, name: &str, ends: usize) -> Trace {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let copy = unfinished.with_extension("copy");
        fs::copy(unfinished, &copy).unwrap();
        let read = trace::read(&copy);
        fs::remove_file(&copy).unwrap();
        match read {
            Ok(trace)
                if trace.operations.iter().any(|it| it.name == name) && ended(&trace).count() >= ends =>
            {
                return trace;
            }
            _ => assert!(Instant::now() < deadline, "it is written several times a second"),
        }
        std::thread::yield_now();
    }
}

fn ended(trace: &Trace) -> impl Iterator<Item = &Operation> {
    trace.operations.iter().filter(|operation| operation.outcome != Outcome::Unfinished)
}

#[test]
fn what_was_noted_is_in_the_unfinished_file_before_the_trace_ends() {
    let folder = Folder::new("unfinished");
    let path = folder.0.join("run.pftrace");
    let recorder = open().to_file(&path).unwrap();
    let unfinished = format!("run.pftrace.{}.unfinished", std::process::id());
    assert_eq!(
        folder.names(),
        std::slice::from_ref(&unfinished),
        "the file itself is not there before it is whole"
    );
    let engine = Engine::builder().workers(1).build().unwrap();
    // More than one page of entries, and one that runs when the process is killed.
    work(&engine, 5_000);
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let running = engine.op("running").run(move |[], []| {
        let _ = gone.recv();
        Ok(())
    });
    let running = running.unwrap();
    let left = torso(&folder.0.join(&unfinished), "running", 5_000);
    assert_eq!(left.program, "tests");
    assert!(left.losses.damage[0].contains("before the trace was finished"), "{:?}", left.losses);
    assert!(left.variables.iter().any(|variable| *variable.name == *"batch"));
    assert!(left.leases.iter().any(|lease| *lease.owner == *"a reader"));
    assert!(!left.stalls.is_empty() && left.duration > 0);
    go.send(()).unwrap();
    running.wait().unwrap();
    recorder.save().unwrap();
    assert_eq!(folder.names(), ["run.pftrace"]);
    let whole = trace::read(&path).unwrap();
    assert_eq!(whole.losses, Default::default());
    for operation in ended(&left) {
        let same = whole.operation(operation.id).unwrap();
        assert_eq!((&operation.name, &operation.accesses), (&same.name, &same.accesses));
        assert_eq!(operation.outcome, same.outcome, "{operation:?}");
    }
}

#[test]
fn an_unfinished_file_that_is_cut_anywhere_is_read_as_far_as_it_goes() {
    let folder = Folder::new("cut");
    let recorder = open().to_file(folder.0.join("run")).unwrap();
    let engine = Engine::builder().workers(1).build().unwrap();
    work(&engine, 100);
    let unfinished = folder.0.join(format!("run.{}.unfinished", std::process::id()));
    torso(&unfinished, "broken", 0);
    let whole = fs::read(&unfinished).unwrap();
    let (cut, mut most) = (folder.0.join("cut"), 0);
    for end in (0..=whole.len()).step_by(7).chain([whole.len()]) {
        fs::write(&cut, &whole[..end]).unwrap();
        if let Ok(trace) = trace::read(&cut) {
            assert!(!trace.losses.damage.is_empty());
            most = most.max(trace.operations.len());
        }
        let mut damaged = whole.clone();
        damaged[end.min(whole.len() - 1)] ^= 0x41;
        fs::write(&cut, &damaged).unwrap();
        let _ = trace::read(&cut);
    }
    assert!(most >= 101, "{most} operations");
    drop(recorder);
    assert_eq!(folder.names(), ["cut"], "a recorder that is thrown away leaves nothing");
}

#[test]
fn a_trace_that_cannot_be_saved_leaves_the_earlier_one_and_what_was_noted() {
    let folder = Folder::new("unsaved");
    let path = folder.0.join("run");
    let engine = Engine::builder().workers(1).build().unwrap();
    let recorder = open().to_file(&path).unwrap();
    work(&engine, 10);
    recorder.save().unwrap();
    let good = fs::read(&path).unwrap();
    let recorder = open().to_file(&path).unwrap();
    work(&engine, 20);
    // This stands in for a disk that fills: the folder of that name is none any more when it is renamed.
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let unsaved = recorder.save().unwrap_err();
    assert_eq!(unsaved.path, path);
    let kept = unsaved.kept.clone().unwrap();
    assert!(unsaved.to_string().contains("is kept in"), "{unsaved}");
    assert!(trace::read(&kept).unwrap().operations.len() >= 20);
    fs::remove_dir(&path).unwrap();
    fs::write(&path, good).unwrap();
    assert!(trace::read(&path).unwrap().losses.is_empty());
}

#[test]
fn a_second_trace_to_the_same_file_is_refused_until_the_first_is_over() {
    let folder = Folder::new("twice");
    let path = folder.0.join("run");
    let engine = Engine::builder().workers(1).build().unwrap();
    fs::create_dir(folder.0.join("within")).unwrap();
    for end in [|recorder: Recorder| recorder.save().unwrap(), |recorder: Recorder| drop(recorder)] {
        let recorder = open().to_file(&path).unwrap();
        for same in [path.clone(), folder.0.join("within").join("..").join("run")] {
            let refused = open().to_file(&same).unwrap_err();
            assert_eq!(refused.kind(), std::io::ErrorKind::AlreadyExists);
            assert!(refused.to_string().contains("records to it already"), "{refused}");
        }
        let other = open().to_file(folder.0.join("other")).unwrap();
        work(&engine, 10);
        drop(other);
        end(recorder);
    }
    assert!(trace::read(&path).unwrap().operations.len() >= 10);
    assert_eq!(folder.names(), ["run", "within"]);
    // A recording that cannot begin does not block the file for later ones.
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    open().to_file(&path).unwrap_err();
    fs::remove_dir(&path).unwrap();
    drop(open().to_file(&path).unwrap());
}

#[test]
fn a_place_where_no_file_can_be_is_refused_before_anything_is_noted() {
    let folder = Folder::new("refused");
    for path in [folder.0.clone(), "/dev/null".into(), folder.0.join("absent").join("run")] {
        let refused = open().to_file(&path).unwrap_err();
        assert!(path.ends_with("run") || refused.to_string().contains("no regular file"), "{refused}");
    }
    assert_eq!(folder.names(), [""; 0]);
    // The recorder was closed each time.
    drop(open());
    assert!(open().save().unwrap_err().to_string().contains("it was given no file"));
}
