//! A failure that nothing has looked at is reported once, when its last version or handle goes, and named at
//! its engine's end.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::future::Future;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, Once};
use std::task::{Context, Waker};

use estafette::bindings;
use estafette::devices::{DeviceError, DeviceErrorKind, host};
use estafette::tensor::TensorState;
use estafette::wait::Activity;
use estafette::{Access, DType, Engine, Error, ExportOptions, ImportOptions, Tensor};
use futures::executor::block_on;
use tests::foreign::{Deleted, Memory};
use tests::gate::Gate;
use tests::ops::until;
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{self, Layer, SubscriberExt};

/// Reports: the operation and the error. The process has one subscriber, so each test names its
/// operations itself.
static REPORTS: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());

/// Called with an operation's name while its failure is reported.
type Hook = Box<dyn Fn() + Send + Sync>;
static HOOKS: Mutex<BTreeMap<String, Arc<Hook>>> = Mutex::new(BTreeMap::new());

struct Collector;

#[derive(Default)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_string());
    }
}

impl<S: tracing::Subscriber> Layer<S> for Collector {
    fn on_event(&self, event: &tracing::Event<'_>, _: layer::Context<'_, S>) {
        if event.metadata().target() != "estafette::unretrieved" {
            return;
        }
        assert_eq!(*event.metadata().level(), tracing::Level::ERROR);
        let mut fields = Fields::default();
        event.record(&mut fields);
        let operation = fields.0.remove("operation").unwrap();
        REPORTS.lock().unwrap().push((operation.clone(), fields.0.remove("error").unwrap()));
        let hook = HOOKS.lock().unwrap().get(&operation).cloned();
        if let Some(hook) = hook {
            hook();
        }
    }
}

fn engine(workers: usize) -> Engine {
    static SUBSCRIBED: Once = Once::new();
    SUBSCRIBED.call_once(|| {
        let subscriber = tracing_subscriber::registry().with(Collector);
        tracing::subscriber::set_global_default(subscriber).unwrap();
    });
    Engine::builder().workers(workers).build().unwrap()
}

fn tensor(engine: &Engine) -> Tensor {
    engine.zeros(&[1], DType::F32).unwrap()
}

/// Submits an operation `name` on `x` that fails, and waits for its end without looking at how it ended.
fn fail(engine: &Engine, name: &'static str, x: &Tensor) {
    engine.op(name).writes([x]).run(move |[], [_x]| Err(format!("{name} has failed").into())).unwrap();
    engine.wait_all(None).unwrap();
}

/// The errors reported for the operation `name`.
fn reports(name: &str) -> Vec<String> {
    let reports = REPORTS.lock().unwrap();
    reports.iter().filter(|(operation, _)| operation == name).map(|(_, error)| error.clone()).collect()
}

#[track_caller]
fn assert_reported(name: &str, times: usize) {
    // A worker releases a failure just after it has reported the end, and may be the last that holds it.
    until("it is reported", || reports(name).len() >= times);
    let found = reports(name);
    assert_eq!(found.len(), times, "{found:?}");
    assert!(found.iter().all(|error| error.contains(&format!("{name} has failed"))), "{found:?}");
}

#[test]
fn a_failure_is_reported_when_its_last_version_goes_and_not_before() {
    for (workers, name) in [(0, "last version, alone"), (2, "last version, workers")] {
        let engine = engine(workers);
        let x = tensor(&engine);
        fail(&engine, name, &x);
        let other = x.clone();
        drop(x);
        assert_reported(name, 0);
        drop(other);
        assert_reported(name, 1);
    }
}

#[test]
fn a_failure_is_reported_when_the_last_handle_of_its_operation_goes() {
    let engine = engine(0);
    let op = engine.op("last handle").run(|[], []| Err("last handle has failed".into())).unwrap();
    engine.wait_all(None).unwrap();
    assert!(op.is_done());
    let other = op.clone();
    drop(op);
    assert_reported("last handle", 0);
    drop(other);
    assert_reported("last handle", 1);
}

#[test]
fn an_operation_that_has_no_operand_and_no_handle_reports_its_failure_at_its_end() {
    let engine = engine(2);
    drop(engine.op("log metrics").run(|[], []| Err("log metrics has failed".into())).unwrap());
    until("it is reported", || !reports("log metrics").is_empty());
    assert_reported("log metrics", 1);
    drop(engine);
    assert_reported("log metrics", 1);
}

