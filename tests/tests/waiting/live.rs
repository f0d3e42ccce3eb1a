//! The engine while it runs: snapshots, the watchdog, and `tracing` events.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::Duration;

use estafette::wait::Activity;
use estafette::{Access, DType, Engine, trace};
use futures::FutureExt;
use futures::executor::block_on;
use tests::gate::Gate;
use tests::ops::{exclusive, until};
use tests::watchdog::Watchdog;
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

#[test]
fn a_snapshot_tells_what_is_stalled_and_by_what() {
    let engine = Engine::builder().workers(1).build().unwrap();
    let _watchdog = Watchdog::of(&engine);
    assert_eq!(format!("{:?}", Activity::from(&engine.diagnose())), format!("{:?}", Activity::default()));
    let busy = engine.var();
    let gate = Gate::on_variable(&engine, &busy);
    let running = gate.begun();
    let (a, b) = (engine.zeros(&[1], DType::F32).unwrap(), engine.zeros(&[1], DType::F32).unwrap());
    let first = block_on(a.lease(Access::Read, "the first owner")).unwrap();
    sleep(Duration::from_millis(20));
    let second = block_on(b.lease(Access::Read, "the second owner")).unwrap();
    engine.op("held up").writes([&a]).run(|[], [_a]| Ok(())).unwrap();
    engine.op("queued").reads_vars(&[&busy]).run(|[], []| Ok(())).unwrap();
    let live = Activity::from(&engine.diagnose());
    assert_eq!((live.running, live.ready, live.queued, live.leased), (1, 0, 1, 1), "{}", engine.diagnose());
    assert_eq!(&*live.oldest_lease.unwrap().owner, "the first owner");
    drop((first, second));
    running.complete(Ok(()));
    engine.wait_all(None).unwrap();
}

#[test]
fn what_waits_for_a_lease_that_waits_itself_is_queued() {
    let engine = Engine::builder().workers(1).build().unwrap();
    let _watchdog = Watchdog::of(&engine);
    let (busy, x) = (engine.var(), engine.zeros(&[1], DType::F32).unwrap());
    let gate = Gate::on_variable(&engine, &busy);
    let running = gate.begun();
    engine.op("before").reads_vars(&[&busy]).writes([&x]).run(|[], [_x]| Ok(())).unwrap();
    let mut wanted = Box::pin(x.lease(Access::Write, "one that waits"));
    assert!((&mut wanted).now_or_never().is_none());
    engine.op("after").writes([&x]).run(|[], [_x]| Ok(())).unwrap();
    let live = Activity::from(&engine.diagnose());
    assert_eq!((live.running, live.queued, live.leased), (1, 3, 0), "{}", engine.diagnose());
    running.complete(Ok(()));
    drop(block_on(wanted).unwrap());
    engine.wait_all(None).unwrap();
}

#[test]
fn the_watchdog_tells_once_of_what_is_stalled_for_too_long() {
    let told: Arc<Mutex<Vec<String>>> = Arc::default();
    let telling = Arc::clone(&told);
    let limit = Duration::from_millis(60);
    let engine = Engine::builder()
        .workers(1)
        .on_stall(limit, move |op| telling.lock().unwrap().push(op.to_string()))
        .build()
        .unwrap();
    let _watchdog = Watchdog::of(&engine);
    let t = engine.zeros(&[1], DType::F32).unwrap();
    let lease = block_on(t.lease(Access::Read, "the plotter")).unwrap();
    let op = engine.op("write").writes([&t]).run(|[], [_t]| Ok(())).unwrap();
    until("it is reported", || !told.lock().unwrap().is_empty());
    sleep(limit * 2);
    drop(lease);
    op.wait().unwrap();
    let told = told.lock().unwrap().clone();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("`write` waits for") && told[0].contains("the plotter"), "{told:?}");
}

/// Runs `f` while `subscriber` listens on this thread. If it were the only one of the process, the first
/// thread at an event would decide whether any thread gets it: `tracing` asks that thread's own subscriber,
/// and other tests have none.
pub fn listening<S>(subscriber: S, f: impl FnOnce())
where
    S: tracing::Subscriber + Send + Sync + 'static,
{
    let _another = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::new());
    tracing::subscriber::with_default(subscriber, f);
}

/// Collects events and spans of the engine: target, message, and the names of the fields.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

#[derive(Default)]
struct Fields(BTreeMap<String, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.insert(field.name().into(), format!("{value:?}"));
    }
}

impl Notes {
    fn note(&self, target: &str, what: &str, fields: Fields) {
        let names: Vec<&str> =
            fields.0.keys().map(String::as_str).filter(|name| *name != "message").collect();
        let what = fields.0.get("message").map_or(what, String::as_str);
        self.0.lock().unwrap().push(format!("{target} {what}: {}", names.join(", ")));
    }
}

impl<S: tracing::Subscriber> Layer<S> for Notes {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        self.note(event.metadata().target(), "event", fields);
    }

    fn on_new_span(&self, attributes: &tracing::span::Attributes<'_>, _: &tracing::Id, _: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        self.note(attributes.metadata().target(), attributes.metadata().name(), fields);
    }
}

