//! CUDA devices, through the driver, where there is one.

mod api;
