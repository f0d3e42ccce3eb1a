//! Libraries of SYCL.

use crate::exchange::peers::{Omitted, Peer, UNKNOWN};

pub static PEERS: &[Peer] = &[
    Peer {
        root: "dpnp",
        legacy_writable: true,
        // dpnp's streams are SYCL queues, of which it passes none when it imports (data-apis/array-api#829).
        omitted: Omitted::NoSync,
        source: "IntelPython/dpnp: dpnp/tensor/_dlpack.pyx; data-apis/array-api#829",
        ..UNKNOWN
    },
    Peer {
        root: "dpctl",
        legacy_writable: true,
        omitted: Omitted::NoSync,
        source: "IntelPython/dpctl: dpctl/tensor/_dlpack.pyx, up to 0.21",
        ..UNKNOWN
    },
];
