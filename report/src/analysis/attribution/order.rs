//! The queues of all variables, as they were: some 13 bytes for each access.

use std::cmp::Ordering;
use std::ops::Range;

use crate::model::source::{Merging, Source, operations};
use crate::model::{AccessMode, Hazard, Nanos, Operation, OperationKind, Outcome};

use super::hazard;

/// An operation that had to end first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Before {
    /// Position of the operation.
    pub(crate) at: usize,
    pub(crate) hazard: Hazard,
    /// The dependence, by a number that no other one has.
    pub(crate) arrow: u64,
}

/// The queues. Accesses are numbered in the order of operations; places are numbered queue after queue.
#[derive(Debug)]
pub(crate) struct Order {
    /// Per operation, the number of its first access; one more at the end.
    accesses: Vec<u32>,
    /// Per access, its place.
    places: Vec<u32>,
    /// Per place, the operation.
    operations: Vec<u32>,
    /// Per place, how the variable is used there.
    uses: Vec<Used>,
    /// Per queue, its first place; one more at the end.
    queues: Vec<u32>,
    /// Places of writers that have no writer before them, or none after them.
    turns: Vec<u32>,
    /// Places of pending writes that block no reader: waits until a variable may be written, and withdrawn
    /// accesses.
    write_waits: Vec<u32>,
    /// Accesses of operations and leases that were given up before the grant, sorted. Few.
    given_up: Vec<u32>,
    /// Places of withdrawn accesses: all of them, and the writing ones.
    withdrawn: [Vec<u32>; 2],
}

#[derive(Debug, Clone, Copy)]
struct Used {
    mode: AccessMode,
    stay: Stay,
}

/// The time that a use blocks others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stay {
    /// Until its operation ends.
    Firm,
    /// Never: a wait only observes the variable.
    Waits,
    /// Until the request was withdrawn. Accesses ahead of it blocked too, perhaps for longer.
    Withdrawn,
}

impl Used {
    fn is_firm(self) -> bool {
        self.stay == Stay::Firm
    }

    fn writes(self) -> bool {
        self.mode != AccessMode::Read && self.is_firm()
    }
}

impl Order {
    pub(crate) fn of(source: &impl Source) -> Self {
        let mut variables = Merging::new(|variables: &mut Vec<u64>| {
            variables.sort_unstable();
            variables.dedup();
        });
        let mut accesses = Vec::with_capacity(source.operations() + 1);
        let mut count = 0;
        for operation in operations(source) {
            accesses.push(count);
            count += operation.accesses.len() as u32;
            operation.accesses.iter().for_each(|access| variables.push(access.variable));
        }
        accesses.push(count);
        let variables = variables.finish();
        let queue_of = |variable| variables.partition_point(|known| *known < variable);

        let mut queues = vec![0; variables.len() + 1];
        for operation in operations(source) {
            operation.accesses.iter().for_each(|access| queues[queue_of(access.variable)] += 1);
        }
        let mut first = 0;
        for queue in &mut queues {
            first += std::mem::replace(queue, first);
        }
        let count = count as usize;
        // Numbers of accesses first, until they are in order.
        let mut order = Self {
            accesses,
            places: Vec::new(),
            operations: vec![0; count],
            uses: Vec::new(),
            queues,
            turns: Vec::new(),
            write_waits: Vec::new(),
            given_up: Vec::new(),
            withdrawn: Default::default(),
        };
        order.uses = vec![Used { mode: AccessMode::Read, stay: Stay::Firm }; count];
        order.fill(source, queue_of);
        drop(variables);
        for queue in 0..order.queues.len() - 1 {
            order.sort(source, order.queue(queue));
        }
        order.places = vec![0; count];
        for place in 0..count {
            let access = order.operations[place];
            order.places[access as usize] = place as u32;
            order.operations[place] = order.operation_of(access);
        }
        order.note_turns();
        order
    }

