//! The offset of another machine's clock from this one's, as NTP finds it (RFC 5905): four time stamps of a
//! message and its answer.
//!
//! The true value lies within half the round trip of the computed offset, whichever way took longer. The
//! offset of the shortest round trip is kept. Its uncertainty grows with its age, since clocks drift.

use estafette_devices::host_now_ns;

/// Drift: two clocks drift apart by at most a time divided by this, 100 µs a second.
const DRIFT: u64 = 10_000;

/// The clock of another machine less that of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockOffset {
    /// In nanoseconds.
    pub ahead_ns: i64,
    /// The offset's largest error.
    pub uncertainty_ns: u64,
}

impl ClockOffset {
    /// The offset that follows from a message there and another one back: when the first was sent, by this
    /// clock; when the first arrived and the second was sent, by the other clock; and when the second
    /// arrived, by this one. `None` for times that no two clocks show.
    fn of([asked, came, answered, back]: [u64; 4]) -> Option<Self> {
        let round_trip = back.checked_sub(asked)?.checked_sub(answered.checked_sub(came)?)?;
        // No clock gets beyond half of these numbers.
        let ahead = |theirs: u64, own| theirs.wrapping_sub(own).cast_signed();
        // The uncertainty includes rounding, and the drift that a clock may have had while the answer took
        // its time.
        let uncertainty_ns = round_trip / 2 + 2 + (back - asked).div_ceil(DRIFT);
        Some(Self { ahead_ns: ahead(came, asked).midpoint(ahead(answered, back)), uncertainty_ns })
    }

    fn after(self, elapsed_ns: u64) -> Self {
        Self { uncertainty_ns: self.uncertainty_ns.saturating_add(elapsed_ns.div_ceil(DRIFT)), ..self }
    }
}

/// Time stamps of a connection's messages.
#[derive(Debug, Default)]
pub(super) struct PeerClock {
    /// The time stamp of the last message that came, and when it came.
    last: [u64; 2],
    /// The best estimate, and when it was made.
    known: Option<(ClockOffset, u64)>,
}

/// Bytes of the time stamps of a message.
pub(super) const STAMPS: usize = 24;

impl PeerClock {
    /// The time stamps of a message that is sent now: those of the last message that came, and the time.
    pub(super) fn stamps(&self) -> [u8; STAMPS] {
        let [sent, came] = self.last;
        let mut stamps = [0; STAMPS];
        stamps.as_chunks_mut().0.copy_from_slice(&[sent, came, host_now_ns()].map(u64::to_le_bytes));
        stamps
    }

    /// Takes the time stamps of a message that came at `now`.
    pub(super) fn take(&mut self, stamps: &[u8; STAMPS], now: u64) {
        let (stamps, _) = stamps.as_chunks();
        let [asked, came, answered] = [0, 1, 2].map(|at| u64::from_le_bytes(stamps[at]));
        self.last = [answered, now];
        // Zeros are no answer to anything.
        let new = Some([asked, came, answered, now]).filter(|_| asked != 0).and_then(ClockOffset::of);
        if let Some(new) = new {
            let is_worse = |known: &ClockOffset| {
                let known_off = known.uncertainty_ns;
                let apart = known.ahead_ns.abs_diff(new.ahead_ns);
                // If the two offsets cannot both be true, a clock was stopped or set.
                known_off < new.uncertainty_ns && apart <= known_off.saturating_add(new.uncertainty_ns)
            };
            if !self.offset(now).is_some_and(|known| is_worse(&known)) {
                self.known = Some((new, now));
            }
        }
    }

