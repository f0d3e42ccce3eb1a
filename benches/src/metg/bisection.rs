//! Finds where a curve of efficiency crosses one half.

/// One measured point of the curve.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Point {
    /// Wall time × cores / tasks, in nanoseconds.
    pub(super) granularity_ns: f64,
    /// Share of the bodies in that time, from 0 to 1.
    pub(super) efficiency: f64,
}

/// Result of the search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Crossing {
    /// The granularity in nanoseconds at which the efficiency is one half.
    At(f64),
    /// Even the longest bodies stay below.
    Never,
}

/// First length of the search: about the granularity of good engines.
const FIRST_NS: f64 = 500.0;

/// Shortest and longest bodies. No engine needs as little per task as the shortest body takes; with the
/// longest, tasks of any useful engine are nearly all body.
const SHORTEST_NS: f64 = 4.0;
const LONGEST_NS: f64 = 128_000.0;

/// The search ends when the lengths on both sides of the crossing are closer than this factor.
const CLOSE: f64 = 1.06;

/// Searches for the crossing. `measure` returns the point for bodies of a length in nanoseconds.
pub(super) fn crossing<E>(mut measure: impl FnMut(f64) -> Result<Point, E>) -> Result<Crossing, E> {
    let mut body_ns = FIRST_NS;
    let mut point = measure(body_ns)?;
    // The two sides of the crossing: too short a body below, long enough a body above.
    let (mut below, mut above) = if point.efficiency < 0.5 {
        loop {
            let below = (body_ns, point);
            body_ns *= 2.0;
            if body_ns > LONGEST_NS {
                return Ok(Crossing::Never);
            }
            point = measure(body_ns)?;
            if point.efficiency >= 0.5 {
                break (below, (body_ns, point));
            }
        }
    } else {
        loop {
            let above = (body_ns, point);
            body_ns /= 2.0;
            if body_ns < SHORTEST_NS {
                // The crossing is below the shortest body, so this is an upper bound.
                return Ok(Crossing::At(point.granularity_ns));
            }
            point = measure(body_ns)?;
            if point.efficiency < 0.5 {
                break ((body_ns, point), above);
            }
        }
    };
    while above.0 / below.0 > CLOSE {
        let body_ns = (above.0 * below.0).sqrt();
        let point = measure(body_ns)?;
        *(if point.efficiency < 0.5 { &mut below } else { &mut above }) = (body_ns, point);
    }
    Ok(Crossing::At(between(below.1, above.1)))
}

/// The granularity where the line through both points crosses one half.
fn between(below: Point, above: Point) -> f64 {
    let part = (0.5 - below.efficiency) / (above.efficiency - below.efficiency);
    below.granularity_ns + part * (above.granularity_ns - below.granularity_ns)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// An engine that adds a fixed cost to each task.
    fn search(cost_ns: f64) -> (Crossing, usize) {
        let mut measured = 0;
        let found = crossing(|body_ns| {
            measured += 1;
            let granularity_ns = body_ns + cost_ns;
            Ok::<_, Infallible>(Point { granularity_ns, efficiency: body_ns / granularity_ns })
        });
        (found.unwrap(), measured)
    }

    #[test]
    fn with_a_fixed_cost_half_of_the_time_is_lost_when_bodies_are_as_long_as_the_cost() {
        for cost_ns in [10.0, 85.0, 500.0, 501.0, 20_000.0] {
            let (Crossing::At(found), measured) = search(cost_ns) else { panic!("nothing found") };
            assert!((found / (2.0 * cost_ns) - 1.0).abs() < 0.01, "{cost_ns}: {found}");
            assert!(measured < 20, "{measured}");
        }
    }

    #[test]
    fn a_cost_that_no_body_can_hide_is_never_crossed() {
        assert_eq!(search(1e6).0, Crossing::Never);
    }

    #[test]
    fn a_cost_too_small_to_measure_gives_an_upper_bound() {
        let (Crossing::At(found), _) = search(0.5) else { panic!("nothing found") };
        assert!((1.0..10.0).contains(&found), "{found}");
    }
}
