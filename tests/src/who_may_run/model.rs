//! The oracle: who may run, as the contract says it. It knows nothing of how the engine does it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

pub type VarId = usize;
/// Number of an operation, a lease, a question or a collapse.
pub type RequestId = usize;
pub type TensorId = usize;
pub type FenceId = usize;

/// Tensors that overlap more others than this are ordered by one variable for all of them.
const OVERLAP_MAX: usize = 16;

/// Use of a tensor by a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessMode {
    Read,
    Write,
    Update,
}

impl AccessMode {
    /// True if it must be alone.
    pub fn is_exclusive(self) -> bool {
        self != Self::Read
    }

    /// True if a failed version concerns it.
    fn looks(self) -> bool {
        self != Self::Write
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    Work,
    Lease,
    /// A question whether a tensor is ready: a read that is over when it is granted.
    Question,
    Collapse,
}

/// Progress of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestState {
    Waiting,
    /// Its body has begun, or the lease is held.
    Open,
    Over,
}

/// The fate of a waiting request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Something earlier is in its way.
    Wait,
    /// Granted; fences hold it up.
    Fences,
    Begin,
    /// It ends without having begun: an input has failed, or it was cancelled.
    Skip,
}

/// An operation, a lease, a question, or a collapse.
#[derive(Debug)]
pub struct Request {
    pub kind: RequestKind,
    pub state: RequestState,
    /// Cancelled before it began.
    pub cancelled: bool,
    pub tensors: Vec<(TensorId, AccessMode)>,
    accesses: BTreeMap<VarId, AccessMode>,
}

/// State of a version of a variable, and the requests that wait for it.
#[derive(Debug, Default)]
struct Variable {
    forwarded: Option<VarId>,
    queue: Vec<(RequestId, AccessMode)>,
    failed: bool,
    /// Fences that hold up every later use.
    writers: BTreeSet<FenceId>,
    /// Fences that hold up later exclusive uses.
    readers: BTreeSet<FenceId>,
}

/// A piece of memory and who has it.
#[derive(Debug)]
pub struct Tensor {
    /// Block of memory that it is a part of, and the part.
    pub range: (usize, Range<usize>),
    /// The lease that it was imported under.
    pub derived_from: Option<RequestId>,
    /// True if the program still has its handle.
    pub handle: bool,
    /// Views of running operations and alias leases.
    pub holders: usize,
    /// True if its memory was released.
    pub deleted: bool,
    vars: Vec<VarId>,
    own: VarId,
    /// Pending fences of uses of this very tensor.
    uses: BTreeSet<FenceId>,
}

/// A question whether a tensor is ready, that was not answered at once.
#[derive(Debug)]
pub struct Question {
    /// Its place in the queues.
    pub request: RequestId,
    fences: BTreeSet<FenceId>,
    vars: BTreeSet<VarId>,
    /// A part of the memory has failed already, whatever the rest will be.
    failed: bool,
}

#[derive(Debug, Default)]
pub struct Model {
    pub requests: Vec<Request>,
    pub tensors: Vec<Tensor>,
    vars: Vec<Variable>,
    scopes: BTreeMap<RequestId, VarId>,
}

impl Model {
    fn var(&mut self) -> VarId {
        self.vars.push(Variable::default());
        self.vars.len() - 1
    }

    fn root(&self, mut var: VarId) -> VarId {
        while let Some(next) = self.vars[var].forwarded {
            var = next;
        }
        var
    }

    fn roots(&self, tensor: TensorId) -> BTreeSet<VarId> {
        self.tensors[tensor].vars.iter().map(|var| self.root(*var)).collect()
    }

