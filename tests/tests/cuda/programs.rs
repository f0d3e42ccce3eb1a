//! Programs on CUDA devices, issued node by node and as one graph, on the driver simulator: nothing here has
//! seen a GPU. The simulator finds what nothing orders, so the test that expects it to be silent has one
//! beside it in which it must speak.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard};

use estafette::bindings;
use estafette::devices::cuda::{CudaDevice, CudaQueue, CudaRuntime};
use estafette::devices::{Device, Queue};
use estafette::program::ProgramBuilder;
use estafette::{Access, DType, Engine, Error, ExportOptions, FailureKind, Op, Tensor};
use estafette_cuda_sim_client::Simulator;
use futures::executor::block_on;
use tests::ops::until;
use tests::watchdog::Watchdog;

const BYTES: i64 = 64;

struct Bench {
    simulator: &'static Simulator,
    device: Arc<CudaDevice>,
    engine: Engine,
    queues: [Arc<dyn Queue>; 2],
    _watchdog: Watchdog,
    _alone: MutexGuard<'static, ()>,
}

fn bench() -> Bench {
    bench_on(0)
}

fn bench_on(number: usize) -> Bench {
    let (alone, simulator) = crate::simulator();
    let device = Arc::clone(&CudaRuntime::get().expect("a simulated driver").devices()[number]);
    let engine = Engine::builder().workers(2).build().unwrap();
    let watchdog = Watchdog::of(&engine);
    let queues = [(); 2].map(|()| device.create_queue().unwrap());
    until("nothing of an earlier test is left", || engine.stats().releasing == 0);
    simulator.forget_violations();
    simulator.forget_calls();
    Bench { simulator, device, engine, queues, _watchdog: watchdog, _alone: alone }
}

impl Bench {
    fn bytes(&self) -> Tensor {
        self.engine.empty(&[BYTES], DType::U8, self.device.id()).unwrap()
    }

    fn fill(&self, queue: usize, x: &Tensor, value: u8) -> Op {
        let op = self.engine.op("fill").writes([x]).on(&self.queues[queue]);
        // SAFETY: the engine keeps the tensor, and all other uses away from it, until the work is done.
        op.run_on(move |queue, [], [mut x]| Ok(unsafe { own(queue).fill(x.data_mut_ptr(), value, 64) }?))
            .unwrap()
    }

    fn fills(&self, builder: &mut ProgramBuilder, name: &'static str, queue: usize, x: &Tensor, value: u8) {
        let node = builder.op(name).writes([x]).on(&self.queues[queue]);
        // SAFETY: as above.
        node.run_on(move |queue, [], [mut x]| Ok(unsafe { own(queue).fill(x.data_mut_ptr(), value, 64) }?))
            .unwrap();
    }

    fn copies(&self, builder: &mut ProgramBuilder, name: &'static str, queue: usize, x: &Tensor, y: &Tensor) {
        let node = builder.op(name).reads([x]).writes([y]).on(&self.queues[queue]);
        let device = Arc::clone(&self.device);
        node.run_on(move |queue, [x], [mut y]| {
            // SAFETY: as above.
            Ok(unsafe { device.copy(queue, x.data_ptr(), y.data_mut_ptr(), BYTES as usize) }?)
        })
        .unwrap();
    }

    /// The tensor's value, read by a copy to the host.
    fn first(&self, x: &Tensor) -> Result<u8, Error> {
        let host = self.engine.from_vec(vec![0_u8; BYTES as usize], &[BYTES]).unwrap();
        let device = Arc::clone(&self.device);
        let op = self.engine.op("read back").reads([x]).writes([&host]).on(&self.queues[0]);
        op.run_on(move |queue, [x], [mut host]| {
            // SAFETY: as above.
            Ok(unsafe { device.copy(queue, x.data_ptr(), host.data_mut_ptr(), BYTES as usize) }?)
        })?;
        host.to_vec::<u8>().map(|bytes| bytes[0])
    }

    fn silent(&self) {
        let found = self.simulator.violations();
        assert!(found.is_empty(), "{found:#?}");
        for call in ["cuCtxSynchronize", "cuEventSynchronize"] {
            assert_eq!(self.simulator.calls(call), 0, "{call}");
        }
    }

    fn calls<const N: usize>(&self, names: [&str; N]) -> [u64; N] {
        names.map(|name| self.simulator.calls(name))
    }
}