    /// Puts the accesses into their queues, in the order of their operations.
    fn fill(&mut self, source: &impl Source, queue_of: impl Fn(u64) -> usize) {
        let mut next = self.queues.clone();
        let mut number = 0;
        for operation in operations(source) {
            let given_up = is_given_up(&operation);
            let stay = |mode: AccessMode| match operation.kind {
                OperationKind::Wait | OperationKind::Await => Stay::Waits,
                OperationKind::Export if given_up => Stay::Withdrawn,
                // A cancelled operation keeps its place among the writers of its outputs.
                _ if given_up && mode == AccessMode::Read => Stay::Withdrawn,
                _ => Stay::Firm,
            };
            for access in &operation.accesses {
                if given_up {
                    self.given_up.push(number);
                }
                let place = &mut next[queue_of(access.variable)];
                self.operations[*place as usize] = number;
                self.uses[*place as usize] = Used { mode: access.mode, stay: stay(access.mode) };
                *place += 1;
                number += 1;
            }
        }
    }

    /// Puts a queue into the order in which its accesses were granted, which mostly is the one that it has.
    fn sort(&mut self, source: &impl Source, places: Range<usize>) {
        let granted = |access: u32| granted(&source.operation(self.operation_of(access) as usize));
        // Accesses of one operation stay in their order.
        let submitted = |access: u32| source.operation(self.operation_of(access) as usize).submitted;
        let compare = |a: (Nanos, u32), b: (Nanos, u32)| {
            let at_once = || submitted(a.1).cmp(&submitted(b.1)).then(a.1.cmp(&b.1));
            a.0.cmp(&b.0).then_with(at_once)
        };
        let own = &self.operations[places.clone()];
        let is_given_up = |access: &u32| self.given_up.binary_search(access).is_ok();
        let given_up: Vec<u32> = match &self.given_up[..] {
            [] => Vec::new(),
            _ => own.iter().copied().filter(is_given_up).collect(),
        };
        if !given_up.is_empty() {
            return self.sort_with(source, places, &given_up);
        }
        if own
            .iter()
            .map(|&access| (granted(access), access))
            .is_sorted_by(|a, b| compare(*a, *b) == Ordering::Less)
        {
            return;
        }
        let uses = &self.uses[places.clone()];
        let mut sorted: Vec<(Nanos, u32, Used)> =
            own.iter().zip(uses).map(|(&access, &used)| (granted(access), access, used)).collect();
        sorted.sort_unstable_by(|a, b| compare((a.0, a.1), (b.0, b.1)));
        for (place, (_, access, used)) in places.zip(sorted) {
            self.operations[place] = access;
            self.uses[place] = used;
        }
    }

    /// As [`sort`](Self::sort), with accesses that were never granted. Such an access waited for the accesses
    /// that were submitted before it, so it comes after them, even where they were granted much later.
    fn sort_with(&mut self, source: &impl Source, places: Range<usize>, given_up: &[u32]) {
        let mut all: Vec<(Nanos, u32, Used, Nanos)> = places
            .clone()
            .map(|place| {
                let (access, used) = (self.operations[place], self.uses[place]);
                let operation = source.operation(self.operation_of(access) as usize);
                (operation.submitted, access, used, granted(&operation))
            })
            .collect();
        all.sort_unstable_by_key(|(submitted, access, ..)| (*submitted, *access));
        // Latest grant so far among accesses that block readers, and among accesses that block writers.
        let (mut writers, mut all_uses) = (0, 0);
        for (_, access, used, granted) in &mut all {
            if given_up.binary_search(access).is_ok() {
                *granted = if used.mode == AccessMode::Read { writers } else { all_uses };
            }
            if used.is_firm() {
                all_uses = all_uses.max(*granted);
                writers = if used.writes() { writers.max(*granted) } else { writers };
            }
        }
        all.sort_unstable_by_key(|(submitted, access, _, granted)| (*granted, *submitted, *access));
        for (place, (_, access, used, _)) in places.zip(all) {
            self.operations[place] = access;
            self.uses[place] = used;
        }
    }

    fn note_turns(&mut self) {
        for queue in 0..self.queues.len() - 1 {
            let places = self.queue(queue);
            let writes = |place: usize| places.contains(&place) && self.uses[place].writes();
            for place in places.clone() {
                if writes(place) && !(place > 0 && writes(place - 1) && writes(place + 1)) {
                    self.turns.push(place as u32);
                } else if !self.uses[place].is_firm() && self.uses[place].mode != AccessMode::Read {
                    self.write_waits.push(place as u32);
                }
                if self.uses[place].stay == Stay::Withdrawn {
                    self.withdrawn[0].push(place as u32);
                    if self.uses[place].mode != AccessMode::Read {
                        self.withdrawn[1].push(place as u32);
                    }
                }
            }
        }
    }

