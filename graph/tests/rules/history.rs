//! Random programs on several submitting and executing threads: whatever happened must equal some sequential
//! order of the submissions, per variable and as a whole.
//!
//! Every operation notes which version of each variable it found. From these notes alone an order is
//! recovered (petgraph's topological sort fails if two submitters were ordered differently on two variables),
//! and a plain sequential machine that runs the operations in that order must come to the same notes and the
//! same order-sensitive hash in every variable. Operations that their submitters withdrew must have left no
//! trace in either.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use estafette_graph::{AccessMode, Granted, Graph, OpRef, Var, VarId};
use petgraph::algo::toposort;
use petgraph::graph::DiGraph;
use proptest::prelude::*;

/// One submission.
#[derive(Clone, Debug)]
enum Step {
    Access(Vec<(usize, AccessMode)>),
    /// As `Access`; some steps later its submitter tries to withdraw it, or gives only its reads up.
    Request(Vec<(usize, AccessMode)>),
    Collapse {
        members: Vec<usize>,
        group: usize,
    },
}

/// The submissions of each thread, in order.
#[derive(Clone, Debug)]
struct Program {
    vars: usize,
    threads: Vec<Vec<Step>>,
}

/// An operation's name: submitting thread, and position in its program.
type Name = (usize, usize);

/// A variable: how many writes it has seen, what they left, and who is inside.
#[derive(Clone, Debug, Default)]
struct State {
    version: u64,
    hash: u64,
    readers: u32,
    writing: bool,
}

/// The version that an operation found on each variable it used, with the mode of the use.
type Found = BTreeMap<VarId, (AccessMode, u64)>;

type Token = Granted<State, Name>;

struct Machine<'p> {
    program: &'p Program,
    graph: Graph<State, Name>,
    vars: Vec<Var<State, Name>>,
    ready: Mutex<Vec<Token>>,
    left: AtomicUsize,
    notes: Mutex<HashMap<Name, Found>>,
    withdrawn: Mutex<HashSet<Name>>,
}

/// The number of requests of a submitter that are open at a time before it withdraws the oldest.
const OPEN_REQUESTS: usize = 3;

/// The results of a machine: notes, states, identities of the variables, and withdrawn operations.
struct Outcome {
    notes: HashMap<Name, Found>,
    states: Vec<State>,
    ids: Vec<VarId>,
    withdrawn: HashSet<Name>,
}

