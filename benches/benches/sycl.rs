//! The figures of SYCL: completions observed without a blocked thread, chains, and queries per operation. Needs the runtime:
//! `ESTAFETTE_DPCTL_LIBRARY`, and for the processor as the device `OCL_ICD_FILENAMES` and `OCL_ICD_VENDORS`.
#![allow(clippy::unwrap_used, clippy::undocumented_unsafe_blocks, reason = "a bench")]

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use estafette::devices::sycl::{SyclDevice, SyclRuntime};
use estafette::devices::{Device, Fence, Queue};
use estafette::{DType, Engine};
use futures::executor::block_on;

const ROUNDS: usize = 41;
const CHAIN: usize = 1_000;

fn median(mut times: Vec<Duration>) -> (Duration, Duration, Duration) {
    times.sort_unstable();
    (times[times.len() / 2], times[times.len() / 10], times[times.len() * 9 / 10])
}

fn show(what: &str, times: Vec<Duration>) -> f64 {
    let (middle, low, high) = median(times);
    println!("{what:<44} {middle:>12?} [{low:?} to {high:?}]");
    middle.as_secs_f64()
}

type Object = *mut c_void;

/// What somebody would call who does without the engine.
struct ByHand {
    wait: unsafe extern "C" fn(Object),
    delete: unsafe extern "C" fn(Object),
    copy: unsafe extern "C" fn(Object, *mut u8, *const u8, usize, *const Object, usize) -> Object,
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
            }
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

/// A copy of some milliseconds, and its fence.
fn long_copy(device: &SyclDevice, queue: &Arc<dyn Queue>, memory: (*const u8, *mut u8, usize)) -> Fence {
    unsafe { device.copy(&**queue, memory.0, memory.1, memory.2) }.unwrap();
    queue.record().unwrap()
}

/// Time from the call until the waiter runs: the copy takes as long in either case, so the difference is the latency.
fn latency(device: &Arc<SyclDevice>, by_hand: &ByHand) {
    let queue = device.create_queue().unwrap();
    for bytes in [64 << 10, 4 << 20, 64 << 20] {
        let (from, to) = (device.allocate(bytes, 64).unwrap(), device.allocate(bytes, 64).unwrap());
        let memory = (from.ptr().as_ptr().cast_const(), to.ptr().as_ptr(), bytes);
        long_copy(device, &queue, memory).wait_timeout(None);
        let (mut awaited, mut blocked) = (Vec::new(), Vec::new());
        let before = device.counters().status_queries;
        for _ in 0..ROUNDS {
            let begin = Instant::now();
            block_on(long_copy(device, &queue, memory).settled()).unwrap();
            awaited.push(begin.elapsed());
            let begin = Instant::now();
            let fence = long_copy(device, &queue, memory);
            let event = device.event_of_fence(&fence).unwrap();
            unsafe { (by_hand.wait)(event.pointer().as_ptr()) };
            blocked.push(begin.elapsed());
        }
        let queries = (device.counters().status_queries - before) as f64 / ROUNDS as f64;
        let awaited = show(&format!("copy of {} KiB, awaited", bytes >> 10), awaited);
        let blocked = show("  the same, a thread in DPCTLEvent_Wait", blocked);
        println!("  ratio {:.2}, status queries per awaited operation {queries:.2}", awaited / blocked);
    }
}

/// A chain of dependent copies through the engine, and by hand with event lists.
fn chain(device: &Arc<SyclDevice>, by_hand_api: &ByHand) {
    let engine = Engine::builder().workers(1).build().unwrap();
    for bytes in [64_usize, 64 << 10] {
        let tensor = || engine.empty_on(device.id(), &[bytes as i64], DType::U8).unwrap();
        let (x, y) = (tensor(), tensor());
        let queue = device.create_queue().unwrap();
        let plain = device.create_queue().unwrap();
        let native = plain.native();
        let (mut ours, mut by_hand) = (Vec::new(), Vec::new());
        let before = device.counters().status_queries;
        for _ in 0..ROUNDS {
            let begin = Instant::now();
            for step in 0..CHAIN {
                let (from, to) = if step % 2 == 0 { (&x, &y) } else { (&y, &x) };
                let device = Arc::clone(device);
                let op = engine.op("step").reads([from]).writes([to]).on(&queue);
                let op = op.run_on(move |queue, [x], [mut y]| {
                    Ok(unsafe { device.copy(queue, x.data_ptr(), y.data_mut_ptr(), bytes) }?)
                });
                drop(op.unwrap());
            }
            x.wait().unwrap();
            y.wait().unwrap();
            ours.push(begin.elapsed());
            let begin = Instant::now();
            let (a, b) = (x.data_ptr().unwrap().cast_mut(), y.data_ptr().unwrap().cast_mut());
            unsafe { by_hand_api.chain(ptr::with_exposed_provenance_mut(native), a, b, bytes) };
            by_hand.push(begin.elapsed());
        }
        let queries = (device.counters().status_queries - before) as f64 / (ROUNDS * CHAIN) as f64;
        let ours = show(&format!("chain of {CHAIN} copies of {bytes} B, engine"), ours);
        let by_hand = show("  the same by hand, with event lists", by_hand);
        println!("  ratio {:.2}, status queries per operation {queries:.3}", ours / by_hand);
    }
}

fn main() {
    match SyclRuntime::get() {
        Ok(runtime) => {
            let device = &runtime.devices()[0];
            println!("{}, completions announced: {}", device.name(), device.announces_completion());
            let by_hand = ByHand::load();
            latency(device, &by_hand);
            chain(device, &by_hand);
        }
        Err(why) => println!("skipped: {why}"),
    }
}
