use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use estafette_devices::DLDevice;
use estafette_devices::host::HostDevice;
use estafette_devices::{Allocation, Queue};

use super::*;

/// A device whose barrier is asked for as long as the test wants.
#[derive(Debug)]
struct Slow {
    host: Arc<HostDevice>,
    asked: SyncSender<()>,
    go: Mutex<Receiver<()>>,
    /// The number of times that the driver refuses at first.
    refusals: AtomicU64,
}

impl Device for Slow {
    fn id(&self) -> DLDevice {
        DLDevice::CPU
    }

    fn name(&self) -> &str {
        "slow"
    }

    fn host_accessible(&self) -> bool {
        true
    }

    fn default_queue(&self) -> Arc<dyn Queue> {
        self.host.default_queue()
    }

    fn create_queue(&self) -> Result<Arc<dyn Queue>, DeviceError> {
        self.host.create_queue()
    }

    fn barrier(&self) -> Result<Fence, DeviceError> {
        self.asked.send(()).expect("the test listens");
        self.go.lock().recv().expect("the test releases it");
        let left = self.refusals.load(Ordering::Relaxed);
        if left > 0 {
            self.refusals.store(left - 1, Ordering::Relaxed);
            return Err(DeviceError::new(DeviceErrorKind::Invalid, "a graph is captured").with_code(900));
        }
        self.host.default_queue().record()
    }

    fn allocate(&self, bytes: usize, align: usize) -> Result<Allocation, DeviceError> {
        self.host.allocate(bytes, align)
    }

    unsafe fn copy(
        &self,
        queue: &dyn Queue,
        src: *const u8,
        dst: *mut u8,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        // SAFETY: by contract.
        unsafe { self.host.copy(queue, src, dst, bytes) }
    }
}

/// ```text
/// device quarantine ├─ asks ────────────┤            ├─ asks ─┤
/// program                ├─ pause() waits ┤ records ─┤
/// ```
#[test]
fn a_pause_that_meets_a_barrier_begins_when_that_was_asked_for() {
    const LONG: Duration = Duration::from_secs(20);
    let ((asked, was_asked), (go, may_go)) = (sync_channel(4), sync_channel(4));
    let device: Arc<dyn Device> = Arc::new(Slow {
        host: HostDevice::new(),
        asked,
        go: Mutex::new(may_go),
        refusals: AtomicU64::new(0),
    });
    let first = admit(Some(Arc::clone(&device)), LONG);
    was_asked.recv_timeout(LONG).expect("the first use is covered");
    let (begun, has_begun) = sync_channel(1);
    let (end, may_end) = sync_channel::<()>(1);
    let program = std::thread::spawn(move || {
        let pause = pause();
        begun.send(()).expect("the test listens");
        may_end.recv().expect("the test releases it");
        drop(pause);
    });
    assert!(has_begun.recv_timeout(Duration::from_millis(30)).is_err(), "a barrier is being asked for");
    go.send(()).expect("it waits");
    has_begun.recv_timeout(LONG).expect("it was asked for");
    assert!(first.wait_timeout(Some(LONG)).expect("in time").is_ok());
    let second = admit(Some(device), LONG);
    assert!(was_asked.recv_timeout(3 * AGAIN).is_err(), "there is a pause");
    assert!(second.state().is_pending());
    end.send(()).expect("it waits");
    was_asked.recv_timeout(LONG).expect("the pause is over");
    go.send(()).expect("it waits");
    assert!(second.wait_timeout(Some(LONG)).expect("in time").is_ok());
    program.join().expect("it does not panic");
}

/// Each request spoils the graph that another library records, and so does each one that follows at once.
#[test]
fn a_barrier_that_is_refused_is_asked_for_less_and_less_often() {
    const LONG: Duration = Duration::from_secs(20);
    const REFUSALS: u32 = 5;
    let ((asked, was_asked), (go, may_go)) = (sync_channel(16), sync_channel(16));
    let device: Arc<dyn Device> = Arc::new(Slow {
        host: HostDevice::new(),
        asked,
        go: Mutex::new(may_go),
        refusals: AtomicU64::new(REFUSALS.into()),
    });
    (0..=REFUSALS).for_each(|_| go.send(()).expect("there is room"));
    let begin = Instant::now();
    let end = admit(Some(device), LONG);
    assert!(end.wait_timeout(Some(LONG)).expect("in time").is_ok());
    assert_eq!(was_asked.try_iter().count(), REFUSALS as usize + 1);
    let waits: Vec<_> = (1..=REFUSALS).map(wait_after).collect();
    assert_eq!(waits, [1, 2, 4, 8, 16].map(|times| AGAIN * times));
    assert!(begin.elapsed() >= waits.iter().sum());
    assert_eq!(wait_after(u32::MAX), AGAIN_MAX);
}

#[test]
fn a_thread_that_was_refused_is_started_by_the_next_use() {
    let ((asked, _was_asked), (go, may_go)) = (sync_channel(1), sync_channel(1));
    go.send(()).expect("there is room");
    let device: Arc<dyn Device> = Arc::new(Slow {
        host: HostDevice::new(),
        asked,
        go: Mutex::new(may_go),
        refusals: AtomicU64::new(0),
    });
    let refused = DeviceQuarantine::open(Arc::clone(&device));
    let key = Arc::as_ptr(&device).cast::<()>().addr();
    QUARANTINES.lock().get_or_insert_default().devices.insert(key, refused);
    let end = admit(Some(device), Duration::from_secs(20));
    assert!(end.wait_timeout(Some(Duration::from_secs(20))).expect("in time").is_ok());
}