impl Machine<'_> {
    /// Runs the whole program with `workers` threads beside the submitters.
    fn run(program: &Program, workers: usize) -> Outcome {
        let graph = Graph::new();
        let machine = Machine {
            program,
            vars: (0..program.vars).map(|_| graph.var(State::default())).collect(),
            graph,
            ready: Mutex::default(),
            left: AtomicUsize::new(program.threads.iter().map(Vec::len).sum()),
            notes: Mutex::default(),
            withdrawn: Mutex::default(),
        };
        std::thread::scope(|scope| {
            for thread in 0..program.threads.len() {
                let machine = &machine;
                scope.spawn(move || machine.submit_all(thread));
            }
            for worker in 0..workers {
                let machine = &machine;
                scope.spawn(move || machine.work(worker));
            }
        });
        let states = machine.vars.iter().map(|var| var.with_state(|state, _| state.clone())).collect();
        let ids = machine.vars.iter().map(Var::id).collect();
        assert!(machine.vars.iter().all(Var::is_quiet));
        assert!(machine.graph.waiting().is_empty(), "nothing is left in any queue");
        let notes = machine.notes.into_inner().expect("no panic");
        Outcome { notes, states, ids, withdrawn: machine.withdrawn.into_inner().expect("no panic") }
    }

    fn submit_all(&self, thread: usize) {
        let mut requests = VecDeque::new();
        for (index, step) in self.program.threads[thread].iter().enumerate() {
            let name = (thread, index);
            let granted = match step {
                Step::Access(accesses) => self
                    .graph
                    .op(name, accesses.iter().map(|(var, mode)| (&self.vars[*var], *mode)))
                    .submit_unreferenced(),
                Step::Request(accesses) => {
                    let uses = accesses.iter().map(|(var, mode)| (&self.vars[*var], *mode));
                    let (request, granted) = self.graph.op(name, uses).submit();
                    requests.push_back(request);
                    granted
                }
                Step::Collapse { members, group } => {
                    let members: Vec<_> = members.iter().map(|member| &self.vars[*member]).collect();
                    self.graph.collapse(name, &members, &self.vars[*group])
                }
            };
            if let Some(granted) = granted {
                if index % 3 == 0 {
                    self.execute(granted);
                } else {
                    self.ready.lock().expect("no panic").push(granted);
                }
            }
            if requests.len() > OPEN_REQUESTS {
                requests.pop_front().into_iter().for_each(|request| self.withdraw(&request));
            }
        }
        requests.into_iter().for_each(|request| self.withdraw(&request));
    }

    fn withdraw(&self, request: &OpRef<State, Name>) {
        let ready = |granted| self.ready.lock().expect("no panic").push(granted);
        let withdrawn = if only_reads_go(*request.payload()) {
            request.withdraw_reads(ready)
        } else {
            request.withdraw(ready)
        };
        if withdrawn {
            self.withdrawn.lock().expect("no panic").insert(*request.payload());
            self.left.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn work(&self, worker: usize) {
        let mut random = Random(worker as u64 + 1);
        while self.left.load(Ordering::Acquire) > 0 {
            let taken = {
                let mut ready = self.ready.lock().expect("no panic");
                let len = ready.len();
                (len > 0).then(|| ready.swap_remove(random.below(len)))
            };
            match taken {
                Some(granted) => self.execute(granted),
                None => std::thread::yield_now(),
            }
        }
    }

    fn execute(&self, granted: Token) {
        let name = *granted.payload();
        let mut found = Found::new();
        let mut input = Input::of(name);
        for access in granted.accesses() {
            let (version, hash) = access.with_state(|state, _| {
                assert!(!state.writing, "a writer has its variable alone");
                if access.mode().is_exclusive() {
                    assert_eq!(state.readers, 0, "a writer has its variable alone");
                    state.writing = true;
                } else {
                    state.readers += 1;
                }
                (state.version, state.hash)
            });
            input.add(access.mode(), access.var(), hash);
            assert!(found.insert(access.var(), (access.mode(), version)).is_none(), "merged");
        }
        self.notes.lock().expect("no panic").insert(name, found);
        granted.complete(
            |finish| {
                if finish.mode.is_exclusive() {
                    finish.state.writing = false;
                    input.write(finish.state);
                } else {
                    finish.state.readers -= 1;
                }
            },
            |granted| self.ready.lock().expect("no panic").push(granted),
        );
        self.left.fetch_sub(1, Ordering::AcqRel);
    }
}

/// True if only the reads of a request are withdrawn.
fn only_reads_go((thread, index): Name) -> bool {
    (thread + index).is_multiple_of(2)
}

/// The input of an operation: its own name and every state that it read.
#[derive(Clone, Copy)]
struct Input(u64);

impl Input {
    fn of((thread, index): Name) -> Self {
        Self(mix(thread as u64, index as u64))
    }

    /// Commutative over variables, since their order within an operation means nothing.
    fn add(&mut self, mode: AccessMode, var: VarId, hash: u64) {
        if mode.reads() {
            self.0 = self.0.wrapping_add(mix(var.get(), hash));
        }
    }

    /// Order-sensitive over the writes of one variable.
    fn write(self, state: &mut State) {
        state.version += 1;
        state.hash = mix(state.hash, self.0);
    }
}

fn mix(a: u64, b: u64) -> u64 {
    let mixed = (a ^ b.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ b;
    (mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9)
}

/// The order of submissions that the notes imply: per variable by version, per thread by program. Operations
/// that have not run are not in it.
fn recover(program: &Program, notes: &HashMap<Name, Found>) -> Result<Vec<Name>, String> {
    let mut order = DiGraph::<Name, ()>::new();
    let mut nodes = HashMap::new();
    for (thread, steps) in program.threads.iter().enumerate() {
        let mut earlier = None;
        for index in (0..steps.len()).filter(|index| notes.contains_key(&(thread, *index))) {
            let node = order.add_node((thread, index));
            nodes.insert((thread, index), node);
            if let Some(earlier) = earlier.replace(node) {
                order.add_edge(earlier, node, ());
            }
        }
    }
    let mut writers: HashMap<(VarId, u64), Name> = HashMap::new();
    for (name, found) in notes {
        for (var, (mode, version)) in found {
            if mode.is_exclusive()
                && let Some(other) = writers.insert((*var, *version), *name)
            {
                return Err(format!("{name:?} and {other:?} both wrote version {} of {var}", version + 1));
            }
        }
    }
    for (name, found) in notes {
        for (var, (mode, version)) in found {
            // An operation that found version v came after the write that made it, and a reader before the
            // next write.
            if *version > 0 {
                let maker = writers.get(&(*var, version - 1)).ok_or("a version that no thread wrote")?;
                order.add_edge(nodes[maker], nodes[name], ());
            }
            if let (AccessMode::Read, Some(next)) = (mode, writers.get(&(*var, *version))) {
                order.add_edge(nodes[name], nodes[next], ());
            }
        }
    }
    let sorted =
        toposort(&order, None).map_err(|cycle| format!("{:?} is in a cycle", order[cycle.node_id()]))?;
    Ok(sorted.into_iter().map(|node| order[node]).collect())
}

/// Runs the program one operation at a time in the given order; the notes and states it comes to. Whether a
/// request has kept its reads is seen in what it has `seen`.
fn replay(
    program: &Program,
    order: &[Name],
    ids: &[VarId],
    seen: &HashMap<Name, Found>,
) -> (HashMap<Name, Found>, Vec<State>) {
    let mut states = vec![State::default(); program.vars];
    let mut group: Vec<usize> = (0..program.vars).collect();
    let mut notes = HashMap::new();
    for name in order {
        let root = |mut var: usize| {
            while group[var] != var {
                var = group[var];
            }
            var
        };
        let mut accesses: BTreeMap<usize, AccessMode> = BTreeMap::new();
        let mut add = |var: usize, mode: AccessMode| {
            let merged = accesses.entry(root(var)).or_insert(mode);
            if *merged != mode {
                *merged = AccessMode::Update;
            }
        };
        let mut forward = None;
        match &program.threads[name.0][name.1] {
            Step::Access(list) | Step::Request(list) => list.iter().for_each(|(var, mode)| add(*var, *mode)),
            Step::Collapse { members, group } => {
                members.iter().chain([group]).for_each(|var| add(*var, AccessMode::Write));
                forward = Some((members.iter().map(|var| root(*var)).collect::<Vec<_>>(), root(*group)));
            }
        }
        if matches!(program.threads[name.0][name.1], Step::Request(_)) && only_reads_go(*name) {
            accesses.retain(|var, mode| mode.is_exclusive() || seen[name].contains_key(&ids[*var]));
        }
        let mut input = Input::of(*name);
        let mut found = Found::new();
        for (var, mode) in &accesses {
            input.add(*mode, ids[*var], states[*var].hash);
            found.insert(ids[*var], (*mode, states[*var].version));
        }
        for (var, _) in accesses.iter().filter(|(_, mode)| mode.is_exclusive()) {
            input.write(&mut states[*var]);
        }
        notes.insert(*name, found);
        for member in forward.iter().flat_map(|(members, _)| members) {
            group[*member] = forward.as_ref().map_or(*member, |(_, target)| *target);
        }
    }
    (notes, states)
}

fn check(program: &Program, workers: usize) -> Result<(), TestCaseError> {
    let Outcome { notes, states, ids, withdrawn } = Machine::run(program, workers);
    let steps: usize = program.threads.iter().map(Vec::len).sum();
    prop_assert_eq!(notes.len() + withdrawn.len(), steps, "each operation has run or was withdrawn");
    prop_assert!(withdrawn.iter().all(|name| !notes.contains_key(name)), "and none both");
    let order = recover(program, &notes).map_err(TestCaseError::fail)?;
    let (expected_notes, expected_states) = replay(program, &order, &ids, &notes);
    for (name, found) in &notes {
        prop_assert_eq!(found, &expected_notes[name], "what {:?} found", name);
    }
    for (state, expected) in states.iter().zip(&expected_states) {
        prop_assert_eq!((state.version, state.hash), (expected.version, expected.hash));
    }
    Ok(())
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0, 0xD1B5_4A32_D192_ED03)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 16) as usize % bound
    }
}

