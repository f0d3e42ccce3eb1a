use estafette_sync::sync::Mutex;

use crate::{DeviceSpan, Timing};

/// The tasks enqueued during one measurement, and when they ran, in virtual time.
#[derive(Debug, Default)]
pub(super) struct SimTiming(Mutex<Times>);

#[derive(Debug, Default)]
struct Times {
    unfinished: usize,
    began_ns: Option<u64>,
    ended_ns: Option<u64>,
}

impl SimTiming {
    pub(super) fn enqueued(&self) {
        self.0.lock().unfinished += 1;
    }

    pub(super) fn began(&self, at_ns: u64) {
        let mut times = self.0.lock();
        times.began_ns = Some(times.began_ns.map_or(at_ns, |known| known.min(at_ns)));
    }

    pub(super) fn ended(&self, at_ns: u64) {
        let mut times = self.0.lock();
        times.unfinished -= 1;
        times.ended_ns = Some(at_ns);
    }
}

impl Timing for SimTiming {
    fn span(&self) -> Option<DeviceSpan> {
        let times = self.0.lock();
        let span = DeviceSpan { began_ns: times.began_ns?, ended_ns: times.ended_ns? };
        (times.unfinished == 0).then_some(span)
    }
}