    fn queue(&self, queue: usize) -> Range<usize> {
        self.queues[queue] as usize..self.queues[queue + 1] as usize
    }

    fn operation_of(&self, access: u32) -> u32 {
        // The last of those that begin there: operations without accesses begin where the next one does.
        self.accesses.partition_point(|first| *first <= access) as u32 - 1
    }

    /// The places of the queue that has this one.
    fn around(&self, place: usize) -> Range<usize> {
        self.queue(self.queues.partition_point(|first| *first as usize <= place) - 1)
    }

    fn place(&self, at: usize, access: usize) -> usize {
        self.places[self.accesses[at] as usize + access] as usize
    }

    fn writer_before(&self, place: usize, queue: &Range<usize>) -> Option<usize> {
        if place > queue.start && self.uses[place - 1].writes() {
            return Some(place - 1);
        }
        let turn = self.turns.partition_point(|turn| (*turn as usize) < place).checked_sub(1)?;
        Some(self.turns[turn] as usize).filter(|turn| queue.contains(turn))
    }

    fn writer_after(&self, place: usize, queue: &Range<usize>) -> Option<usize> {
        let turn = self.turns.partition_point(|turn| *turn as usize <= place);
        self.turns.get(turn).map(|turn| *turn as usize).filter(|turn| queue.contains(turn))
    }

    /// True if a place is a reader's that holds up writers.
    fn reads(&self, place: usize) -> bool {
        self.uses[place].mode == AccessMode::Read && self.uses[place].is_firm()
    }

    /// The dependence of `later` on `earlier`, if there is one.
    fn before(&self, earlier: usize, later: usize) -> Option<Before> {
        let (at, own) = (self.operations[earlier] as usize, self.operations[later] as usize);
        let hazard = hazard(self.uses[earlier].mode, self.uses[later].mode)?;
        (at != own).then_some(Before { at, hazard, arrow: (later as u64) << 32 | earlier as u64 })
    }

    /// The accesses that directly stood before an access of the operation at `at`.
    pub(crate) fn predecessors(&self, at: usize, access: usize) -> Vec<Before> {
        let place = self.place(at, access);
        let queue = self.around(place);
        let writer = self.writer_before(place, &queue);
        let since = writer.map_or(queue.start, |writer| writer + 1);
        let withdrawn = self.withdrawn_before(place).filter(|withdrawn| *withdrawn >= since);
        let mut before: Vec<Before> =
            withdrawn.and_then(|withdrawn| self.before(withdrawn, place)).into_iter().collect();
        if self.uses[place].mode != AccessMode::Read {
            let mut readers = (since..place).filter(|reader| self.reads(*reader)).peekable();
            if readers.peek().is_some() {
                before.extend(readers.filter_map(|reader| self.before(reader, place)));
                return before;
            }
        }
        before.extend(writer.and_then(|writer| self.before(writer, place)));
        before
    }

    /// The last withdrawn access that was in the way of the one at `place`. Those before that one are not
    /// known to have been: where something is asked for again and again, each was given up before the next
    /// one came.
    fn withdrawn_before(&self, place: usize) -> Option<usize> {
        let conflicting = &self.withdrawn[usize::from(self.uses[place].mode == AccessMode::Read)];
        let next = conflicting.partition_point(|withdrawn| (*withdrawn as usize) < place);
        next.checked_sub(1).map(|last| conflicting[last] as usize)
    }

    /// The successors of one access of the operation at `at`: other operations, and the numbers of their
    /// dependences.
    pub(crate) fn successors(&self, at: usize, access: usize) -> Vec<(usize, u64)> {
        let place = self.place(at, access);
        let queue = self.around(place);
        let mut later = Vec::new();
        let mut note = |after: usize| {
            let before = self.before(place, after);
            later.extend(before.map(|before| (self.operations[after] as usize, before.arrow)));
        };
        if self.reads(place) {
            let writer = self.writer_after(place, &queue);
            let end = writer.unwrap_or(queue.end);
            let first = self.write_waits.partition_point(|wait| *wait as usize <= place);
            let waits = self.write_waits[first..].iter().map(|wait| *wait as usize);
            waits.take_while(|wait| *wait < end).for_each(&mut note);
            writer.into_iter().for_each(note);
        } else if self.uses[place].writes() {
            let mut read = false;
            for after in place + 1..queue.end {
                if self.uses[after].mode == AccessMode::Read || !read {
                    note(after);
                }
                read |= self.reads(after);
                if self.uses[after].writes() {
                    break;
                }
            }
        } else if self.uses[place].stay == Stay::Withdrawn {
            let end = self.writer_after(place, &queue).map_or(queue.end, |writer| writer + 1);
            for after in place + 1..end {
                if self.withdrawn_before(after) == Some(place) {
                    note(after);
                }
                let hides =
                    self.uses[after].mode != AccessMode::Read || self.uses[place].mode == AccessMode::Read;
                if self.uses[after].stay == Stay::Withdrawn && hides {
                    break;
                }
            }
        }
        later
    }
}

