//! What belongs to one kind of device: streams, queues, array interfaces.
//!
//! | part | what it has |
//! |---|---|
//! | `barriers` | Barriers over a device, held off while another library records a graph there |
//! | `cuda_array` | The CUDA array interface |
//! | `stream` | What consumers write as `stream`, and which of our devices is behind memory |
//! | `sycl` | SYCL in Python: queues of dpctl, arrays whose memory is USM, and the device table |
//! | `usm_array` | The SYCL USM array interface |

pub(crate) mod barriers;
pub(crate) mod cuda_array;
pub(crate) mod stream;
pub(crate) mod sycl;
pub(crate) mod usm_array;
