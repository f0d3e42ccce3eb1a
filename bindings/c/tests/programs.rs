//! Programs through the C interface: what becomes of the contexts of their nodes.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use estafette_c::*;

unsafe extern "C" fn ends(_context: *mut c_void, op: *mut estafette_op) {
    // SAFETY: what the function was given.
    unsafe { estafette_op_complete(op, estafette_status::ESTAFETTE_OK as i32, ptr::null()) };
}

unsafe extern "C" fn count(context: *mut c_void) {
    // SAFETY: the test's counter.
    unsafe { (*context.cast::<AtomicUsize>()).fetch_add(1, Ordering::SeqCst) };
}

fn ok(status: estafette_status) {
    assert_eq!(status, estafette_status::ESTAFETTE_OK);
}

/// Records a node that reads the first tensor, and one that writes the second, each with `drops` as its
/// context, finishes the program, and destroys it. Returns how many contexts were dropped by then, what the
/// end of the recording returned, and what it said.
fn dropped_before_the_end(
    drops: &AtomicUsize,
    graph: i32,
    engine: *mut estafette_engine,
    (read, written): (*mut estafette_tensor, *mut estafette_tensor),
) -> (usize, estafette_status, String) {
    let mut program = ptr::null_mut();
    let context = ptr::from_ref(drops).cast_mut().cast();
    // SAFETY: every pointer is what its type says.
    unsafe {
        ok(estafette_program_begin(engine, ptr::null(), &mut program));
        for (reads, n_reads, writes, n_writes) in
            [(&raw const read, 1, ptr::null(), 0), (ptr::null(), 0, &raw const written, 1)]
        {
            ok(estafette_program_add(
                program,
                ptr::null(),
                Some(ends),
                context,
                Some(count),
                reads,
                n_reads,
                writes,
                n_writes,
            ));
        }
        let status = estafette_program_finish(program, graph);
        let text = CStr::from_ptr(estafette_last_error()).to_str().unwrap().to_owned();
        let dropped = drops.load(Ordering::SeqCst);
        // Nothing can be done with it but this.
        if status != estafette_status::ESTAFETTE_OK {
            let invalid = estafette_status::ESTAFETTE_INVALID;
            assert_eq!(estafette_program_replay(program, 0, ptr::null_mut()), invalid);
            assert_eq!(estafette_program_finish(program, 0), invalid);
        }
        ok(estafette_program_destroy(program));
        (dropped, status, text)
    }
}

#[test]
fn contexts_are_dropped_when_the_program_is_destroyed_also_if_it_could_not_be_finished() {
    let f32s = DLDataType { code: 2, bits: 32, lanes: 1 };
    let (mut engine, mut x, mut lent, mut derived) =
        (ptr::null_mut(), ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    // SAFETY: every pointer is what its type says.
    unsafe {
        ok(estafette_engine_create(ptr::null(), &mut engine));
        ok(estafette_zeros(engine, &1, 1, f32s, &mut x));
        ok(estafette_export(x, ptr::null(), &mut lent));
        // In memory under the lease of the export, which it keeps.
        ok(estafette_import(engine, lent, ptr::null(), &mut derived));
    }
    for (graph, read, expected, why) in [
        (0, x, estafette_status::ESTAFETTE_OK, ""),
        (1, x, estafette_status::ESTAFETTE_INVALID, "node 0 `c` works on the host"),
        (0, derived, estafette_status::ESTAFETTE_CONFLICT, "would wait for itself"),
    ] {
        let drops = AtomicUsize::new(0);
        let (before, status, text) = dropped_before_the_end(&drops, graph, engine, (read, x));
        assert_eq!((before, status), (0, expected), "{text}");
        assert!(text.contains(why), "{text}");
        assert_eq!(drops.load(Ordering::SeqCst), 2);
    }
    estafette_tensor_release(derived);
    estafette_tensor_release(x);
    estafette_engine_destroy(engine);
}
