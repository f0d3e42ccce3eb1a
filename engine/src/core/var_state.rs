//! State of a variable: the version, its failure, and its pending fences.

use estafette_devices::{DeviceError, DeviceErrorKind, Fence, FenceSet, FenceState, QueueId};
use estafette_graph::AccessMode;
use smallvec::SmallVec;

use crate::core::error::{Error, OperationError};
use crate::core::operation::OpTag;
use crate::lease::pins::PinList;

/// Flag on a variable: its current version is poisoned.
pub(crate) const FAILED: u32 = 1;
/// Flag on a variable: fences of the current version's writers were pending when last queried.
pub(crate) const WRITE_FENCES: u32 = 2;
/// Flag on a variable: fences of readers were pending when last queried.
pub(crate) const READ_FENCES: u32 = 4;
/// Flag on a variable: fences of the memory have failed by a fault. Only the release of the memory depends on
/// this flag.
pub(crate) const BROKEN_FENCES: u32 = 8;
/// Flag on a variable: so many fences have gathered that those that are done have to go. Where a memory is
/// only read, nothing else asks for the fences of its readers.
pub(crate) const CROWDED: u32 = 16;

/// So many fences of readers or writers are kept before they are looked through, and then twice as many as
/// were left.
const CROWD_MIN: usize = 32;

/// State of one variable (the graph's `V`). A version is the state between two writes.
///
/// The state is small, so that it shares a cache line with the variable's queue: what few variables ever have
/// is kept apart.
#[derive(Debug, Default)]
pub(crate) struct VarState {
    /// Number of finished writes, [`MUTEX`] and [`SHARED`].
    version: u64,
    /// Made when first needed, and kept.
    carried: Option<Box<Carried>>,
    /// Placed after the fields that every operation uses.
    pins: PinList,
}

/// The parts of a version beside the data.
#[derive(Debug, Default, Clone)]
struct Carried {
    /// Fences that must be done before the current version may be read.
    writers: FenceSet,
    /// Fences that must be done, beside `writers`, before the memory may be overwritten.
    readers: FenceSet,
    /// Fences of readers and writers that have failed by a [fault](DeviceErrorKind::Fault). Order and later
    /// versions do not depend on these fences any more. But their work may never have ended, which matters
    /// when the memory is released. After another failure the work has ended, and the fence goes: it may keep
    /// a link to another process.
    broken: FenceSet,
    /// The root cause, when the current version is poisoned.
    failure: Option<OperationError>,
    /// The operation that issued the newest write whose fence is in `writers`, or the import that added the
    /// first of them: the root cause should that fence fail.
    writer: Option<OpTag>,
    /// The number of fences that were left at the last pass over them.
    kept: usize,
    /// The first failure that a good write has replaced, of a variable [of several tensors](SHARED): the good
    /// write may have been of another tensor than the failed write.
    hidden: Option<OperationError>,
    /// `failure` was left by a view of the operation that is writing the version. The end of that operation
    /// takes the mark away.
    is_of_view: bool,
}

/// The failure of a version whose device work failed after it had been issued, or of imported memory whose
/// fence failed, which has no operation.
pub(crate) fn device_failure(writer: Option<&OpTag>, error: DeviceError) -> OperationError {
    match writer {
        Some(writer) => writer.device_failure(error),
        None => OpTag::import().device_failure(error),
    }
}

