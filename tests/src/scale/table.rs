//! The calls, and how their cost may grow with the number of live objects.

use std::time::Duration;

use estafette::bindings;
use estafette::wait::Activity;
use estafette::{Access, ExportOptions};
use futures::executor::block_on;

use super::meter::Meter;
use super::world::{Alive, World, lease, poll};

#[derive(Debug)]
pub struct Call {
    pub name: &'static str,
    /// Makes it once, in the meter; what it needs is made and taken away outside of it.
    pub run: fn(&World, &Meter),
    /// Allowed growth of its cost: exponents of what is alive, beside the general 0 (a constant cost, and
    /// logarithms of little weight).
    pub grows: &'static [(Alive, u32)],
    /// The only kind with which it is made, if there is one.
    pub only: Option<Alive>,
    /// Instructions that other threads do in its time, or not. Smaller counts are taken for this one.
    pub beside: u64,
}

impl Call {
    pub fn is_made_with(&self, alive: Alive) -> bool {
        let alone = matches!(alive, Alive::Operands | Alive::Handles);
        self.only.map_or(!alone, |only| only == alive)
    }

    /// The same call, made with this kind alone.
    const fn only(self, alive: Alive) -> Self {
        Self { only: Some(alive), ..self }
    }

    /// The same call, whose cost may grow so.
    const fn grows(self, grows: &'static [(Alive, u32)]) -> Self {
        Self { grows, ..self }
    }

    /// Allowed growth of its cost with `alive`.
    pub fn exponent(&self, alive: Alive) -> u32 {
        self.grows.iter().find(|(known, _)| *known == alive).map_or(0, |(_, exponent)| *exponent)
    }
}

const fn constant(name: &'static str, run: fn(&World, &Meter)) -> Call {
    Call { name, run, grows: &[], only: None, beside: 0 }
}

/// A call on n operands. Its end is awaited: a thread that is blocked looks at the graph after so many
/// milliseconds, so a slower machine would count more.
const fn operands(name: &'static str, run: fn(&World, &Meter)) -> Call {
    constant(name, run).only(Alive::Operands).grows(&[(Alive::Operands, 1)])
}

const fn c(name: &'static str, run: fn(&World, &Meter)) -> Call {
    constant(name, run).only(Alive::Handles)
}

/// A call that lists everything in flight grows with that, and looks once at each variable whether it is
/// idle.
const EVERYTHING: &[(Alive, u32)] = &[
    (Alive::Tensors, 1),
    (Alive::Pending, 1),
    (Alive::Chained, 1),
    (Alive::Awaited, 1),
    (Alive::Cancelled, 1),
    (Alive::Leased, 1),
    (Alive::LeasesOfOne, 1),
    (Alive::Derived, 1),
];

/// A look for why a wait does not end is linear in what the wait needs.
const NEEDED: &[(Alive, u32)] = &[(Alive::Chained, 1), (Alive::Cancelled, 1), (Alive::LeasesOfOne, 1)];

/// A call of the C interface that is given a new tensor.
macro_rules! with_a_c_tensor {
    ($name:literal, $call:ident) => {
        c($name, |world, meter| {
            let tensor = world.handles().tensor();
            meter.count(|| world.handles().$call(tensor));
            estafette_c::estafette_tensor_release(tensor);
        })
    };
}

