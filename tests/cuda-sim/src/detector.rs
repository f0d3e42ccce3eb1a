//! Finds uses of memory that nothing orders, whatever the timing was.
//!
//! Every command has a vector clock: what is known to be over before it begins, by stream order, events, the
//! legacy stream's rules, and what the host knows (a query or wait that succeeded, a value that a stream
//! wrote, a host function that was called). Two uses of overlapping bytes, one of them a write, of which the
//! later does not know the earlier are a race. Vector clocks for this: Fidge 1988 and Mattern 1989; a list of
//! last uses per range instead of one per byte as in FastTrack (Flanagan and Freund, PLDI 2009).
//!
//! The detector is lenient about the host: threads of the host share one clock, the host knows a value as
//! soon as it was written, and what the host itself reads and writes is not seen at all.

use crate::command::Touch;
use crate::kind::Kind;
use crate::state::DriverState;
use crate::vector_clock::VectorClock;

/// A use of memory by a command of a stream.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    touch: Touch,
    stream: usize,
    count: u64,
    kind: Kind,
}

impl DriverState {
    /// Looks at what a command of `stream`, its `count`th, will touch.
    pub(crate) fn detect(
        &mut self,
        stream: usize,
        count: u64,
        kind: Kind,
        clock: &VectorClock,
        touches: &[Touch],
    ) {
        let mut found = Vec::new();
        let knows = |access: &Access| access.stream == stream || clock.known(access.stream) >= access.count;
        for touch in touches.iter().filter(|touch| touch.bytes > 0) {
            let host = &self.host;
            let accesses = match self.memory.around(touch.address) {
                Some(allocation) => {
                    if !allocation.live {
                        found.push((None, *touch));
                    }
                    &mut allocation.accesses
                }
                None => {
                    // The release of such memory is not visible, so accesses that the host knows to be over
                    // are forgotten.
                    let elsewhere = &mut self.memory.elsewhere;
                    elsewhere.retain(|access| host.known(access.stream) < access.count);
                    elsewhere
                }
            };
            for other in accesses.iter().filter(|other| other.touch.conflicts(touch) && !knows(other)) {
                found.push((Some(other.clone()), *touch));
            }
            // This access replaces others: a command after this access also comes after those.
            accesses.retain(|other| {
                let within = touch.address <= other.touch.address && other.touch.end() <= touch.end();
                let replaced = within
                    && if touch.write { knows(other) } else { !other.touch.write && other.stream == stream };
                !replaced
            });
            accesses.push(Access { touch: *touch, stream, count, kind });
        }
        for (other, touch) in found {
            let text = self.describe(stream, count, kind, &touch, other.as_ref());
            self.violation(text);
        }
    }

    fn describe(
        &self,
        stream: usize,
        count: u64,
        kind: Kind,
        touch: &Touch,
        other: Option<&Access>,
    ) -> String {
        let verb = |touch: &Touch| if touch.write { "writes" } else { "reads" };
        let name = self.stream_name(stream);
        let this = format!(
            "{kind:?} {count} of {name} {} {} bytes at {:#x}",
            verb(touch),
            touch.bytes,
            touch.address
        );
        match other {
            None => format!("use after release: {this}"),
            Some(other) => format!(
                "race: {this}, and nothing orders it after {:?} {} of {}, which {} {} bytes at {:#x}",
                other.kind,
                other.count,
                self.stream_name(other.stream),
                verb(&other.touch),
                other.touch.bytes,
                other.touch.address
            ),
        }
    }
}
