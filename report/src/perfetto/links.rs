//! The edges of a recording, by the events that tell of them: in sorted lists, which take a few words for an edge.

use super::tracks::{Event, Shape, What};
use crate::facts::{self, Fact};
use crate::model::{OperationId, Recording};

/// Flows begin, or end, at these positions of events; in their order, which is that of writing.
#[derive(Debug, Default)]
struct Ends {
    /// Position of an event, and index of an edge; sorted.
    ends: Vec<(usize, usize)>,
    /// How many were taken.
    taken: usize,
}

impl Ends {
    fn of(mut ends: Vec<(usize, usize)>) -> Self {
        ends.sort_unstable();
        Self { ends, taken: 0 }
    }

    /// The flows of the event at `position`. Positions are asked for in ascending order.
    fn take(&mut self, position: usize) -> Vec<u64> {
        let mut flows = Vec::new();
        while let Some(&(at, edge)) = self.ends.get(self.taken)
            && at <= position
        {
            if at == position {
                flows.push(edge as u64 + 1);
            }
            self.taken += 1;
        }
        flows
    }
}

/// What events say of dependences.
#[derive(Debug)]
pub struct Links {
    /// Edges in the order of their later ends.
    by_end: Vec<usize>,
    /// Whether an event has named them, by their places in that list.
    told: Vec<bool>,
    leaving: Ends,
    arriving: Ends,
}

impl Links {
    pub fn of(recording: &Recording, events: &[Event]) -> Self {
        let mut positions = Vec::new();
        let mut arrivals = Vec::new();
        for (position, event) in events.iter().enumerate() {
            // An export and the lease that begins with it have one number; the export is the earlier of the two, and sorts first.
            match event.shape {
                Shape::Begin(What::Operation(index)) | Shape::Moment(What::Operation(index)) => {
                    positions.push((recording.operations[index].id, false, position));
                }
                Shape::Moment(What::Freed(index)) => {
                    arrivals.push((recording.operations[index].id, position))
                }
                Shape::Begin(What::Lease(index)) => {
                    positions.push((recording.leases[index].id, true, position));
                }
                _ => {}
            }
        }
        positions.sort_unstable();
        arrivals.sort_unstable();
        let position = |id: OperationId| {
            let (found, _, position) =
                *positions.get(positions.partition_point(|(known, ..)| *known < id))?;
            (found == id).then_some(position)
        };
        let arrival = |id: OperationId| {
            let (found, position) = *arrivals.get(arrivals.partition_point(|(known, _)| *known < id))?;
            (found == id).then_some(position)
        };
        let (mut leaving, mut arriving) = (Vec::new(), Vec::new());
        for (index, edge) in recording.edges.iter().enumerate() {
            // An arrow needs both ends, and time runs forwards: an end that was lost, or never ran, has none.
            if let (Some(from), Some(to)) =
                (position(edge.from), arrival(edge.to).or_else(|| position(edge.to)))
                && from < to
            {
                leaving.push((from, index));
                arriving.push((to, index));
            }
        }
        let mut by_end: Vec<usize> = (0..recording.edges.len()).collect();
        by_end.sort_unstable_by_key(|&index| (recording.edges[index].to, index));
        let told = vec![false; by_end.len()];
        Self { by_end, told, leaving: Ends::of(leaving), arriving: Ends::of(arriving) }
    }

    /// The flows that begin at the event at `position`, and those that end there.
    pub fn flows(&mut self, position: usize) -> (Vec<u64>, Vec<u64>) {
        (self.leaving.take(position), self.arriving.take(position))
    }

    /// What the event of this operation or lease says about its dependences; nothing the second time.
    pub fn told(&mut self, recording: &Recording, id: OperationId) -> impl Iterator<Item = Fact> {
        let first = self.by_end.partition_point(|&index| recording.edges[index].to < id);
        let count = self.by_end[first..].iter().take_while(|&&index| recording.edges[index].to == id).count();
        let new = count > 0 && !std::mem::replace(&mut self.told[first], true);
        let own = if new { &self.by_end[first..first + count] } else { &[] };
        own.iter().map(|&index| Fact::Facts(facts::edge(&recording.edges[index])))
    }
}
