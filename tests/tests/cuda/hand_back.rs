//! Memory that goes back to a caching allocator behind a wait of the allocator's stream, on the driver
//! simulator. The allocator here is a double of those of PyTorch and CuPy: what is freed is given out again
//! at once, for work on the block's own stream.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use estafette::bindings;
use estafette::devices::cuda::{CudaDevice, CudaQueue, CudaRuntime};
use estafette::devices::{Allocation, Device, FenceSet, Queue};
use estafette::exchange::{Abi, ExportFlags, Layout, ManagedTensor, ReleaseStream, export};
use estafette::lease::Consumer;
use estafette::{Access, DType, Engine, ImportOptions, Tensor};
use estafette_cuda_sim_client::Simulator;
use tests::ops::until;
use tests::watchdog::Watchdog;

const BYTES: usize = 64;

struct Bench {
    simulator: &'static Simulator,
    device: Arc<CudaDevice>,
    engine: Engine,
    ours: Arc<dyn Queue>,
    owner: Arc<Owner>,
    _watchdog: Watchdog,
    _alone: MutexGuard<'static, ()>,
}

/// A library with a stream of its own and one block, which its allocator gives out again as soon as it is
/// free.
struct Owner {
    queue: Arc<CudaQueue>,
    block: Allocation,
    freed: Mutex<u32>,
}

fn bench() -> Bench {
    let (alone, simulator) = crate::simulator();
    simulator.reset();
    let device = Arc::clone(&CudaRuntime::get().expect("a simulated driver").devices()[0]);
    let engine = Engine::builder().workers(1).build().unwrap();
    let watchdog = Watchdog::of(&engine);
    let ours = device.create_queue().unwrap();
    let owner = Arc::new(Owner {
        queue: device.queue().unwrap(),
        block: device.allocate(BYTES, 64).unwrap(),
        freed: Mutex::new(0),
    });
    until("nothing of an earlier test is left", || {
        let stats = engine.stats();
        stats.quarantine.waiting == 0 && stats.releasing == 0
    });
    Bench { simulator, device, engine, ours, owner, _watchdog: watchdog, _alone: alone }
}

impl Owner {
    /// A tensor in the block, as its `__dlpack__` would give it.
    fn lends(self: &Arc<Self>, device: &CudaDevice) -> ManagedTensor {
        let layout = Layout::contiguous(DType::U8, device.id(), &[BYTES as i64]).unwrap();
        let flags = ExportFlags { read_only: false, is_copied: false };
        let owner = Arc::clone(self);
        // SAFETY: the block is as long as the layout says, and is not given out before the deleter is called.
        unsafe {
            export(&layout, self.block.ptr().as_ptr(), flags, Abi::Versioned, move || {
                *owner.freed.lock().unwrap() += 1
            })
        }
    }

    fn freed(&self) -> u32 {
        *self.freed.lock().unwrap()
    }

    /// Allocates the block for work that writes it on the block's stream.
    fn reuses(&self, value: u8) {
        assert!(self.freed() > 0, "the block is not free");
        // SAFETY: the block is back with its owner.
        unsafe { self.queue.fill(self.block.ptr().as_ptr(), value, BYTES) }.unwrap();
    }

    /// The block's value after all work on its stream.
    fn holds(&self, device: &CudaDevice) -> Vec<u8> {
        let mut bytes = vec![0_u8; BYTES];
        // SAFETY: both stay until the copy is done.
        unsafe { device.copy(&*self.queue, self.block.ptr().as_ptr(), bytes.as_mut_ptr(), BYTES) }.unwrap();
        self.queue.record().unwrap().wait_timeout(None).unwrap().unwrap();
        bytes
    }
}

impl Bench {
    fn import(&self, stream: usize) -> Tensor {
        let managed = self.owner.lends(&self.device);
        // The owner's enqueued work comes before the engine's.
        let ready = FenceSet::from(self.owner.queue.record().unwrap());
        // SAFETY: streams of this test live as long as it does; whether it is the right one is what is
        // tested.
        unsafe {
            let release_stream = ReleaseStream::new(Arc::clone(&self.device) as _, stream, None).unwrap();
            let options =
                ImportOptions { ready, release_stream: Some(release_stream), ..ImportOptions::default() };
            self.engine.import_with(managed, options).unwrap()
        }
    }

    /// Fills the block with 5 on a queue of the engine that is blocked.
    fn uses(&self, x: &Tensor) {
        self.simulator.block(self.ours.native());
        let op = self.engine.op("fill").writes([x]).on(&self.ours);
        let op = op.run_on(|queue, [], [mut x]| {
            let queue = CudaQueue::from_queue(queue).expect("a CUDA queue");
            // SAFETY: the engine keeps the tensor, and all other uses away from it, until the work is done.
            Ok(unsafe { queue.fill(x.data_mut_ptr(), 5, BYTES) }?)
        });
        let op = op.unwrap();
        until("the fill was issued", || op.is_done());
    }

    fn unblock(&self) {
        self.simulator.unblock(self.ours.native());
    }

    fn silent(&self) {
        let found = self.simulator.violations();
        assert!(found.is_empty(), "{found:#?}");
    }
}