/// Mostly reads, as in MXNet's engine test: 2 to 19 accesses with duplicates, at least one of them a write.
fn program(seed: u64, vars: usize, threads: usize, steps: usize, collapses: bool) -> Program {
    let mut random = Random(seed);
    let mut step = |thread: usize| {
        if collapses && random.below(40) == 0 {
            let members = (0..1 + random.below(3)).map(|_| random.below(vars)).collect();
            return Step::Collapse { members, group: random.below(vars) };
        }
        let mut accesses: Vec<_> = (0..1 + random.below(18))
            .map(|_| {
                (random.below(vars), if random.below(8) == 0 { AccessMode::Update } else { AccessMode::Read })
            })
            .collect();
        // Threads differ in where the write stands, so that crossings are common.
        let place = if thread.is_multiple_of(2) { 0 } else { accesses.len() };
        accesses.insert(place, (random.below(vars), AccessMode::Write));
        if random.below(4) == 0 { Step::Request(accesses) } else { Step::Access(accesses) }
    };
    Program { vars, threads: (0..threads).map(|thread| (0..steps).map(|_| step(thread)).collect()).collect() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn one_submitter_keeps_its_program_order(seed: u64, vars in 20..=100_usize, workers in 1..=3_usize) {
        let program = program(seed, vars, 1, 10_000, false);
        check(&program, workers)?;
    }

    #[test]
    fn several_submitters_are_ordered_as_if_one_after_the_other(
        seed: u64, vars in 20..=100_usize, threads in 2..=4_usize, workers in 1..=2_usize,
    ) {
        check(&program(seed, vars, threads, 2_000, false), workers)?;
    }

    #[test]
    fn two_submitters_that_cross_on_very_few_variables_stay_in_order(seed: u64, vars in 2..=4_usize) {
        check(&program(seed, vars, 2, 5_000, false), 1)?;
    }

    #[test]
    fn collapses_take_their_place_in_the_order(
        seed: u64, vars in 20..=100_usize, threads in 1..=4_usize, workers in 1..=2_usize,
    ) {
        check(&program(seed, vars, threads, 500, true), workers)?;
    }
}

/// The checker itself: two operations seen in opposite order on two variables are a cycle.
#[test]
fn the_checker_finds_crossed_operations() {
    let step = || Step::Access(vec![(0, AccessMode::Write), (1, AccessMode::Write)]);
    let program = Program { vars: 2, threads: vec![vec![step()], vec![step()]] };
    let found = |first: u64, second: u64| {
        Found::from([
            (VarId::new(1), (AccessMode::Write, first)),
            (VarId::new(2), (AccessMode::Write, second)),
        ])
    };
    let crossed = HashMap::from([((0, 0), found(0, 1)), ((1, 0), found(1, 0))]);
    assert!(recover(&program, &crossed).expect_err("crossed").contains("cycle"));
    let lost = HashMap::from([((0, 0), found(0, 0)), ((1, 0), found(0, 1))]);
    assert!(recover(&program, &lost).expect_err("lost update").contains("both wrote"));
}
