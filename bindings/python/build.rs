//! Link arguments of the extension.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        // In a program that is linked to the C library, the interface that this package gives has its own
        // functions: handles are of one copy.
        println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    }
}
