//! Operations in flight where the beginning of a trace is left out: as events that one thread more would have
//! noted there.

use std::collections::{HashMap, HashSet};

use estafette_graph::{AccessMode, OpId, VarId};

use super::super::buffer::WORDS;
use super::super::encoding::{EventKind, NONE, UseKind, access, head, pair};
use super::super::hooks::{ACCESSES_MAX, use_of};
use crate::core::engine_core::graph;
use crate::core::lease_info::LeaseInfo;
use crate::core::operation::{Name, OpKind, OpState, Phase};
use crate::core::var_state::VarState;

/// The name of that thread.
pub(in super::super) const BEFORE: &str = "before what is kept";

#[derive(Default)]
pub(in super::super) struct InFlight {
    pub(in super::super) ids: HashSet<u64>,
    pub(in super::super) texts: Vec<String>,
    /// Whole events, at most as many words at once as a buffer has.
    pub(in super::super) words: Vec<Vec<u64>>,
    numbers: HashMap<String, u32>,
    at: u64,
}

/// True if the body of any operation runs.
pub(in super::super) fn is_any_running() -> bool {
    let runs = |state: &OpState| use_of(state.kind) == UseKind::Body && state.phase() == Phase::Begun;
    graph().snapshot_with(runs, |_, _| {}).ops.iter().any(|op| op.label)
}

/// An operation, or a lease without one.
struct Description {
    name: Name,
    kind: OpKind,
    is_granted: bool,
    has_begun: bool,
    /// A thread waits for it, and blocks.
    blocks: bool,
    lease: Option<LeaseInfo>,
}

impl InFlight {
    /// Operations that were described while it was recorded, and leases; as events of the time `at`.
    pub(in super::super) fn now(at: u64) -> Self {
        let describe = |state: &OpState| {
            let (name, lease) = (state.name.clone(), state.lease().map(|lease| lease.info()));
            let has_begun = state.phase() == Phase::Begun;
            state.noted.then_some(Description {
                name,
                kind: state.kind,
                is_granted: has_begun,
                has_begun,
                blocks: state.blocks(),
                lease,
            })
        };
        let pins = |state: &mut VarState, found: &mut Vec<(OpId, Option<Description>)>| {
            state.pins().each(|pin| {
                let (name, kind, lease) = (Name::Static("lease"), OpKind::Lease, Some(pin.lease().info()));
                let description =
                    Description { name, kind, is_granted: true, has_begun: true, blocks: false, lease };
                found.push((pin.number(), Some(description)));
            });
        };
        let mut all = Self { at, ..Self::default() };
        for op in graph().snapshot_with(describe, pins).ops {
            if let Some(description) = op.label {
                all.add(op.id.get(), &Description { is_granted: op.granted, ..description }, &op.accesses);
            }
        }
        all
    }

    fn add(&mut self, id: u64, it: &Description, accesses: &[(VarId, AccessMode, bool)]) {
        self.ids.insert(id);
        let about = pair(self.text(it.name.as_str()), use_of(it.kind) as u32);
        let accesses: Vec<u64> = accesses.iter().map(|(var, mode, _)| access(var.get(), *mode)).collect();
        let (first, rest) = accesses.split_at(accesses.len().min(ACCESSES_MAX));
        self.event(EventKind::Submitted, id, &[&[about], first].concat());
        rest.chunks(ACCESSES_MAX).for_each(|some| self.event(EventKind::Accesses, id, some));
        if it.blocks {
            self.event(EventKind::Blocks, id, &[]);
        }
        if let Some(lease) = &it.lease {
            let owner = &lease.owner;
            let text = self.text(owner);
            let library = owner.library().map_or(NONE, |library| self.text(library));
            let site = owner.site().map_or(NONE, |site| self.text(&site.to_trace()));
            self.event(EventKind::LeaseOwner, id, &[pair(text, library), site.into()]);
        }
        if it.is_granted {
            self.event(EventKind::Ready, id, &[]);
        }
        // A body that runs is known of its thread.
        if it.has_begun && it.lease.is_some() {
            self.event(EventKind::Began, id, &[0]);
        }
    }

    fn event(&mut self, kind: EventKind, id: u64, words: &[u64]) {
        let len = 2 + words.len();
        if self.words.last().is_none_or(|block| block.len() + len > WORDS) {
            self.words.push(Vec::new());
        }
        if let Some(block) = self.words.last_mut() {
            block.extend([head(kind, len, self.at), id]);
            block.extend(words);
        }
    }

    fn text(&mut self, text: &str) -> u32 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = self.texts.len() as u32;
        self.texts.push(text.to_owned());
        self.numbers.insert(text.to_owned(), number);
        number
    }
}
