//! Names the shared library as the driver is named, so that whoever asks the loader for the driver later gets the copy
//! that a test has loaded by its path.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
        // What it says its functions are (`entry_point.rs`) are its own, whoever else exports these names.
        println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    }
}
