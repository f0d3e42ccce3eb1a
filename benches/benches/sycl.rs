//! Figures of SYCL: completions observed without a blocked thread, chains, and queries per operation.
//!
//! Needs the runtime in `ESTAFETTE_DPCTL_LIBRARY`, and `OCL_ICD_FILENAMES` and `OCL_ICD_VENDORS` if the
//! processor is the device. The argument `latency` or `chain` selects one half.
#![allow(clippy::unwrap_used, clippy::undocumented_unsafe_blocks, reason = "a bench")]

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use benches::Spread;
use estafette::devices::sycl::{SyclDevice, SyclRuntime};
use estafette::devices::{Device, Fence, Queue, Timing, host_now_ns};
use estafette::{DType, Engine};
use futures::executor::block_on;

const ROUNDS: usize = 101;
const CHAIN: usize = 1_000;

/// Prints the spread of the times, and returns their median in seconds.
fn show(what: &str, times: Vec<Duration>) -> f64 {
    let times = times.iter().map(Duration::as_secs_f64).collect();
    let Spread { median, min, max } = Spread::of(times).expect("at least one round");
    let [middle, low, high] = [median, min, max].map(Duration::from_secs_f64);
    println!("{what:<44} {middle:>12?} [{low:?} to {high:?}]");
    median
}

type Object = *mut c_void;

/// Direct calls of the library, without the engine.
struct ByHand {
    wait: unsafe extern "C" fn(Object),
    delete: unsafe extern "C" fn(Object),
    copy: unsafe extern "C" fn(Object, *mut u8, *const u8, usize, *const Object, usize) -> Object,
    device_of: unsafe extern "C" fn(Object) -> Object,
    queue: unsafe extern "C" fn(Object, *const c_void, i32) -> Object,
}

impl ByHand {
    fn load() -> Self {
        let file = std::env::var_os("ESTAFETTE_DPCTL_LIBRARY").expect("names the library");
        unsafe {
            let library = Box::leak(Box::new(libloading::Library::new(file).unwrap()));
            Self {
                wait: *library.get(b"DPCTLEvent_Wait\0").unwrap(),
                delete: *library.get(b"DPCTLEvent_Delete\0").unwrap(),
                copy: *library.get(b"DPCTLQueue_MemcpyWithEvents\0").unwrap(),
                device_of: *library.get(b"DPCTLQueue_GetDevice\0").unwrap(),
                queue: *library.get(b"DPCTLQueue_CreateForDevice\0").unwrap(),
            }
        }
    }

    /// An out-of-order queue, as SYCL makes them by default. Leaked until the end of the process.
    fn out_of_order_queue(&self, like: &dyn Queue) -> Object {
        unsafe {
            let device = (self.device_of)(ptr::with_exposed_provenance_mut(like.native()));
            (self.queue)(device, ptr::null(), 0)
        }
    }

    unsafe fn chain(&self, queue: Object, a: *mut u8, b: *mut u8, bytes: usize) {
        unsafe {
            let mut last = (self.copy)(queue, b, a, bytes, ptr::null(), 0);
            for step in 1..CHAIN {
                let (from, to) = if step % 2 == 0 { (a, b) } else { (b, a) };
                let next = (self.copy)(queue, to, from, bytes, &raw const last, 1);
                (self.delete)(last);
                last = next;
            }
            (self.wait)(last);
            (self.delete)(last);
        }
    }
}

/// A copy, its fence, and its timing.
fn copy(
    device: &SyclDevice,
    queue: &Arc<dyn Queue>,
    memory: (*const u8, *mut u8, usize),
) -> (Fence, Arc<dyn Timing>) {
    let timing = queue.time().expect("the engine's own queues are measured");
    unsafe { device.copy(&**queue, memory.0, memory.1, memory.2) }.unwrap();
    (queue.record().unwrap(), timing)
}

/// Time from the end of the copy, by the device's clock, until `now_ns`.
fn since_end(timing: &dyn Timing, now_ns: u64) -> Duration {
    let span = timing.span().expect("the device tells when it has ended");
    Duration::from_nanos(now_ns.saturating_sub(span.ended_ns))
}

/// Time from the wake-up of a sleeping thread until that thread runs: a lower bound for a completion that a
/// sleeping thread awaits.
fn wake_up() -> Vec<Duration> {
    let sleeper = std::thread::current();
    let (sender, receiver) = std::sync::mpsc::channel();
    let waker = std::thread::spawn(move || {
        for () in receiver {
            // Busy for as long as a short copy, as a device's thread is.
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_micros(100) {}
            WOKEN_NS.store(host_now_ns(), Ordering::Release);
            sleeper.unpark();
        }
    });
    let times = (0..ROUNDS).map(|_| {
        WOKEN_NS.store(0, Ordering::Release);
        sender.send(()).unwrap();
        while WOKEN_NS.load(Ordering::Acquire) == 0 {
            std::thread::park();
        }
        Duration::from_nanos(host_now_ns() - WOKEN_NS.load(Ordering::Acquire))
    });
    let times = times.collect();
    drop(sender);
    waker.join().unwrap();
    times
}

static WOKEN_NS: AtomicU64 = AtomicU64::new(0);

