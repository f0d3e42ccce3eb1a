//! Operators through the C interface: a library that is loaded, functions that are registered, calls by name.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Compiles with the C compiler, which linking Rust needs anyway.
fn compile(arguments: &[&str], out: &Path) {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let mut command = Command::new(compiler);
    command.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-g", "-I"]);
    command.arg(root().join("bindings/c/include")).args(arguments).arg("-o").arg(out);
    let status = command.current_dir(root()).status().expect("a C compiler");
    assert!(status.success(), "{command:?}");
}

extern "C" fn count(seen: *mut std::ffi::c_void, operator: *const estafette_c::estafette_operator_info) {
    // SAFETY: called with a list of names, and with what the header says.
    unsafe {
        let name = std::ffi::CStr::from_ptr((*operator).name).to_str().unwrap();
        let origin = std::ffi::CStr::from_ptr((*operator).origin).to_str().unwrap();
        (*seen.cast::<Vec<(String, String, u32)>>()).push((name.into(), origin.into(), (*operator).kind));
    }
}

#[test]
fn a_library_in_c_is_loaded_once_and_its_three_kinds_are_listed_and_called() {
    use estafette_c::*;
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libarithmetic.so");
    compile(&["-shared", "-fPIC", "tests/operators/arithmetic.c"], &library);
    let path = std::ffi::CString::new(library.to_str().unwrap()).unwrap();
    // SAFETY: every pointer is what its type says, and the library is ours.
    unsafe {
        let mut loaded = 0;
        assert_eq!(estafette_load_operators(path.as_ptr(), &mut loaded), estafette_status::ESTAFETTE_OK);
        assert_eq!(loaded, 3);
        assert_eq!(
            estafette_load_operators(path.as_ptr(), &mut loaded),
            estafette_status::ESTAFETTE_CONFLICT
        );

        let mut seen: Vec<(String, String, u32)> = Vec::new();
        estafette_list_operators(Some(count), (&raw mut seen).cast());
        let names: Vec<&str> = seen.iter().map(|(name, _, _)| name.as_str()).collect();
        assert_eq!(names, ["arithmetic.axpy", "arithmetic.outer", "arithmetic.split"]);
        assert!(seen.iter().all(|(_, origin, _)| Path::new(origin) == library));
        assert_eq!(seen.iter().map(|(_, _, kind)| *kind).collect::<Vec<_>>(), [0, 1, 2]);

        let mut engine = std::ptr::null_mut();
        assert_eq!(estafette_engine_create(std::ptr::null(), &mut engine), estafette_status::ESTAFETTE_OK);
        let f32s = DLDataType { code: 2, bits: 32, lanes: 1 };
        let vector = |length: i64| {
            let mut tensor = std::ptr::null_mut();
            assert_eq!(
                estafette_zeros(engine, &length, 1, f32s, &mut tensor),
                estafette_status::ESTAFETTE_OK
            );
            tensor
        };
        let (x, y, short) = (vector(3), vector(3), vector(2));
        let call = |name: &std::ffi::CStr,
                    inputs: &[*mut estafette_tensor],
                    outputs: &mut [*mut estafette_tensor]| {
            let (n, m) = (inputs.len(), outputs.len());
            let none = std::ptr::null();
            estafette_call_operator(
                engine,
                name.as_ptr(),
                inputs.as_ptr(),
                n,
                outputs.as_mut_ptr(),
                m,
                none,
                0,
            )
        };
        assert_eq!(call(c"arithmetic.axpy", &[x, y], &mut [y]), estafette_status::ESTAFETTE_OK);
        let mut made = [std::ptr::null_mut()];
        assert_eq!(call(c"arithmetic.outer", &[x, y], &mut made), estafette_status::ESTAFETTE_OK);
        assert_eq!(estafette_wait(made[0], ESTAFETTE_FOREVER), estafette_status::ESTAFETTE_OK);
        let mut parts = [std::ptr::null_mut(); 2];
        assert_eq!(call(c"arithmetic.split", &[made[0]], &mut parts), estafette_status::ESTAFETTE_OK);
        assert_eq!(estafette_wait(parts[1], ESTAFETTE_FOREVER), estafette_status::ESTAFETTE_OK);

        // Errors at the call, and errors in it.
        let invalid = estafette_status::ESTAFETTE_INVALID;
        assert_eq!(call(c"arithmetic.axpi", &[x, y], &mut [y]), invalid);
        let text = std::ffi::CStr::from_ptr(estafette_last_error()).to_str().unwrap();
        assert!(text.contains("near it: `arithmetic.axpy`"), "{text}");
        assert_eq!(call(c"arithmetic.axpy", &[x], &mut [y]), invalid);
        assert_eq!(call(c"arithmetic.outer", &[x, y], &mut [std::ptr::null_mut(), y]), invalid);
        assert_eq!(call(c"arithmetic.split", &[x], &mut [std::ptr::null_mut()]), invalid);
        assert_eq!(call(c"arithmetic.axpy", &[x, short], &mut [short]), estafette_status::ESTAFETTE_OK);
        assert_eq!(estafette_wait(short, ESTAFETTE_FOREVER), estafette_status::ESTAFETTE_FAILED);
        let text = std::ffi::CStr::from_ptr(estafette_last_error()).to_str().unwrap();
        assert!(text.contains("tensors of one length, not of 3, 2 and 2"), "{text}");

        for (name, ..) in &seen {
            let name = std::ffi::CString::new(name.as_str()).unwrap();
            assert_eq!(estafette_unregister_operator(name.as_ptr()), estafette_status::ESTAFETTE_OK);
        }
        assert_eq!(estafette_unregister_operator(c"arithmetic.axpy".as_ptr()), invalid);
        // The code that deletes them is the library's, which stays loaded for them.
        for tensor in [x, y, short, made[0], parts[0], parts[1]] {
            estafette_tensor_release(tensor);
        }
        estafette_engine_destroy(engine);
    }
}

#[test]
fn null_is_refused_by_name() {
    use estafette_c::*;
    let refused = |status: estafette_status, what: &str| {
        assert_eq!(status, estafette_status::ESTAFETTE_INVALID);
        // SAFETY: the text of this thread's last error.
        let text = unsafe { std::ffi::CStr::from_ptr(estafette_last_error()) }.to_str().unwrap();
        assert!(text.contains(what), "{text}");
    };
    let null = std::ptr::null_mut();
    // SAFETY: NULL is what these are tested with.
    unsafe {
        refused(
            estafette_register_operator(std::ptr::null(), None, std::ptr::null(), null, None),
            "name of an operator is NULL",
        );
        refused(
            estafette_register_operator(c"x".as_ptr(), None, std::ptr::null(), null, None),
            "options are NULL",
        );
        refused(estafette_load_operators(std::ptr::null(), std::ptr::null_mut()), "path is NULL");
        refused(estafette_list_operators(None, null), "callback is NULL");
        refused(estafette_unregister_operator(std::ptr::null()), "name is NULL");
    }
}