/// The end of an access, for its variable.
pub(crate) enum Ending<'a> {
    /// The body ran. `left` are the fences of its device work, at least one, and the operation that issued
    /// this work; `None` means that only host work ran, which is over.
    Ran { left: Option<(&'a [Fence], &'a OpTag)>, failure: Option<&'a OperationError> },
    /// The body never ran: the state that the variable carried stays.
    Skipped { failure: &'a OperationError },
    /// An access that changed nothing.
    Polled,
}

/// State that newer versions replace, and fences that are known to be done. Such state is rare. It owns
/// errors and events of users, so it is dropped where no lock of a variable is held. The box makes each
/// operation test a pointer only.
#[derive(Default)]
pub(crate) struct Replaced(Option<Box<Remains>>);

#[derive(Default)]
struct Remains {
    failures: SmallVec<[OperationError; 1]>,
    fences: SmallVec<[Fence; 2]>,
}

impl Replaced {
    fn failure(&mut self, failure: Option<OperationError>) {
        if let Some(failure) = failure {
            self.0.get_or_insert_default().failures.push(failure);
        }
    }

    /// Drops the replaced state, which is mostly absent.
    #[inline(always)]
    pub(crate) fn clear(self) {
        if self.0.is_some() {
            self.drop_remains();
        } else {
            // A drop is a call of 17 instructions, which then finds nothing.
            std::mem::forget(self);
        }
    }

    #[cold]
    fn drop_remains(self) {}

    /// The program has seen the failures: no report is made of them.
    pub(crate) fn retrieve(&self) {
        for failure in self.0.iter().flat_map(|remains| &remains.failures) {
            failure.fate().retrieve();
        }
    }
}

impl Extend<Fence> for Replaced {
    fn extend<I: IntoIterator<Item = Fence>>(&mut self, fences: I) {
        for fence in fences {
            self.0.get_or_insert_default().fences.push(fence);
        }
    }
}

/// Flag in [`VarState::version`]: the variable serializes bodies only, and their device work does not matter.
/// The count of writes never reaches this flag.
const MUTEX: u64 = 1 << 63;

/// Flag in [`VarState::version`]: tensors of different places were derived from a lease that the variable is
/// of.
const SHARED: u64 = 1 << 62;

impl VarState {
    pub(crate) fn mutex() -> Self {
        Self { version: MUTEX, ..Self::default() }
    }

    pub(crate) fn version(&self) -> u64 {
        self.version & !(MUTEX | SHARED)
    }

    /// From now on the variable is of tensors of different places.
    pub(crate) fn share(&mut self) {
        self.version |= SHARED;
    }

    pub(crate) fn failure(&self) -> Option<&OperationError> {
        self.carried.as_ref()?.failure.as_ref()
    }

    /// As [`failure`](Self::failure), for the owner of a lease that the variable is of: the failure of any of
    /// the tensors.
    pub(crate) fn failure_of_any(&self) -> Option<&OperationError> {
        self.failure().or(self.carried.as_ref()?.hidden.as_ref())
    }

    /// The leases that pin the variable without an operation.
    pub(crate) fn pins(&mut self) -> &mut PinList {
        &mut self.pins
    }

    fn carried(&mut self) -> &mut Carried {
        self.carried.get_or_insert_default()
    }

    /// The fences of every use of the memory so far: those of the current version's writers, those of its
    /// readers, and those that have failed.
    pub(crate) fn all_fences(&self) -> [FenceSet; 3] {
        let fences =
            |carried: &Carried| [&carried.writers, &carried.readers, &carried.broken].map(FenceSet::clone);
        self.carried.as_deref().map(fences).unwrap_or_default()
    }

    /// Notes the result of a query of the fences. The query happens outside the lock of the variable, since
    /// it may call a driver. This function removes fences that are done, turns the failure of a writer's
    /// fence into a failure of the version, and sets failed fences aside, so that they do not poison later
    /// versions. Fences that were added after the query stay.
    pub(crate) fn note(
        &mut self,
        writers: &Queried,
        readers: &Queried,
        flags: &mut u32,
        replaced: &mut Replaced,
    ) {
        if let Some(carried) = &mut self.carried {
            carried.note(writers, readers, replaced);
            carried.update(flags);
        }
    }

    /// Applies the end of one access. Called under the lock of the variable. State that this call replaces
    /// goes to `replaced`, to be dropped where no lock is held.
    pub(crate) fn finish(
        &mut self,
        mode: AccessMode,
        ending: &Ending<'_>,
        flags: &mut u32,
        replaced: &mut Replaced,
    ) {
        match (mode, ending) {
            (_, Ending::Polled)
            | (AccessMode::Read, Ending::Ran { left: None, .. } | Ending::Skipped { .. }) => {}
            (_, Ending::Ran { left: None, failure: None }) => self.finish_well(mode, flags, replaced),
            _ if self.version & MUTEX != 0 => self.version += u64::from(mode.is_exclusive()),
            _ => self.finish_carrying(mode, ending, flags, replaced),
        }
    }

    /// As [`finish`](Self::finish), after a body that succeeded and left no work behind.
    #[inline(always)]
    pub(crate) fn finish_well(&mut self, mode: AccessMode, flags: &mut u32, replaced: &mut Replaced) {
        if !mode.is_exclusive() {
            return;
        }
        if *flags == 0 {
            // No failure to replace.
            self.version += 1;
        } else {
            self.finish_carrying(mode, &Ending::Ran { left: None, failure: None }, flags, replaced);
        }
    }

    #[cold]
    fn finish_carrying(
        &mut self,
        mode: AccessMode,
        ending: &Ending<'_>,
        flags: &mut u32,
        replaced: &mut Replaced,
    ) {
        self.version += u64::from(mode.is_exclusive());
        let is_shared = self.version & SHARED != 0;
        let carried = self.carried();
        carried.finish(mode, ending, is_shared, replaced);
        carried.update(flags);
    }

    /// Declares the current version good, since the program has inspected the data. `writers` is the result
    /// of a query of the version's fences. State that this call replaces goes to `replaced`, as by
    /// [`finish`](Self::finish).
    pub(crate) fn heal(&mut self, writers: &Queried, flags: &mut u32, replaced: &mut Replaced) {
        if let Some(carried) = &mut self.carried {
            carried.note(writers, &Queried::default(), replaced);
            replaced.failure(carried.failure.take());
            replaced.failure(carried.hidden.take());
            carried.update(flags);
        }
    }

    /// Adds what a view leaves to the version that the operation of the view is writing: fences, of which
    /// `writer` is the root cause should they fail, and a failure. The view ends while the operation is
    /// granted.
    pub(crate) fn add_view(
        &mut self,
        (fences, writer): (&[Fence], OpTag),
        failure: Option<&OperationError>,
        flags: &mut u32,
        replaced: &mut Replaced,
    ) {
        let carried = self.carried();
        for fence in fences {
            replaced.extend(carried.writers.insert_replacing(fence.clone()));
        }
        if !fences.is_empty() {
            carried.writer = Some(writer);
        }
        if let Some(failure) = failure {
            replaced.failure(carried.failure.replace(failure.clone()));
            carried.is_of_view = true;
        }
        carried.update(flags);
    }

    /// Adds fences of an import, which must be done before the current version is ready.
    pub(crate) fn add_writers(&mut self, fences: &FenceSet, flags: &mut u32, replaced: &mut Replaced) {
        let carried = self.carried();
        if carried.writers.is_empty() {
            carried.writer = Some(OpTag::import());
        }
        merge(&mut carried.writers, fences, replaced);
        carried.update(flags);
    }

    /// Names the import whose fences the current version carries.
    #[cfg(feature = "links")]
    pub(crate) fn name_import(&mut self, name: crate::core::operation::Name) {
        if let Some(writer) = &mut self.carried().writer {
            writer.name = name;
        }
    }

    /// Adds a use of the current version that is over when `fence` is.
    pub(crate) fn add_reader(&mut self, fence: &Fence, flags: &mut u32, replaced: &mut Replaced) {
        let carried = self.carried();
        replaced.extend(carried.readers.insert_replacing(fence.clone()));
        carried.update(flags);
    }

    /// A copy without the leases.
    pub(crate) fn copy(&self) -> Self {
        Self { version: self.version(), carried: self.carried.clone(), pins: PinList::default() }
    }

    /// Adds the version of `member`, and what it carries. Both states belong to the caller alone, so fences
    /// may be dropped.
    pub(crate) fn add(&mut self, member: &Self) {
        self.version += member.version;
        if let Some(carried) = &member.carried {
            self.carried().merge(carried, &mut Replaced::default());
        }
    }

    /// Takes the version of `sum`, and adds what it carries: what was added here since the sum was made
    /// stays.
    pub(crate) fn adopt(&mut self, sum: &Self, flags: &mut u32, replaced: &mut Replaced) {
        self.version = sum.version;
        if let Some(carried) = &sum.carried {
            let own = self.carried();
            own.merge(carried, replaced);
            own.update(flags);
        }
    }

    /// The operation that issued the newest write that still has a fence.
    pub(crate) fn writer_tag(&self) -> Option<OpTag> {
        self.carried.as_ref()?.writer.clone()
    }

    /// The fences of the current version's writers.
    pub(crate) fn writers(&self) -> FenceSet {
        self.carried.as_deref().map(|carried| carried.writers.clone()).unwrap_or_default()
    }

    /// The fences of the current version's writers, unless loads show that one is pending.
    pub(crate) fn writers_unless_pending(&self) -> Option<FenceSet> {
        let Some(carried) = self.carried.as_deref() else { return Some(FenceSet::default()) };
        let pending = carried.writers.iter().any(|fence| fence.peek_under_lock() == Some(false));
        (!pending).then(|| carried.writers.clone())
    }

    /// The fences of the current version's writers, and of its readers.
    pub(crate) fn fences(&self) -> (FenceSet, FenceSet) {
        let fences = |carried: &Carried| (carried.writers.clone(), carried.readers.clone());
        self.carried.as_deref().map(fences).unwrap_or_default()
    }

    /// A fence of those that an access must be ordered after, if all of them are of `queue`.
    pub(crate) fn only_on(&self, mode: AccessMode, queue: QueueId) -> Option<&Fence> {
        let carried = self.carried.as_deref()?;
        let readers = if mode.is_exclusive() { carried.readers.iter() } else { [].iter() };
        let mut last = None;
        for fence in carried.writers.iter().chain(readers) {
            if fence.queue() != Some(queue) {
                return None;
            }
            last = Some(fence);
        }
        last
    }

    /// The version's outcome as far as it is known without its fences.
    pub(crate) fn outcome(&self) -> Result<(), Error> {
        self.failure().cloned().map_or(Ok(()), |failure| Err(failure.into()))
    }
}

impl Carried {
    fn note(&mut self, writers: &Queried, readers: &Queried, replaced: &mut Replaced) {
        let found = self.writers.iter().any(|fence| has(&writers.broken, fence));
        if found
            && self.failure.is_none()
            && let Some(error) = &writers.failed
        {
            self.failure = Some(device_failure(self.writer.as_ref(), error.clone()));
        }
        for (fences, asked) in [(&mut self.writers, writers), (&mut self.readers, readers)] {
            // They have settled.
            fences.take_out(|fence| has(&asked.done, fence) || has(&asked.broken, fence), replaced);
            merge(&mut self.broken, &asked.faults, replaced);
        }
    }

    fn finish(&mut self, mode: AccessMode, ending: &Ending<'_>, is_shared: bool, replaced: &mut Replaced) {
        match (mode, ending) {
            (AccessMode::Read, Ending::Ran { left: Some((fences, _)), .. }) => {
                for fence in *fences {
                    replaced.extend(self.readers.insert_replacing(fence.clone()));
                }
            }
            (AccessMode::Read, _) | (_, Ending::Polled) => {}
            (AccessMode::Write | AccessMode::Update, Ending::Ran { left, failure }) => {
                match left {
                    Some((fences, tag)) => {
                        for fence in *fences {
                            for carried in [&mut self.writers, &mut self.readers] {
                                carried.take_out(|present| fence.same_or_later_on_queue(present), replaced);
                                replaced.extend(carried.insert_replacing(fence.clone()));
                            }
                        }
                        self.writer = Some((*tag).clone());
                    }
                    // A host body began when everything that the variable carried had settled and was taken
                    // out. What is there now was added in the meantime, and is waited for by those who come.
                    None if self.writers.is_empty() => self.writer = None,
                    None => {}
                }
                // An update begins on a good version. A failure that it finds at its end was left by the
                // operation that lent it a view, and what the view was used for does not mend that. A body
                // that has seen how its own view failed knows whether its version is good.
                let is_known = |failure: &OperationError| failure.fate().is_retrieved();
                let stays = match std::mem::take(&mut self.is_of_view) {
                    true => !self.failure.as_ref().is_some_and(is_known),
                    false => mode == AccessMode::Update,
                };
                if !stays || failure.is_some() {
                    let before = std::mem::replace(&mut self.failure, failure.cloned());
                    let hides = is_shared && failure.is_none() && self.hidden.is_none();
                    if hides { self.hidden = before } else { replaced.failure(before) }
                }
            }
            (AccessMode::Write | AccessMode::Update, Ending::Skipped { failure }) => {
                self.is_of_view = false;
                replaced.failure(self.failure.replace((*failure).clone()));
            }
        }
    }

    fn merge(&mut self, other: &Self, replaced: &mut Replaced) {
        merge(&mut self.writers, &other.writers, replaced);
        merge(&mut self.readers, &other.readers, replaced);
        merge(&mut self.broken, &other.broken, replaced);
        if self.failure.is_none() {
            self.failure.clone_from(&other.failure);
        }
        if other.writer.is_some() {
            self.writer.clone_from(&other.writer);
        }
    }

    fn gathered(&self) -> usize {
        self.writers.len().max(self.readers.len())
    }

    fn update(&mut self, flags: &mut u32) {
        *flags = 0;
        if self.failure.is_some() {
            *flags |= FAILED;
        }
        if !self.writers.is_empty() {
            *flags |= WRITE_FENCES;
        }
        if !self.readers.is_empty() {
            *flags |= READ_FENCES;
        }
        if !self.broken.is_empty() {
            *flags |= BROKEN_FENCES;
        }
        let gathered = self.gathered();
        self.kept = self.kept.min(gathered);
        if gathered >= CROWD_MIN.max(2 * self.kept) {
            *flags |= CROWDED;
        }
    }
}

/// Drops fences of a variable that are done, if its `flags` say that it is [`CROWDED`]. Those that are left
/// are not looked through again before they are twice as many. `with` lends the state of the variable.
pub(crate) fn thin_out(flags: u32, with: impl Fn(&mut dyn FnMut(&mut VarState, &mut u32))) {
    if flags & CROWDED == 0 {
        return;
    }
    let (mut writers, mut readers) = Default::default();
    with(&mut |state, _| (writers, readers) = state.fences());
    let (writers, readers) = (Queried::query(&writers), Queried::query(&readers));
    let mut replaced = Replaced::default();
    with(&mut |state, flags| {
        state.note(&writers, &readers, flags, &mut replaced);
        if let Some(carried) = &mut state.carried {
            carried.kept = carried.gathered();
            carried.update(flags);
        }
    });
}

/// The result of a query of a set of fences. The query may call a driver, so it never happens under the lock
/// of a variable.
#[derive(Default)]
pub(crate) struct Queried {
    /// The fences that are still pending.
    pub(crate) pending: FenceSet,
    /// The failure of a fence that failed.
    pub(crate) failed: Option<DeviceError>,
    /// The fences that have failed.
    pub(crate) broken: FenceSet,
    /// Those of `broken` that have failed by a fault.
    faults: FenceSet,
    /// The fences that are done.
    done: FenceSet,
}

impl Queried {
    /// A query of every fence, which may call a driver and make the device announce its progress.
    pub(crate) fn query(fences: &FenceSet) -> Self {
        Self::of(fences, Fence::state)
    }

    /// The known state of every fence, without a call of a driver: others count as pending.
    pub(crate) fn observe(fences: &FenceSet) -> Self {
        Self::of(fences, Fence::observed_state)
    }

    fn of(fences: &FenceSet, state: impl Fn(&Fence) -> FenceState) -> Self {
        let mut asked = Self::default();
        for fence in fences {
            match state(fence) {
                FenceState::Pending => asked.pending.insert(fence.clone()),
                FenceState::Failed(error) => {
                    if error.kind() == DeviceErrorKind::Fault {
                        asked.faults.insert(fence.clone());
                    }
                    asked.failed.get_or_insert(error);
                    asked.broken.insert(fence.clone());
                }
                FenceState::Done => asked.done.insert(fence.clone()),
            }
        }
        asked
    }
}

/// Adds fences to a set under the lock of a variable.
fn merge(fences: &mut FenceSet, others: &FenceSet, replaced: &mut Replaced) {
    for fence in others {
        replaced.extend(fences.insert_replacing(fence.clone()));
    }
}

/// True if a set has this very fence.
pub(crate) fn has(fences: &FenceSet, fence: &Fence) -> bool {
    fences.counterpart(fence).is_some_and(|present| same(present, fence))
}

/// True if both are the same point of a queue, or the same stand-alone fence.
pub(crate) fn same(a: &Fence, b: &Fence) -> bool {
    a.same_or_later_on_queue(b) && b.same_or_later_on_queue(a)
}