#[test]
fn the_report_names_the_operation_and_the_root_error() {
    #[derive(Debug, thiserror::Error)]
    #[error("cannot save the checkpoint")]
    struct Outer(#[source] std::io::Error);
    let engine = engine(0);
    let fails = || Outer(std::io::Error::other("the disk is full")).into();
    drop(engine.op("save").run(move |[], []| Err(fails())).unwrap());
    engine.wait_all(None).unwrap();
    let found = reports("save");
    let [report] = found.as_slice() else { panic!("{found:?}") };
    assert!(report.contains("operation `save`"), "{report}");
    assert!(report.ends_with("failed: cannot save the checkpoint: the disk is full"), "{report}");
}

#[test]
fn the_sources_of_an_error_lead_to_the_root() {
    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] std::io::Error);
    let engine = engine(0);
    let op = engine.op("chain").run(|[], []| Err(Outer(std::io::Error::other("root")).into())).unwrap();
    let error = op.wait().unwrap_err();
    assert!(matches!(error, Error::Failed(_)));
    let outer = error.source().unwrap();
    assert!(outer.is::<Outer>(), "{outer:?}");
    assert_eq!(outer.source().unwrap().to_string(), "root");
}

#[test]
fn every_way_of_looking_retrieves() {
    let engine = engine(2);
    type Look = Box<dyn Fn(&Tensor)>;
    let ways: Vec<Look> = vec![
        Box::new(|x| drop(x.wait().unwrap_err())),
        Box::new(|x| drop(block_on(x.ready()).unwrap_err())),
        Box::new(|x| drop(block_on(x.lease(Access::Read, "a reader")).unwrap_err())),
        Box::new(|x| drop(block_on(x.export(Access::Read)).unwrap_err())),
        Box::new(|x| drop(x.export_wait(&ExportOptions::from(Access::Read)).unwrap_err())),
        Box::new(|x| drop(x.to_vec::<f32>().unwrap_err())),
        Box::new(|x| assert!(matches!(x.state(), TensorState::Failed(_)))),
        Box::new(|x| x.on_ready(|outcome| drop(outcome.unwrap_err()))),
        Box::new(|x| drop(x.ready_fence())),
        Box::new(|x| x.clear_error().unwrap()),
    ];
    for (number, look) in ways.iter().enumerate() {
        let x = tensor(&engine);
        fail(&engine, "looked at", &x);
        look(&x);
        drop(x);
        assert_eq!(reports("looked at").len(), 0, "way {number}");
    }
    let looks: [fn(&estafette::Op); 3] = [
        |op| drop(op.wait().unwrap_err()),
        |op| drop(block_on(op.clone()).unwrap_err()),
        |op| drop(op.fence()),
    ];
    for look in looks {
        let op = engine.op("looked at").run(|[], []| Err("no".into())).unwrap();
        engine.wait_all(None).unwrap();
        look(&op);
    }
    assert_eq!(reports("looked at").len(), 0);
    assert_eq!(engine.unretrieved().count(), 0);
}

