//! Copies between host and device, on the driver simulator: who waits, in which order, and what is left
//! behind. The simulator lets a copy to memory that is not pinned block its caller, as the driver may.

use std::sync::{Arc, MutexGuard};

use estafette::bindings::{self, Current, WaitHook};
use estafette::devices::cuda::{CudaDevice, CudaQueue, CudaRuntime};
use estafette::devices::{DLDevice, Device, Queue};
use estafette::exchange::{Abi, ExportFlags, Layout, export};
use estafette::{Access, Completion, DType, Engine, ExportOptions, Op, Tensor};
use estafette_cuda_sim_client::{Kind, Simulator};
use tests::ops::{until, until_or};
use tests::watchdog::Watchdog;

/// More than one staging chunk, and no multiple of it.
const LARGE: usize = (7 << 20) + 13;
/// Limit of pinned memory, for two devices.
const STAGING_MAX: u64 = 2 * (28 << 20);

struct Bench {
    simulator: &'static Simulator,
    device: Arc<CudaDevice>,
    engine: Engine,
    ours: Arc<dyn Queue>,
    _watchdog: Watchdog,
    _alone: MutexGuard<'static, ()>,
}

/// An engine with one worker, so a body that blocks it is detected.
fn bench_on(device: usize) -> Bench {
    let (alone, simulator) = crate::simulator();
    simulator.reset();
    let device = Arc::clone(&CudaRuntime::get().expect("a simulated driver").devices()[device]);
    let engine = Engine::builder().workers(1).build().unwrap();
    let watchdog = Watchdog::of(&engine);
    let ours = device.create_queue().unwrap();
    until("nothing of an earlier test is left", || {
        let stats = engine.stats();
        stats.quarantine.waiting == 0 && stats.releasing == 0
    });
    Bench { simulator, device, engine, ours, _watchdog: watchdog, _alone: alone }
}

fn bench() -> Bench {
    bench_on(0)
}

impl Bench {
    fn memory(&self, bytes: usize) -> Tensor {
        self.engine.empty(&[bytes as i64], DType::U8, self.device.id()).unwrap()
    }

    fn fill(&self, x: &Tensor, value: u8) -> Op {
        self.fill_on(&self.ours, x, value)
    }

    fn fill_on(&self, queue: &Arc<dyn Queue>, x: &Tensor, value: u8) -> Op {
        let op = self.engine.op("fill").writes([x]).on(queue);
        op.run_on(move |queue, [], [mut x]| {
            let queue = CudaQueue::from_queue(queue).expect("a CUDA queue");
            let bytes = x.layout().byte_len();
            // SAFETY: the engine keeps the tensor, and all other uses away from it, until the work is done.
            Ok(unsafe { queue.fill(x.data_mut_ptr(), value, bytes) }?)
        })
        .unwrap()
    }

    /// A tensor that a blocked queue will fill with 5.
    fn pending(&self, bytes: usize) -> Tensor {
        self.pending_on(&self.ours, bytes)
    }

    fn pending_on(&self, queue: &Arc<dyn Queue>, bytes: usize) -> Tensor {
        let x = self.memory(bytes);
        self.simulator.block(queue.native());
        self.fill_on(queue, &x, 5).wait_issued();
        x
    }

    fn unblock(&self) {
        self.simulator.unblock(self.ours.native());
    }

    fn to_host(&self, x: &Tensor) -> Tensor {
        self.engine.copy(x, DLDevice::CPU).unwrap()
    }

    /// Holders of memory of the device.
    fn what_is_left(&self) -> String {
        let (used, pending) = (self.simulator.used(0), self.simulator.pending(self.ours.native()));
        let (stats, found) = (self.engine.stats(), self.engine.diagnose());
        format!("{used} bytes are in use, {pending} commands are pending: {stats:#?} {found}")
    }

    /// Host operations still run.
    fn worker_is_free(&self) {
        for _ in 0..8 {
            let op = self.engine.op("on the host").run(|[], []| Ok(())).unwrap();
            until("the worker ran an operation of the host", || op.is_done());
        }
    }

