//! Drives a graph by names, on one thread.

use std::collections::BTreeMap;

use estafette_graph::{Granted, Graph, Mode, OpRef, Var};

pub type Access = (usize, Mode);

pub fn r(var: usize) -> Access {
    (var, Mode::Read)
}

pub fn w(var: usize) -> Access {
    (var, Mode::Write)
}

/// A graph whose granted operations wait, by name, for the test to complete them.
pub struct Driver {
    pub graph: Graph<usize, String>,
    pub vars: Vec<Var<usize, String>>,
    waiting: BTreeMap<String, Granted<usize, String>>,
}

impl Driver {
    pub fn new(vars: usize) -> Self {
        let graph = Graph::new();
        let vars = (0..vars).map(|index| graph.var(index)).collect();
        Self { graph, vars, waiting: BTreeMap::new() }
    }

    pub fn submit(&mut self, name: &str, accesses: &[Access]) {
        let accesses = accesses.iter().map(|(var, mode)| (&self.vars[*var], *mode));
        if let Some(granted) = self.graph.op(name.to_owned(), accesses).submit_unreferenced() {
            self.waiting.insert(name.to_owned(), granted);
        }
    }

    /// Submits an operation that may be withdrawn.
    pub fn submit_ref(&mut self, name: &str, accesses: &[Access]) -> OpRef<usize, String> {
        let accesses = accesses.iter().map(|(var, mode)| (&self.vars[*var], *mode));
        let (reference, granted) = self.graph.op(name.to_owned(), accesses).submit();
        self.waiting.extend(granted.map(|granted| (name.to_owned(), granted)));
        reference
    }

    /// Withdraws an operation; names those that may go on, in the order of `ready`. `None`: it was too late.
    pub fn withdraw(&mut self, op: &OpRef<usize, String>) -> Option<Vec<String>> {
        let mut names = Vec::new();
        let withdrawn = op.withdraw(|granted| {
            names.push(granted.payload().clone());
            self.waiting.insert(granted.payload().clone(), granted);
        });
        assert!(withdrawn || names.is_empty(), "nothing happens where it is too late");
        withdrawn.then_some(names)
    }

    /// Withdraws the reads of an operation. True: it is over; and names of those that may go on.
    pub fn withdraw_reads(&mut self, op: &OpRef<usize, String>) -> (bool, Vec<String>) {
        let mut names = Vec::new();
        let over = op.withdraw_reads(|granted| {
            names.push(granted.payload().clone());
            self.waiting.insert(granted.payload().clone(), granted);
        });
        (over, names)
    }

    pub fn collapse(&mut self, name: &str, members: &[usize], group: usize) {
        let members: Vec<_> = members.iter().map(|member| &self.vars[*member]).collect();
        if let Some(granted) = self.graph.collapse(name.to_owned(), &members, &self.vars[group]) {
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
            .map(|access| (access.with_state(|index, _| *index), access.mode()))
            .collect();
        accesses.sort_unstable();
        accesses
    }

    /// Completes an operation and names those it let go, in the order of `ready`.
    pub fn complete(&mut self, name: &str) -> Vec<String> {
        let granted = self.waiting.remove(name).expect("the operation is granted");
        let mut names = Vec::new();
        granted.complete(
            |_| (),
            |granted| {
                names.push(granted.payload().clone());
                self.waiting.insert(granted.payload().clone(), granted);
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
