//! The device under test, an engine that has it, and what every step uses.

use std::sync::Arc;

use estafette::devices::cuda::{CudaDevice, CudaRuntime};
use estafette::devices::{Device, Queue};
use estafette::{DType, Engine, Tensor};

use crate::driver::Driver;
use crate::failure::Failure;

pub struct Setup {
    pub device: Arc<CudaDevice>,
    pub driver: Driver,
    pub driver_version: i32,
    pub simulated: bool,
}

/// Takes the simulated driver in place of a real one, before anything looks for CUDA.
#[cfg(feature = "simulator")]
pub fn load_simulator() -> Result<(), Failure> {
    estafette_cuda_sim_client::Simulator::load()
        .map(|_| ())
        .map_err(|error| Failure::wrong(error.to_string()))
}

/// This program was built without it.
#[cfg(not(feature = "simulator"))]
pub fn load_simulator() -> Result<(), Failure> {
    Err(Failure::wrong("this program was built without the feature `simulator`"))
}

impl Setup {
    /// Looks for a device; says why there is none.
    pub fn new(simulated: bool) -> Result<Self, String> {
        let runtime = CudaRuntime::get().map_err(|error| error.to_string())?;
        let device = runtime.devices().first().ok_or("the driver has no device")?.clone();
        let driver = Driver::new(device.ordinal())
            .map_err(|error| format!("the kernels cannot be loaded: {error:?}"))?;
        Ok(Self { device, driver, driver_version: runtime.driver_version(), simulated })
    }

    pub fn engine(&self) -> Result<Engine, Failure> {
        Ok(Engine::builder().workers(1).device(self.device.clone()).build()?)
    }

    pub fn queue(&self) -> Result<Arc<dyn Queue>, Failure> {
        Ok(self.device.create_queue()?)
    }

    pub fn bytes(&self, engine: &Engine, count: usize) -> Result<(Tensor, u64), Failure> {
        place(engine.empty(&[count as i64], DType::U8, self.device.id())?)
    }

    /// A tensor of numbers on the device, and where it is.
    pub fn floats(&self, engine: &Engine, count: usize) -> Result<(Tensor, u64), Failure> {
        place(engine.empty(&[count as i64], DType::F32, self.device.id())?)
    }

    /// Sets bytes of a tensor by a kernel on `queue`, and waits until they are set.
    pub fn fill(
        &self,
        engine: &Engine,
        queue: &Arc<dyn Queue>,
        (tensor, at): &(Tensor, u64),
        bytes: usize,
        value: u8,
    ) -> Result<(), Failure> {
        let (driver, at) = (self.driver, *at);
        engine.op("fill").writes([tensor]).on(queue).run_on(move |queue, [], [_out]| {
            // SAFETY: the operation keeps the memory.
            Ok(unsafe { driver.fill(queue.native(), at, bytes, value) }?)
        })?;
        Ok(tensor.wait()?)
    }

    /// Submits a kernel on `queue` that writes the numbers of one tensor, multiplied by [`factor`], to
    /// another one.
    pub fn scale(
        &self,
        engine: &Engine,
        queue: &Arc<dyn Queue>,
        [(from, at_from), (to, at_to)]: [&(Tensor, u64); 2],
        step: usize,
        count: usize,
    ) -> Result<(), Failure> {
        let (driver, at_from, at_to) = (self.driver, *at_from, *at_to);
        let op = engine.op("step").reads([from]).writes([to]).on(queue);
        drop(op.run_on(move |queue, [_from], [_to]| {
            // SAFETY: the operation keeps the memory.
            Ok(unsafe { driver.scale(queue.native(), at_to, at_from, factor(step), count) }?)
        })?);
        Ok(())
    }

    /// Violations that the simulated driver found; none on a real one.
    #[cfg(feature = "simulator")]
    pub fn violations(&self) -> Vec<String> {
        use estafette_cuda_sim_client::Simulator;
        if self.simulated {
            Simulator::load().map(Simulator::violations).unwrap_or_default()
        } else {
            Vec::new()
        }
    }

    /// A real driver does not tell.
    #[cfg(not(feature = "simulator"))]
    pub fn violations(&self) -> Vec<String> {
        Vec::new()
    }

    /// Forgets mistakes that were made on purpose.
    pub fn forget(&self) {
        #[cfg(feature = "simulator")]
        if self.simulated
            && let Ok(simulator) = estafette_cuda_sim_client::Simulator::load()
        {
            simulator.forget_violations();
        }
    }

    /// The simulated driver must have found nothing.
    pub fn expect_no_violation(&self) -> Result<(), Failure> {
        match self.violations().first() {
            None => Ok(()),
            Some(text) => Err(Failure::wrong(text)),
        }
    }
}

/// Factor of a step: a power of two in turn with its inverse.
pub fn factor(step: usize) -> f32 {
    if step.is_multiple_of(2) { 2.0 } else { 0.5 }
}

fn place(tensor: Tensor) -> Result<(Tensor, u64), Failure> {
    tensor.wait()?;
    let address = tensor.data_ptr()?.expose_provenance() as u64;
    Ok((tensor, address))
}
