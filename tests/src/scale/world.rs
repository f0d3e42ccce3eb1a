//! The live objects while calls are measured.

use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use estafette::wait::Ready;
use estafette::{
    Access, Completion, DType, Engine, ExportOptions, ManagedTensor, Op, Program, Tensor, Variable,
};

use super::handles::Handles;
use crate::foreign::{Deleted, Memory};
use crate::gate::Gate;

/// Something of which there are n.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Alive {
    /// Tensors that nothing uses.
    Tensors,
    /// Operations that wait for one gate, and for nothing else.
    Pending,
    /// The same, each of which reads what the one before writes.
    Chained,
    /// Operations that wait, each awaited by a future.
    Awaited,
    /// Operations that were cancelled, and keep their places behind the gate.
    Cancelled,
    /// Tensors, each with a read lease.
    Leased,
    /// Read leases of one tensor.
    LeasesOfOne,
    /// Tensors that were imported from memory under a lease.
    Derived,
    /// Imports of the same memory.
    Imports,
    /// Tensors that one operation uses.
    Operands,
    /// Tensors and waiting operations of a C program.
    Handles,
}

impl Alive {
    pub const ALL: [Self; 11] = [
        Self::Tensors,
        Self::Pending,
        Self::Chained,
        Self::Awaited,
        Self::Cancelled,
        Self::Leased,
        Self::LeasesOfOne,
        Self::Derived,
        Self::Imports,
        Self::Operands,
        Self::Handles,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Tensors => "tensors",
            Self::Pending => "pending",
            Self::Chained => "chained",
            Self::Awaited => "awaited",
            Self::Cancelled => "cancelled",
            Self::Leased => "leased",
            Self::LeasesOfOne => "leases-of-one",
            Self::Derived => "derived",
            Self::Imports => "imports",
            Self::Operands => "operands",
            Self::Handles => "handles",
        }
    }
}

/// An engine with n things alive.
pub struct World {
    /// The engine, with one worker and an in-flight limit for all of them.
    pub engine: Engine,
    /// Whatever reads it waits for the gate.
    pub gate: Variable,
    /// A tensor that every pending operation reads, and may read at once.
    pub read: Tensor,
    /// The tensor that the calls are about, where one of those alive is meant: that of the leases, the last
    /// of a chain.
    pub one: Tensor,
    /// Memory that imports are made of: the same each time.
    pub memory: Memory,
    /// Deleters of these imports.
    pub deleted: Deleted,
    /// The tensors, if the live objects are tensors.
    pub tensors: Vec<Tensor>,
    handles: Option<Handles>,
    held: (Vec<ManagedTensor>, Vec<Pin<Box<Ready>>>, Vec<Op>),
    open: Option<Completion>,
}

impl World {
    /// Makes `n` of `alive`.
    pub fn new(alive: Alive, n: usize) -> Self {
        // Futures are looked at after a part of the lease timeout: not while calls are counted, however slow
        // the machine is.
        let engine = Engine::builder()
            .workers(1)
            .in_flight_limit(10 * n + 1_000)
            .lease_timeout(Duration::from_secs(86_400));
        let engine = engine.build().expect("an engine starts");
        let gate = engine.var();
        let [one, read] = [(); 2].map(|()| engine.zeros(&[1], DType::U8).expect("one byte"));
        let open = Some(Gate::on_variable(&engine, &gate).begun());
        let memory = Memory::of(&[1.0; 16]);
        let held = (Vec::new(), Vec::new(), Vec::new());
        let mut world = Self {
            engine,
            gate,
            read,
            one,
            memory,
            deleted: Deleted::default(),
            tensors: Vec::new(),
            handles: None,
            held,
            open,
        };
        world.fill(alive, n);
        world
    }

