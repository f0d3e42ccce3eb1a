//! Concerns of a whole process: how the driver is found, and that an exit leaves it alone. Each test starts
//! itself again, in processes of their own.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::mpsc;
use std::time::Duration;
use std::{env, fs, process, thread};

use estafette_cuda_sim_client::{Simulator, codes, path};
use estafette_devices::cuda::{CudaDevice, CudaQueue, CudaRuntime};
use estafette_devices::{Device, DeviceErrorKind, Fence, Queue, Reactor};

/// Set in the processes that tests start.
const CHILD: &str = "ESTAFETTE_CUDA_TEST_CHILD";
/// A process that runs for longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);

fn is_child() -> bool {
    env::var_os(CHILD).is_some()
}

/// Runs the test of that name in a process of its own.
fn run_again(test: &str, arrange: impl FnOnce(&mut Command)) -> ExitStatus {
    let mut command = Command::new(env::current_exe().expect("the path of this program"));
    command.args(["--exact", test, "--nocapture"]).env(CHILD, "1");
    arrange(&mut command);
    let mut child = command.spawn().expect("a process more");
    let (sender, receiver) = mpsc::channel::<()>();
    let id = child.id() as i32;
    let watch = thread::spawn(move || {
        if receiver.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
            // SAFETY: a child that no thread has waited for, so the number is still its own.
            unsafe { libc::kill(id, libc::SIGKILL) };
        }
    });
    let status = child.wait().expect("its status");
    drop(sender);
    watch.join().expect("it does not panic");
    status
}

fn simulated() -> (&'static Simulator, &'static CudaDevice) {
    let simulator = Simulator::load().expect("the simulator is built with the tests");
    let device = CudaRuntime::get().expect("there is a driver").device(0).expect("it works");
    (simulator, device)
}

/// Work behind a blocked stream, which is never done.
fn pending_work(simulator: &Simulator, queue: &CudaQueue, device: &CudaDevice) -> Fence {
    let memory = device.allocate(64, 64).expect("there is room");
    simulator.block(queue.native());
    // SAFETY: the memory is never freed.
    unsafe { queue.fill(memory.ptr().as_ptr(), 1, 64) }.expect("it takes work");
    std::mem::forget(memory);
    queue.record().expect("it has not failed")
}

/// The simulator ends a process that calls it after its shutdown began with a status of its own.
#[test]
fn a_process_exits_while_its_work_is_pending() {
    if !is_child() {
        for _ in 0..50 {
            let status = run_again("a_process_exits_while_its_work_is_pending", |_| ());
            assert!(status.success(), "{status}");
        }
        return;
    }
    let (simulator, device) = simulated();
    let queue = device.queue().expect("it works");
    let fence = pending_work(simulator, &queue, device);
    Reactor::global().when_settled([&fence], |outcome| panic!("nothing has settled it: {outcome:?}"));
    let (started, starts) = mpsc::channel();
    // Threads that go on until the end: one looks at the fence, one allocates and frees, one makes queues.
    let polled = started.clone();
    thread::spawn(move || {
        loop {
            assert!(fence.state().is_pending());
            let _ = polled.send(());
        }
    });
    let allocated = started.clone();
    thread::spawn(move || {
        loop {
            drop(device.allocate(1_024, 64));
            drop(device.allocate_pinned(1_024, 64));
            let _ = allocated.send(());
        }
    });
    thread::spawn(move || {
        loop {
            drop(device.queue());
            let _ = started.send(());
        }
    });
    for _ in 0..30 {
        starts.recv().expect("they run");
    }
    process::exit(0);
}

#[test]
fn a_process_exits_while_a_call_is_stuck_in_the_driver() {
    if !is_child() {
        let status = run_again("a_process_exits_while_a_call_is_stuck_in_the_driver", |_| ());
        assert!(status.success(), "{status}");
        return;
    }
    let (simulator, device) = simulated();
    let queue = device.queue().expect("it works");
    simulator.depth(2);
    pending_work(simulator, &queue, device);
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        loop {
            pending_work(simulator, &queue, device);
            sender.send(()).expect("the test listens");
        }
    });
    // It goes on until the queue takes no more.
    while receiver.recv_timeout(Duration::from_millis(200)).is_ok() {}
    process::exit(0);
}

