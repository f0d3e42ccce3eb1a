//! Memory of a device that other processes can be shown.

use estafette_devices::sim::{SimDevice, SimOptions, SimPace};
use estafette_devices::{
    Allocation, DLDevice, Descriptor, Device, Identity, Queue, SharedMemory, SharedSegment,
};
use estafette_sync::sync::Mutex;

use super::super::*;
use crate::engine::Engine;
use crate::lease::LeaseOwner;

/// A simulated device whose memory other processes can be shown.
#[derive(Debug)]
struct Sharing {
    sim: Arc<SimDevice>,
    segments: Mutex<Vec<Arc<SharedSegment>>>,
}

impl Device for Sharing {
    fn id(&self) -> DLDevice {
        self.sim.id()
    }

    fn name(&self) -> &str {
        "sharing"
    }

    fn host_accessible(&self) -> bool {
        false
    }

    fn default_queue(&self) -> Arc<dyn Queue> {
        self.sim.default_queue()
    }

    fn create_queue(&self) -> Result<Arc<dyn Queue>, DeviceError> {
        self.sim.create_queue()
    }

    fn allocate(&self, bytes: usize, align: usize) -> Result<Allocation, DeviceError> {
        self.sim.allocate(bytes, align)
    }

    fn shared_memory(&self) -> Option<&dyn SharedMemory> {
        Some(self)
    }

    unsafe fn copy(
        &self,
        queue: &dyn Queue,
        src: *const u8,
        dst: *mut u8,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        // SAFETY: by contract.
        unsafe { self.sim.copy(queue, src, dst, bytes) }
    }
}

impl SharedMemory for Sharing {
    fn identity(&self) -> Identity {
        Identity::default()
    }

    fn allocate(&self, bytes: usize, align: usize) -> Result<Allocation, DeviceError> {
        let descriptor = std::fs::File::open("/dev/null").expect("a file").into();
        let segment =
            Arc::new(SharedSegment::new(self.sim.allocate(bytes, align)?, self.identity(), descriptor));
        let start = segment.memory().ptr();
        self.segments.lock().push(Arc::clone(&segment));
        // SAFETY: all of a segment, which stays until it is released.
        Ok(unsafe { Allocation::from_raw(start, bytes, self.id(), move |_, _| drop(segment)) })
    }

    fn find(&self, address: *const u8, _bytes: usize) -> Option<(Arc<SharedSegment>, usize)> {
        let segments = self.segments.lock();
        let starts_here =
            |segment: &&Arc<SharedSegment>| segment.memory().ptr().as_ptr().addr() == address.addr();
        segments.iter().find(starts_here).map(|segment| (Arc::clone(segment), 0))
    }

    fn open(&self, _descriptor: &Descriptor, _bytes: usize) -> Result<Allocation, DeviceError> {
        unreachable!("no other process is there")
    }
}

#[test]
fn a_copy_that_was_made_on_a_device_is_copied_to_the_host_for_another_machine() {
    let sim =
        SimDevice::new(SimOptions { pace: SimPace::Immediate, ..SimOptions::default() }).expect("a device");
    let device = Arc::new(Sharing { sim, segments: Mutex::default() });
    let engine = Engine::builder().workers(1).device(device.clone()).build().expect("an engine");
    let values = engine.from_vec(vec![7_u8; 100], &[100]).expect("a tensor");
    let tensor = engine.copy(&values, device.id()).expect("a copy");
    let owner = LeaseOwner::from("a ticket");
    let ready = |export: &Export| futures::executor::block_on(export.ready.settled()).expect("copied");
    let export = Export::new(&tensor, owner.clone(), None, false).expect("an export");
    ready(&export);
    assert!(matches!(
        export.shown.get(),
        Some(ShownMemory::Here(SegmentRange { segment: ExportMemory::Device(_), .. }))
    ));
    let copy = offer(export).expect_err("the host has not got it");
    let export = Export::new(&copy, owner, Some(true), false).expect("an export");
    ready(&export);
    let Offer { segment, offset, bytes, .. } = offer(export).expect("memory of the host");
    // SAFETY: the elements, which nothing writes.
    let bytes = unsafe { std::slice::from_raw_parts(segment.start().as_ptr().add(offset), bytes) };
    assert_eq!(bytes, [7; 100]);
}