    fn fill(&mut self, alive: Alive, n: usize) {
        if alive == Alive::Cancelled {
            // They keep their places among the writes of this tensor.
            let op = self.engine.op("hold").reads_vars(&[&self.gate]).writes([&self.one]);
            self.held.2.push(op.run(|[], [_one]| Ok(())).expect("accepted"));
        }
        if alive == Alive::Handles {
            self.handles = Some(Handles::new(n));
            return;
        }
        for _ in 0..n {
            match alive {
                Alive::Tensors | Alive::Operands => self.tensors.push(self.fresh()),
                Alive::Pending => drop(self.pending()),
                Alive::Chained => {
                    let (from, to) = (self.one.clone(), self.fresh());
                    let op = self.engine.op("link").reads_vars(&[&self.gate]).reads([&from]).writes([&to]);
                    drop(op.run(|[_from], [_to]| Ok(())).expect("accepted"));
                    self.one = to;
                }
                Alive::Awaited => {
                    let (tensor, _) = self.pending();
                    let mut ready = Box::pin(tensor.ready());
                    assert!(poll(&mut ready).is_pending());
                    self.held.1.push(ready);
                }
                Alive::Cancelled => {
                    let op = self.engine.op("cancelled").writes([&self.one]);
                    assert!(op.run(|[], [_one]| Ok(())).expect("accepted").cancel());
                }
                Alive::Leased => {
                    let tensor = self.fresh();
                    self.held.0.push(lease(&tensor));
                }
                Alive::LeasesOfOne => {
                    let lease = lease(&self.one);
                    self.held.0.push(lease);
                }
                Alive::Derived => {
                    let tensor = self.fresh();
                    let lent = lease(&tensor);
                    // SAFETY: the lease keeps the memory as it is described.
                    let derived = unsafe { self.engine.import(lent) }.expect("accepted");
                    self.tensors.push(derived);
                }
                Alive::Handles => {}
                Alive::Imports => {
                    let again = self.import();
                    self.tensors.push(again);
                }
            }
        }
    }

    /// The handles of a C program.
    pub fn handles(&self) -> &Handles {
        self.handles.as_ref().expect("made with handles alone")
    }

    /// A tensor with memory of its own.
    pub fn fresh(&self) -> Tensor {
        self.engine.zeros(&[1], DType::U8).expect("one byte")
    }

    /// A program of two operations on a variable.
    pub fn program(&self) -> Program {
        let (mut builder, variable) = (self.engine.program("program"), self.engine.var());
        for _ in 0..2 {
            builder.op("node").writes_vars(&[&variable]).run(|[], []| Ok(())).expect("accepted");
        }
        builder.finish().expect("two nodes")
    }

    /// An import of the same memory as always.
    pub fn import(&self) -> Tensor {
        // SAFETY: the memory stays as it is described until the deleter runs, and is used through the engine
        // alone.
        unsafe { self.engine.import(self.memory.tensor(0, 16, &self.deleted)) }.expect("accepted")
    }

    /// An operation that waits for the gate, and the tensor that it writes.
    pub fn pending(&self) -> (Tensor, Op) {
        let tensor = self.fresh();
        let op = self.engine.op("waits").reads_vars(&[&self.gate]).reads([&self.read]).writes([&tensor]);
        let op = op.run(|[_read], [_tensor]| Ok(())).expect("accepted");
        (tensor, op)
    }

    /// As [`pending`](Self::pending), where the write waits for a lease as well: once cancelled, the
    /// operation keeps its place.
    pub fn pending_write(&self) -> (Tensor, Op, ManagedTensor) {
        let tensor = self.fresh();
        let lent = lease(&tensor);
        let op = self.engine.op("waits").writes([&tensor]).run(|[], [_tensor]| Ok(())).expect("accepted");
        (tensor, op, lent)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.held = (Vec::new(), Vec::new(), Vec::new());
        if let Some(open) = self.open.take() {
            open.complete(Ok(()));
        }
    }
}

/// A read lease that is to be had at once.
pub fn lease(tensor: &Tensor) -> ManagedTensor {
    tensor.export_wait(&ExportOptions::from(Access::Read)).expect("nothing writes it")
}

/// Polls without a task.
pub fn poll(ready: &mut Pin<Box<Ready>>) -> std::task::Poll<Result<(), estafette::Error>> {
    ready.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}