    /// The offset that is known at `now`.
    pub(super) fn offset(&self, now: u64) -> Option<ClockOffset> {
        self.known.map(|(known, at)| known.after(now.saturating_sub(at)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn stamps(numbers: [u64; 3]) -> [u8; STAMPS] {
        *numbers.map(u64::to_le_bytes).as_flattened().as_array().expect("three numbers")
    }

    /// A message and its answer, with a clock that is ahead by `ahead`, if the ways take so long.
    fn exchange(clock: &mut PeerClock, at: u64, ahead: i64, [there, back]: [u64; 2]) -> ClockOffset {
        let came = at + there;
        let answered = came + 3;
        let other = |time: u64| time.checked_add_signed(ahead).expect("a time");
        clock.take(&stamps([at, other(came), other(answered)]), answered + back);
        clock.offset(answered + back).expect("known")
    }

    fn covers(offset: ClockOffset, ahead: i64) -> bool {
        offset.ahead_ns.abs_diff(ahead) <= offset.uncertainty_ns
    }

    #[test]
    fn an_estimate_is_off_by_at_most_half_the_round_trip_whichever_way_takes_longer() {
        for ahead in [0, 7, -(5 * MS as i64), 86_400_000_000_000] {
            for ways in [[100, 100], [0, 2_000], [2_000, 0], [1, 999_999]] {
                let offset = exchange(&mut PeerClock::default(), 1 << 50, ahead, ways);
                assert!(covers(offset, ahead), "{ahead} {ways:?}: {offset:?}");
                let round_trip = ways.iter().sum::<u64>();
                assert!(offset.uncertainty_ns <= round_trip / 2 + 4 + round_trip / DRIFT, "{offset:?}");
            }
        }
        let even = exchange(&mut PeerClock::default(), 1 << 50, -77, [500, 500]);
        assert_eq!(even.ahead_ns, -77);
    }

    #[test]
    fn the_shortest_round_trip_counts_until_it_is_old() {
        let mut clock = PeerClock::default();
        let first = exchange(&mut clock, 1000 * MS, 5, [100, 100]);
        // A slow one is no better, for as long as the clocks cannot have drifted further.
        let second = exchange(&mut clock, 1100 * MS, 5, [0, MS]);
        assert_eq!(second.ahead_ns, first.ahead_ns);
        assert!(first.uncertainty_ns < second.uncertainty_ns && second.uncertainty_ns < MS / 2);
        let third = exchange(&mut clock, 9000 * MS, 5, [0, MS]);
        assert!(third.ahead_ns != first.ahead_ns && covers(third, 5), "{third:?}");
        let best = exchange(&mut clock, 9001 * MS, 5, [20, 20]);
        assert_eq!(best.ahead_ns, 5);
    }

    #[test]
    fn a_clock_that_steps_is_believed_at_once() {
        let mut clock = PeerClock::default();
        exchange(&mut clock, 1000 * MS, 5, [100, 100]);
        let stepped = exchange(&mut clock, 1001 * MS, -(50 * MS as i64), [MS, 2 * MS]);
        assert!(covers(stepped, -(50 * MS as i64)), "{stepped:?}");
    }

    #[test]
    fn stamps_that_no_clocks_show_are_left_out() {
        let mut clock = PeerClock::default();
        // The first message answers nothing; others are earlier than what they answer, or took less than no
        // time, or are anything.
        for wrong in [[0, 0, 5], [9, 5, 5], [3, 7, 5], [2, 0, 9], [u64::MAX; 3], [1, u64::MAX, 0]] {
            clock.take(&stamps(wrong), 8);
            assert_eq!(clock.offset(8), None, "{wrong:?}");
        }
        // The last that came is what is answered.
        assert_eq!(clock.stamps()[..16], *[0, 8].map(u64::to_le_bytes).as_flattened());
    }

    #[test]
    fn whatever_clocks_and_networks_do_within_their_bounds_the_true_offset_is_covered() {
        let mut random = 1_u64;
        let mut below = |limit: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % limit
        };
        for _ in 0..200 {
            // The other clock is fast by up to a part in ten thousand, or slow by it.
            let (start, rate) = (below(1 << 50) as i64, below(201) as i64 - 100);
            let other = |time: u64| time.wrapping_add_signed(start + time as i64 / 10_000 * rate / 100);
            let (mut one, mut two) = (PeerClock::default(), PeerClock::default());
            let mut now = 1000;
            for _ in 0..200 {
                let [pauses, ways, side] = [3, 3, 2].map(|limit| below(limit) as usize);
                now += below([100, 100_000, 500 * MS][pauses]);
                let (there, is_mine) = (below([50, 5_000, 20 * MS][ways]) + 1, side == 0);
                let (sender, receiver) = if is_mine { (&mut one, &mut two) } else { (&mut two, &mut one) };
                let show = |time| if is_mine { [time, other(time)] } else { [other(time), time] };
                let [sent, _] = show(now);
                now += there;
                let [_, came] = show(now);
                receiver.take(&stamps([sender.last[0], sender.last[1], sent]), came);
                if let Some(offset) = one.offset(now) {
                    let ahead = other(now) as i64 - now as i64;
                    assert!(covers(offset, ahead), "{ahead}: {offset:?}");
                }
            }
        }
    }
}
