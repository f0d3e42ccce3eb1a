//! Gives the shared library the driver's name: later requests to the loader for the driver get the copy that
//! a test has loaded by its path.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
        // Its function table (`entry_point.rs`) names its own functions, also if other libraries export these
        // names.
        println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    }
}