/// An error of a driver that is shutting down is no fault of the device.
#[test]
fn a_driver_that_was_shut_down_fails_nothing() {
    if !is_child() {
        let status = run_again("a_driver_that_was_shut_down_fails_nothing", |_| ());
        assert!(status.success(), "{status}");
        return;
    }
    const DEINITIALIZED: i32 = 4;
    let (simulator, device) = simulated();
    let queue = device.queue().expect("it works");
    let fence = pending_work(simulator, &queue, device);
    assert!(fence.state().is_pending());
    simulator.fault_device(0, DEINITIALIZED);
    let refused = device.queue().expect_err("there is no driver any more");
    assert_eq!((refused.kind(), refused.code()), (DeviceErrorKind::Other, Some(DEINITIALIZED.into())));
    assert!(fence.state().is_pending(), "its end is unknown");
    assert!(device.fault().is_none());
    simulator.forget_calls();
    assert!(device.allocate(64, 64).is_err());
    drop(queue);
    assert_eq!(
        ["cuMemAllocFromPoolAsync", "cuStreamDestroy_v2", "cuCtxGetCurrent"]
            .map(|name| simulator.calls(name)),
        [0; 3],
        "and it is not called again"
    );
    assert_eq!(fence.wait_timeout(Some(Duration::from_millis(30))).map(|outcome| outcome.is_ok()), None);
}

/// After `cudaDeviceReset` by another library, the first call that meets it breaks the device, and nothing is
/// done afterwards.
#[test]
fn a_context_that_another_library_has_reset_is_broken() {
    if !is_child() {
        let status = run_again("a_context_that_another_library_has_reset_is_broken", |_| ());
        assert!(status.success(), "{status}");
        return;
    }
    let (simulator, device) = simulated();
    let queue = device.queue().expect("it works");
    let fence = pending_work(simulator, &queue, device);
    simulator.fault_device(0, codes::CONTEXT_IS_DESTROYED);
    let first = device.queue().expect_err("the context is gone");
    assert_eq!(first.kind(), DeviceErrorKind::Fault);
    assert!(device.fault().is_some_and(|fault| fault.same_root(&first)));
    let outcome = fence.wait_timeout(Some(PATIENCE)).expect("it settles");
    assert!(outcome.is_err_and(|error| error.same_root(&first)));
    simulator.forget_calls();
    assert!(device.queue().is_err_and(|error| error.same_root(&first)));
    assert_eq!(simulator.calls("cuStreamCreate"), 0, "the driver is not asked again");
}

/// A toolkit's stub is called `libcuda.so`, and is found first where images for builds name its folder.
#[test]
fn a_stub_beside_the_driver_is_not_taken_for_it() {
    if !is_child() {
        let folder = Folder::new();
        symlink(path().expect("the simulator is built with the tests"), folder.0.join("libcuda.so.1"))
            .expect("an empty folder");
        // Any library that is not the driver.
        let maps = fs::read_to_string("/proc/self/maps").expect("a file of every process");
        let library = maps.split_whitespace().find(|word| word.contains("/libc.so")).expect("the C library");
        symlink(Path::new(library), folder.0.join("libcuda.so")).expect("an empty folder");
        let status = run_again("a_stub_beside_the_driver_is_not_taken_for_it", |command| {
            command.env("LD_LIBRARY_PATH", &folder.0);
        });
        assert!(status.success(), "{status}");
        return;
    }
    let runtime = CudaRuntime::get().unwrap_or_else(|error| panic!("{error}"));
    assert!(runtime.device(0).is_some());
}

/// As on Tegra and under WSL: no order between uses of the memory would be enough.
#[test]
fn managed_memory_that_the_host_may_not_use_beside_a_kernel_is_refused() {
    if !is_child() {
        let status = run_again("managed_memory_that_the_host_may_not_use_beside_a_kernel_is_refused", |_| ());
        assert!(status.success(), "{status}");
        return;
    }
    const CONCURRENT_MANAGED_ACCESS: i32 = 89;
    let simulator = Simulator::load().expect("the simulator is built with the tests");
    simulator.attribute(CONCURRENT_MANAGED_ACCESS, 0);
    let (_, device) = simulated();
    assert!(!device.managed_is_concurrent());
    let refused = device.allocate_managed(64, 64).expect_err("the host may not use it");
    assert_eq!(refused.kind(), DeviceErrorKind::Invalid);
    assert!(refused.message().ends_with("pinned memory can"), "{refused}");
    assert_eq!(simulator.calls("cuMemAllocManaged"), 0);
    assert!(device.allocate_pinned(64, 64).is_ok());
}

/// A folder that goes with its owner.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = env::temp_dir().join(format!("estafette-cuda-stub-{}", process::id()));
        fs::create_dir_all(&path).expect("a folder for a test");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