fn own(queue: &dyn Queue) -> &CudaQueue {
    CudaQueue::from_queue(queue).expect("a CUDA queue")
}

/// ```text
/// queue 0:  fill x ──────────► copy x to y ──► copy w to z
/// queue 1:          fill w ───────────────────────┘
/// ```
fn forked(bench: &Bench, [x, y, z, w]: [&Tensor; 4], graph: bool) -> estafette::Program {
    let mut builder = bench.engine.program("forked");
    bench.fills(&mut builder, "fill x", 0, x, 3);
    bench.fills(&mut builder, "fill w", 1, w, 4);
    bench.copies(&mut builder, "copy x", 0, x, y);
    bench.copies(&mut builder, "copy w", 0, w, z);
    let program = if graph { builder.finish_as_graph() } else { builder.finish() }.unwrap();
    assert!(bindings::program::is_graph(&program) == graph && format!("{program:?}").contains("nodes: 4"));
    program
}

const ENQUEUES: [&str; 4] = ["cuMemsetD8Async", "cuMemcpyAsync", "cuGraphLaunch", "cuStreamWaitEvent"];

#[test]
fn nodes_are_issued_with_one_wait_per_crossing_and_nothing_is_waited_for_on_the_host() {
    let bench = bench();
    let [x, y, z, w] = [(); 4].map(|()| bench.bytes());
    let program = forked(&bench, [&x, &y, &z, &w], false);
    bench.simulator.block(bench.queues[1].native());
    let replays = [(); 3].map(|()| program.replay().unwrap());
    for replay in &replays {
        until("it is issued", || replay.is_done());
    }
    let [sets, copies, launches, waits] = bench.calls(ENQUEUES);
    assert_eq!((sets, copies, launches), (6, 6, 0));
    // To `copy w` and, before the next replay overwrites what it read, back.
    assert_eq!(waits, 5);
    assert!(!z.is_ready());
    bench.simulator.unblock(bench.queues[1].native());
    assert_eq!([&x, &y, &z, &w].map(|tensor| bench.first(tensor).unwrap()), [3, 3, 4, 4]);
    bench.silent();
}

#[test]
fn a_graph_is_captured_by_the_first_replay_and_launched_by_one_call_for_each() {
    let bench = bench();
    let [x, y, z, w] = [(); 4].map(|()| bench.bytes());
    let program = forked(&bench, [&x, &y, &z, &w], true);
    assert_eq!(bench.calls(ENQUEUES), [0; 4], "nothing is called before the first replay");
    bench.simulator.block(bench.queues[0].native());
    let first = program.replay().unwrap();
    until("it is issued", || first.is_done());
    assert_eq!(bench.simulator.pending(bench.queues[0].native()), 1, "one command for all of it");
    assert!(!x.is_ready());
    let recorded = bench.calls(ENQUEUES);
    // As many as the blocked stream takes.
    let (_, depth) = bench.simulator.limits();
    let more = depth.map_or(99, |depth| 99.min(depth - 4));
    for _ in 0..more {
        let replay = program.replay().unwrap();
        until("it is issued", || replay.is_done());
    }
    let [sets, copies, launches, waits] = bench.calls(ENQUEUES);
    assert_eq!(
        [sets, copies, waits],
        [recorded[0], recorded[1], recorded[3]],
        "replays launch, and do nothing else"
    );
    assert_eq!(launches, more as u64 + 1);
    bench.simulator.unblock(bench.queues[0].native());
    assert_eq!([&x, &y, &z, &w].map(|tensor| bench.first(tensor).unwrap()), [3, 3, 4, 4]);
    bench.silent();
}

/// Captured work may use memory of the functions.
#[test]
fn the_functions_of_a_graph_stay_until_its_last_launch_is_over() {
    let bench = bench();
    let x = bench.bytes();
    let owned = Arc::new(());
    let kept = Arc::clone(&owned);
    let mut builder = bench.engine.program("owns");
    bench.fills(&mut builder, "fill", 0, &x, 3);
    let node = builder.op("owns").writes([&x]).on(&bench.queues[0]);
    node.run_on(move |_, [], [_x]| {
        let _ = &kept;
        Ok(())
    })
    .unwrap();
    let program = builder.finish_as_graph().unwrap();
    program.replay().unwrap().wait().unwrap();
    bench.first(&x).unwrap();
    bench.simulator.block(bench.queues[0].native());
    let replay = program.replay().unwrap();
    until("it is issued", || replay.is_done());
    drop((program, replay));
    // The worker drops the replay after the end of the operation.
    bench.engine.wait_all(None).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert_eq!(Arc::strong_count(&owned), 2);
    bench.simulator.unblock(bench.queues[0].native());
    until("the functions are dropped", || Arc::strong_count(&owned) == 1);
    bench.silent();
}