    fn silent(&self) {
        let found = self.simulator.violations();
        assert!(found.is_empty(), "{found:#?}");
        for call in ["cuCtxSynchronize", "cuEventSynchronize", "copies that may block"] {
            assert_eq!(self.simulator.calls(call), 0, "{call}");
        }
    }
}

trait Issued {
    fn wait_issued(&self);
}

impl Issued for Op {
    fn wait_issued(&self) {
        until("the operation was issued", || self.is_done());
    }
}

/// Bytes that differ from their neighbours.
fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 + at / 251) as u8).collect()
}

#[test]
fn a_copy_to_the_host_holds_no_worker_while_its_producer_runs() {
    let bench = bench();
    let x = bench.pending(64);
    let small = bench.to_host(&x);
    bench.worker_is_free();
    assert!(!small.is_ready());
    bench.unblock();
    assert_eq!(small.to_vec::<u8>().unwrap(), [5; 64]);
    bench.silent();
}

#[test]
fn a_large_copy_to_the_host_holds_no_worker_either() {
    let bench = bench();
    let x = bench.pending(LARGE);
    let copy = bench.to_host(&x);
    bench.worker_is_free();
    bench.unblock();
    assert!(copy.to_vec::<u8>().unwrap().iter().all(|byte| *byte == 5));
    bench.silent();
}

#[test]
fn copies_to_the_device_hold_no_worker_and_whoever_reads_them_waits_on_the_device() {
    let bench = bench();
    bench.simulator.latency(None, Some(Kind::Copy), 20_000_000);
    let host = bench.engine.from_vec(pattern(LARGE), &[LARGE as i64]).unwrap();
    let up = bench.engine.copy(&host, bench.device.id()).unwrap();
    bench.worker_is_free();
    let down = bench.to_host(&up);
    bench.worker_is_free();
    assert_eq!(down.to_vec::<u8>().unwrap(), pattern(LARGE));
    assert_eq!((up.device().unwrap(), down.device().unwrap()), (bench.device.id(), DLDevice::CPU));
    bench.silent();
}

#[test]
fn a_write_that_is_asked_for_after_a_copy_comes_after_it() {
    let bench = bench();
    let x = bench.pending(LARGE);
    let copy = bench.to_host(&x);
    let within = bench.engine.copy(&x, bench.device.id()).unwrap();
    let write = bench.fill(&x, 6);
    bench.unblock();
    write.wait().unwrap();
    assert!(copy.to_vec::<u8>().unwrap().iter().all(|byte| *byte == 5));
    assert_eq!(bench.to_host(&within).to_vec::<u8>().unwrap(), vec![5; LARGE]);
    assert_eq!(bench.to_host(&x).to_vec::<u8>().unwrap(), vec![6; LARGE]);
    bench.silent();
}

#[test]
fn a_copy_within_a_device_is_there_at_once_and_ready_later() {
    let bench = bench();
    let x = bench.pending(64);
    let copy = bench.engine.copy(&x, bench.device.id()).unwrap();
    until("the copy was issued", || bindings::tensor::is_defined(&copy));
    assert!(!copy.is_ready(), "its producer is blocked");
    let again = bench.engine.copy(&copy, bench.device.id()).unwrap();
    until("a copy of the copy was issued", || bindings::tensor::is_defined(&again));
    bench.unblock();
    assert_eq!(bench.to_host(&again).to_vec::<u8>().unwrap(), [5; 64]);
    bench.silent();
}

#[test]
fn a_copy_goes_from_one_cuda_device_to_another_without_the_host() {
    let bench = bench();
    let other = Arc::clone(&CudaRuntime::get().unwrap().devices()[1]);
    if other.fault().is_some() {
        return eprintln!("another test has broken the second device");
    }
    let x = bench.pending(LARGE);
    let there = bench.engine.copy(&x, other.id()).unwrap();
    until("the copy was issued", || bindings::tensor::is_defined(&there));
    assert!(!there.is_ready());
    bench.unblock();
    assert_eq!(bench.to_host(&there).to_vec::<u8>().unwrap(), vec![5; LARGE]);
    bench.silent();
}

