//! What belongs to one kind of device: streams, queues, array interfaces.
//!
//! | part | what it has |
//! |---|---|
//! | `barriers` | Barriers over a device, held off while another library records a graph there |
//! | `cuda` | CUDA's streams, and its array interface |
//! | `sycl` | Queues of dpctl, arrays whose memory is USM, and the device table |

pub(crate) mod barriers;
pub(crate) mod cuda;
pub(crate) mod sycl;
