//! Two queues of one device at work at the same time, while the host waits for nothing.
//!
//! Frames are uploaded on one queue and summed on another, through two buffers in turn. The operations
//! declare only what they read and write. The engine finds out where one queue must wait for the other, and
//! makes the queue wait *on the device*: `add 0` waits for `upload 0`, whose data it reads; `upload 2` waits
//! for `add 0`, which still reads the buffer; and so on.
//!
//! The device is simulated, so the example runs on any machine: device work takes time, and device memory is
//! host memory. Run it with `cargo run --release --example overlap`.

use std::time::Instant;

use estafette::devices::sim::{SimDevice, SimOptions, SimPace, SimQueue, TraceEvent, TraceKind};
use estafette::devices::{Device, Queue, QueueId};
use estafette::{DType, Engine};
use examples::Result;

const FRAMES: usize = 8;
const LEN: usize = 1_000;
const UPLOAD_NS: u64 = 10_000_000;
const ADD_NS: u64 = 8_000_000;

/// Time per character of the timeline.
const CHARACTER_NS: u64 = 2_000_000;

#[tokio::main]
async fn main() -> Result {
    let device = SimDevice::new(SimOptions { pace: SimPace::RealTime, ..SimOptions::default() })?;
    let engine = Engine::builder().device(device.clone()).build()?;
    let (copies, compute) = (device.create_queue()?, device.create_queue()?);
    let buffer = || engine.empty(&[LEN as i64], DType::F32, device.id());
    let buffers = [buffer()?, buffer()?];

    let since = Instant::now();
    let mut totals = Vec::with_capacity(FRAMES);
    for frame in 0..FRAMES {
        let buffer = &buffers[frame % buffers.len()];
        // A queue runs work in the order of issue, so ready work of earlier frames is issued first.
        let priority = (FRAMES - frame) as i32;
        let upload = engine.op("upload").writes([buffer]).on(&copies).priority(priority).permit().await?;
        upload.run_on(move |queue, [], [mut buffer]| {
            let buffer = DevicePointer(buffer.data_mut_ptr().cast(), LEN);
            launch(queue, frame, UPLOAD_NS, move || {
                // SAFETY: no other operation uses the buffer until the fence of this one is done.
                unsafe { buffer.as_mut_slice() }.fill(frame as f32);
            })
        })?;
        let total = engine.empty(&[1], DType::F32, device.id())?;
        let add = engine.op("add").reads([buffer]).writes([&total]).on(&compute).priority(priority);
        let add = add.permit().await?;
        add.run_on(move |queue, [buffer], [mut total]| {
            let buffer = DevicePointer(buffer.data_ptr().cast_mut().cast(), LEN);
            let total = DevicePointer(total.data_mut_ptr().cast(), 1);
            launch(queue, frame, ADD_NS, move || {
                // SAFETY: as above for `total`; no operation writes the buffer before the fence is done.
                unsafe { total.as_mut_slice()[0] = buffer.as_slice().iter().sum() };
            })
        })?;
        totals.push(total);
    }
    println!("{} operations submitted in {:.0?}; the host is free now", 2 * FRAMES, since.elapsed());

    for (frame, total) in totals.iter().enumerate() {
        total.ready().await?;
        println!("{:>6.1?}  frame {frame}: {:?}", since.elapsed(), total.to_vec::<f32>()?);
    }
    println!("\none character is {} ms, each digit a frame", CHARACTER_NS / 1_000_000);
    for (name, queue) in [("uploads", copies.id()), ("adds", compute.id())] {
        println!("{name:>10}  {}", timeline(&device.trace(), queue));
    }
    let waits = device.driver_calls().waits;
    println!("{:>10}  {waits} on the device, none on the host", "waits");
    Ok(())
}

/// An address that device work keeps, as a kernel would.
struct DevicePointer(*mut f32, usize);

// SAFETY: only an address; each use of the memory states why it is sound.
unsafe impl Send for DevicePointer {}

impl DevicePointer {
    /// # Safety
    /// The memory is allocated, and no code writes it as long as the slice is used.
    unsafe fn as_slice(&self) -> &[f32] {
        // SAFETY: the memory holds `self.1` elements; the caller promises the rest.
        unsafe { std::slice::from_raw_parts(self.0, self.1) }
    }

    /// # Safety
    /// The memory is allocated, and no other code uses it as long as the slice is used.
    #[allow(
        clippy::mut_from_ref,
        reason = "the pointer does not own the memory; the caller promises exclusive use"
    )]
    unsafe fn as_mut_slice(&self) -> &mut [f32] {
        // SAFETY: the memory holds `self.1` elements; the caller promises the rest.
        unsafe { std::slice::from_raw_parts_mut(self.0, self.1) }
    }
}

/// Enqueues work, as a kernel launch would. The number of the frame is the name of the work.
fn launch(queue: &dyn Queue, frame: usize, duration_ns: u64, work: impl FnOnce() + Send + 'static) -> Result {
    let queue = SimQueue::from_queue(queue).ok_or("not a queue of the simulated device")?;
    Ok(queue.launch(frame.to_string(), duration_ns, work)?)
}

/// The timeline of a queue: the number of the frame that it worked on, or a dot where it was idle.
fn timeline(events: &[TraceEvent], of: QueueId) -> String {
    let (mut line, mut started_ns) = (String::new(), 0);
    for event in events.iter().filter(|event| event.queue == of) {
        match &event.kind {
            TraceKind::Started(_) => started_ns = event.at_ns,
            TraceKind::Completed(name) => {
                let (start, end) = (started_ns.div_ceil(CHARACTER_NS), event.at_ns.div_ceil(CHARACTER_NS));
                while (line.len() as u64) < end {
                    let busy = line.len() as u64 >= start;
                    line.push_str(if busy { name } else { "." });
                }
            }
            _ => {}
        }
    }
    line
}
