//! Library by library: whose operations waited for whose.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use crate::Recording;
use crate::model::{Culprit, LibraryId, Nanos, OperationId};
use crate::roots::Root;

/// Waiting time by the library that waited (rows) and the one that it waited for (columns).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Matrix {
    /// Names of rows and columns. `host` is whatever belongs to no known library, `engine` is workers, queues and wake-ups.
    pub libraries: Vec<String>,
    /// `waited_ns[row][column]`.
    pub waited_ns: Vec<Vec<Nanos>>,
}

const HOST: &str = "host";
const ENGINE: &str = "engine";

/// Sums the roots of all stalls.
pub fn matrix(recording: &Recording, roots: &[Root]) -> Matrix {
    let mut by_place: HashMap<(Place, Place), Nanos> = HashMap::new();
    for root in roots {
        let waiter = of_operation(recording, root.waiter);
        let culprit = match root.culprit {
            Culprit::Operation(id) => of_operation(recording, id),
            Culprit::Lease(id) => of_library(recording.lease(id).and_then(|lease| lease.library)),
            Culprit::None
            | Culprit::Pool
            | Culprit::Queue(_)
            | Culprit::Observer
            | Culprit::Interpreter
            | Culprit::EventLoop
            | Culprit::Thread(_) => Place::Engine,
        };
        *by_place.entry((waiter, culprit)).or_default() += root.duration();
    }
    let mut cells: BTreeMap<(String, String), Nanos> = BTreeMap::new();
    for ((waiter, culprit), time) in by_place {
        *cells.entry((waiter.name(recording), culprit.name(recording))).or_default() += time;
    }
    let mut libraries: Vec<String> =
        cells.keys().flat_map(|(row, column)| [row.clone(), column.clone()]).collect();
    libraries.sort_unstable_by_key(|name| (name == ENGINE, name == HOST, name.clone()));
    libraries.dedup();
    let cell = |row: &String, column: &String| {
        cells.get(&(row.clone(), column.clone())).copied().unwrap_or_default()
    };
    let waited_ns =
        libraries.iter().map(|row| libraries.iter().map(|column| cell(row, column)).collect()).collect();
    Matrix { libraries, waited_ns }
}

/// A row or a column.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Place {
    Library(LibraryId),
    Host,
    Engine,
}

impl Place {
    fn name(self, recording: &Recording) -> String {
        match self {
            Self::Library(library) => recording.library(Some(library)).unwrap_or(HOST).to_owned(),
            Self::Host => HOST.to_owned(),
            Self::Engine => ENGINE.to_owned(),
        }
    }
}

fn of_operation(recording: &Recording, id: OperationId) -> Place {
    of_library(recording.operation(id).and_then(|operation| operation.library))
}

fn of_library(library: Option<LibraryId>) -> Place {
    library.map_or(Place::Host, Place::Library)
}