#[test]
fn a_hundred_copies_at_once_pin_no_more_than_a_bound() {
    let bench = bench();
    if bench.simulator.limits().0 == Some(1) {
        return eprintln!("skipped: what copies would wait on the connection of the stream that is blocked");
    }
    let x = bench.pending(3 << 20);
    let copies: Vec<_> = (0..100)
        .map(|at| {
            if at % 2 == 0 {
                return bench.to_host(&x);
            }
            let host = bench.engine.from_vec(vec![7_u8; 3 << 20], &[3 << 20]).unwrap();
            bench.to_host(&bench.engine.copy(&host, bench.device.id()).unwrap())
        })
        .collect();
    bench.worker_is_free();
    assert!(bench.engine.stats().staging_bytes <= STAGING_MAX);
    bench.unblock();
    for (at, copy) in copies.iter().enumerate() {
        let value = if at % 2 == 0 { 5 } else { 7 };
        assert!(copy.to_vec::<u8>().unwrap().iter().all(|byte| *byte == value), "copy {at}");
    }
    let pinned = bench.engine.stats().staging_bytes;
    assert!((1..=STAGING_MAX).contains(&pinned), "{pinned}");
    bench.silent();
}

#[test]
fn small_copies_pass_large_ones_that_wait_for_their_producer() {
    let bench = bench();
    let x = bench.pending(3 << 20);
    let held: Vec<_> = (0..12).map(|_| bench.to_host(&x)).collect();
    let host = bench.engine.from_vec(pattern(64), &[64]).unwrap();
    let free = bench.memory(64);
    let other = bench.device.create_queue().unwrap();
    bench.engine.op("nothing").writes([&free]).on(&other).run_on(|_, [], [_]| Ok(())).unwrap();
    let up = bench.engine.copy(&host, bench.device.id()).unwrap();
    until("the small copy was issued", || bindings::tensor::is_defined(&up));
    assert!(held.iter().all(|copy| !copy.is_ready()));
    bench.unblock();
    held.iter().for_each(|copy| copy.wait().unwrap());
    assert_eq!(bench.to_host(&up).to_vec::<u8>().unwrap(), pattern(64));
    bench.silent();
}

#[test]
fn strided_memory_of_a_device_is_packed_by_the_host() {
    let bench = bench();
    let (rows, columns) = (2_000_i64, 1_500_i64);
    let host = bench.engine.from_vec(pattern((rows * columns) as usize), &[rows * columns]).unwrap();
    let up = bench.engine.copy(&host, bench.device.id()).unwrap();
    up.wait().unwrap();
    let layout = Layout::strided(DType::U8, bench.device.id(), &[columns, rows], &[1, columns]).unwrap();
    let flags = ExportFlags { read_only: false, is_copied: false };
    let (data, kept) = (up.data_ptr().unwrap().cast_mut(), up.clone());
    // SAFETY: the tensor is kept until the deleter is called, and is as long as the layout says.
    let transposed = unsafe {
        let managed = export(&layout, data, flags, Abi::Versioned, move || drop(kept));
        bench.engine.import(managed).unwrap()
    };
    let expected: Vec<u8> = {
        let bytes = pattern((rows * columns) as usize);
        (0..columns)
            .flat_map(|c| (0..rows).map(move |r| (r * columns + c) as usize))
            .map(|at| bytes[at])
            .collect()
    };
    assert_eq!(bench.to_host(&transposed).to_vec::<u8>().unwrap(), expected);
    let there = bench.engine.copy(&transposed, bench.device.id()).unwrap();
    assert_eq!(bench.to_host(&there).to_vec::<u8>().unwrap(), expected);
    bench.silent();
}

#[test]
fn memory_that_is_on_its_way_back_is_waited_for_before_there_is_no_room() {
    let bench = bench();
    until("the memory of earlier tests was released", || bench.simulator.used(0) == 0);
    let x = bench.pending(LARGE);
    bench.simulator.capacity(LARGE as u64);
    drop(x);
    std::thread::scope(|scope| {
        let again = scope.spawn(|| bench.engine.empty(&[LARGE as i64], DType::U8, bench.device.id()));
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!again.is_finished(), "it waits for the device");
        bench.unblock();
        again.join().unwrap().expect("the first chunk is free again");
    });
    let refused = bench.engine.empty(&[2 * LARGE as i64], DType::U8, bench.device.id());
    assert!(refused.unwrap_err().to_string().contains("cannot allocate"), "nothing more comes back");
    bench.simulator.capacity(4 << 30);
    bench.silent();
}