#[test]
fn a_graph_waits_for_its_inputs_on_the_device_and_others_wait_for_it_there() {
    let bench = bench();
    let [x, y] = [(); 2].map(|()| bench.bytes());
    let mut builder = bench.engine.program("copy");
    bench.copies(&mut builder, "copy", 0, &x, &y);
    let program = builder.finish_as_graph().unwrap();
    bench.simulator.block(bench.queues[1].native());
    bench.fill(1, &x, 7);
    let replay = program.replay().unwrap();
    until("it is issued", || replay.is_done());
    let mut builder = bench.engine.program("back");
    bench.fills(&mut builder, "overwrite", 1, &x, 8);
    bench.copies(&mut builder, "copy", 1, &y, &x);
    let back = builder.finish().unwrap();
    let back = back.replay().unwrap();
    until("it is issued", || back.is_done());
    assert!(!y.is_ready());
    bench.simulator.unblock(bench.queues[1].native());
    assert_eq!((bench.first(&y).unwrap(), bench.first(&x).unwrap()), (7, 7));
    bench.silent();
}

#[test]
fn a_graph_that_only_reads_is_captured_once_although_its_replays_are_not_ordered() {
    let bench = bench();
    let x = bench.bytes();
    bench.fill(0, &x, 1).wait().unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let mut builder = bench.engine.program("reads");
    let count = Arc::clone(&calls);
    let node = builder.op("reads").reads([&x]).on(&bench.queues[0]);
    node.run_on(move |_, [_x], []| {
        count.fetch_add(1, Ordering::SeqCst);
        // Long enough for another replay to begin meanwhile.
        std::thread::sleep(std::time::Duration::from_millis(50));
        Ok(())
    })
    .unwrap();
    let program = builder.finish_as_graph().unwrap();
    let replays = [(); 4].map(|()| program.replay().unwrap());
    replays.iter().for_each(|replay| replay.wait().unwrap());
    assert_eq!((calls.load(Ordering::SeqCst), bench.simulator.calls("cuGraphLaunch")), (1, 4));
    bench.silent();
}

#[test]
fn a_body_that_is_captured_sees_on_the_host_what_no_earlier_node_writes() {
    let bench = bench();
    let value = |value: u8| bench.engine.from_vec(vec![value], &[1]).unwrap();
    let (factor, made) = (value(7), value(0));
    let mut builder = bench.engine.program("peeks");
    let node = builder.op("make").writes([&made]).on(&bench.queues[0]);
    node.run_on(|_, [], [_made]| Ok(())).unwrap();
    let node = builder.op("peek").reads([&factor, &made]).on(&bench.queues[0]);
    node.run_on(|_, [factor, made], []| {
        assert_eq!(factor.as_slice::<u8>()?, [7]);
        assert!(made.as_slice::<u8>().is_err());
        Ok(())
    })
    .unwrap();
    let program = builder.finish_as_graph().unwrap();
    program.replay().unwrap().wait().unwrap();
    made.wait().unwrap();
    bench.silent();
}

/// The same with the order taken out: what one branch does to memory of another one is kept from the engine.
#[test]
fn what_the_engine_does_not_know_is_a_race_in_the_graph() {
    let bench = bench();
    let x = bench.bytes();
    let mut builder = bench.engine.program("race");
    for (name, queue) in [("one", 0), ("two", 1)] {
        let secret = x.clone();
        let node = builder.op(name).on(&bench.queues[queue]);
        node.run_on(move |queue, [], []| {
            // SAFETY: none: this is the mistake.
            Ok(unsafe { own(queue).fill(secret.data_ptr()?.cast_mut(), 1, 64) }?)
        })
        .unwrap();
    }
    let program = builder.finish_as_graph().unwrap();
    program.replay().unwrap().wait().unwrap();
    let found = bench.simulator.violations();
    assert!(found.iter().any(|text| text.contains("captured graph")), "{found:?}");
    bench.simulator.forget_violations();
    let end = bench.fill(0, &x, 0);
    end.wait().unwrap();
    bench.first(&x).unwrap();
}