/// True if it has left its queues without having been granted.
fn is_given_up(operation: &Operation) -> bool {
    let was_granted = operation.granted.or(operation.ready).or(operation.began).is_some();
    operation.outcome == Outcome::Cancelled && !was_granted
}

/// Conflicting accesses are granted in the order of their queue.
fn granted(operation: &Operation) -> Nanos {
    let granted = operation.granted.or(operation.ready).or(operation.awake).or(operation.began);
    granted.or(operation.issued).unwrap_or(Nanos::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Trace;
    use crate::model::Access;

    /// The same by definition: each queue is walked, in the order of its keys, with all that was met before.
    fn by_definition<K: Ord>(
        trace: &Trace,
        key: impl Fn(usize, usize) -> K,
    ) -> Vec<(usize, usize, usize, Hazard)> {
        let mut queues: std::collections::BTreeMap<u64, Vec<(usize, usize)>> = Default::default();
        for (at, operation) in trace.operations.iter().enumerate() {
            for (access, used) in operation.accesses.iter().enumerate() {
                queues.entry(used.variable).or_default().push((at, access));
            }
        }
        let mut found = Vec::new();
        for queue in queues.values_mut() {
            queue.sort_by_key(|&(at, access)| key(at, access));
            let (mut writer, mut readers): (Option<(usize, AccessMode)>, Vec<usize>) = (None, Vec::new());
            // The last that was withdrawn, and the last of these that was to write.
            let mut withdrawn: [Option<(usize, AccessMode)>; 2] = [None; 2];
            for &(at, access) in &*queue {
                let mode = trace.operations[at].accesses[access].mode;
                let mut earlier: Vec<(usize, AccessMode)> =
                    withdrawn[usize::from(mode == AccessMode::Read)].into_iter().collect();
                match mode {
                    AccessMode::Write | AccessMode::Update if !readers.is_empty() => {
                        earlier.extend(readers.iter().map(|reader| (*reader, AccessMode::Read)));
                    }
                    _ => earlier.extend(writer),
                }
                for (earlier, its_mode) in earlier {
                    if let (true, Some(hazard)) = (earlier != at, super::hazard(its_mode, mode)) {
                        found.push((at, access, earlier, hazard));
                    }
                }
                if trace.operations[at].kind == OperationKind::Wait {
                    continue;
                }
                let is_lease = trace.operations[at].kind == OperationKind::Export;
                if is_given_up(&trace.operations[at]) && (is_lease || mode == AccessMode::Read) {
                    withdrawn[0] = Some((at, mode));
                    if mode != AccessMode::Read {
                        withdrawn[1] = Some((at, mode));
                    }
                } else if mode == AccessMode::Read {
                    readers.push(at);
                } else {
                    writer = Some((at, mode));
                    readers.clear();
                    withdrawn = [None; 2];
                }
            }
        }
        found.sort_by_key(|&(at, access, ..)| (at, access));
        found
    }

    fn operation(id: u64, granted: u64, kind: OperationKind, accesses: Vec<(u64, u8)>) -> Operation {
        let mode = |mode| [AccessMode::Read, AccessMode::Write, AccessMode::Update][usize::from(mode)];
        let accesses =
            accesses.into_iter().map(|(variable, its)| Access { variable, mode: mode(its) }).collect();
        Operation { id, kind, granted: Some(granted), outcome: Outcome::Ok, accesses, ..Operation::default() }
    }

    /// A request that was given up, and two writers around it, each granted at its time.
    fn around_what_was_given_up(
        kind: OperationKind,
        mode: u8,
        first: Option<u64>,
        second: Option<u64>,
    ) -> Trace {
        use OperationKind::Operation as Body;
        let all = [(1, first, Body, 1), (2, None, kind, mode), (3, second, Body, 1)];
        let all = all.map(|(id, granted, kind, mode)| {
            let submitted = 10 * id;
            Operation { submitted, granted, ..operation(id, 0, kind, vec![(1, mode)]) }
        });
        let mut trace = Trace { operations: all.to_vec(), ..Trace::default() };
        let given_up = &mut trace.operations[1];
        (given_up.issued, given_up.done, given_up.outcome) = (Some(24), Some(24), Outcome::Cancelled);
        trace
    }

    #[test]
    fn what_was_given_up_waited_for_what_was_submitted_before_it() {
        use OperationKind::{Export, Operation as Body, Wait};
        // The last field lists the operations before the second writer. A cancelled writer keeps its place.
        let all: [(_, _, &[usize]); 5] = [
            (Wait, 0, &[0]),
            (Export, 0, &[1, 0]),
            (Export, 1, &[1, 0]),
            (Body, 0, &[1, 0]),
            (Body, 1, &[1]),
        ];
        for (kind, mode, expected) in all {
            for (first, second) in
                [(Some(10), Some(30)), (Some(50), Some(60)), (Some(50), None), (None, None)]
            {
                let trace = around_what_was_given_up(kind, mode, first, second);
                let order = Order::of(&trace);
                let before =
                    |at| -> Vec<usize> { order.predecessors(at, 0).iter().map(|before| before.at).collect() };
                assert_eq!(before(1), [0], "{kind:?} {mode} {first:?} {second:?}");
                assert_eq!(before(2), expected, "{kind:?} {mode} {first:?} {second:?}");
            }
        }
    }

    /// Each arrow has two ends, and there are those that the definition says.
    fn neighbours<K: Ord>(operations: Vec<Operation>, key: impl Fn(&Order, &Operation, usize, usize) -> K) {
        let trace = Trace { operations, ..Trace::default() };
        let order = Order::of(&trace);
        let (mut before, mut arriving, mut leaving) = (Vec::new(), Vec::new(), Vec::new());
        for (at, operation) in trace.operations.iter().enumerate() {
            for access in 0..operation.accesses.len() {
                for earlier in order.predecessors(at, access) {
                    before.push((at, access, earlier.at, earlier.hazard));
                    arriving.push((earlier.at, at, earlier.arrow));
                }
                leaving.extend(
                    order.successors(at, access).into_iter().map(|(later, arrow)| (at, later, arrow)),
                );
            }
        }
        let key = |at: usize, access| key(&order, &trace.operations[at], at, access);
        assert_eq!(before, by_definition(&trace, key));
        arriving.sort_unstable();
        leaving.sort_unstable();
        assert_eq!(arriving, leaving, "an arrow has two ends");
    }

    proptest! {
        #[test]
        fn neighbours_in_a_queue_are_what_the_definition_says(
            all in prop::collection::vec((0..20_u64, any::<bool>(), prop::collection::vec((0..3_u64, 0..3_u8), 0..3)), 1..40)
        ) {
            let kind = |waits| if waits { OperationKind::Wait } else { OperationKind::Operation };
            let make = |(id, (granted, waits, accesses)): (usize, _)| operation(id as u64, granted, kind(waits), accesses);
            neighbours(all.into_iter().enumerate().map(make).collect(), |_, operation, _, access| {
                (granted(operation), operation.submitted, operation.id, access)
            });
        }

        #[test]
        fn so_are_those_of_what_was_given_up(
            all in prop::collection::vec((prop::option::of(0..20_u64), 0..3_usize, prop::collection::vec((0..3_u64, 0..3_u8), 0..3)), 1..40)
        ) {
            let make = |(id, (granted, kind, accesses)): (usize, (Option<u64>, usize, _))| {
                let kind = [OperationKind::Operation, OperationKind::Export, OperationKind::Wait][kind];
                let outcome = if granted.is_some() { Outcome::Ok } else { Outcome::Cancelled };
                Operation { granted, outcome, submitted: id as u64, ..operation(id as u64, 0, kind, accesses) }
            };
            let all = all.into_iter().enumerate().map(make).collect();
            neighbours(all, |order, _, at, access| order.place(at, access));
        }
    }
}