#[test]
fn looks_that_show_no_failure_do_not_retrieve() {
    let engine = engine(1);
    let x = tensor(&engine);
    let gate = Gate::on_tensors(&engine, std::slice::from_ref(&x));
    let name = "looked past";
    let op = engine.op(name).writes([&x]).run(move |[], [_x]| Err(format!("{name} has failed").into()));
    let op = op.unwrap();
    // Made before the failure, and never polled to its end.
    let mut given_up = Box::pin(x.ready());
    assert!(given_up.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let (called, calls) = channel();
    let also = called.clone();
    bindings::tensor::on_end(&x, move |_| called.send(()).unwrap());
    bindings::operation::on_end(&op, move |_| also.send(()).unwrap());
    gate.begun().complete(Ok(()));
    engine.wait_all(None).unwrap();
    calls.recv().unwrap();
    calls.recv().unwrap();
    assert!(x.is_ready() && op.is_done());
    assert!(matches!(
        (bindings::tensor::outcome(&x), bindings::operation::outcome(&op)),
        (Some(Err(Error::Failed(_))), Some(Err(Error::Failed(_))))
    ));
    block_on(x.writable()).unwrap();
    let _ = (engine.diagnose(), Activity::from(&engine.diagnose()), engine.stats(), format!("{op:?}"));
    // Made after the failure, and never polled.
    drop(x.ready());
    drop((op, x));
    drop(given_up);
    assert_reported(name, 1);
}

#[test]
fn dependents_share_the_report_of_the_root() {
    let engine = engine(2);
    let (x, y) = (tensor(&engine), tensor(&engine));
    fail(&engine, "root", &x);
    for _ in 0..10 {
        engine.op("dependent").reads([&x]).writes([&y]).run(|[_x], [_y]| Ok(())).unwrap();
    }
    engine.wait_all(None).unwrap();
    drop(x);
    assert_reported("root", 0);
    drop(y);
    assert_reported("root", 1);
    assert_eq!(reports("dependent").len(), 0);

    let (x, y) = (tensor(&engine), tensor(&engine));
    fail(&engine, "root, seen", &x);
    engine.op("dependent").reads([&x]).writes([&y]).run(|[_x], [_y]| Ok(())).unwrap();
    y.wait().unwrap_err();
    drop((x, y));
    assert_reported("root, seen", 0);
}

#[test]
fn a_failure_that_a_write_heals_is_reported() {
    let engine = engine(2);
    let x = tensor(&engine);
    fail(&engine, "healed", &x);
    engine.op("heal").writes([&x]).run(|[], [_x]| Ok(())).unwrap().wait().unwrap();
    until("it is reported", || !reports("healed").is_empty());
    x.wait().unwrap();
    drop(x);
    assert_reported("healed", 1);
}

#[test]
fn a_cancellation_surprises_nothing() {
    let engine = engine(1);
    let x = tensor(&engine);
    let gate = Gate::on_tensors(&engine, std::slice::from_ref(&x));
    let op = engine.op("cancelled").writes([&x]).run(|[], [_x]| Ok(())).unwrap();
    assert!(op.cancel());
    gate.begun().complete(Ok(()));
    engine.wait_all(None).unwrap();
    assert_eq!(engine.unretrieved().count(), 0);
    drop((op, x));
    assert_eq!(reports("cancelled").len(), 0);
    assert_eq!(engine.unretrieved().count(), 0);
}

#[test]
fn a_panic_in_a_body_is_a_failure_like_others() {
    let engine = engine(1);
    drop(engine.op("panics").run(|[], []| panic!("panics has failed")).unwrap());
    until("it is reported", || !reports("panics").is_empty());
    assert_reported("panics", 1);
}

#[test]
fn a_shutdown_lists_what_was_not_retrieved_gone_or_not() {
    let engine = engine(2);
    let (x, y, seen) = (tensor(&engine), tensor(&engine), tensor(&engine));
    fail(&engine, "listed, gone", &x);
    drop(x);
    assert_reported("listed, gone", 1);
    fail(&engine, "listed, held", &y);
    fail(&engine, "listed, seen", &seen);
    seen.wait().unwrap_err();
    assert_eq!(engine.stats().unretrieved, 2);
    let report = engine.shutdown_timeout(std::time::Duration::from_secs(10));
    assert!(report.drained);
    let names: Vec<&str> = report.unretrieved.failures().iter().map(|failure| failure.operation()).collect();
    assert_eq!((names.as_slice(), report.unretrieved.count()), (&["listed, gone", "listed, held"][..], 2));
    drop((report, y));
    // Reading the report retrieves the failure.
    assert_reported("listed, held", 0);
    assert_eq!(block_on(engine.shutdown()).unretrieved.count(), 0);
}

#[test]
fn a_shutdown_whose_report_is_not_read_loses_nothing() {
    let engine = engine(0);
    let x = tensor(&engine);
    fail(&engine, "unread", &x);
    drop(block_on(engine.shutdown()));
    assert_reported("unread", 0);
    drop(x);
    assert_reported("unread", 1);
}

#[test]
fn a_thousand_failures_are_counted_and_the_first_are_listed() {
    let engine = engine(0);
    for _ in 0..1000 {
        drop(engine.op("many").run(|[], []| Err("many has failed".into())).unwrap());
    }
    engine.wait_all(None).unwrap();
    assert_reported("many", 1000);
    let unretrieved = engine.unretrieved();
    assert_eq!(unretrieved.count(), 1000);
    let ids: Vec<u64> = unretrieved.failures().iter().map(|failure| failure.id()).collect();
    assert_eq!(ids.len(), 64);
    assert!(ids.is_sorted());
}

#[test]
fn an_engine_that_is_to_be_silent_is() {
    let _subscribed = engine(0);
    let engine = Engine::builder().workers(0).report_failures(false).build().unwrap();
    let x = tensor(&engine);
    fail(&engine, "silent", &x);
    assert_eq!(engine.shutdown_timeout(std::time::Duration::from_secs(10)).unretrieved.count(), 0);
    drop(x);
    assert_eq!(reports("silent").len(), 0);
}

#[test]
fn a_report_may_use_the_engine_and_may_panic() {
    for workers in [0, 2] {
        let engine = engine(workers);
        let x = tensor(&engine);
        let (inside, used) = (engine.clone(), x.clone());
        let hook: Hook = Box::new(move || {
            inside.op("in the report").writes([&used]).run(|[], [_x]| Ok(())).unwrap().wait().unwrap();
            panic!("a subscriber panics");
        });
        HOOKS.lock().unwrap().insert("reported while replaced".into(), Arc::new(hook));
        fail(&engine, "reported while replaced", &x);
        // The failure is dropped by the end of the write that replaces it, which must hold no lock of the
        // variable.
        engine.op("replace").writes([&x]).run(|[], [_x]| Ok(())).unwrap().wait().unwrap();
        engine.wait_all(None).unwrap();
        until("it is reported", || reports("reported while replaced").len() == usize::from(workers > 0) + 1);
        x.wait().unwrap();
        HOOKS.lock().unwrap().clear();
    }
}

#[test]
fn an_engine_that_is_dropped_runs_to_its_end_what_was_submitted() {
    for (workers, name) in [(0, "after, alone"), (1, "after, workers")] {
        let engine = engine(workers);
        let ended = Arc::new(Mutex::new(0));
        let var = engine.var();
        for _ in 0..20 {
            let ended = Arc::clone(&ended);
            let op = engine.op("runs").writes_vars(&[&var]).run(move |[], []| {
                *ended.lock().unwrap() += 1;
                Ok(())
            });
            op.unwrap();
        }
        drop(
            engine.op(name).writes_vars(&[&var]).run(move |[], []| Err(format!("{name} has failed").into())),
        );
        drop((engine, var));
        until("the rest has run", || !reports(name).is_empty());
        assert_eq!(*ended.lock().unwrap(), 20);
        assert_reported(name, 1);
    }
}

#[test]
fn device_work_that_fails_after_it_was_issued_is_one_failure_however_often_it_is_found() {
    let engine = engine(2);
    for (looks, times) in [(false, 1), (true, 0)] {
        let name = if looks { "issued, seen" } else { "issued" };
        let x = tensor(&engine);
        let (completer, fence) = host::promise("a device");
        let op = engine
            .op(name)
            .writes([&x])
            .run_external(move |completion| completion.complete_after(&fence, Ok(())));
        drop(op.unwrap());
        let ready = x.ready();
        completer.settle(Err(DeviceError::new(DeviceErrorKind::Fault, format!("{name} has failed"))));
        if looks {
            // A failure that the probe finds is an error of its own.
            block_on(ready).unwrap_err();
        } else {
            drop(ready);
        }
        until("the version is known to have failed", || x.is_ready());
        drop(x);
        until("all that looked is gone", || reports(name).len() == times);
        assert_reported(name, times);
    }
}

#[test]
fn imports_that_fail_with_the_same_text_are_failures_of_their_own() {
    let engine = engine(1);
    let text = "import has failed";
    let (block, counted) = (Memory::of(&[1.0, 2.0]), Deleted::default());
    let import = |at: usize| {
        let (completer, fence) = host::promise("a frame");
        let options = ImportOptions { ready: fence.into(), ..ImportOptions::default() };
        // SAFETY: a fresh tensor that describes memory that it keeps.
        let x = unsafe { engine.import_with(block.tensor(at, 1, &counted), options) }.unwrap();
        completer.fail(DeviceError::new(DeviceErrorKind::Other, text));
        x
    };
    let (seen, unseen) = (import(0), import(1));
    for _ in 0..3 {
        assert_eq!(seen.wait().unwrap_err().to_string(), format!("the fence of an import failed: {text}"));
    }
    until("the other is known to have failed", || unseen.is_ready());
    drop((seen, unseen));
    assert_reported("import", 1);
    // The next of the same memory is another one.
    let next = import(0);
    until("it is known to have failed", || next.is_ready());
    drop(next);
    assert_reported("import", 2);
}