#[test]
fn what_the_driver_cannot_record_is_a_failure_of_its_node_and_the_next_replay_tries_again() {
    let bench = bench();
    let [x, y] = [(); 2].map(|()| bench.bytes());
    bench.fill(0, &x, 5).wait().unwrap();
    let fate = Arc::new(AtomicUsize::new(0));
    let calls = Arc::new(AtomicUsize::new(0));
    let mut builder = bench.engine.program("step");
    bench.fills(&mut builder, "good", 0, &y, 1);
    let node = builder.op("bad").updates([&y]).on(&bench.queues[0]);
    let (choice, count, outside) = (Arc::clone(&fate), Arc::clone(&calls), Arc::clone(&bench.queues[1]));
    node.run_on(move |queue, [], [], [_y]| {
        count.fetch_add(1, Ordering::SeqCst);
        match choice.load(Ordering::SeqCst) {
            0 => Err("fate of bad".into()),
            1 => panic!("fate of bad"),
            // Asking for a stream that is recorded spoils the recording; this one does not say so.
            2 => {
                let stream = std::ptr::with_exposed_provenance_mut(queue.native());
                // SAFETY: a live stream.
                assert_ne!(unsafe { cu_stream_query(stream) }, 0);
                Ok(())
            }
            // A capture cannot wait for work outside of it.
            3 => queue.order_after(&outside.record()?).map(drop).map_err(Into::into),
            _ => Ok(()),
        }
    })
    .unwrap();
    let program = builder.finish_as_graph().unwrap();
    for (number, kind, text) in [
        (0, FailureKind::Error, "fate of bad"),
        (1, FailureKind::Panic, "fate of bad"),
        (2, FailureKind::Device, "cannot be part of a graph"),
        (3, FailureKind::Error, "capturing a graph"),
    ] {
        fate.store(number, Ordering::SeqCst);
        // Its own failure: what the replay writes, it only writes.
        let error = program.replay().unwrap().wait().unwrap_err();
        let cause = error.operation().unwrap();
        assert_eq!((cause.operation(), cause.kind()), ("bad", kind), "{error}");
        assert!(cause.message().contains(text), "{error}");
        assert!(y.wait().is_err());
    }
    fate.store(9, Ordering::SeqCst);
    for _ in 0..3 {
        program.replay().unwrap().wait().unwrap();
    }
    assert_eq!(calls.load(Ordering::SeqCst), 5, "once for each recording, and not again");
    assert_eq!(bench.first(&y).unwrap(), 1);
    // The simulator notes that a stream was asked while it was recorded: that was the point.
    let found = bench.simulator.violations();
    assert!(found.iter().all(|text| text.contains("asked or waited for while it is captured")), "{found:?}");
    bench.simulator.forget_violations();
}

/// The driver's function, as a library that knows nothing of us calls it.
unsafe fn cu_stream_query(stream: *mut std::ffi::c_void) -> i32 {
    type Query = unsafe extern "C" fn(*mut std::ffi::c_void) -> i32;
    // SAFETY: the simulator was loaded in the driver's place, for the whole process.
    unsafe {
        let symbol = libc::dlsym(libc::RTLD_DEFAULT, c"cuStreamQuery".as_ptr());
        assert!(!symbol.is_null(), "the simulated driver is loaded for all");
        std::mem::transmute::<*mut std::ffi::c_void, Query>(symbol)(stream)
    }
}

#[test]
fn a_fault_under_a_graph_is_the_failure_of_what_it_writes_and_of_every_later_replay() {
    let bench = bench_on(crate::BREAKS_IN_GRAPH);
    let [x, y, z, w] = [(); 4].map(|()| bench.bytes());
    let program = forked(&bench, [&x, &y, &z, &w], true);
    program.replay().unwrap().wait().unwrap();
    assert_eq!(bench.first(&z).unwrap(), 4);
    bench.simulator.block(bench.queues[0].native());
    let replay = program.replay().unwrap();
    until("it is issued", || replay.is_done());
    bench.simulator.fault(bench.queues[0].native(), 1, 700);
    bench.simulator.unblock(bench.queues[0].native());
    let error = z.wait().unwrap_err();
    assert_eq!(error.operation().unwrap().operation(), "forked", "{error}");
    assert!(error.to_string().contains("ILLEGAL_ADDRESS"), "{error}");
    let error = program.replay().unwrap().wait().unwrap_err();
    assert_eq!(error.operation().unwrap().kind(), FailureKind::Device, "{error}");
    bench.simulator.forget_violations();
}

