//! Steps: how they are drawn and taken.

use std::ops::Range;
use std::time::Duration;

use estafette::bindings::{self, Origin};
use estafette::devices::FenceSet;
use estafette::{Access, Error, ExportOptions, ImportOptions, Tensor};

use super::model::{
    AccessMode, FenceId, Model, Request, RequestId, RequestKind, RequestState, TensorId, Verdict,
};
use super::world::{Asked, Asking, BLOCK, Real, World};
use crate::dice::Dice;
use crate::foreign::Deleted;

/// Tensors that the program has handles of, at most.
const TENSORS_MAX: usize = 8;
/// Requests that are not over, at most.
const REQUESTS_MAX: usize = 24;
/// Draws until it is given up. Most draws name something that there is not just now.
const DRAWS_MAX: usize = 10_000;
/// Small tensors that one big one overlaps: more than keep variables of their own.
const MANY: usize = 20;

/// One step. Numbers are those of the model.
#[derive(Debug, Clone)]
pub enum Step {
    /// Memory comes in, as part of a block; not ready before a fence is done, or ready.
    Import { engine: usize, block: usize, part: Range<usize>, pending: bool },
    /// Very many small tensors, and one that overlaps them all.
    ImportMany { engine: usize, block: usize },
    /// An operation that the test ends.
    Submit { engine: usize, uses: Vec<(TensorId, AccessMode)> },
    /// The body of an operation comes to its end; perhaps it leaves work that a fence marks.
    End { request: RequestId, well: bool, fence: bool },
    /// A running operation lends an operand out.
    View { request: RequestId, tensor: TensorId },
    /// An exported view is returned.
    DropView { at: usize },
    /// A lease that is to be had at once, or not at all.
    Try { tensor: TensorId, access: Access, how: Try },
    /// A lease is asked for.
    Lease { uses: Vec<(TensorId, Access)> },
    /// It is not wanted any more.
    GiveUp { request: RequestId },
    /// A lease is returned; device work may still run.
    Return { request: RequestId, fence: bool },
    /// Lent memory is imported again.
    Derive { request: RequestId },
    /// An untracked lease.
    Alias { tensor: TensorId },
    /// It is returned; device work may still run.
    EndAlias { at: usize, fence: bool },
    /// A question whether a tensor is ready.
    Ask { tensor: TensorId },
    /// The answer is not wanted any more.
    Forget { at: usize },
    /// A readiness query of a tensor.
    Look { tensor: TensorId },
    /// An operation is called off, whatever it is doing.
    Cancel { request: RequestId },
    /// A use outside of everything.
    UsedUntil { tensor: TensorId },
    /// A fence is done.
    Done { fence: FenceId },
    /// The program has no more use for a tensor.
    Drop { tensor: TensorId },
    /// The program says that a failed version is good.
    ClearError { tensor: TensorId },
}

/// Ways to have a lease at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Try {
    Now,
    /// `LeaseRequest::wait` without any time.
    NoTime,
    /// `bindings::tensor::export_at_once`.
    Export,
}

impl Step {
    /// A step that can be taken now; none when the program has nothing left to do anything with.
    pub fn draw(world: &World, dice: &mut Dice) -> Option<Self> {
        for _ in 0..DRAWS_MAX {
            if let Some(step) = Self::try_draw(world, dice) {
                return Some(step);
            }
        }
        None
    }