    /// Memory from outside. It shares a variable with whatever it overlaps; what lies inside something older
    /// needs none of its own; what overlaps very many is ordered with all of them.
    pub fn import(&mut self, block: usize, range: Range<usize>, ready: Option<FenceId>) -> TensorId {
        let mut found: Vec<TensorId> = (0..self.tensors.len())
            .filter(|id| {
                let Tensor { range: (its_block, its), deleted, derived_from, .. } = &self.tensors[*id];
                let overlaps = *its_block == block && its.start < range.end && range.start < its.end;
                overlaps && !deleted && derived_from.is_none()
            })
            .collect();
        found.sort_by_key(|id| self.tensors[*id].range.1.start);
        let mut vars: Vec<VarId> = Vec::new();
        for id in &found {
            let own = self.tensors[*id].own;
            if !vars.contains(&own) {
                vars.push(own);
            }
        }
        let inside = |id: &TensorId| {
            let its = &self.tensors[*id].range.1;
            its.start <= range.start && range.end <= its.end
        };
        let is_inside = found.iter().any(inside);
        let own = if vars.len() > OVERLAP_MAX {
            let group = self.var();
            found.iter().for_each(|id| self.tensors[*id].own = group);
            self.collapse(&std::mem::replace(&mut vars, vec![group]), group);
            group
        } else if is_inside {
            vars[0]
        } else {
            vars.push(self.var());
            vars[vars.len() - 1]
        };
        let last = self.root(vars[vars.len() - 1]);
        self.vars[last].writers.extend(ready);
        self.tensor((block, range), vars, own, None)
    }

    /// A tensor that is imported from what the holder of `lease` was given.
    pub fn derive(&mut self, lease: RequestId) -> TensorId {
        let scope = match self.scopes.get(&lease) {
            Some(scope) => *scope,
            None => self.var(),
        };
        self.scopes.insert(lease, scope);
        let (tensor, _) = self.requests[lease].tensors[0];
        let range = self.tensors[tensor].range.clone();
        self.tensor(range, vec![scope], scope, Some(lease))
    }

    fn tensor(
        &mut self,
        range: (usize, Range<usize>),
        vars: Vec<VarId>,
        own: VarId,
        derived_from: Option<RequestId>,
    ) -> TensorId {
        let tensor = Tensor {
            range,
            derived_from,
            handle: true,
            holders: 0,
            deleted: false,
            vars,
            own,
            uses: BTreeSet::new(),
        };
        self.tensors.push(tensor);
        self.tensors.len() - 1
    }

    fn collapse(&mut self, members: &[VarId], group: VarId) {
        let accesses: BTreeMap<_, _> =
            members.iter().chain([&group]).map(|var| (self.root(*var), AccessMode::Write)).collect();
        self.queue(RequestKind::Collapse, Vec::new(), accesses);
        for member in members {
            let root = self.root(*member);
            if root != group {
                self.vars[root].forwarded = Some(group);
            }
        }
    }

    /// An operation or a lease joins the queues of everything it uses.
    pub fn submit(&mut self, kind: RequestKind, tensors: Vec<(TensorId, AccessMode)>) -> RequestId {
        let mut accesses: BTreeMap<VarId, AccessMode> = BTreeMap::new();
        for (tensor, mode) in &tensors {
            for var in self.roots(*tensor) {
                let merged = accesses.entry(var).or_insert(*mode);
                if *merged != *mode {
                    *merged = AccessMode::Update;
                }
            }
        }
        self.queue(kind, tensors, accesses)
    }

    fn queue(
        &mut self,
        kind: RequestKind,
        tensors: Vec<(TensorId, AccessMode)>,
        accesses: BTreeMap<VarId, AccessMode>,
    ) -> RequestId {
        let id = self.requests.len();
        for (var, mode) in &accesses {
            self.vars[*var].queue.push((id, *mode));
        }
        self.requests.push(Request {
            kind,
            state: RequestState::Waiting,
            cancelled: false,
            tensors,
            accesses,
        });
        id
    }

    pub fn must(&self, request: RequestId) -> Verdict {
        self.verdict(request, false)
    }

    /// The soonest next state of a request that waits.
    pub fn may(&self, request: RequestId) -> Verdict {
        self.verdict(request, true)
    }

    fn verdict(&self, id: RequestId, soonest: bool) -> Verdict {
        let request = &self.requests[id];
        if request.kind == RequestKind::Lease && soonest && self.fails_by_a_cancel(id) {
            return Verdict::Skip;
        }
        let mut fails = false;
        for (var, mode) in &request.accesses {
            if soonest && request.cancelled && !mode.is_exclusive() {
                continue;
            }
            match self.clear(*var, *mode, id, soonest) {
                None => return Verdict::Wait,
                Some(failed) => fails |= failed && mode.looks(),
            }
        }
        let pending = |(var, mode): (&VarId, &AccessMode)| {
            let var = &self.vars[*var];
            !var.writers.is_empty() || (mode.is_exclusive() && !var.readers.is_empty())
        };
        match request.kind {
            RequestKind::Collapse | RequestKind::Question => Verdict::Begin,
            _ if request.cancelled && soonest => Verdict::Skip,
            // A cancelled operation need not inspect its inputs.
            _ if fails && !request.cancelled => Verdict::Skip,
            _ if request.accesses.iter().any(pending) => Verdict::Fences,
            _ if request.cancelled => Verdict::Skip,
            _ => Verdict::Begin,
        }
    }

