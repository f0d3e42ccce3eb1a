//! Tensors and operations of the simulated device.
#![allow(clippy::missing_panics_doc, clippy::missing_errors_doc, reason = "tests panic")]

use std::sync::Arc;

use estafette::devices::sim::{SimDevice, SimOptions, SimQueue, TraceKind};
use estafette::devices::{Device, DeviceError, DeviceErrorKind, Queue};
use estafette::{DType, Engine, Op, Tensor};

use crate::ops::set;
use crate::watchdog::Watchdog;

/// A device that moves when the test says so, and an engine that has it.
pub fn sim(workers: usize, options: SimOptions) -> (Arc<SimDevice>, Engine, Watchdog) {
    let device = SimDevice::new(options).expect("a device that needs no thread");
    let engine = Engine::builder().workers(workers).device(device.clone()).build().expect("an engine starts");
    let watchdog = Watchdog::of(&engine);
    (device, engine, watchdog)
}

pub fn queue(device: &SimDevice) -> Arc<dyn Queue> {
    device.queue(false)
}

/// One element in the device's memory.
pub fn on_device(device: &SimDevice, engine: &Engine) -> Tensor {
    let tensor = engine.empty(&[1], DType::F32, device.id()).expect("the device has memory");
    set(engine, &tensor, 0.0).wait().expect("the host may write there");
    tensor
}

/// Address of a tensor's only element, for work on the device.
#[derive(Debug, Clone, Copy)]
pub struct Element(*mut f32);

// SAFETY: an address; the order of the operations keeps its uses apart, which is the subject of the test.
unsafe impl Send for Element {}
// SAFETY: as above; the bodies of programs are shared.
unsafe impl Sync for Element {}

impl Element {
    /// The element of `tensor`, which is defined.
    pub fn of(tensor: &Tensor) -> Self {
        Self(tensor.data_ptr().expect("defined").cast_mut().cast())
    }

    pub fn get(self) -> f32 {
        // SAFETY: the operation that this runs for keeps the memory and its order.
        unsafe { *self.0 }
    }

    pub fn set(self, value: f32) {
        // SAFETY: as above.
        unsafe { *self.0 = value }
    }
}

/// Enqueues a piece of simulated work.
pub fn launch(
    queue: &dyn Queue,
    name: &'static str,
    ns: u64,
    work: impl FnOnce() + Send + 'static,
) -> Result<(), DeviceError> {
    SimQueue::from_queue(queue).expect("a queue of the simulated device").launch(name, ns, work)
}

/// Sets `tensor` on the device.
pub fn write_on(
    engine: &Engine,
    queue: &Arc<dyn Queue>,
    name: &'static str,
    tensor: &Tensor,
    value: f32,
) -> Op {
    let element = Element::of(tensor);
    let op = engine.op(name).writes([tensor]).on(queue);
    op.run_on(move |queue, [], [_x]| Ok(launch(queue, name, 10, move || element.set(value))?))
        .expect("accepted")
}

/// Sets `to` to one more than `from` on the device.
pub fn copy_on(
    engine: &Engine,
    queue: &Arc<dyn Queue>,
    name: &'static str,
    from: &Tensor,
    to: &Tensor,
) -> Op {
    let (source, target) = (Element::of(from), Element::of(to));
    let op = engine.op(name).reads([from]).writes([to]).on(queue);
    op.run_on(move |queue, [_from], [_to]| {
        Ok(launch(queue, name, 10, move || target.set(source.get() + 1.0))?)
    })
    .expect("accepted")
}

/// Reads `tensor` on the device.
pub fn read_on(engine: &Engine, queue: &Arc<dyn Queue>, name: &'static str, tensor: &Tensor) -> Op {
    let op = engine.op(name).reads([tensor]).on(queue);
    op.run_on(move |queue, [_x], []| Ok(launch(queue, name, 10, || ())?)).expect("accepted")
}

/// The names of the pieces that have started, in order.
pub fn started(device: &SimDevice) -> Vec<String> {
    let trace = device.trace();
    let started = trace.iter().filter(|event| matches!(event.kind, TraceKind::Started(_)));
    started.filter_map(|event| event.name().map(str::to_owned)).collect()
}

/// Error of a device when work on it breaks.
pub fn fault(message: &str) -> DeviceError {
    DeviceError::new(DeviceErrorKind::Fault, message).with_code(700)
}