    fn try_draw(world: &World, dice: &mut Dice) -> Option<Self> {
        let model = &world.model;
        let alive: Vec<TensorId> = (0..model.tensors.len()).filter(|id| model.tensors[*id].handle).collect();
        let one = |dice: &mut Dice, of: &[usize]| (!of.is_empty()).then(|| dice.pick(of));
        let requests = |kind: RequestKind, state: RequestState| -> Vec<RequestId> {
            let all = model.requests.iter().enumerate();
            all.filter(|(_, request)| request.kind == kind && request.state == state)
                .map(|(id, _)| id)
                .collect()
        };
        let is_full = model.requests.iter().filter(|request| request.state != RequestState::Over).count()
            > REQUESTS_MAX;
        let engine = dice.roll(world.engines.len());
        let fence = dice.once_in(3);
        let step = match dice.roll(40) {
            0..3 if alive.len() < TENSORS_MAX => {
                let block = free_block(world, dice)?;
                let len = 1 + dice.roll(BLOCK);
                let start = dice.roll(BLOCK - len + 1);
                Self::Import { engine, block, part: start..start + len, pending: dice.once_in(4) }
            }
            3 if alive.len() < TENSORS_MAX && dice.once_in(12) => {
                Self::ImportMany { engine, block: free_block(world, dice)? }
            }
            4..13 if !is_full => Self::Submit { engine, uses: uses(world, dice, &alive)? },
            13..18 => {
                let request = one(dice, &requests(RequestKind::Work, RequestState::Open))?;
                Self::End { request, well: !dice.once_in(6), fence }
            }
            18 => {
                let request = one(dice, &requests(RequestKind::Work, RequestState::Open))?;
                let its = &model.requests[request].tensors;
                let tensor = its[dice.roll(its.len())].0;
                model.tensors[tensor].handle.then_some(Self::View { request, tensor })?
            }
            19 if !world.views.is_empty() => Self::DropView { at: dice.roll(world.views.len()) },
            20..23 => {
                let (tensor, access) = lease_of(world, dice, &alive)?;
                let how = dice.pick(&[Try::Now, Try::Now, Try::NoTime, Try::Export]);
                Self::Try { tensor, access: if how == Try::Export { Access::Read } else { access }, how }
            }
            23..26 if !is_full => {
                let count = if dice.once_in(4) { 2 } else { 1 };
                let uses: Vec<_> =
                    (0..count).map(|_| lease_of(world, dice, &alive)).collect::<Option<_>>()?;
                let modes: Vec<_> = uses.iter().map(|(tensor, access)| (*tensor, mode(*access))).collect();
                (!world.model.leads_back(&modes)).then_some(Self::Lease { uses })?
            }
            26 => Self::GiveUp { request: one(dice, &requests(RequestKind::Lease, RequestState::Waiting))? },
            27..30 => {
                let request = one(dice, &requests(RequestKind::Lease, RequestState::Open))?;
                match &world.requests[request] {
                    Real::Held(_) => Self::Return { request, fence },
                    Real::Exported(_) => Self::Return { request, fence: false },
                    _ => return None,
                }
            }
            30 => {
                let request = one(dice, &requests(RequestKind::Lease, RequestState::Open))?;
                may_derive(world, request).then_some(Self::Derive { request })?
            }
            31 if dice.once_in(2) => Self::Alias { tensor: one(dice, &alive)? },
            31 if !world.aliases.is_empty() => {
                Self::EndAlias { at: dice.roll(world.aliases.len()), fence: !fence }
            }
            32 => Self::Ask { tensor: one(dice, &alive)? },
            33 if !world.questions.is_empty() => Self::Forget { at: dice.roll(world.questions.len()) },
            34 => Self::Look { tensor: one(dice, &alive)? },
            35 => {
                let state = dice.pick(&[
                    RequestState::Waiting,
                    RequestState::Waiting,
                    RequestState::Waiting,
                    RequestState::Open,
                ]);
                Self::Cancel { request: one(dice, &requests(RequestKind::Work, state))? }
            }
            36 => Self::UsedUntil { tensor: one(dice, &alive)? },
            37 | 38 => {
                let pending: Vec<_> = world.fences.keys().copied().collect();
                Self::Done { fence: one(dice, &pending)? }
            }
            39 if dice.once_in(3) => Self::ClearError { tensor: one(dice, &alive)? },
            39 => Self::Drop { tensor: one(dice, &alive)? },
            _ => return None,
        };
        Some(step)
    }

