//! Drives a graph by names, on one thread.

use std::any::Any;
use std::collections::BTreeMap;

use estafette_graph::{AccessMode, OpId};

/// State of a variable and payload of an operation in nearly all tests: with one type the graph is compiled
/// once.
#[derive(Debug, Default)]
pub struct Value {
    pub name: String,
    pub number: usize,
    pub pins: Vec<OpId>,
    /// Is dropped with the value.
    pub held: Option<Box<dyn Any + Send + Sync>>,
}

impl Value {
    pub fn of(held: impl Any + Send + Sync) -> Self {
        Self { held: Some(Box::new(held)), ..Self::default() }
    }
}

impl From<&str> for Value {
    fn from(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }
}

impl From<usize> for Value {
    fn from(number: usize) -> Self {
        Self { number, ..Self::default() }
    }
}

pub type Graph = estafette_graph::Graph<Value, Value>;
pub type Var = estafette_graph::Var<Value, Value>;
pub type Granted = estafette_graph::Granted<Value, Value>;
pub type OpRef = estafette_graph::OpRef<Value, Value>;

/// Completes an operation, and returns those that are granted by that. Most tests call this: each closure
/// given to `complete` compiles the completion once more.
pub fn complete(granted: Granted) -> Vec<Granted> {
    let mut ready = Vec::new();
    granted.complete(|_| (), |granted| ready.push(granted));
    ready
}

pub fn only(mut granted: Vec<Granted>) -> Granted {
    assert_eq!(granted.len(), 1, "{granted:?}");
    granted.pop().expect("one")
}

pub fn none(granted: Vec<Granted>) {
    assert!(granted.is_empty(), "{granted:?}");
}

pub type Access = (usize, AccessMode);

pub fn r(var: usize) -> Access {
    (var, AccessMode::Read)
}

pub fn w(var: usize) -> Access {
    (var, AccessMode::Write)
}

/// A graph whose granted operations wait, by name, for the test to complete them.
pub struct Driver {
    pub graph: Graph,
    pub vars: Vec<Var>,
    waiting: BTreeMap<String, Granted>,
}

impl Driver {
    pub fn new(vars: usize) -> Self {
        let graph = Graph::new();
        let vars = (0..vars).map(|index| graph.var(index.into())).collect();
        Self { graph, vars, waiting: BTreeMap::new() }
    }

    pub fn submit(&mut self, name: &str, accesses: &[Access]) {
        let accesses = accesses.iter().map(|(var, mode)| (&self.vars[*var], *mode));
        if let Some(granted) = self.graph.op(name.into(), accesses).submit_unreferenced() {
            self.waiting.insert(name.to_owned(), granted);
        }
    }

    /// Submits an operation that may be withdrawn.
    pub fn submit_ref(&mut self, name: &str, accesses: &[Access]) -> OpRef {
        let accesses = accesses.iter().map(|(var, mode)| (&self.vars[*var], *mode));
        let (reference, granted) = self.graph.op(name.into(), accesses).submit();
        self.waiting.extend(granted.map(|granted| (name.to_owned(), granted)));
        reference
    }

    /// Withdraws an operation; names those that may go on, in the order of `ready`. `None`: it was too late.
    pub fn withdraw(&mut self, op: &OpRef) -> Option<Vec<String>> {
        let mut names = Vec::new();
        let withdrawn = op.withdraw(|granted| {
            names.push(granted.payload().name.clone());
            self.waiting.insert(granted.payload().name.clone(), granted);
        });
        assert!(withdrawn || names.is_empty(), "nothing happens where it is too late");
        withdrawn.then_some(names)
    }

    /// Withdraws the reads of an operation. True: it is over; and names of those that may go on.
    pub fn withdraw_reads(&mut self, op: &OpRef) -> (bool, Vec<String>) {
        let mut names = Vec::new();
        let over = op.withdraw_reads(|granted| {
            names.push(granted.payload().name.clone());
            self.waiting.insert(granted.payload().name.clone(), granted);
        });
        (over, names)
    }

    pub fn collapse(&mut self, name: &str, members: &[usize], group: usize) {
        let members: Vec<_> = members.iter().map(|member| &self.vars[*member]).collect();
        if let Some(granted) = self.graph.collapse(name.into(), &members, &self.vars[group]) {
            self.waiting.insert(name.to_owned(), granted);
        }
    }

    /// Names of the operations that are granted and not completed, alphabetically.
    pub fn granted(&self) -> Vec<&str> {
        self.waiting.keys().map(String::as_str).collect()
    }

    /// Index (the variable's state) and mode of each distinct access, by index.
    pub fn accesses(&self, name: &str) -> Vec<Access> {
        let mut accesses: Vec<_> = self.waiting[name]
            .accesses()
            .map(|access| (access.with_state(|state, _| state.number), access.mode()))
            .collect();
        accesses.sort_unstable();
        accesses
    }

    /// Completes an operation and names those that it releases, in the order of `ready`.
    pub fn complete(&mut self, name: &str) -> Vec<String> {
        let granted = self.waiting.remove(name).expect("the operation is granted");
        let mut names = Vec::new();
        granted.complete(
            |_| (),
            |granted| {
                names.push(granted.payload().name.clone());
                self.waiting.insert(granted.payload().name.clone(), granted);
            },
        );
        names
    }

    /// Completes whatever is granted until nothing is.
    pub fn drain(&mut self) -> usize {
        let mut completed = 0;
        while let Some(name) = self.waiting.keys().next().cloned() {
            self.complete(&name);
            completed += 1;
        }
        completed
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.drain();
        }
    }
}
