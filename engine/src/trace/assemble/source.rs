//! Reads from the index: operations, leases and variables, one by one or all at once.

use std::borrow::Cow;

use estafette_report::Trace;
use estafette_report::attribution::attribute_within;
use estafette_report::budget::Budget;
use estafette_report::model::{Lease, LibraryId, Operation, OperationKind, Outcome, Text, Variable};
use estafette_report::source::Source;

use super::super::encoding::{EventKind, NONE, OutcomeCode, element_of, halves};
use super::EventIndex;
use super::operation::{AssembledOp, LeaseOwner, ThreadTable};

impl EventIndex<'_> {
    pub(super) fn id(&self, at: usize) -> u64 {
        self.kind_and_id(self.index[self.operations[at] as usize]).1
    }

    /// The operation that its events describe.
    pub(super) fn assemble(&self, at: usize) -> AssembledOp {
        let id = self.id(at);
        let mut assembled = AssembledOp {
            operation: self.empty(id),
            submitted: None,
            owner: None,
            locked: None,
            event_loop: None,
            left_to: None,
            on_queue: false,
            resumed_on: None,
            last_awake: None,
            ended: false,
            granted_before: None,
            waits_for_any: None,
        };
        if let Some((ticks, track)) = self.running.get(&id) {
            assembled.began(self.scale.nanos(*ticks), *track);
        }
        for place in &self.index[self.operations[at] as usize..self.operations[at + 1] as usize] {
            self.with(*place, |table, event| assembled.event(self, table, event));
        }
        assembled.settle();
        assembled.operation.engine = self.engine_of(at);
        if assembled.waits_for_any.is_some() {
            let known = self.waits_for_any.binary_search_by_key(&(at as u32), |(wait, _)| *wait);
            assembled.operation.waits_for = known.ok().map(|known| self.waits_for_any[known].1);
        }
        assembled
    }

    /// The engine that an operation was submitted to; 0 if that is not known.
    fn engine_of(&self, at: usize) -> u64 {
        let submits = |place: &&u32| {
            let kind = self.kind_and_id(**place).0;
            matches!(kind, Some(EventKind::Submitted | EventKind::SubmittedNarrow))
        };
        let places = &self.index[self.operations[at] as usize..self.operations[at + 1] as usize];
        places.iter().rfind(submits).map_or(0, |place| self.engine(*place))
    }

    pub(super) fn library(&self, name: Option<&Text>) -> Option<LibraryId> {
        self.libraries.get(name?).copied()
    }

    pub(super) fn owner(&self, table: &ThreadTable, [text, site]: [u64; 2]) -> LeaseOwner {
        let (text, library) = halves(text);
        let library = self.library(table.known(library));
        LeaseOwner { text: self.text(table, text), library, site: table.site(site as u32) }
    }

    pub(super) fn text(&self, table: &ThreadTable, number: u32) -> Text {
        table.known(number).unwrap_or(&self.nameless).clone()
    }

    pub(super) fn outcome(&self, table: &ThreadTable, how: OutcomeCode, text: u32) -> Outcome {
        let text = || if text == NONE { self.empty.clone() } else { self.text(table, text) };
        match how {
            OutcomeCode::Well => Outcome::Ok,
            OutcomeCode::Failed => Outcome::Failed(text()),
            OutcomeCode::Cancelled => Outcome::Cancelled,
            OutcomeCode::Skipped => Outcome::Skipped(text()),
        }
    }

    fn empty(&self, id: u64) -> Operation {
        Operation { id, name: self.empty.clone(), ..Operation::default() }
    }

    /// All of it at once, with its stalls attributed, as far as `budget` allows. Returns whether it did.
    pub(in super::super) fn trace(&self, mut budget: Option<&mut Budget>) -> (Trace, bool) {
        let mut takes = |bytes| budget.as_mut().is_none_or(|budget| budget.take(bytes).is_ok());
        let mut trace = self.about.clone();
        // Beside the operation: what attribution knows of it, its counters, its lease.
        let each = size_of::<Operation>() + size_of::<Lease>() / 2 + 128;
        let own = |operation: &Operation| each + 2 * size_of_val(&operation.accesses[..]);
        trace.operations.reserve_exact(if takes(each * self.operations()) { self.operations() } else { 0 });
        let mut is_whole = trace.operations.capacity() >= self.operations();
        for at in 0..if is_whole { self.operations() } else { 0 } {
            let mut assembled = self.assemble(at);
            if !takes(own(&assembled.operation) - each) {
                is_whole = false;
                break;
            }
            if let Some(lease) = assembled.lease() {
                assembled.become_export(&lease);
                trace.leases.push(lease);
            }
            assembled.operation.accesses.shrink_to_fit();
            trace.operations.push(assembled.operation);
        }
        is_whole &= takes(self.variables() * (size_of::<Variable>() + 64));
        if is_whole {
            trace.variables = (0..self.variables()).map(|at| self.variable(at).into_owned()).collect();
            is_whole = attribute_within(&mut trace, &mut takes);
        }
        (trace, is_whole)
    }
}

impl Source for EventIndex<'_> {
    fn about(&self) -> &Trace {
        &self.about
    }

    fn operations(&self) -> usize {
        self.operations.len().saturating_sub(1)
    }

    fn operation(&self, at: usize) -> Cow<'_, Operation> {
        let mut assembled = self.assemble(at);
        if let Some(lease) = assembled.lease() {
            assembled.become_export(&lease);
        }
        Cow::Owned(assembled.operation)
    }

    fn position(&self, id: u64) -> Option<usize> {
        let starts = &self.operations[..self.operations()];
        let at = starts.partition_point(|start| self.kind_and_id(self.index[*start as usize]).1 < id);
        (at < self.operations() && self.id(at) == id).then_some(at)
    }

    fn leases(&self) -> usize {
        self.leases
    }

    fn lease<'s>(&'s self, at: usize, operation: &Operation) -> Option<Cow<'s, Lease>> {
        if operation.kind != OperationKind::Export {
            return None;
        }
        self.assemble(at).lease().map(Cow::Owned)
    }

    fn variables(&self) -> usize {
        self.variables.len()
    }

    fn variable(&self, at: usize) -> Cow<'_, Variable> {
        let id = self.variables[at];
        let mut variable = Variable { id, name: self.empty.clone(), bytes: None, library: None };
        let first = self.descriptions.partition_point(|place| self.kind_and_id(*place).1 < id);
        let own = self.descriptions[first..].iter().take_while(|place| self.kind_and_id(**place).1 == id);
        for place in own {
            self.with(*place, |table, event| {
                let (dtype, library) = halves(event.word(1));
                let dtype = element_of(dtype);
                let shape: Vec<String> = event.words.iter().skip(2).map(u64::to_string).collect();
                variable.name = format!("{dtype}[{}] #{id}", shape.join(",")).into();
                variable.bytes = Some(event.word(0));
                variable.library = self.library(table.known(library)).or(variable.library);
            });
        }
        if let Some(name) = (self.names)(id) {
            variable.name = name;
        } else if variable.bytes.is_none() {
            variable.name = format!("variable {id}").into();
        }
        Cow::Owned(variable)
    }

    fn variable_position(&self, id: u64) -> Option<usize> {
        self.variables.binary_search(&id).ok()
    }
}