#[test]
fn what_tracing_gets_has_documented_targets_names_and_fields() {
    let _alone = exclusive();
    let notes = Notes::default();
    let subscriber = tracing_subscriber::registry().with(notes.clone());
    // Without workers everything happens on this thread, which is the one that listens.
    let engine = Engine::builder().workers(0).build().unwrap();
    listening(subscriber, || {
        let t = engine.zeros(&[1], DType::F32).unwrap();
        engine.op("quiet").writes([&t]).run(|[], [_t]| Ok(())).unwrap().wait().unwrap();
        assert!(notes.0.lock().unwrap().is_empty(), "no thread has asked");
        assert!(!trace::emit_events(true));
        engine.op("write").writes([&t]).run(|[], [_t]| Ok(())).unwrap().wait().unwrap();
        drop(block_on(t.lease(Access::Read, "numpy")).unwrap());
        engine.op("fail").writes([&t]).run(|[], [_t]| Err("no".into())).unwrap().wait().unwrap_err();
        assert!(trace::emit_events(false));
    });
    let notes = notes.0.lock().unwrap().clone();
    let expected = [
        "estafette::op submitted: accesses, id, operation",
        "estafette::op ready: id",
        "estafette::stall waits: id, operation, what",
        "estafette::op operation: id, operation",
        "estafette::op ended: id, outcome",
        "estafette::stall resumed: blocking, id",
        "estafette::exchange lease asked for: id, owner",
        "estafette::exchange lease held: id",
        "estafette::op ended: id, outcome, why",
    ];
    for expected in expected {
        assert!(notes.iter().any(|note| note == expected), "`{expected}` is not among {notes:#?}");
    }
}

/// Events of spans, in order.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<String>>>);

impl Spans {
    fn note(&self, what: String) {
        self.0.lock().unwrap().push(what);
    }
}

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_follows_from(&self, span: &tracing::Id, follows: &tracing::Id, context: Context<'_, S>) {
        let [span, follows] = [span, follows].map(|id| context.span(id).unwrap());
        assert!(span.parent().is_none(), "it would keep the other one open");
        self.note(format!("{} follows {}", span.name(), follows.name()));
    }

    fn on_enter(&self, id: &tracing::Id, context: Context<'_, S>) {
        self.note(format!("{} entered", context.span(id).unwrap().name()));
    }

    fn on_close(&self, id: tracing::Id, context: Context<'_, S>) {
        self.note(format!("{} closed", context.span(&id).unwrap().name()));
    }
}

#[test]
fn the_span_of_a_body_follows_from_the_one_that_submitted_it() {
    let _alone = exclusive();
    let spans = Spans::default();
    let subscriber = tracing_subscriber::registry().with(spans.clone());
    let engine = Engine::builder().workers(0).build().unwrap();
    listening(subscriber, || {
        trace::emit_events(true);
        let t = engine.zeros(&[1], DType::F32).unwrap();
        let request = tracing::info_span!("request");
        let submit = |fails: bool| {
            let body = engine.op("body").writes([&t]);
            body.run(move |[], [_]| if fails { Err("no".into()) } else { Ok(()) }).unwrap()
        };
        let ops = request.in_scope(|| [submit(false), submit(true)]);
        let skipped = request.in_scope(|| engine.op("skipped").reads([&t]).run(|[_], []| Ok(())).unwrap());
        drop(request);
        assert!(ops[0].wait().is_ok() && ops[1].wait().is_err() && skipped.wait().is_err());
        let outside = engine.op("outside").run(|[], []| Ok(())).unwrap();
        outside.wait().unwrap();
        trace::emit_events(false);
    });
    let spans = spans.0.lock().unwrap().clone();
    let runs = ["operation entered", "operation closed"];
    let follows = "operation follows request";
    let expected = [
        vec!["request entered", follows, follows, "request entered", follows, "request closed"],
        runs.repeat(2),
        vec!["operation closed"],
        runs.to_vec(),
    ];
    assert_eq!(spans, expected.concat());
}

#[test]
fn the_watchdog_goes_on_after_a_panic_of_what_it_calls() {
    let told = Arc::new(AtomicUsize::new(0));
    let telling = Arc::clone(&told);
    let engine = Engine::builder().workers(1).on_stall(Duration::from_millis(20), move |_| {
        telling.fetch_add(1, Ordering::SeqCst);
        panic!("a watchdog's callback");
    });
    let engine = engine.build().unwrap();
    let stalled = [1, 2].map(|stalls| {
        let x = engine.zeros(&[1], DType::F32).unwrap();
        let lease = block_on(x.lease(Access::Read, "the plotter")).unwrap();
        let op = engine.op("write").writes([&x]).run(|[], [_x]| Ok(())).unwrap();
        until("it is reported", || told.load(Ordering::SeqCst) == stalls);
        (lease, op)
    });
    for (lease, op) in stalled {
        drop(lease);
        op.wait().unwrap();
    }
}
