//! Devices that reach each other's memory. Where they do not, copies between them go through the host, which the driver does.

use std::fmt;
use std::sync::Arc;

use estafette_sync::sync::OnceLock;

use crate::DeviceType;

use super::api::Code;
use super::context::Context;
use super::device::CudaDevice;
use super::errors::PEER_ACCESS_ALREADY_ENABLED;
use super::memory::Pool;

/// The other devices, as one device sees them.
pub(super) struct Peers {
    others: Vec<Peer>,
}

struct Peer {
    context: Arc<Context>,
    pool: Option<Arc<Pool>>,
    /// Whether its memory is reached directly, once somebody has copied between the two.
    reached: OnceLock<bool>,
}

impl Peers {
    pub(super) fn of(device: &CudaDevice, all: &[Arc<CudaDevice>]) -> Self {
        let others = all.iter().filter(|other| other.ordinal() != device.ordinal()).map(|other| Peer {
            context: Arc::clone(other.context()),
            pool: other.pool().cloned(),
            reached: OnceLock::new(),
        });
        Self { others: others.collect() }
    }

    /// Sees to it that `device` reaches the memory at `pointer` directly, where it can. The first time costs some driver calls
    /// for each pair of devices.
    pub(super) fn reach(&self, device: &CudaDevice, pointer: *const u8) {
        if self.others.is_empty() {
            return;
        }
        let Some(info) = device.pointer_info(pointer) else { return };
        if info.device.device_type != DeviceType::CUDA || info.ordinal == device.ordinal() {
            return;
        }
        if let Some(peer) = self.others.iter().find(|peer| peer.context.id == info.device) {
            peer.reached.get_or_init(|| enable(device.context(), peer));
        }
    }
}

/// Lets `context` reach the memory of `peer`: what is allocated in its context, and what comes from its pool.
fn enable(context: &Context, peer: &Peer) -> bool {
    let api = context.api;
    let (Some(possible), Some(enable)) = (api.peer_possible, api.peer_enable) else { return false };
    let Ok(_entered) = context.enter_relaxed() else { return false };
    let mut can = 0;
    // A device's handle is its number.
    let (from, to) = (context.id.device_id, peer.context.id.device_id);
    // SAFETY: writes one number; both contexts stay.
    let code: Code = unsafe {
        if possible(&raw mut can, from, to) != 0 || can == 0 {
            return false;
        }
        enable(peer.context.raw.get(), 0)
    };
    if let Some(pool) = &peer.pool {
        pool.share_with(&peer.context, from);
    }
    code == 0 || code == PEER_ACCESS_ALREADY_ENABLED
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.others.iter().map(|peer| peer.context.id)).finish()
    }
}