    /// True if `id`, which waits, needs a version that a cancelled operation was to make, or an operation
    /// that fails by one. Requests of leases and questions may learn that at once. A lease that is refused
    /// makes no version.
    ///
    /// An operation that was to fail by a cancel may fail by another one first, and leave. What it was to
    /// fail then finds the failed version.
    fn fails_by_a_cancel(&self, request: RequestId) -> bool {
        let mut seen = BTreeSet::new();
        let mut open = vec![request];
        while let Some(id) = open.pop() {
            let inherits = self.requests[id].kind == RequestKind::Collapse;
            for (var, _) in self.requests[id].accesses.iter().filter(|(_, mode)| inherits || mode.looks()) {
                let queue = &self.vars[*var].queue;
                let own = queue.iter().position(|(its, _)| *its == id).unwrap_or(0);
                let makes_version = |(id, mode): &&(RequestId, AccessMode)| {
                    mode.is_exclusive() && self.requests[*id].kind != RequestKind::Lease
                };
                let Some((writer, _)) = queue[..own].iter().rfind(makes_version) else {
                    if id != request && self.vars[*var].failed {
                        return true;
                    }
                    continue;
                };
                let Request { state, cancelled, .. } = self.requests[*writer];
                if state == RequestState::Waiting && cancelled {
                    return true;
                }
                if state == RequestState::Waiting && seen.insert(*writer) {
                    open.push(*writer);
                }
            }
        }
        false
    }

    /// True if nothing is in the way of `request` on `var`; then, whether it finds a failed version.
    fn clear(&self, var: VarId, mode: AccessMode, request: RequestId, soonest: bool) -> Option<bool> {
        let queue = &self.vars[var].queue;
        let Some(own) = queue.iter().position(|(id, _)| *id == request) else { return Some(false) };
        let mut failed = self.vars[var].failed;
        for (earlier, its) in &queue[..own] {
            if soonest && let Some(fails) = self.may_be_gone(*earlier, *its) {
                failed |= fails;
            } else if mode.is_exclusive() || its.is_exclusive() {
                return None;
            }
        }
        Some(failed)
    }

    /// True if `request`, which waits and uses a variable in this mode, may have left already; then, whether
    /// the variable fails by that. A cancelled operation may give up at once what it only reads, and the rest
    /// when its turn comes. A collapse or a question behind such an operation may then be over too.
    fn may_be_gone(&self, request: RequestId, mode: AccessMode) -> Option<bool> {
        let Request { kind, cancelled, accesses, .. } = &self.requests[request];
        if matches!(kind, RequestKind::Collapse | RequestKind::Question) {
            let mut found = accesses.iter().map(|(var, mode)| self.clear(*var, *mode, request, true));
            let fails = found.try_fold(false, |fails, failed| Some(fails | failed?))?;
            return Some(fails && *kind == RequestKind::Collapse);
        }
        let is_gone = *cancelled && (!mode.is_exclusive() || self.verdict(request, true) == Verdict::Skip);
        is_gone.then_some(mode.is_exclusive())
    }

    /// The body begins, or the lease is held.
    pub fn begin(&mut self, request: RequestId) {
        self.pass(request);
        self.requests[request].state = RequestState::Open;
        match self.requests[request].kind {
            RequestKind::Collapse => self.merge(request),
            RequestKind::Question => self.give_up(request),
            RequestKind::Work | RequestKind::Lease => {}
        }
    }

