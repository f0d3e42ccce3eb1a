//! What the engine keeps per variable: the version, its failure, and the fences it still carries.

use estafette_devices::{DeviceError, Fence, FenceState, Frontier, QueueId};
use estafette_graph::{Mode, OpId};

use crate::error::{Error, OperationError};
use crate::holders::Holders;
use crate::operation::{Name, OpTag};

/// Flag on a variable: its current version is poisoned.
pub(crate) const FAILED: u32 = 1;
/// Flag on a variable: its current version still has fences of writers that were pending when last looked at.
pub(crate) const WRITE_FENCES: u32 = 2;
/// Flag on a variable: fences of readers were pending when last looked at.
pub(crate) const READ_FENCES: u32 = 4;
/// Flag on a variable: fences of the memory have failed. It concerns only whoever gives the memory back.
pub(crate) const BROKEN_FENCES: u32 = 8;

/// State of one variable (the graph's `V`). A version is the state between two writes.
///
/// Small, so that it shares a cache line with the variable's queue: what few variables ever have is kept apart.
#[derive(Debug, Default)]
pub(crate) struct VarState {
    /// Number of finished writes, and [`TURNS`].
    version: u64,
    /// Made when first needed, and kept.
    carried: Option<Box<Carried>>,
    /// Behind what every operation looks at.
    holders: Holders,
}

/// What a version carries beside the data.
#[derive(Debug, Default, Clone)]
struct Carried {
    /// Fences that must be done before the current version may be read.
    writers: Frontier,
    /// Fences that must be done, beside `writers`, before the memory may be overwritten.
    readers: Frontier,
    /// Fences of readers and writers that have failed: order and later versions have nothing to do with them any more, but what
    /// they stood for may never have ended, which matters when the memory is given back.
    broken: Frontier,
    /// Root cause, when the current version is poisoned.
    failure: Option<OperationError>,
    /// Who issued the newest write whose fence is in `writers`: the root cause should that fence fail.
    writer: Option<OpTag>,
}

/// The failure of a version whose device work failed after it had been issued.
pub(crate) fn device_failure(writer: Option<&OpTag>, error: DeviceError) -> OperationError {
    let outside = OpTag { name: Name::Static("import"), id: OpId::new(0) };
    writer.unwrap_or(&outside).device_failure(error)
}