/// The last of it may take any time.
#[test]
fn an_allocation_waits_for_as_much_memory_as_it_needs() {
    let bench = bench();
    // One stream passes another one.
    let connections = bench.simulator.limits().0;
    bench.simulator.connections(0);
    until("the memory of earlier tests was released", || bench.simulator.used(0) == 0);
    let other = bench.device.create_queue().unwrap();
    let (late, early) = (bench.pending(LARGE), bench.pending_on(&other, LARGE));
    bench.simulator.capacity(2 * LARGE as u64);
    drop((late, early));
    std::thread::scope(|scope| {
        let again = scope.spawn(|| bench.engine.empty(&[LARGE as i64], DType::U8, bench.device.id()));
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!again.is_finished(), "it waits for the device");
        let begun = std::time::Instant::now();
        bench.simulator.unblock(other.native());
        again.join().unwrap().expect("one chunk is free again");
        assert!(begun.elapsed() < std::time::Duration::from_secs(3), "it does not wait for the other");
    });
    bench.unblock();
    bench.simulator.connections(connections.map_or(0, |count| count as u32));
    bench.simulator.capacity(4 << 30);
    bench.silent();
}

/// Its thread runs an event loop.
struct NeverSleeps;

impl WaitHook for NeverSleeps {
    fn concerns(&self) -> bool {
        false
    }

    fn may_sleep(&self) -> bool {
        false
    }

    fn ends(&self, _needs: &dyn Fn(&[Current]) -> Option<usize>) -> bool {
        false
    }
}

#[test]
fn an_allocation_on_the_thread_of_an_event_loop_waits_for_no_memory() {
    let bench = bench();
    until("the memory of earlier tests was released", || bench.simulator.used(0) == 0);
    bindings::engine::on_wait(&bench.engine, NeverSleeps);
    let x = bench.pending(LARGE);
    bench.simulator.capacity(LARGE as u64);
    drop(x);
    let refused = bench.engine.empty(&[LARGE as i64], DType::U8, bench.device.id());
    assert!(refused.unwrap_err().to_string().contains("cannot allocate"));
    bench.unblock();
    bench.simulator.capacity(4 << 30);
    bench.silent();
}

/// A function that gets an address alone is not known to use a view.
#[test]
fn a_task_that_takes_addresses_reaches_the_memory_of_another_device() {
    let bench = bench();
    let other = CudaRuntime::get().unwrap().device(1).expect("the simulator has two");
    let x = bench.memory(64);
    let at = x.data_ptr().unwrap().expose_provenance();
    let taken = bench.engine.op("addresses").reads([&x]).on(&other.default_queue());
    let start = move |completion: Completion| {
        let reaches = other.can_access(std::ptr::with_exposed_provenance(at));
        completion.complete(if reaches { Ok(()) } else { Err("it cannot".into()) });
    };
    taken.run_external(start).unwrap().wait().unwrap();
    bench.silent();
}

#[test]
fn copies_that_nobody_wants_any_more_end_and_give_everything_back() {
    let bench = bench();
    // Memory is freed in the order of a stream, so that of the test before may be there for a moment more.
    until("the memory of earlier tests was released", || bench.simulator.used(0) == 0);
    let x = bench.pending(LARGE);
    let (down, within) = (bench.to_host(&x), bench.engine.copy(&x, bench.device.id()).unwrap());
    drop((x, down, within));
    bench.worker_is_free();
    bench.unblock();
    until_or(
        "all memory of the device was released",
        || bench.simulator.used(0) == 0,
        || bench.what_is_left(),
    );
    bench.silent();
}