    /// Takes the step with the engine and the model, without waiting for its consequences.
    pub fn take(self, world: &mut World) {
        world.note(format!("{self:?}"));
        match self {
            Self::Import { engine, block, part, pending } => import(world, engine, block, part, pending),
            Self::ImportMany { engine, block } => {
                (0..MANY).for_each(|at| import(world, engine, block, at..at + 1, false));
                import(world, engine, block, 0..MANY, false);
                let made = world.tensors.len();
                // The small ones would be in the way of everything else.
                (made - MANY - 1..made - 3).for_each(|tensor| Self::Drop { tensor }.take(world));
            }
            Self::Submit { engine, uses } => submit(world, engine, uses),
            Self::End { request, well, fence } => end(world, request, well, fence),
            Self::View { request, tensor } => view(world, request, tensor),
            Self::DropView { at } => {
                let (_, tensor, view) = world.views.swap_remove(at);
                drop(view);
                world.model.tensors[tensor].holders -= 1;
            }
            Self::Try { tensor, access, how } => try_lease(world, tensor, access, how),
            Self::Lease { uses } => lease(world, &uses),
            Self::GiveUp { request } => {
                world.requests[request] = Real::Elsewhere;
                world.model.give_up(request);
            }
            Self::Return { request, fence } => {
                let fence = fence.then(|| world.fence());
                match std::mem::replace(&mut world.requests[request], Real::Elsewhere) {
                    Real::Held(lease) => match &fence {
                        Some((_, fence)) => lease.release_after(fence.clone()),
                        None => drop(lease),
                    },
                    other => drop(other),
                }
                world.model.end_lease(request, fence.map(|(id, _)| id));
            }
            Self::Derive { request } => derive(world, request),
            Self::Alias { tensor } => {
                let lease = world.tensor(tensor).lease(Access::Alias, "an alias").try_now();
                let Ok(Some(lease)) = lease else { world.fail("an alias needs nothing") };
                world.model.tensors[tensor].holders += 1;
                world.aliases.push((tensor, lease));
            }
            Self::EndAlias { at, fence } => {
                let (tensor, lease) = world.aliases.swap_remove(at);
                if fence {
                    let (id, fence) = world.fence();
                    lease.release_after(fence);
                    world.model.use_until(tensor, id);
                }
                world.model.tensors[tensor].holders -= 1;
            }
            Self::Ask { tensor } => {
                let question = world.model.query(tensor);
                let ready = world.tensor(tensor).ready();
                world.questions.push(Asked::new(question, ready));
                world.keep_pace();
            }
            Self::Forget { at } => {
                let asked = world.questions.swap_remove(at);
                world.model.give_up(asked.question.request);
            }
            Self::Look { tensor } => {
                let (question, tensor) = (world.model.query(tensor), world.tensor(tensor));
                world.keep_pace();
                let looked = world.without_helping(|| tensor.wait_timeout(Duration::ZERO));
                let knows = matches!(looked, Ok(()) | Err(Error::Failed(_) | Error::Cancelled(_)));
                let fits = if knows {
                    world.allows(|model| model.may_know(&question, looked.is_ok()))
                } else {
                    !world.model.must_know(&question)
                };
                if !fits {
                    world.fail(&format!("a look said {looked:?}"));
                }
                world.model.give_up(question.request);
            }
            Self::Cancel { request } => {
                let Real::Op(op, _) = &world.requests[request] else { return };
                let waits = |model: &Model| {
                    let Request { state, cancelled, .. } = &model.requests[request];
                    *state == RequestState::Waiting && !cancelled
                };
                let cancelled = op.cancel();
                if !world.allows(|model| waits(model) == cancelled) {
                    world.fail(&format!(
                        "request {request} waits: {}, and `cancel` says otherwise",
                        !cancelled
                    ));
                }
                world.model.requests[request].cancelled |= cancelled;
            }
            Self::UsedUntil { tensor } => {
                let (id, fence) = world.fence();
                world.tensor(tensor).used_until(&fence).expect("no child of a fork");
                world.model.use_until(tensor, id);
            }
            Self::Done { fence } => {
                world.model.fence_done(fence);
                world.fences.remove(&fence).expect("it is pending").complete();
            }
            Self::Drop { tensor } => {
                world.model.tensors[tensor].handle = false;
                world.tensors[tensor].tensor = None;
            }
            Self::ClearError { tensor } => {
                // The engine does not say that cancelled operations are still queued.
                if world
                    .model
                    .requests
                    .iter()
                    .any(|request| request.cancelled && request.state != RequestState::Over)
                {
                    return;
                }
                if world.model.clear_error(tensor) != world.tensor(tensor).clear_error().is_ok() {
                    world.fail("`clear_error` is for versions that are finished");
                }
            }
        }
    }
}

/// A block without tensors that are about to go: when they go exactly does not show.
fn free_block(world: &World, dice: &mut Dice) -> Option<usize> {
    let block = dice.roll(world.shape.blocks);
    let mut its = world.model.tensors.iter().filter(|tensor| tensor.range.0 == block);
    its.all(|tensor| tensor.handle || tensor.deleted).then_some(block)
}