/// How an access ended, as far as its variable is concerned.
pub(crate) enum Ending<'a> {
    /// The body ran. `left` are the fences of its device work, at least one, and whose work it is; `None` means that the host
    /// work is over.
    Ran { left: Option<(&'a [Fence], &'a OpTag)>, failure: Option<&'a OperationError> },
    /// The body never ran: what the variable carried stays.
    Skipped { failure: &'a OperationError },
    /// An access that changed nothing.
    Looked,
}

/// Failures that newer versions replace. They are rare, and dropped where no bit is held.
pub(crate) type Replaced = Option<Vec<OperationError>>;

/// Bit of [`VarState::version`]: bodies take turns by this variable, and their device work does not matter. Counting never gets there.
const TURNS: u64 = 1 << 63;

impl VarState {
    pub(crate) fn for_turns() -> Self {
        Self { version: TURNS, ..Self::default() }
    }

    pub(crate) fn version(&self) -> u64 {
        self.version & !TURNS
    }

    pub(crate) fn failure(&self) -> Option<&OperationError> {
        self.carried.as_ref()?.failure.as_ref()
    }

    /// The leases that hold the variable without an operation.
    pub(crate) fn holders(&mut self) -> &mut Holders {
        &mut self.holders
    }

    fn carried(&mut self) -> &mut Carried {
        self.carried.get_or_insert_default()
    }

    /// Adds the fences that an access must see done (or be ordered after) to `into`.
    pub(crate) fn collect(&mut self, mode: Mode, into: &mut Frontier, flags: &mut u32) {
        let Some(carried) = &mut self.carried else { return };
        carried.prune(flags);
        into.merge(&carried.writers);
        if mode != Mode::Read {
            into.merge(&carried.readers);
        }
    }

    /// Fences of every use of the memory so far.
    pub(crate) fn all_fences(&mut self, into: &mut Frontier, flags: &mut u32) {
        self.collect(Mode::Write, into, flags);
        if let Some(carried) = &self.carried {
            into.merge(&carried.broken);
        }
    }

    /// Notes what was found when the fences were asked, which happens outside the bit, since it may call a driver: drops
    /// what is known to be done, turns the failure of a writer's fence into one of the version, and sets failed fences aside,
    /// so that they do not poison the versions to come.
    pub(crate) fn note(&mut self, writers: &Asked, readers: &Asked, flags: &mut u32) {
        if let Some(carried) = &mut self.carried {
            carried.note(writers, readers, flags);
        }
    }

    /// Applies the end of one access. Called under the variable's bit. The failure that this replaces goes to `replaced`, to be
    /// dropped where no lock is held: it owns an error of the user's.
    pub(crate) fn finish(
        &mut self,
        mode: Mode,
        ending: &Ending<'_>,
        flags: &mut u32,
        replaced: &mut Replaced,
    ) {
        match (mode, ending) {
            (_, Ending::Looked) | (Mode::Read, Ending::Ran { left: None, .. } | Ending::Skipped { .. }) => {}
            (_, Ending::Ran { left: None, failure: None }) => self.finish_well(mode, flags, replaced),
            _ if self.version & TURNS != 0 => self.version += u64::from(mode.is_exclusive()),
            _ => self.finish_carrying(mode, ending, flags, replaced),
        }
    }

    /// As [`finish`](Self::finish), after a body that succeeded and left no work behind.
    #[inline(always)]
    pub(crate) fn finish_well(&mut self, mode: Mode, flags: &mut u32, replaced: &mut Replaced) {
        if !mode.is_exclusive() {
            return;
        }
        if *flags == 0 {
            // No failure to replace and no fence to forget.
            self.version += 1;
        } else {
            self.finish_carrying(mode, &Ending::Ran { left: None, failure: None }, flags, replaced);
        }
    }

    #[cold]
    fn finish_carrying(&mut self, mode: Mode, ending: &Ending<'_>, flags: &mut u32, replaced: &mut Replaced) {
        self.version += u64::from(mode.is_exclusive());
        let carried = self.carried();
        if let Some(failure) = carried.finish(mode, ending) {
            replaced.get_or_insert_default().push(failure);
        }
        carried.update(flags);
    }

    /// Declares the current version good: "I looked". `writers` is what its fences said.
    /// Gives back the failure, as [`finish`](Self::finish) does.
    pub(crate) fn heal(&mut self, writers: &Asked, flags: &mut u32) -> Option<OperationError> {
        let carried = self.carried.as_mut()?;
        carried.note(writers, &Asked::default(), flags);
        let replaced = carried.failure.take();
        carried.update(flags);
        replaced
    }

    /// Adds fences that the current version becomes ready with.
    pub(crate) fn add_writers(&mut self, fences: &Frontier, flags: &mut u32) {
        let carried = self.carried();
        carried.writers.merge(fences);
        carried.update(flags);
    }

    /// Adds a use of the current version that is over when `fence` is.
    pub(crate) fn add_reader(&mut self, fence: &Fence, flags: &mut u32) {
        let carried = self.carried();
        carried.readers.insert(fence.clone());
        carried.update(flags);
    }

    /// Adds what this variable carries to `sum`.
    pub(crate) fn move_into(&mut self, sum: &mut Self, flags: &mut u32) {
        sum.version += self.version();
        if let Some(carried) = &mut self.carried {
            carried.prune(flags);
            carried.add_to(sum.carried());
        }
    }

    /// Becomes a copy of `sum`.
    pub(crate) fn take_over(&mut self, sum: &Self, flags: &mut u32) {
        self.version = sum.version;
        self.carried.clone_from(&sum.carried);
        match &self.carried {
            Some(carried) => carried.update(flags),
            None => *flags = 0,
        }
    }

    /// Who issued the newest write that still has a fence.
    pub(crate) fn writer_tag(&self) -> Option<OpTag> {
        self.carried.as_ref()?.writer.clone()
    }

    /// The fences of the current version's writers, and of its readers.
    pub(crate) fn fences(&self) -> (Frontier, Frontier) {
        let fences = |carried: &Carried| (carried.writers.clone(), carried.readers.clone());
        self.carried.as_deref().map(fences).unwrap_or_default()
    }

    /// Whether a writer of the current version is known to be at work, which no driver has to be asked for.
    #[inline]
    pub(crate) fn is_known_pending(&self) -> bool {
        self.carried
            .as_deref()
            .is_some_and(|carried| carried.writers.iter().any(|fence| fence.peek() == Some(false)))
    }

    /// A fence of those that an access must be ordered after, if all of them are of `queue`.
    pub(crate) fn only_on(&self, mode: Mode, queue: QueueId) -> Option<&Fence> {
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
        self.failure().cloned().map_or(Ok(()), |failure| Err(failure.into_error()))
    }
}

impl Carried {
    fn note(&mut self, writers: &Asked, readers: &Asked, flags: &mut u32) {
        let found = self.writers.iter().any(|fence| writers.broken.iter().any(|broken| same(fence, broken)));
        if found
            && self.failure.is_none()
            && let Some(error) = &writers.failed
        {
            self.failure = Some(device_failure(self.writer.as_ref(), error.clone()));
        }
        for (fences, broken) in [(&mut self.writers, &writers.broken), (&mut self.readers, &readers.broken)] {
            if !broken.is_empty() {
                *fences = without(fences, broken);
                self.broken.merge(broken);
            }
        }
        self.prune(flags);
    }

    fn prune(&mut self, flags: &mut u32) {
        self.writers.prune();
        self.readers.prune();
        self.update(flags);
    }

    fn finish(&mut self, mode: Mode, ending: &Ending<'_>) -> Option<OperationError> {
        match (mode, ending) {
            (Mode::Read, Ending::Ran { left: Some((fences, _)), .. }) => {
                fences.iter().for_each(|fence| self.readers.insert(fence.clone()));
                None
            }
            (Mode::Read, _) | (_, Ending::Looked) => None,
            (Mode::Write | Mode::Update, Ending::Ran { left, failure }) => {
                match left {
                    Some((fences, tag)) => {
                        for fence in *fences {
                            self.writers.replace_ordered_after(fence);
                            self.readers.replace_ordered_after(fence);
                        }
                        self.writer = Some((*tag).clone());
                    }
                    None => {
                        // A host body began only after everything the variable carried had settled.
                        self.writers.clear();
                        self.readers.clear();
                        self.writer = None;
                    }
                }
                // An update begins on a good version. A failure that it finds at its end was left by the operation that
                // lent it a view, and what the view was used for does not mend that.
                if mode == Mode::Write || failure.is_some() {
                    return std::mem::replace(&mut self.failure, failure.cloned());
                }
                None
            }
            (Mode::Write | Mode::Update, Ending::Skipped { failure }) => {
                self.failure.replace((*failure).clone())
            }
        }
    }

    fn add_to(&self, sum: &mut Self) {
        sum.writers.merge(&self.writers);
        sum.readers.merge(&self.readers);
        sum.broken.merge(&self.broken);
        if sum.failure.is_none() {
            sum.failure.clone_from(&self.failure);
        }
        if self.writer.is_some() {
            sum.writer.clone_from(&self.writer);
        }
    }

    fn update(&self, flags: &mut u32) {
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
    }
}

/// What asking a set of fences has told. Asking may call a driver, so it never happens under a variable's bit.
#[derive(Default)]
pub(crate) struct Asked {
    /// Those that are still pending.
    pub(crate) pending: Frontier,
    /// The failure of one that failed.
    pub(crate) failed: Option<DeviceError>,
    /// Those that have failed.
    pub(crate) broken: Frontier,
}

impl Asked {
    pub(crate) fn ask(fences: &Frontier) -> Self {
        let mut asked = Self::default();
        for fence in fences {
            match fence.state() {
                FenceState::Pending => asked.pending.insert(fence.clone()),
                FenceState::Failed(error) => {
                    asked.failed.get_or_insert(error);
                    asked.broken.insert(fence.clone());
                }
                FenceState::Done => {}
            }
        }
        asked
    }
}

/// Whether both are the same point of a queue, or the same stand-alone fence.
fn same(a: &Fence, b: &Fence) -> bool {
    a.same_or_later_on_queue(b) && b.same_or_later_on_queue(a)
}

fn without(fences: &Frontier, gone: &Frontier) -> Frontier {
    let mut kept = Frontier::default();
    for fence in fences.iter().filter(|fence| !gone.iter().any(|gone| same(fence, gone))) {
        kept.insert(fence.clone());
    }
    kept
}
