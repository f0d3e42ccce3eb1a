//! A machine without an NVIDIA driver: everything starts, and says what is missing.

use estafette_devices::cuda::CudaRuntime;

#[test]
fn without_a_driver_the_reason_is_said_and_nothing_panics() {
    // SAFETY: the driver may be loaded at any time; nothing of it is called.
    let driver = unsafe { libloading::Library::new("libcuda.so.1") };
    match (driver.is_ok(), CudaRuntime::get()) {
        (false, found) => {
            let error = found.expect_err("there is no driver");
            let again = CudaRuntime::get().expect_err("the probe is made once");
            assert_eq!(error.to_string(), again.to_string());
            assert!(error.to_string().contains("no NVIDIA driver"), "{error}");
        }
        (true, Ok(runtime)) => assert!(!runtime.devices().is_empty()),
        (true, Err(error)) => assert!(error.to_string().starts_with("CUDA is not available: "), "{error}"),
    }
}
