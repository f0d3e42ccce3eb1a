//! Link arguments of the shared library.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        // Programs record this name, whatever the file is called where they are linked. These arguments are
        // for this package alone: the Python extension has the functions under a name of its own.
        println!("cargo:rustc-link-arg=-Wl,-soname,libestafette.so.0");
        // Beside another copy in the global scope, this one calls its own functions: handles are of one copy.
        println!("cargo:rustc-link-arg=-Wl,-Bsymbolic");
        // Threads of the library, and destructors of thread-local values, live on after `dlclose`: it stays
        // mapped.
        println!("cargo:rustc-link-arg=-Wl,-z,nodelete");
    }
}