fn import(world: &mut World, engine: usize, block: usize, part: Range<usize>, pending: bool) {
    let deleted = Deleted::default();
    let managed = world.memory[block].tensor(part.start, part.len(), &deleted);
    let (id, ready) = pending.then(|| world.fence()).unzip();
    let ready: FenceSet = ready.into_iter().collect();
    // SAFETY: the description is true, and nothing uses the memory but what the engine orders.
    let tensor = unsafe {
        world.engines[engine].import_with(
            managed,
            ImportOptions { ready, origin: Some(&|| Origin::Owner), ..ImportOptions::default() },
        )
    };
    let tensor = tensor.unwrap_or_else(|error| world.fail(&format!("refused: {error}")));
    world.model.import(block, part, id);
    world.imported(tensor, deleted);
}

fn is_read_only(world: &World, tensor: TensorId) -> bool {
    let lease = world.model.tensors[tensor].derived_from;
    lease.is_some_and(|lease| !world.model.requests[lease].tensors[0].1.is_exclusive())
}

/// Uses of an operation: one to three tensors, perhaps one of them twice.
fn uses(world: &World, dice: &mut Dice, alive: &[TensorId]) -> Option<Vec<(TensorId, AccessMode)>> {
    if alive.is_empty() {
        return None;
    }
    let mut uses = Vec::new();
    let mut updated = false;
    for _ in 0..=dice.roll(3) {
        let tensor = dice.pick(alive);
        let mode =
            match dice.pick(&[AccessMode::Read, AccessMode::Read, AccessMode::Write, AccessMode::Update]) {
                _ if is_read_only(world, tensor) => AccessMode::Read,
                // The number of updates is part of the type.
                AccessMode::Update if std::mem::replace(&mut updated, true) => AccessMode::Write,
                mode => mode,
            };
        uses.push((tensor, mode));
    }
    can_end(world, &uses).then_some(uses)
}

/// True if nothing that is drawn would stand still for ever. Requests that are to be refused may be drawn.
fn can_end(world: &World, uses: &[(TensorId, AccessMode)]) -> bool {
    world.model.waits_for_itself(uses) || !world.model.leads_back(uses)
}

fn submit(world: &mut World, engine: usize, uses: Vec<(TensorId, AccessMode)>) {
    let of = |mode: AccessMode| -> Vec<Tensor> {
        uses.iter().filter(|(_, its)| *its == mode).map(|(tensor, _)| world.tensor(*tensor)).collect()
    };
    let (reads, writes, updates) = (of(AccessMode::Read), of(AccessMode::Write), of(AccessMode::Update));
    let builder = world.engines[engine].op(format!("op {}", world.model.requests.len()));
    let builder = builder.reads(&reads).writes(&writes);
    let body = world.body();
    let submitted = match &updates[..] {
        [] => builder.run_external(body),
        [update] => builder.updates([update]).run_external(body),
        more => unreachable!("{} updates were never drawn", more.len()),
    };
    match (submitted, world.model.waits_for_itself(&uses)) {
        (Ok(op), false) => {
            world.model.submit(RequestKind::Work, uses);
            world.submitted(Real::Op(op, None));
        }
        (Err(Error::Conflict(_)), true) => {}
        (submitted, own) => world
            .fail(&format!("it would wait for its own operand: {own}, and the engine says {submitted:?}")),
    }
}

fn end(world: &mut World, request: RequestId, well: bool, fence: bool) {
    let Real::Op(_, completion) = &mut world.requests[request] else { return };
    let Some(completion) = completion.take() else { return };
    let result = if well { Ok(()) } else { Err("a step says so".into()) };
    let fence = fence.then(|| world.fence());
    match &fence {
        Some((_, fence)) => completion.complete_after(fence, result),
        None => completion.complete(result),
    }
    world.ended(request, well, fence.map(|(id, _)| id));
}

fn view(world: &mut World, request: RequestId, tensor: TensorId) {
    let Real::Op(_, Some(completion)) = &world.requests[request] else { return };
    let view = completion.scope().export(&world.tensor(tensor), &ExportOptions::from(Access::Read));
    let view = view.unwrap_or_else(|error| world.fail(&format!("not lent: {error}")));
    world.model.tensors[tensor].holders += 1;
    world.views.push((request, tensor, view));
}

fn mode(access: Access) -> AccessMode {
    if access == Access::Write { AccessMode::Update } else { AccessMode::Read }
}

