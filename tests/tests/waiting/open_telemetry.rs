//! Spans of bodies, as the SDK of OpenTelemetry gets them through `tracing-opentelemetry`.

use estafette::{DType, Engine, bindings, trace};
use opentelemetry::trace::{SpanContext, SpanId, TracerProvider as _};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use tests::ops::{exclusive, until};
use tests::watchdog::Watchdog;
use tracing_subscriber::layer::SubscriberExt;

use crate::live::listening;

fn named<'a>(spans: &'a [SpanData], name: &str) -> &'a SpanData {
    spans.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("no span `{name}` in {spans:#?}"))
}

#[test]
fn the_span_of_a_body_on_a_worker_links_to_the_span_that_submitted_it() {
    let _alone = exclusive();
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    let engine = Engine::builder().workers(1).build().unwrap();
    let _watchdog = Watchdog::of(&engine);
    listening(tracing_subscriber::registry().with(layer), || {
        trace::emit_events(true);
        let t = engine.zeros(&[1], DType::F32).unwrap();
        for request in [tracing::info_span!("first request"), tracing::info_span!("second request")] {
            let _entered = request.entered();
            bindings::operation::worker_only(engine.op("write").writes([&t])).run(|[], [_t]| Ok(())).unwrap();
        }
        bindings::operation::worker_only(engine.op("outside").writes([&t]))
            .run(|[], [_t]| Ok(()))
            .unwrap()
            .wait()
            .unwrap();
        trace::emit_events(false);
    });
    until("spans are closed", || exporter.get_finished_spans().unwrap().len() >= 5);
    let spans = exporter.get_finished_spans().unwrap();
    let [first, second] =
        ["first request", "second request"].map(|name| named(&spans, name).span_context.clone());
    let bodies: Vec<&SpanData> = spans.iter().filter(|span| span.name == "operation").collect();
    assert!(bodies.iter().all(|body| body.parent_span_id == SpanId::INVALID), "{bodies:#?}");
    let links: Vec<Vec<SpanContext>> =
        bodies.iter().map(|body| body.links.iter().map(|link| link.span_context.clone()).collect()).collect();
    assert_eq!(links, [vec![first], vec![second], vec![]]);
    let operations: Vec<String> = bodies
        .iter()
        .map(|body| {
            let operation = body.attributes.iter().find(|attribute| attribute.key.as_str() == "operation");
            operation.unwrap().value.to_string()
        })
        .collect();
    assert_eq!(operations, ["write", "write", "outside"]);
}
