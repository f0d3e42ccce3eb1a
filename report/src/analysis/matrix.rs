//! Library by library: whose operations waited for whose.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::{Deserialize, Serialize};

use crate::Trace;
use crate::analysis::merge::{label, process_of};
use crate::analysis::roots::Root;
use crate::model::{Blocker, LibraryId, Nanos, OperationId, OperationKind};

/// Waiting time by the library that waited (rows) and the one that it waited for (columns).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Matrix {
    /// Names of rows and columns. `host` is whatever belongs to no known library, `engine` is workers, queues
    /// and wake-ups, `others` is what waited least of more than 30 libraries.
    pub libraries: Vec<String>,
    /// `waited_ns[row][column]`.
    pub waited_ns: Vec<Vec<Nanos>>,
}

pub(crate) const HOST: &str = "host";
const ENGINE: &str = "engine";
const OTHERS: &str = "others";

/// Libraries with a row and a column of their own: more than a reader needs, and few enough for a square of
/// them.
const LIBRARIES_MAX: usize = 30;

/// The place that waited, and the place that it waited for.
fn cell(trace: &Trace, root: &Root) -> (Party, Party) {
    let blocker = match root.blocker {
        Blocker::Operation(id) => of_blocker(trace, id),
        Blocker::Lease(id) => of_library(id, trace.lease(id).and_then(|lease| lease.library)),
        // The program itself had the Python lock.
        Blocker::LockOwner(_) => Party::Host(process_of(root.waiter)),
        Blocker::None
        | Blocker::Pool
        | Blocker::Queue(_)
        | Blocker::Observer
        | Blocker::Interpreter
        | Blocker::EventLoop
        | Blocker::Thread(_) => Party::Engine,
    };
    (of_operation(trace, root.waiter), blocker)
}

impl Matrix {
    /// For each cell, the longest of these intervals, as an index.
    pub(crate) fn longest(&self, trace: &Trace, roots: &[Root]) -> Vec<Vec<Option<usize>>> {
        let at = |name: &str| self.libraries.iter().position(|library| library == name);
        let mut places: HashMap<Party, Option<usize>> = HashMap::new();
        let mut place = |place: Party| {
            *places.entry(place).or_insert_with(|| at(&place.name(trace)).or_else(|| at(OTHERS)))
        };
        let mut longest = vec![vec![None; self.libraries.len()]; self.libraries.len()];
        for (index, root) in roots.iter().enumerate() {
            let (waiter, blocker) = cell(trace, root);
            let (Some(row), Some(column)) = (place(waiter), place(blocker)) else { continue };
            let known: &mut Option<usize> = &mut longest[row][column];
            if known.is_none_or(|known| roots[known].duration() < root.duration()) {
                *known = Some(index);
            }
        }
        longest
    }
}

/// Sums of the roots of stalls.
#[derive(Default)]
pub(crate) struct Sums(HashMap<(Party, Party), Nanos>);

impl Sums {
    pub(crate) fn add(&mut self, trace: &Trace, root: &Root) {
        *self.0.entry(cell(trace, root)).or_default() += root.duration();
    }

    pub(crate) fn matrix(self, trace: &Trace) -> Matrix {
        let mut cells: BTreeMap<(String, String), Nanos> = BTreeMap::new();
        for ((waiter, blocker), time) in self.0 {
            *cells.entry((waiter.name(trace), blocker.name(trace))).or_default() += time;
        }
        let cells = most(cells);
        let mut libraries: Vec<String> =
            cells.keys().flat_map(|(row, column)| [row.clone(), column.clone()]).collect();
        libraries.sort_unstable_by_key(|name| (name == ENGINE, name == HOST, name == OTHERS, name.clone()));
        libraries.dedup();
        let cell = |row: &String, column: &String| {
            cells.get(&(row.clone(), column.clone())).copied().unwrap_or_default()
        };
        let waited_ns =
            libraries.iter().map(|row| libraries.iter().map(|column| cell(row, column)).collect()).collect();
        Matrix { libraries, waited_ns }
    }
}

/// The cells with at most [`LIBRARIES_MAX`] libraries: those that waited, or were waited for, longest. The
/// rest is one.
fn most(cells: BTreeMap<(String, String), Nanos>) -> BTreeMap<(String, String), Nanos> {
    let mut times: HashMap<&str, Nanos> = HashMap::new();
    for ((row, column), time) in &cells {
        for name in [row, column] {
            let sum = times.entry(name).or_default();
            *sum = sum.saturating_add(*time);
        }
    }
    let mut order: Vec<(&str, Nanos)> =
        times.into_iter().filter(|(name, _)| ![HOST, ENGINE].contains(name)).collect();
    order.sort_unstable_by(|(a, x), (b, y)| y.cmp(x).then(a.cmp(b)));
    let others: HashSet<String> =
        order.into_iter().skip(LIBRARIES_MAX).map(|(name, _)| name.to_owned()).collect();
    if others.is_empty() {
        return cells;
    }
    let group = |name: String| if others.contains(&name) { OTHERS.to_owned() } else { name };
    let mut grouped = BTreeMap::new();
    for ((row, column), time) in cells {
        *grouped.entry((group(row), group(column))).or_default() += time;
    }
    grouped
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Party {
    Library(LibraryId),
    /// Of a process.
    Host(usize),
    Engine,
}

impl Party {
    fn name(self, trace: &Trace) -> String {
        match self {
            Self::Library(library) => trace.library(Some(library)).unwrap_or(HOST).to_owned(),
            Self::Host(process) if trace.processes.len() > 1 => format!("{HOST} {}", label(trace, process)),
            Self::Host(_) => HOST.to_owned(),
            Self::Engine => ENGINE.to_owned(),
        }
    }
}

fn of_operation(trace: &Trace, id: OperationId) -> Party {
    of_library(id, trace.operation(id).and_then(|operation| operation.library))
}

/// A copy is waited for because of the library whose memory it copies.
fn of_blocker(trace: &Trace, id: OperationId) -> Party {
    let copied = trace.operation(id).filter(|operation| operation.kind == OperationKind::Copy);
    let memory = copied.and_then(|copy| trace.variable(copy.accesses.first()?.variable));
    memory.map_or_else(|| of_operation(trace, id), |memory| of_library(id, memory.library))
}

/// A library, or what belongs to none in the process of `id`.
fn of_library(id: u64, library: Option<LibraryId>) -> Party {
    library.map_or_else(|| Party::Host(process_of(id)), Party::Library)
}
