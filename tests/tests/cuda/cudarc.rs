//! The crate cudarc itself on the driver simulator: its slices come in, and leases go out for its streams.

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use cudarc::driver::{CudaContext, CudaStream};
use estafette::devices::cuda::CudaRuntime;
use estafette::{Access, Engine, Error, Tensor};
use estafette_cuda_sim_client::Simulator;
use futures::executor::block_on;
use tests::ops::until;

const VALUES: [f32; 4] = [1.0, 2.0, 3.0, 4.0];

struct Bench {
    simulator: &'static Simulator,
    engine: Engine,
    context: Arc<CudaContext>,
    _alone: MutexGuard<'static, ()>,
}

fn bench() -> Bench {
    let (alone, simulator) = crate::simulator();
    simulator.forget_violations();
    CudaRuntime::get().expect("a simulated driver");
    let engine = Engine::builder().workers(1).build().unwrap();
    Bench { simulator, engine, context: CudaContext::new(0).unwrap(), _alone: alone }
}

impl Bench {
    fn lent(&self, x: &Tensor, stream: &Arc<CudaStream>) -> Vec<f32> {
        let lease = block_on(x.lease_cudarc::<f32>(Access::Read, stream)).unwrap();
        stream.clone_dtoh(&lease.view()).unwrap()
    }
}

impl Drop for Bench {
    /// Comes after the test's tensors and streams. What the engine keeps of cudarc must go before the driver
    /// is shut down.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            until("the engine keeps nothing of cudarc", || Arc::strong_count(&self.context) == 1);
            self.context.check_err().unwrap();
            assert_eq!(self.simulator.violations(), [""; 0]);
        }
    }
}

#[test]
fn a_slice_is_ready_when_its_stream_is_and_is_freed_behind_the_last_use() {
    let bench = bench();
    let (theirs, other) = (bench.context.new_stream().unwrap(), bench.context.new_stream().unwrap());
    let slice = theirs.clone_htod(&VALUES).unwrap();
    theirs.synchronize().unwrap();
    let handle = theirs.cu_stream().expose_provenance();
    bench.simulator.block(handle);
    let double = theirs.clone_dtod(&slice).unwrap();
    let x = bench.engine.from_cudarc(double, &[2, 2]).unwrap();
    assert!(x.wait_timeout(Duration::ZERO).is_err());
    bench.simulator.unblock(handle);
    assert_eq!(bench.lent(&x, &other), VALUES);
    assert_eq!(x.shape().unwrap()[..], [2, 2]);
}

#[test]
fn a_write_lease_is_in_the_order_of_the_stream_and_ends_with_it() {
    let bench = bench();
    let (first, second) = (bench.context.new_stream().unwrap(), bench.context.new_stream().unwrap());
    let x = bench.engine.from_cudarc(first.clone_htod(&VALUES).unwrap(), &[4]).unwrap();
    x.wait().unwrap();
    let handle = first.cu_stream().expose_provenance();
    bench.simulator.block(handle);
    let mut lease = block_on(x.lease_cudarc::<f32>(Access::Write, &first)).unwrap();
    first.memcpy_htod(&[9.0_f32; 4], &mut lease.view_mut().unwrap()).unwrap();
    drop(lease);
    // The other stream waits for the first one, and the host for neither.
    let lease = block_on(x.lease_cudarc::<f32>(Access::Read, &second)).unwrap();
    bench.simulator.unblock(handle);
    assert_eq!(second.clone_dtoh(&lease.view()).unwrap(), [9.0; 4]);
    drop(lease);
}

#[test]
fn a_lease_that_is_used_on_another_stream_comes_after_what_its_own_stream_waits_for() {
    let bench = bench();
    let [first, second, other] = [(); 3].map(|()| bench.context.new_stream().unwrap());
    let x = bench.engine.from_cudarc(first.clone_htod(&VALUES).unwrap(), &[4]).unwrap();
    x.wait().unwrap();
    let handle = first.cu_stream().expose_provenance();
    bench.simulator.block(handle);
    let mut lease = block_on(x.lease_cudarc::<f32>(Access::Write, &first)).unwrap();
    first.memcpy_htod(&[9.0_f32; 4], &mut lease.view_mut().unwrap()).unwrap();
    drop(lease);
    let lease = block_on(x.lease_cudarc::<f32>(Access::Read, &second)).unwrap();
    // SAFETY: cudarc writes the elements before they are read.
    let mut copy = unsafe { other.alloc::<f32>(4) }.unwrap();
    other.memcpy_dtod(&lease.view(), &mut copy).unwrap();
    bench.simulator.unblock(handle);
    assert_eq!(other.clone_dtoh(&copy).unwrap(), [9.0; 4]);
    drop(lease);
}

#[test]
fn what_cannot_be_a_slice_or_a_tensor_is_refused() {
    let bench = bench();
    let stream = bench.context.new_stream().unwrap();
    let invalid = |error: Error| assert!(matches!(error, Error::Invalid(_)), "{error}");
    invalid(bench.engine.from_cudarc(stream.clone_htod(&VALUES).unwrap(), &[3]).unwrap_err());
    let x = bench.engine.from_cudarc(stream.clone_htod(&VALUES).unwrap(), &[4]).unwrap();
    assert!(block_on(x.lease_cudarc::<i32>(Access::Read, &stream)).is_err());
    invalid(block_on(x.lease_cudarc::<bool>(Access::Read, &stream)).unwrap_err());
    invalid(block_on(x.lease_cudarc::<f32>(Access::Read, &bench.context.per_thread_stream())).unwrap_err());
    invalid(block_on(x.lease_cudarc::<f32>(Access::Alias, &stream)).unwrap_err());
    let mut read = block_on(x.lease_cudarc::<f32>(Access::Read, &bench.context.default_stream())).unwrap();
    invalid(read.view_mut().map(|_| ()).unwrap_err());
    drop(read);
    let host = bench.engine.from_vec(vec![1.0_f32], &[1]).unwrap();
    invalid(block_on(host.lease_cudarc::<f32>(Access::Read, &stream)).unwrap_err());
}