fn lease_of(world: &World, dice: &mut Dice, alive: &[TensorId]) -> Option<(TensorId, Access)> {
    if alive.is_empty() {
        return None;
    }
    let tensor = dice.pick(alive);
    let access = dice.pick(&[Access::Read, Access::Write]);
    Some((tensor, if is_read_only(world, tensor) { Access::Read } else { access }))
}

fn try_lease(world: &mut World, id: TensorId, access: Access, how: Try) {
    let tensor = world.tensor(id);
    let request = world.model.submit(RequestKind::Lease, vec![(id, mode(access))]);
    world.keep_pace();
    let must = world.model.must(request);
    let tried = match how {
        Try::Now => tensor.lease(access, "a try").try_now().map(|lease| lease.map(Real::Held)),
        Try::Export => {
            bindings::tensor::export_at_once(&tensor, || "a try".into()).map(|view| view.map(Real::Exported))
        }
        Try::NoTime => {
            let waited = world.without_helping(|| tensor.lease(access, "a try").wait(Some(Duration::ZERO)));
            match waited {
                Ok(lease) => Ok(Some(Real::Held(lease))),
                Err(Error::Timeout(_) | Error::LeaseHeld(_) | Error::WouldDeadlock(_)) => Ok(None),
                Err(error) => Err(error),
            }
        }
    };
    let fits = match &tried {
        Ok(Some(_)) => world.allows(|model| model.may(request) == Verdict::Begin),
        // It does not look closely.
        Ok(None) if how == Try::Export => true,
        Ok(None) => !matches!(must, Verdict::Begin | Verdict::Skip),
        Err(Error::Failed(_) | Error::Cancelled(_)) => {
            world.allows(|model| model.may(request) == Verdict::Skip)
        }
        Err(_) => false,
    };
    if !fits {
        let (may, said) = (world.model.may(request), tried.map(|lease| lease.is_some()));
        world.fail(&format!("a lease must {must:?}, at the soonest {may:?}; the engine says {said:?}"));
    }
    match tried {
        Ok(Some(real)) => {
            world.model.begin(request);
            world.requests[request] = real;
        }
        _ => world.model.give_up(request),
    }
}

fn lease(world: &mut World, uses: &[(TensorId, Access)]) {
    let wanted: Vec<(Tensor, Access)> =
        uses.iter().map(|(tensor, access)| (world.tensor(*tensor), *access)).collect();
    let engine = world.engines[0].clone();
    let asking = if let [(tensor, access)] = &wanted[..] {
        let (tensor, access) = (tensor.clone(), *access);
        drop(wanted);
        Asking::new(async move { Ok(vec![tensor.lease(access, "a step").await?]) })
    } else {
        Asking::new(async move { engine.lease_all(&wanted, "a step").await })
    };
    let modes = uses.iter().map(|(tensor, access)| (*tensor, mode(*access))).collect();
    world.model.submit(RequestKind::Lease, modes);
    world.submitted(Real::Asking(asking));
}

/// True if this is the only open lease of its memory: what comes in is taken to be from the newest one.
fn may_derive(world: &World, request: RequestId) -> bool {
    let model = &world.model;
    let Real::Held(_) = world.requests[request] else { return false };
    let tensor = &model.tensors[model.requests[request].tensors[0].0];
    let same_block = |id: TensorId| model.tensors[id].range.0 == tensor.range.0;
    let mut others = model.requests.iter().enumerate().filter(|(id, other)| {
        *id != request
            && other.kind == RequestKind::Lease
            && other.state == RequestState::Open
            && other.tensors.iter().any(|(id, _)| same_block(*id))
    });
    tensor.derived_from.is_none()
        && others.next().is_none()
        && world.views.iter().all(|(_, id, _)| !same_block(*id))
}

fn derive(world: &mut World, request: RequestId) {
    let Real::Held(lease) = std::mem::replace(&mut world.requests[request], Real::Elsewhere) else { return };
    let end = bindings::lease::end_fence(&lease);
    let exported = lease
        .export(&ExportOptions::from(bindings::lease::access(&lease)))
        .expect("a struct can describe it");
    drop(lease);
    // SAFETY: memory of a lease, which the struct keeps.
    let tensor = unsafe {
        world.engines[0].import_with(
            exported,
            ImportOptions { origin: Some(&|| Origin::Lent), ..ImportOptions::default() },
        )
    };
    let tensor = tensor.unwrap_or_else(|error| world.fail(&format!("refused: {error}")));
    world.model.derive(request);
    world.derived(tensor, request, end);
}