/// Every call. What looks at everything comes last, since it may not end in time.
pub const CALLS: &[Call] = &[
    constant("zeros", |world, meter| drop(meter.count(|| world.fresh()))),
    constant("from_vec", |world, meter| {
        drop(meter.count(|| world.engine.from_vec(vec![1_u8], &[1])).expect("accepted"));
    }),
    constant("drop tensor", |world, meter| {
        let tensor = world.fresh();
        meter.count(|| drop(tensor));
    }),
    constant("var", |world, meter| drop(meter.count(|| world.engine.var()))),
    constant("import", |world, meter| drop(meter.count(|| world.import()))),
    constant("drop import", |world, meter| {
        let tensor = world.import();
        meter.count(|| drop(tensor));
    }),
    constant("export", |world, meter| {
        let tensor = world.fresh();
        drop(meter.count(|| lease(&tensor)));
    }),
    constant("release", |world, meter| {
        let tensor = world.fresh();
        let lent = lease(&tensor);
        meter.count(|| drop(lent));
    }),
    constant("export_fenced and its deleter", |world, meter| {
        let tensor = world.fresh();
        let options = ExportOptions::from(Access::Read);
        meter.count(|| drop(bindings::tensor::export_fenced(&tensor, &options).expect("accepted")));
    }),
    constant("export once more", |world, meter| drop(meter.count(|| lease(&world.one))))
        .only(Alive::LeasesOfOne),
    constant("release once more", |world, meter| {
        let lent = lease(&world.one);
        meter.count(|| drop(lent));
    })
    .only(Alive::LeasesOfOne),
    constant("import from a lease", |world, meter| {
        let tensor = world.fresh();
        let lent = lease(&tensor);
        // SAFETY: the lease keeps the memory as it is described.
        drop(meter.count(|| unsafe { world.engine.import(lent) }).expect("accepted"));
    }),
    constant("lease(..).try_now", |world, meter| {
        let tensor = world.fresh();
        drop(meter.count(|| tensor.lease(Access::Write, "the meter").try_now()).expect("accepted"));
    }),
    constant("export that times out", |world, meter| {
        let (tensor, op) = world.pending();
        let options = ExportOptions { timeout: Some(Duration::ZERO), ..ExportOptions::from(Access::Read) };
        assert!(meter.count(|| tensor.export_wait(&options)).is_err());
        op.cancel();
    }),
    constant("run", |world, meter| {
        let tensor = world.fresh();
        let op = world.engine.op("run").reads_vars(&[&world.gate]).writes([&tensor]);
        let op = meter.count(|| op.run(|[], [_tensor]| Ok(()))).expect("accepted");
        op.cancel();
    }),
    constant("run and wait", |world, meter| {
        let tensor = world.fresh();
        let run = || world.engine.op("run").writes([&tensor]).run(|[], [_tensor]| Ok(()));
        meter.count(|| run().and_then(|op| op.wait())).expect("it ends well");
    }),
    constant("run and wait for the tensor", |world, meter| {
        let tensor = world.fresh();
        let run = || world.engine.op("run").writes([&tensor]).run_detached(|[], [_tensor]| Ok(()));
        meter.count(|| run().and_then(|()| tensor.wait())).expect("it ends well");
    }),
    constant("produce and wait", |world, meter| {
        let produce = || {
            let made = world
                .engine
                .op("make")
                .produce(|[]| estafette::Produced::from_vec(vec![1_u8], &[1]).map_err(Into::into));
            made.and_then(|tensor| tensor.wait().map(|()| tensor))
        };
        drop(meter.count(produce).expect("it ends well"));
    }),
    constant("is_ready", |world, meter| {
        let (tensor, op) = world.pending();
        assert!(!meter.count(|| tensor.is_ready()));
        op.cancel();
    }),
    constant("await", |world, meter| {
        let (tensor, op) = world.pending();
        let mut ready = meter.count(|| {
            let mut ready = Box::pin(tensor.ready());
            assert!(poll(&mut ready).is_pending());
            ready
        });
        assert!(poll(&mut ready).is_pending());
        op.cancel();
    }),
    constant("give an await up", |world, meter| {
        let (tensor, op) = world.pending();
        let mut ready = Box::pin(tensor.ready());
        assert!(poll(&mut ready).is_pending());
        meter.count(|| drop(ready));
        op.cancel();
    }),
    constant("await what was cancelled", |world, meter| {
        let (tensor, op, lent) = world.pending_write();
        assert!(op.cancel());
        assert!(meter.count(|| poll(&mut Box::pin(tensor.ready()))).is_ready());
        drop(lent);
    }),
    constant("cancel", |world, meter| {
        let (_tensor, op) = world.pending();
        assert!(meter.count(|| op.cancel()));
    }),
    constant("cancel what is awaited", |world, meter| {
        let (tensor, op, lent) = world.pending_write();
        let mut ready = Box::pin(tensor.ready());
        assert!(poll(&mut ready).is_pending());
        assert!(meter.count(|| op.cancel()));
        assert!(poll(&mut ready).is_ready());
        drop(lent);
    }),
    constant("cancel ahead of them", |world, meter| {
        let update =
            world.engine.op("update").writes([&world.one]).run(|[], [_one]| Ok(())).expect("accepted");
        let mut ready = Box::pin(world.one.ready());
        assert!(poll(&mut ready).is_pending());
        assert!(meter.count(|| update.cancel()));
        assert!(poll(&mut ready).is_ready());
    })
    .only(Alive::Cancelled),
    constant("clear_error", |world, meter| {
        let tensor = world.fresh();
        meter.count(|| tensor.clear_error()).expect("nothing writes it");
    }),
    constant("to_vec", |world, meter| {
        let tensor = world.fresh();
        drop(meter.count(|| tensor.to_vec::<u8>()).expect("it is ready"));
    }),
    constant("copy and wait", |world, meter| {
        let tensor = world.fresh();
        let copy = || {
            world
                .engine
                .copy(&tensor, estafette_devices::DLDevice::CPU)
                .and_then(|copy| copy.wait().map(|()| copy))
        };
        drop(meter.count(copy).expect("it ends well"));
    }),
    constant("lease_all(..).wait", |world, meter| {
        let wanted = [world.fresh(), world.fresh()].map(|tensor| (tensor, Access::Write));
        drop(
            meter
                .count(|| world.engine.lease_all(&wanted, "the meter").wait(None))
                .expect("nothing uses them"),
        );
    }),
    constant("record a program", |world, meter| drop(meter.count(|| world.program()))),
    constant("replay and wait", |world, meter| {
        let program = world.program();
        meter.count(|| program.replay().and_then(|op| op.wait())).expect("it ends well");
    }),
    constant("drop a program", |world, meter| {
        let program = world.program();
        meter.count(|| drop(program));
    }),
    constant("stats", |world, meter| {
        let _stats = meter.count(|| world.engine.stats());
    }),
    constant("wait_all that times out", |world, meter| {
        assert!(meter.count(|| world.engine.wait_all(Some(Duration::ZERO))).is_err());
    }),
    operands("run that writes them", |world, meter| {
        let op = world.engine.op("many").writes(&world.tensors);
        meter.count(|| op.run(|_, _| Ok(())).and_then(block_on)).expect("it ends well");
    }),
    operands("run that reads and writes", |world, meter| {
        let (reads, writes) = world.tensors.split_at(world.tensors.len() / 2);
        let op = world.engine.op("many").reads(reads).writes(writes);
        meter.count(|| op.run(|_, _| Ok(())).and_then(block_on)).expect("it ends well");
    }),
    operands("cancel that writes them", |world, meter| {
        let op = world.engine.op("many").reads_vars(&[&world.gate]).writes(&world.tensors);
        let op = op.run(|_, _| Ok(())).expect("accepted");
        meter.count(|| assert!(op.cancel()));
    }),
    operands("export them in the body", |world, meter| export_in_body(world, meter, false)),
    operands("export them for longer", |world, meter| export_in_body(world, meter, true)),
    operands("lease them all", |world, meter| {
        let wanted: Vec<_> = world.tensors.iter().map(|tensor| (tensor.clone(), Access::Read)).collect();
        drop(
            meter
                .count(|| block_on(world.engine.lease_all(&wanted, "the meter")))
                .expect("nothing writes them"),
        );
    }),
    c("C: zeros", |world, meter| {
        let tensor = meter.count(|| world.handles().tensor());
        estafette_c::estafette_tensor_release(tensor);
    }),
    c("C: release", |world, meter| {
        let tensor = world.handles().tensor();
        meter.count(|| estafette_c::estafette_tensor_release(tensor));
    }),
    c("C: retain and query", |world, meter| {
        let tensor = world.handles().tensor();
        meter.count(|| {
            estafette_c::estafette_tensor_retain(tensor);
            estafette_c::estafette_query(tensor)
        });
        estafette_c::estafette_tensor_release(tensor);
        estafette_c::estafette_tensor_release(tensor);
    }),
    c("C: submit", |world, meter| {
        let tensor = world.handles().tensor();
        let op = meter.count(|| world.handles().pending(tensor));
        world.handles().cancel(op);
        estafette_c::estafette_tensor_release(tensor);
    }),
    c("C: cancel", |world, meter| {
        let tensor = world.handles().tensor();
        let op = world.handles().pending(tensor);
        meter.count(|| world.handles().cancel(op));
        estafette_c::estafette_tensor_release(tensor);
    }),
    with_a_c_tensor!("C: submit and wait", run),
    with_a_c_tensor!("C: lease", lease),
    with_a_c_tensor!("C: on_ready", on_ready),
    with_a_c_tensor!("C: program and replay", program),
    c("C: export and import", |world, meter| {
        let tensor = world.handles().tensor();
        let again = meter.count(|| world.handles().import(world.handles().export(tensor)));
        estafette_c::estafette_tensor_release(again);
        estafette_c::estafette_tensor_release(tensor);
    }),
    c("C: promise", |world, meter| meter.count(|| world.handles().promise())),
    c("C: diagnose", |world, meter| meter.count(|| world.handles().diagnose())).grows(&[(Alive::Handles, 1)]),
    Call {
        // The thread that looks for all that wait may pass over the list of all futures meanwhile, at some
        // three instructions for each.
        beside: 160_000,
        ..constant("wait that times out", |world, meter| {
            let op = world.engine.op("end").reads_vars(&[&world.gate]).updates([&world.one]);
            let op = op.run(|[], [], [_one]| Ok(())).expect("accepted");
            let outcome = meter.count(|| op.wait_timeout(Some(Duration::from_millis(30))));
            assert!(matches!(outcome, Err(estafette::Error::Timeout(_))), "{outcome:?}");
            op.cancel();
        })
        .grows(NEEDED)
    },
    constant("activity", |world, meter| drop(meter.count(|| Activity::from(&world.engine.diagnose()))))
        .grows(EVERYTHING),
    constant("diagnose", |world, meter| drop(meter.count(|| world.engine.diagnose()))).grows(EVERYTHING),
];

/// Exports each operand of an operation of them all from its body; those that are `kept` become leases when
/// it ends.
fn export_in_body(world: &World, meter: &Meter, kept: bool) {
    let tensors = world.tensors.clone();
    let op = world.engine.op("many").writes(&tensors);
    let body = move |completion: estafette::Completion| {
        let options = ExportOptions::from(Access::Write);
        let export = |tensor| completion.scope().export(tensor, &options).expect("it is an operand");
        let lent: Vec<_> = tensors.iter().map(export).filter(|_| kept).collect();
        completion.complete(Ok(()));
        drop(lent);
    };
    meter.count(|| op.run_external(body).and_then(block_on)).expect("it ends well");
}