#[test]
fn an_engine_that_is_dropped_lets_its_copies_finish() {
    let bench = bench();
    let x = bench.pending(LARGE);
    let engine = Engine::builder().workers(1).build().unwrap();
    let copy = engine.copy(&x, DLDevice::CPU).unwrap();
    drop(engine);
    bench.unblock();
    assert_eq!(copy.to_vec::<u8>().unwrap(), vec![5; LARGE]);
    bench.silent();
}

#[test]
fn a_copy_of_what_fails_fails_with_its_cause() {
    let bench = bench();
    let x = bench.memory(64);
    bench.engine.op("broken").writes([&x]).on(&bench.ours).run_on(|_, [], [_]| Err("no ink".into())).unwrap();
    let error = bench.to_host(&x).wait().unwrap_err().to_string();
    assert!(error.contains("broken") && error.contains("no ink"), "{error}");
    let nowhere =
        bench.engine.copy(&bench.memory(8), DLDevice::new(bench.device.id().device_type, 77)).unwrap();
    assert!(nowhere.wait().unwrap_err().to_string().contains("cuda:77"));
    bench.silent();
}

#[test]
fn a_result_that_has_to_be_copied_is_copied_by_its_device() {
    let bench = bench();
    let x = bench.pending(64);
    let lent = x.clone();
    let op = bench.engine.op("view").reads([&x]).on(&bench.ours);
    // The memory is known already, so the result cannot have it.
    let result = op
        .produce_external(move |end| {
            let view = end.scope().export(&lent, &ExportOptions::from(Access::Read));
            end.produce(view.map(Into::into).map_err(Into::into));
        })
        .unwrap();
    bench.worker_is_free();
    until("the copy was issued", || bindings::tensor::is_defined(&result));
    assert!(!result.is_ready());
    assert_eq!(result.device().unwrap(), bench.device.id());
    assert_ne!(result.data_ptr().unwrap(), x.data_ptr().unwrap());
    let write = bench.fill(&x, 6);
    bench.unblock();
    write.wait().unwrap();
    assert_eq!(bench.to_host(&result).to_vec::<u8>().unwrap(), [5; 64]);
    bench.silent();
}

#[test]
fn memory_that_an_operation_does_not_name_is_written_after_its_result_was_copied() {
    let bench = bench();
    let y = bench.memory(64);
    bench.fill(&y, 5);
    y.wait().unwrap();
    let x = bench.pending(64);
    let alias = y.export_wait(&ExportOptions::from(Access::Alias)).unwrap();
    let op = bench.engine.op("view").reads([&x]).on(&bench.ours);
    let result = op.produce_external(move |end| end.produce(Ok(alias.into()))).unwrap();
    until("the copy was issued", || bindings::tensor::is_defined(&result));
    assert!(!result.is_ready());
    let write = bench.fill(&y, 6);
    bench.unblock();
    write.wait().unwrap();
    assert_eq!(bench.to_host(&result).to_vec::<u8>().unwrap(), [5; 64]);
    bench.silent();
}

#[test]
fn a_copy_for_a_stream_is_exported_while_its_producer_runs() {
    let bench = bench();
    let theirs = bench.device.queue().unwrap();
    let x = bench.pending(64);
    // SAFETY: the stream lives.
    let consumer = unsafe { bindings::tensor::consumer_on(&x, bench.device.id(), theirs.native()) }.unwrap();
    let options = ExportOptions {
        copy: true,
        copy_to: bench.device.id(),
        consumer,
        ..ExportOptions::from(Access::Read)
    };
    let exported = x.export_wait(&options).unwrap();
    assert!(exported.flags().is_copied && !exported.flags().read_only);
    let memory = bench.device.allocate(64, 64).unwrap();
    // SAFETY: what was exported is kept below, and the memory is ours.
    unsafe { bench.device.copy(&*theirs, exported.data(), memory.ptr().as_ptr(), 64) }.unwrap();
    let write = bench.fill(&x, 6);
    bench.unblock();
    write.wait().unwrap();
    let mut bytes = [0_u8; 64];
    // SAFETY: both stay until the copy is done.
    unsafe { bench.device.copy(&*theirs, memory.ptr().as_ptr(), bytes.as_mut_ptr(), 64) }.unwrap();
    theirs.record().unwrap().wait_timeout(None).unwrap().unwrap();
    assert_eq!(bytes, [5; 64]);
    drop((options, exported));
    let found = bench.simulator.violations();
    assert!(found.is_empty(), "{found:#?}");
}

