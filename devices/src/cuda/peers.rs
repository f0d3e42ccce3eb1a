//! Devices that reach each other's memory. Where they do not, copies between them go through the host, which the driver does.

use estafette_sync::sync::OnceLock;

use crate::DeviceType;

use super::api::Code;
use super::device::CudaDevice;
use super::errors::PEER_ACCESS_ALREADY_ENABLED;
use super::runtime::CudaRuntime;

/// The other devices, as one device sees them: whether their memory is reached directly, once somebody has copied between the
/// two. By the driver's numbers.
pub(super) struct Peers {
    reached: Vec<OnceLock<bool>>,
}

impl Peers {
    pub(super) fn new(count: usize) -> Self {
        Self { reached: (0..count).map(|_| OnceLock::new()).collect() }
    }

    /// Sees to it that `device` reaches the memory at `pointer` directly, where it can. The first time costs some driver calls
    /// for each pair of devices.
    pub(super) fn reach(&self, device: &CudaDevice, pointer: *const u8) {
        if self.reached.len() < 2 {
            return;
        }
        let Some(info) = device.pointer_info(pointer) else { return };
        if info.device.device_type != DeviceType::CUDA || info.ordinal == device.ordinal() {
            return;
        }
        let place = usize::try_from(info.ordinal).ok().and_then(|at| self.reached.get(at));
        if let Some(place) = place.filter(|place| place.get().is_none()) {
            place.get_or_init(|| {
                let peer = CudaRuntime::get().ok().and_then(|runtime| runtime.device(info.ordinal));
                peer.is_some_and(|peer| enable(device, peer))
            });
        }
    }
}

/// Lets `device` reach the memory of `peer`: what is allocated in its context, and what comes from its pool.
fn enable(device: &CudaDevice, peer: &CudaDevice) -> bool {
    let context = device.context();
    let (Some(possible), Some(enable)) = (context.api.peer_possible, context.api.peer_enable) else {
        return false;
    };
    let Ok(_entered) = context.enter_relaxed() else { return false };
    let mut can = 0;
    // A device's handle is its number.
    let (from, to) = (device.ordinal(), peer.ordinal());
    // SAFETY: writes one number; both contexts stay.
    let code: Code = unsafe {
        if possible(&raw mut can, from, to) != 0 || can == 0 {
            return false;
        }
        enable(peer.context().raw.get(), 0)
    };
    if let Some(pool) = peer.pool() {
        pool.share_with(peer.context(), from);
    }
    code == 0 || code == PEER_ACCESS_ALREADY_ENABLED
}