#[test]
fn a_block_is_free_at_once_and_its_next_user_comes_after_us() {
    let bench = bench();
    let before = bench.engine.stats().handed_back;
    let x = bench.import(bench.owner.queue.native());
    bench.uses(&x);
    drop(x);
    until("the deleter was called", || bench.owner.freed() == 1);
    assert_eq!(bench.engine.stats().handed_back, before + 1);
    bench.owner.reuses(9);
    bench.unblock();
    assert_eq!(bench.owner.holds(&bench.device), [9; BYTES]);
    bench.silent();
}

#[test]
fn a_wait_of_another_stream_than_the_blocks_is_found_to_be_none() {
    let bench = bench();
    let another = bench.device.queue().unwrap();
    let x = bench.import(another.native());
    bench.uses(&x);
    drop(x);
    until("the deleter was called", || bench.owner.freed() == 1);
    bench.owner.reuses(9);
    bench.unblock();
    until("the race was found", || {
        bench.simulator.violations().iter().any(|found| found.starts_with("race"))
    });
    bench.owner.holds(&bench.device);
}

#[test]
fn without_a_home_the_block_is_free_when_we_are_done() {
    let bench = bench();
    let before = bench.engine.stats().handed_back;
    // SAFETY: what is lent is there until the deleter is called.
    let x = unsafe { bench.engine.import(bench.owner.lends(&bench.device)) }.unwrap();
    bench.uses(&x);
    drop(x);
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(bench.owner.freed(), 0, "its last use is pending");
    bench.unblock();
    until("the deleter was called", || bench.owner.freed() == 1);
    assert_eq!(bench.engine.stats().handed_back, before);
    bench.owner.reuses(9);
    assert_eq!(bench.owner.holds(&bench.device), [9; BYTES]);
    bench.silent();
}

#[test]
fn what_only_the_host_can_wait_for_holds_the_block_as_ever() {
    let bench = bench();
    let theirs = bench.device.queue().unwrap();
    let before = bench.engine.stats().handed_back;
    let x = bench.import(bench.owner.queue.native());
    // SAFETY: the stream lives.
    let consumer = unsafe { bindings::tensor::consumer_on(&x, bench.device.id(), theirs.native()) }.unwrap();
    assert!(matches!(consumer, Consumer::Queue(_)));
    let lease =
        x.lease(Access::Read, "a consumer").for_consumer(&consumer).wait(Some(Duration::ZERO)).unwrap();
    bench.simulator.block(theirs.native());
    let copy = bench.device.allocate(BYTES, 64).unwrap();
    // SAFETY: the lease keeps the block, and the copy is this test's.
    unsafe { bench.device.copy(&*theirs, bench.owner.block.ptr().as_ptr(), copy.ptr().as_ptr(), BYTES) }
        .unwrap();
    drop((lease, consumer, x));
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(bench.owner.freed(), 0, "the consumer's work goes through a quarantine");
    bench.simulator.unblock(theirs.native());
    until("the deleter was called", || bench.owner.freed() == 1);
    assert_eq!(bench.engine.stats().handed_back, before);
    bench.silent();
}

#[test]
fn many_blocks_go_home_in_whatever_order_their_uses_end() {
    let bench = bench();
    let queues: Vec<_> = (0..4).map(|_| bench.device.create_queue().unwrap()).collect();
    for round in 1..=200_u32 {
        let x = bench.import(bench.owner.queue.native());
        for queue in [&queues[round as usize % 4], &queues[round as usize / 4 % 4]] {
            let op = bench.engine.op("fill").writes([&x]).on(queue).run_on(move |queue, [], [mut x]| {
                let queue = CudaQueue::from_queue(queue).expect("a CUDA queue");
                // SAFETY: as above.
                Ok(unsafe { queue.fill(x.data_mut_ptr(), round as u8, BYTES) }?)
            });
            op.unwrap();
        }
        drop(x);
        until("the deleter was called", || bench.owner.freed() == round);
        bench.owner.reuses(round as u8);
    }
    assert_eq!(bench.owner.holds(&bench.device), [200; BYTES]);
    bench.silent();
}

#[test]
fn a_home_is_named_by_a_stream_that_means_the_same_everywhere() {
    let bench = bench();
    for stream in [0, 2] {
        // SAFETY: it is refused.
        let error = unsafe { ReleaseStream::new(Arc::clone(&bench.device) as _, stream, None) }.unwrap_err();
        assert!(error.to_string().contains("another stream on other threads"), "{error}");
    }
    let other = Arc::clone(&CudaRuntime::get().unwrap().devices()[1]);
    let queue = other.queue().unwrap();
    // SAFETY: it is refused, or its stream lives.
    unsafe {
        ReleaseStream::new(Arc::clone(&bench.device) as _, queue.native(), None).unwrap_err();
        let release_stream = ReleaseStream::new(other, queue.native(), None).unwrap();
        let managed = bench.owner.lends(&bench.device);
        let error = bench
            .engine
            .import_with(
                managed,
                ImportOptions { release_stream: Some(release_stream), ..ImportOptions::default() },
            )
            .unwrap_err();
        assert!(error.to_string().contains("its release stream on cuda:1"), "{error}");
    }
    until("what is refused is released", || bench.owner.freed() == 1);
}
