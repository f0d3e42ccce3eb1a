use super::*;
use crate::engine::Engine;

/// Links between processes need Linux.
#[cfg(not(estafette_portable))]
mod on_a_device;

#[test]
fn a_trace_keeps_what_is_known_of_the_clock_of_another_machine() {
    let recorder = trace::Recorder::open(trace::TraceOptions::default()).expect("a recorder");
    let engine = Engine::builder().workers(1).build().expect("an engine");
    let clock = ClockOffset { clock: "another boot".into(), ahead_ns: -7, uncertainty_ns: 3 };
    let origin = ImportOrigin { process: 5, key: 11, clock: Some(clock) };
    let noted = origin.clone();
    let fetched = engine.op("a copy").receive(move |completion| {
        hooks::has_origin(completion.scope().id(), &noted, None);
        completion.produce(Err(Box::new(Error::invalid("nothing"))));
    });
    assert!(fetched.expect("a promise").wait().is_err());
    let trace = recorder.finish();
    let copies: Vec<_> = trace.operations.iter().filter(|it| *it.name == *"a copy").collect();
    assert!(copies.len() == 1 && copies[0].origin.as_deref() == Some(&origin), "{copies:?}");
}

#[test]
fn a_reach_survives_its_bytes() {
    let reach =
        Reach { host: "10.0.0.1".into(), port: 7, key: [3; 16], deadline: Duration::from_millis(1500) };
    assert_eq!(parse(&to_bytes(&reach)), Some(reach));
    assert!(parse(&[0; 22]).is_none() && parse(&[0xff; 23]).is_none());
}
