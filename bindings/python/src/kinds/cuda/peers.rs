//! Libraries of CUDA alone.

use crate::exchange::peers::{Omitted, Peer, Stream, UNKNOWN};

pub static PEERS: &[Peer] = &[
    Peer {
        root: "cupy",
        legacy_writable: true,
        honours_read_only: false,
        current_stream: Some(("cupy.cuda", "get_current_stream")),
        source: "cupy/cupy: cupy/_core/core.pyx, cupy/_core/dlpack.pyx, cupy/cuda/stream.pyx",
        ..UNKNOWN
    },
    Peer {
        root: "cuda",
        // Buffers and views take the argument and leave the order to the program.
        stream: Stream::Ignored,
        omitted: Omitted::NoSync,
        null_is_default: false,
        source: "NVIDIA/cuda-python: cuda_core/cuda/core/_memoryview.pyx, _memory/_buffer.pyx (__dlpack__); NVIDIA/cuda-python#1630",
        ..UNKNOWN
    },
    Peer {
        root: "numba",
        honours_read_only: false,
        omitted: Omitted::NoSync,
        // An array names a stream only if it was bound to one, and 0 if that is the default stream; kernels
        // go there unless another one is named, so either may be under way.
        unnamed_is_default: true,
        // Managed and mapped arrays are NumPy's, with an interface of Numba's.
        interface_first: true,
        source: "NVIDIA/numba-cuda: numba_cuda/numba/cuda/cudadrv/devicearray.py (__cuda_array_interface__, ManagedNDArray), driver.py (Stream)",
        ..UNKNOWN
    },
];