    /// Cancelled operations, collapses and questions that would be in the way of `request` are gone, since it
    /// is granted.
    fn pass(&mut self, request: RequestId) {
        let mut over = BTreeSet::new();
        for (var, own_mode) in &self.requests[request].accesses {
            let queue = &self.vars[*var].queue;
            let own = queue.iter().position(|(id, _)| *id == request).unwrap_or(0);
            let in_the_way = |(_, mode): &&(_, AccessMode)| own_mode.is_exclusive() || mode.is_exclusive();
            over.extend(queue[..own].iter().filter(in_the_way).map(|(id, _)| *id));
        }
        over.retain(|id| matches!(self.requests[*id].kind, RequestKind::Collapse | RequestKind::Question));
        for id in over {
            if self.requests[id].state == RequestState::Waiting {
                self.begin(id);
            }
        }
        for (var, own_mode) in self.requests[request].accesses.clone() {
            let (requests, var) = (&self.requests, &mut self.vars[var]);
            let own = var.queue.iter().position(|(id, _)| *id == request).unwrap_or(0);
            let passed = var.queue[..own].to_vec();
            for (id, mode) in passed {
                let was_in_the_way = own_mode.is_exclusive() || mode.is_exclusive();
                if was_in_the_way && requests[id].cancelled && requests[id].state == RequestState::Waiting {
                    var.failed |= mode.is_exclusive();
                    var.queue.retain(|(other, _)| *other != id);
                }
            }
        }
    }

    /// A request ends without having begun. What an operation would have written has failed; a lease changes
    /// nothing.
    pub fn skip(&mut self, request: RequestId) {
        if !self.fails_by_a_cancel(request) {
            self.pass(request);
        }
        let changed = self.unqueue(request);
        if self.requests[request].kind == RequestKind::Work {
            changed.into_iter().for_each(|var| self.vars[var].failed = true);
        }
    }

    /// A lease or a question that was given up, or a question that has its answer: nothing of it is left.
    pub fn give_up(&mut self, request: RequestId) {
        self.unqueue(request);
    }

    /// Takes a request out of its queues. Gives the variables that it had to itself and where it still stood.
    fn unqueue(&mut self, request: RequestId) -> Vec<VarId> {
        let Self { requests, vars, .. } = self;
        requests[request].state = RequestState::Over;
        let mut changed = Vec::new();
        for (id, mode) in &requests[request].accesses {
            let before = vars[*id].queue.len();
            vars[*id].queue.retain(|(other, _)| *other != request);
            if mode.is_exclusive() && vars[*id].queue.len() < before {
                changed.push(*id);
            }
        }
        changed
    }

    /// An operation ends. `views` of its operands that are still there become leases in its place; their
    /// numbers.
    pub fn end(
        &mut self,
        request: RequestId,
        well: bool,
        fence: Option<FenceId>,
        views: &[(TensorId, AccessMode)],
    ) -> Vec<RequestId> {
        let leases = self.split(request, views);
        let accesses = self.requests[request].accesses.clone();
        for (var, mode) in &accesses {
            self.carry(*var, *mode, fence);
            if mode.is_exclusive() && (!well || *mode == AccessMode::Write) {
                self.vars[*var].failed = !well;
            }
        }
        self.used(request, fence);
        self.unqueue(request);
        leases
    }

    /// A lease ends. What has failed on tensors that were derived from it has failed for those behind it too.
    pub fn end_lease(&mut self, request: RequestId, fence: Option<FenceId>) {
        let fails = self.scopes.get(&request).is_some_and(|scope| self.fails(*scope));
        for (var, mode) in self.requests[request].accesses.clone() {
            self.carry(var, mode, fence);
            self.vars[var].failed |= fails && mode.is_exclusive();
        }
        self.used(request, fence);
        self.unqueue(request);
    }

    /// True if a variable that only cancelled operations still wait for has failed, or will.
    fn fails(&self, var: VarId) -> bool {
        let Variable { failed, queue, .. } = &self.vars[var];
        *failed || queue.iter().any(|(id, mode)| mode.is_exclusive() && self.requests[*id].cancelled)
    }

    /// A lease of several tensors becomes one for each, in its place.
    pub fn hand_over(&mut self, request: RequestId) -> Vec<RequestId> {
        let parts = self.requests[request].tensors.clone();
        let leases = self.split(request, &parts);
        self.unqueue(request);
        leases
    }