/// Content that is copied while the operation that gives it is pending on its queue.
fn copied_in_an_operation(give: impl FnOnce(Completion, Tensor) + Send + 'static) {
    let bench = bench();
    let x = bench.pending(64);
    let lent = x.clone();
    let op = bench.engine.op("give").reads([&x]).on(&bench.ours);
    let result = op.produce_external(move |end| give(end, lent)).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    bench.unblock();
    result.wait().unwrap();
    assert_eq!(result.to_vec::<u8>().unwrap(), [5; 64]);
}

#[test]
fn an_operand_that_is_returned_is_copied_after_the_work_before() {
    copied_in_an_operation(|end, x| end.produce(Ok(x.into())));
}

#[test]
fn an_operand_is_exported_as_a_copy_after_the_work_before() {
    copied_in_an_operation(|end, x| {
        let options = ExportOptions { copy: true, ..ExportOptions::from(Access::Read) };
        let copy = end.scope().export(&x, &options);
        end.produce(copy.map(Into::into).map_err(Into::into));
    });
}

#[test]
fn a_lease_that_a_stream_waits_for_is_exported_as_a_copy_after_the_work_before() {
    let bench = bench();
    let x = bench.pending(64);
    let theirs = bench.device.queue().unwrap();
    // SAFETY: the stream lives.
    let consumer = unsafe { bindings::tensor::consumer_on(&x, bench.device.id(), theirs.native()) }.unwrap();
    let lease = x.lease(Access::Read, "the test").for_consumer(&consumer).wait(None).unwrap();
    let options = ExportOptions { copy: true, ..ExportOptions::from(Access::Read) };
    let copy = std::thread::spawn(move || lease.export(&options).unwrap());
    std::thread::sleep(std::time::Duration::from_millis(20));
    bench.unblock();
    // SAFETY: the copy is in memory of the host, and this thread's.
    let copy = unsafe { bench.engine.import(copy.join().unwrap()) }.unwrap();
    assert_eq!(copy.to_vec::<u8>().unwrap(), [5; 64]);
}

#[test]
fn copies_that_are_waited_for_make_a_stream_once() {
    let bench = bench();
    let x = bench.memory(64);
    bench.fill(&x, 5).wait().unwrap();
    let options =
        ExportOptions { copy: true, copy_to: bench.device.id(), ..ExportOptions::from(Access::Read) };
    let copy =
        || futures::executor::block_on(x.lease(Access::Read, "the test")).unwrap().export(&options).unwrap();
    let first = copy();
    let made = bench.simulator.calls("cuStreamCreate");
    let others: Vec<_> = (0..10).map(|_| copy()).collect();
    assert_eq!(bench.simulator.calls("cuStreamCreate"), made);
    drop((first, others));
}

#[test]
fn a_fault_in_the_middle_of_a_copy_ends_it() {
    const ILLEGAL_ADDRESS: i32 = 700;
    let bench = bench_on(crate::BREAKS_IN_COPY);
    if bench.device.fault().is_some() {
        return eprintln!("the device is broken already");
    }
    let x = bench.pending(LARGE);
    let (down, within) = (bench.to_host(&x), bench.engine.copy(&x, bench.device.id()).unwrap());
    until("the copy within was issued", || bindings::tensor::is_defined(&within));
    bench.worker_is_free();
    bench.simulator.fault_device(crate::BREAKS_IN_COPY as u32, ILLEGAL_ADDRESS);
    for copy in [&down, &within] {
        let error = copy.wait().unwrap_err().to_string();
        assert!(error.contains("700") || error.to_lowercase().contains("illegal"), "{error}");
    }
    bench.worker_is_free();
    let error = bench.engine.copy(&x, DLDevice::CPU).and_then(|copy| copy.wait()).unwrap_err();
    assert!(error.to_string().to_lowercase().contains("illegal"), "{error}");
}