/// Time from the submission, and from the end on the device, until the waiting thread runs.
fn latency(device: &Arc<SyclDevice>, by_hand: &ByHand) {
    let queue = device.create_queue().unwrap();
    let floor = show("a sleeping thread, from being woken", wake_up());
    for bytes in [64 << 10, 4 << 20, 64 << 20] {
        let (from, to) = (device.allocate(bytes, 64).unwrap(), device.allocate(bytes, 64).unwrap());
        let memory = (from.ptr().as_ptr().cast_const(), to.ptr().as_ptr(), bytes);
        copy(device, &queue, memory).0.wait_timeout(None);
        let mut times = [const { Vec::new() }; 4];
        let [awaited, awaited_late, blocked, blocked_late] = &mut times;
        let mut queries = 0;
        for _ in 0..ROUNDS {
            let before = device.counters().status_queries;
            let begin = Instant::now();
            let (fence, timing) = copy(device, &queue, memory);
            block_on(fence.settled()).unwrap();
            let now_ns = host_now_ns();
            awaited.push(begin.elapsed());
            awaited_late.push(since_end(&*timing, now_ns));
            queries += device.counters().status_queries - before;
            let begin = Instant::now();
            let (fence, timing) = copy(device, &queue, memory);
            let event = device.event_of_fence(&fence).unwrap();
            unsafe { (by_hand.wait)(event.pointer().as_ptr()) };
            let now_ns = host_now_ns();
            blocked.push(begin.elapsed());
            blocked_late.push(since_end(&*timing, now_ns));
            fence.wait_timeout(None);
        }
        let [awaited, awaited_late, blocked, blocked_late] = times;
        println!("copy of {} KiB", bytes >> 10);
        let awaited = show("  awaited", awaited);
        let blocked = show("  a thread in DPCTLEvent_Wait", blocked);
        let awaited_late = show("  awaited, from the end on the device", awaited_late);
        let blocked_late = show("  a thread in DPCTLEvent_Wait, from there", blocked_late);
        let queries = queries as f64 / ROUNDS as f64;
        println!(
            "  ratios: in all {:.2}, from the end {:.2}, to a sleeper's {:.2}; status queries per awaited operation {queries:.2}",
            awaited / blocked,
            awaited_late / blocked_late,
            awaited_late / floor
        );
    }
}

/// A chain of dependent copies: through the engine, on the device layer alone, and by hand with event lists,
/// on queues of either kind.
fn chain(device: &Arc<SyclDevice>, by_hand: &ByHand) {
    let engine = Engine::builder().workers(1).build().unwrap();
    for bytes in [64_usize, 64 << 10] {
        let tensor = || engine.empty(&[bytes as i64], DType::U8, device.id()).unwrap();
        let (x, y) = (tensor(), tensor());
        let (a, b) = (x.data_ptr().unwrap().cast_mut(), y.data_ptr().unwrap().cast_mut());
        let queues = [true, false].map(|in_order| device.queue(in_order).unwrap() as Arc<dyn Queue>);
        let bare = device.create_queue().unwrap();
        let plain = device.create_queue().unwrap();
        let natives = [ptr::with_exposed_provenance_mut(plain.native()), by_hand.out_of_order_queue(&*plain)];
        let mut times = [const { Vec::new() }; 5];
        let mut queries = 0;
        for _ in 0..ROUNDS {
            for (queue, times) in queues.iter().zip(&mut times) {
                let before = device.counters().status_queries;
                let begin = Instant::now();
                through_engine(&engine, device, queue, [&x, &y], bytes);
                times.push(begin.elapsed());
                queries += device.counters().status_queries - before;
            }
            let begin = Instant::now();
            let mut last = None;
            for step in 0..CHAIN {
                let (from, to) = if step % 2 == 0 { (a, b) } else { (b, a) };
                unsafe { device.copy(&*bare, from, to, bytes) }.unwrap();
                last = Some(bare.record().unwrap());
            }
            last.unwrap().wait_timeout(None).unwrap().unwrap();
            times[2].push(begin.elapsed());
            for (native, times) in natives.iter().zip(&mut times[3..]) {
                let begin = Instant::now();
                unsafe { by_hand.chain(*native, a, b, bytes) };
                times.push(begin.elapsed());
            }
        }
        let [engine, engine_out, layer, hand, hand_out] = times;
        println!("chain of {CHAIN} copies of {bytes} B");
        let engine = show("  engine, in-order queue", engine);
        let engine_out = show("  engine, out-of-order queue", engine_out);
        let layer = show("  device layer alone, in-order queue", layer);
        let hand = show("  by hand with event lists, in-order queue", hand);
        let hand_out = show("  by hand with event lists, out of order", hand_out);
        let queries = queries as f64 / (2 * ROUNDS * CHAIN) as f64;
        println!(
            "  ratios: in order {:.2} (device layer {:.2}), out of order {:.2}, the engine's default queue to SYCL's {:.2}; \
             status queries per operation {queries:.3}",
            engine / hand,
            layer / hand,
            engine_out / hand_out,
            engine / hand_out
        );
    }
}

fn through_engine(
    engine: &Engine,
    device: &Arc<SyclDevice>,
    queue: &Arc<dyn Queue>,
    [x, y]: [&estafette::Tensor; 2],
    bytes: usize,
) {
    for step in 0..CHAIN {
        let (from, to) = if step % 2 == 0 { (x, y) } else { (y, x) };
        let device = Arc::clone(device);
        let op = engine.op("step").reads([from]).writes([to]).on(queue);
        let op = op.run_on(move |queue, [x], [mut y]| {
            Ok(unsafe { device.copy(queue, x.data_ptr(), y.data_mut_ptr(), bytes) }?)
        });
        drop(op.unwrap());
    }
    x.wait().unwrap();
    y.wait().unwrap();
}

fn main() {
    match SyclRuntime::get() {
        Ok(runtime) => {
            let device = &runtime.devices()[0];
            println!("{}, completions announced: {}", device.name(), device.announces_completion());
            let by_hand = ByHand::load();
            let only = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
            let wanted = |what: &str| only.as_deref().is_none_or(|only| only == what);
            if wanted("latency") {
                latency(device, &by_hand);
            }
            if wanted("chain") {
                chain(device, &by_hand);
            }
        }
        Err(why) => println!("skipped: {why}"),
    }
}