    fn split(&mut self, request: RequestId, parts: &[(TensorId, AccessMode)]) -> Vec<RequestId> {
        let mut leases = Vec::new();
        for (tensor, mode) in parts {
            let mode = if mode.is_exclusive() { AccessMode::Update } else { AccessMode::Read };
            let id = self.requests.len();
            let mut accesses = BTreeMap::new();
            for var in self.tensors[*tensor].vars.clone() {
                // Variable of the whole, which may have been forwarded since.
                let stands = |var: VarId| self.vars[var].queue.iter().position(|(own, _)| *own == request);
                let Some(var) = std::iter::successors(Some(var), |var| self.vars[*var].forwarded)
                    .find(|var| stands(*var).is_some())
                else {
                    continue;
                };
                let at = stands(var).expect("it was just found");
                if accesses.insert(var, mode).is_none() {
                    self.vars[var].queue.insert(at, (id, mode));
                }
            }
            let tensors = vec![(*tensor, mode)];
            self.requests.push(Request {
                kind: RequestKind::Lease,
                state: RequestState::Open,
                cancelled: false,
                tensors,
                accesses,
            });
            leases.push(id);
        }
        leases
    }

    fn merge(&mut self, request: RequestId) {
        let vars: Vec<VarId> = self.requests[request].accesses.keys().copied().collect();
        let group = vars[vars.len() - 1];
        let mut sum = Variable::default();
        for var in &vars {
            let var = &self.vars[*var];
            sum.failed |= var.failed;
            sum.writers.extend(&var.writers);
            sum.readers.extend(&var.readers);
        }
        let Variable { failed, writers, readers, .. } = sum;
        let group = &mut self.vars[group];
        (group.failed, group.writers, group.readers) = (failed, writers, readers);
        self.unqueue(request);
    }

    fn carry(&mut self, var: VarId, mode: AccessMode, fence: Option<FenceId>) {
        let var = &mut self.vars[var];
        if mode.is_exclusive() { var.writers.extend(fence) } else { var.readers.extend(fence) }
    }

    fn used(&mut self, request: RequestId, fence: Option<FenceId>) {
        for (tensor, _) in self.requests[request].tensors.clone() {
            self.tensors[tensor].uses.extend(fence);
        }
    }

    /// A use of the memory outside of every request, that is over when `fence` is.
    pub fn use_until(&mut self, tensor: TensorId, fence: FenceId) {
        for var in self.roots(tensor) {
            self.vars[var].readers.insert(fence);
        }
        self.tensors[tensor].uses.insert(fence);
    }

    pub fn fence_done(&mut self, fence: FenceId) {
        for var in &mut self.vars {
            var.writers.remove(&fence);
            var.readers.remove(&fence);
        }
        for tensor in &mut self.tensors {
            tensor.uses.remove(&fence);
        }
    }

    /// The program says that the version is good. Refused while writes are unfinished.
    pub fn clear_error(&mut self, tensor: TensorId) -> bool {
        let roots = self.roots(tensor);
        let mut queued = roots.iter().flat_map(|var| &self.vars[*var].queue);
        if queued.any(|(_, mode)| mode.is_exclusive()) {
            return false;
        }
        roots.into_iter().for_each(|var| self.vars[var].failed = false);
        true
    }

    /// True if an operation would wait for the lease that one of its own operands keeps.
    pub fn waits_for_itself(&self, tensors: &[(TensorId, AccessMode)]) -> bool {
        tensors.iter().any(|(operand, _)| {
            let Some(lease) = self.tensors[*operand].derived_from else { return false };
            let (leased, held) = self.requests[lease].tensors[0];
            let roots = self.roots(leased);
            tensors.iter().any(|(other, mode)| {
                (held.is_exclusive() || mode.is_exclusive()) && !roots.is_disjoint(&self.roots(*other))
            })
        })
    }