#[test]
fn a_graph_that_is_dropped_while_it_runs_ends_in_peace_with_its_memory() {
    let bench = bench();
    // Workers of earlier tests may destroy the last graphs of these at any time.
    let of_earlier_tests = bench.simulator.graphs();
    let (x, y) = (bench.bytes(), bench.bytes());
    let mut builder = bench.engine.program("copy");
    bench.fills(&mut builder, "fill", 0, &x, 9);
    bench.copies(&mut builder, "copy", 0, &x, &y);
    let program = builder.finish_as_graph().unwrap();
    // The program keeps what only it knows.
    drop(x);
    bench.simulator.block(bench.queues[0].native());
    let replays = [(); 3].map(|()| program.replay().unwrap());
    for replay in replays {
        until("it is issued", || replay.is_done());
    }
    drop(program);
    bench.simulator.unblock(bench.queues[0].native());
    assert_eq!(bench.first(&y).unwrap(), 9);
    until("all memory is released", || bench.engine.stats().releasing == 0);
    // By the reactor, once the last launch is over.
    until("the graph has gone", || bench.simulator.graphs() <= of_earlier_tests);
    bench.silent();
}

#[test]
fn replays_beside_submissions_and_a_shutdown_keep_their_order() {
    let bench = bench();
    let [x, y, z, w] = [(); 4].map(|()| bench.bytes());
    let programs = [true, false].map(|graph| forked(&bench, [&x, &y, &z, &w], graph));
    std::thread::scope(|scope| {
        for program in &programs {
            scope.spawn(|| {
                for _ in 0..50 {
                    block_on(block_on(program.replay_async()).unwrap()).unwrap();
                }
            });
        }
        scope.spawn(|| {
            for value in 0..50 {
                bench.fill(usize::from(value % 2), &y, value);
            }
        });
    });
    programs[0].replay().unwrap();
    assert_eq!([&x, &y, &z, &w].map(|tensor| bench.first(tensor).unwrap()), [3, 3, 4, 4]);
    bench.silent();
    programs[0].replay().unwrap();
    drop(programs);
    assert!(bench.engine.shutdown_timeout(std::time::Duration::from_secs(30)).drained);
    bench.silent();
}

#[test]
fn what_cannot_be_a_graph_is_refused_with_the_node_that_is_in_the_way() {
    let bench = bench();
    let x = bench.bytes();
    let theirs = bench.device.queue().unwrap();
    // SAFETY: the stream lives to the end of the test.
    let theirs = unsafe { bench.device.foreign_queue(theirs.native()) }.unwrap();
    let other = &CudaRuntime::get().unwrap().devices()[1];
    for (queue, text) in [(theirs, "a foreign queue"), (other.create_queue().unwrap(), "cuda:1")] {
        let mut builder = bench.engine.program("step");
        bench.fills(&mut builder, "good", 0, &x, 1);
        builder.op("bad").on(&queue).run_on(|_, [], []| Ok(())).unwrap();
        let error = builder.finish_as_graph().unwrap_err().to_string();
        assert!(error.contains("node 1 `bad`") && error.contains(text), "{error}");
    }
}

#[test]
fn a_node_that_has_not_ended_lends_nothing_after_its_replay() {
    let bench = bench();
    let x = bench.bytes();
    bench.fill(0, &x, 5).wait().unwrap();
    let mut builder = bench.engine.program("step");
    let (moved, completions) = std::sync::mpsc::channel();
    let node = builder.op("elsewhere").updates([&x]).on(&bench.queues[0]);
    node.run_external(move |end| drop(moved.send(end))).unwrap();
    let error = builder.finish_as_graph().unwrap().replay().unwrap().wait().unwrap_err().to_string();
    assert!(error.contains("has to end before its function returns"), "{error}");
    let late = completions.recv().unwrap();
    let lent = late.scope().export(&x, &ExportOptions::from(Access::Write));
    assert!(lent.is_err(), "the replay has ended: {lent:?}");
    late.complete(Ok(()));
    bench.fill(0, &x, 6).wait().unwrap();
    assert_eq!(bench.first(&x).unwrap(), 6);
    bench.silent();
}