    /// True if something that uses `tensors` would wait, by way of whatever else is queued, for the lease
    /// that one of these keeps. Such a program stands still for ever.
    pub fn leads_back(&self, tensors: &[(TensorId, AccessMode)]) -> bool {
        let kept: Vec<RequestId> =
            tensors.iter().filter_map(|(tensor, _)| self.tensors[*tensor].derived_from).collect();
        if kept.is_empty() {
            return false;
        }
        let mut next: Vec<RequestId> = Vec::new();
        for (tensor, mode) in tensors {
            self.roots(*tensor).into_iter().for_each(|var| next.extend(self.ahead(var, *mode, None)));
        }
        let mut seen = BTreeSet::new();
        while let Some(id) = next.pop() {
            if !seen.insert(id) {
                continue;
            }
            for (var, mode) in &self.requests[id].accesses {
                next.extend(self.ahead(*var, *mode, Some(id)));
            }
            // A lease that a tensor was derived from ends after the last use of that.
            let users = self.requests.iter().enumerate().filter(|(_, request)| {
                request.state != RequestState::Over
                    && request.tensors.iter().any(|(used, _)| self.tensors[*used].derived_from == Some(id))
            });
            next.extend(users.map(|(user, _)| user));
        }
        kept.iter().any(|lease| seen.contains(lease))
    }

    /// Requests that an access of `request`, or of a request that is yet to come, waits for.
    fn ahead(
        &self,
        var: VarId,
        mode: AccessMode,
        request: Option<RequestId>,
    ) -> impl Iterator<Item = RequestId> {
        let before = self.vars[var].queue.iter().take_while(move |(id, _)| Some(*id) != request);
        before.filter(move |(_, its)| mode.is_exclusive() || its.is_exclusive()).map(|(id, _)| *id)
    }

    /// True if the memory may be freed: it has no user, and no fence of its uses is pending.
    pub fn may_be_deleted(&self, tensor: TensorId) -> bool {
        let used = |request: &&Request| request.state != RequestState::Over && !request.cancelled;
        self.is_free(tensor, used) && self.tensors[tensor].uses.is_empty()
    }

    /// True if the memory must have been released, given time: no fence of anything that it overlaps is
    /// pending either.
    pub fn must_be_deleted(&self, tensor: TensorId) -> bool {
        let carries = |var: &VarId| {
            let var = &self.vars[*var];
            !var.writers.is_empty() || !var.readers.is_empty()
        };
        self.is_free(tensor, |request| request.state != RequestState::Over)
            && self.tensors[tensor].uses.is_empty()
            && !self.roots(tensor).iter().chain(&self.tensors[tensor].vars).any(carries)
    }

    fn is_free(&self, id: TensorId, used: impl Fn(&&Request) -> bool) -> bool {
        let tensor = &self.tensors[id];
        let mut requests = self.requests.iter().filter(used);
        !tensor.handle
            && tensor.holders == 0
            && !requests.any(|request| request.tensors.iter().any(|(used, _)| *used == id))
    }

    pub fn query(&mut self, tensor: TensorId) -> Question {
        let vars = self.roots(tensor);
        let fences = vars.iter().flat_map(|var| self.vars[*var].writers.iter().copied()).collect();
        let has_failed = |var: &VarId| {
            let var = &self.vars[*var];
            var.failed && !var.queue.iter().any(|(_, mode)| mode.is_exclusive())
        };
        let failed = vars.iter().any(has_failed);
        let accesses = vars.iter().map(|var| (*var, AccessMode::Read)).collect();
        let request = self.queue(RequestKind::Question, Vec::new(), accesses);
        Question { request, fences, vars, failed }
    }

    /// True if the question must have its answer: the writes that it came after are over, with all they left.
    pub fn must_know(&self, question: &Question) -> bool {
        let is_granted = self.requests[question.request].state == RequestState::Over
            || self.must(question.request) == Verdict::Begin;
        // The state of a variable stays there until its collapse.
        let pending = |var: &VarId| {
            let mut chain = std::iter::successors(Some(*var), |var| self.vars[*var].forwarded);
            chain.any(|var| !self.vars[var].writers.is_empty())
        };
        is_granted && !question.vars.iter().any(pending)
    }

    /// True if the question may have its answer: that all is `well`, or not. Of what was called off, and of
    /// what needs that, it is known beforehand.
    pub fn may_know(&self, question: &Question, well: bool) -> bool {
        if !well && (question.failed || self.fails_by_a_cancel(question.request)) {
            return true;
        }
        let is_granted = self.requests[question.request].state == RequestState::Over
            || self.may(question.request) == Verdict::Begin;
        let pending = |fence: &FenceId| self.vars.iter().any(|var| var.writers.contains(fence));
        // A failure need not wait for the work that was left before it.
        is_granted && (!well || !question.fences.iter().any(pending))
    }
}
