//! Failures of memory that several tensors are parts of: what was not written anew stays failed.

use estafette::{Engine, Tensor};
use tests::foreign::{Deleted, Memory};
use tests::ops::{engine, fail, get, look, set, tensor};

/// Tensors of one memory of 80 elements: their first elements, their lengths and the steps between elements.
fn parts<const N: usize>(engine: &Engine, places: [(usize, usize, i64); N]) -> [Tensor; N] {
    let (memory, deleted) = (Memory::of(&[0.0; 80]), Deleted::default());
    places.map(|(start, len, step)| import(engine, &memory, &deleted, start, len, step))
}

fn import(
    engine: &Engine,
    memory: &Memory,
    deleted: &Deleted,
    start: usize,
    len: usize,
    step: i64,
) -> Tensor {
    let managed = memory.versioned(start, len, deleted, |managed| {
        // SAFETY: the strides of a tensor of one dimension, which are not shared yet.
        unsafe { *managed.tensor.strides = step };
    });
    // SAFETY: a fresh tensor whose elements lie in its memory.
    let managed = unsafe { estafette::ManagedTensor::from_raw(managed, estafette::exchange::Abi::Versioned) };
    // SAFETY: the memory has no other users than these tensors.
    unsafe { engine.import(managed.unwrap()) }.unwrap()
}

fn fails(tensor: &Tensor) -> bool {
    tensor.wait().is_err()
}

#[test]
fn a_write_of_one_part_leaves_the_failure_of_another() {
    let engine = engine(1);
    let (whole, first, second) = ((0, 80, 1), (0, 40, 1), (40, 40, 1));
    // Whichever tensor comes first, the whole shares its variable with both parts.
    for order in [[whole, first, second], [first, second, whole], [first, whole, second]] {
        let tensors = parts(&engine, order);
        let of = |place| &tensors[order.iter().position(|known| *known == place).unwrap()];
        let (whole, first, second) = (of(whole), of(first), of(second));
        fail(&engine, first, "half of it").wait().unwrap_err();
        set(&engine, second, 1.0).wait().unwrap();
        assert!(fails(whole) && fails(first), "{order:?}");
        set(&engine, first, 2.0).wait().unwrap();
        assert!(!fails(whole) && !fails(first) && !fails(second), "{order:?}");
        assert_eq!((get(first), get(second)), (2.0, 1.0));

        fail(&engine, whole, "all of it").wait().unwrap_err();
        set(&engine, second, 3.0).wait().unwrap();
        assert!(fails(whole) && fails(first), "{order:?}");
        set(&engine, first, 4.0).wait().unwrap();
        assert!(fails(whole) == (order[0] == (0, 40, 1)), "{order:?}");
        set(&engine, whole, 5.0).wait().unwrap();
        assert!(!fails(whole) && !fails(first) && !fails(second), "{order:?}");
    }
}

#[test]
fn many_parts_that_one_tensor_covers_fail_and_recover_by_themselves() {
    let engine = engine(1);
    let (memory, deleted) = (Memory::of(&[0.0; 80]), Deleted::default());
    let blocks: Vec<Tensor> = (0..40).map(|at| import(&engine, &memory, &deleted, 2 * at, 2, 1)).collect();
    let whole = import(&engine, &memory, &deleted, 0, 80, 1);
    for failed in [3, 17] {
        fail(&engine, &blocks[failed], "a block").wait().unwrap_err();
    }
    for block in [0, 3, 39] {
        set(&engine, &blocks[block], 1.0).wait().unwrap();
    }
    assert!(fails(&whole) && fails(&blocks[17]));
    set(&engine, &blocks[17], 1.0).wait().unwrap();
    whole.wait().unwrap();
}

#[test]
fn a_part_that_was_not_written_because_its_input_failed_stays_failed() {
    let engine = engine(1);
    let [whole, first, second] = parts(&engine, [(0, 80, 1), (0, 40, 1), (40, 40, 1)]);
    let input = tensor(&engine, 0.0);
    fail(&engine, &input, "the input").wait().unwrap_err();
    let copy = engine.op("copy").reads([&input]).writes([&first]).run(|[_input], [_first]| Ok(())).unwrap();
    copy.wait().unwrap_err();
    set(&engine, &second, 1.0).wait().unwrap();
    assert_eq!(whole.wait().unwrap_err().operation().unwrap().message(), "the input");
    set(&engine, &first, 1.0).wait().unwrap();
    whole.wait().unwrap();
}

#[test]
fn an_error_is_cleared_for_the_part_that_was_inspected() {
    let engine = engine(1);
    let [whole, first, second] = parts(&engine, [(0, 80, 1), (0, 40, 1), (40, 40, 1)]);
    for part in [&first, &second] {
        fail(&engine, part, "half of it").wait().unwrap_err();
    }
    first.clear_error().unwrap();
    assert!(fails(&whole));
    second.clear_error().unwrap();
    look(&engine, &whole).wait().unwrap();
}

#[test]
fn elements_with_others_between_them_are_a_part() {
    let engine = engine(1);
    let [even, odd, whole] = parts(&engine, [(0, 40, 2), (1, 40, 2), (0, 80, 1)]);
    fail(&engine, &even, "the even ones").wait().unwrap_err();
    set_through_pointer(&engine, &odd);
    assert!(fails(&even));
    set_through_pointer(&engine, &even);
    even.wait().unwrap();
    fail(&engine, &odd, "the odd ones").wait().unwrap_err();
    set(&engine, &whole, 1.0).wait().unwrap();
    odd.wait().unwrap();
}

/// Overwrites elements that are no slice.
fn set_through_pointer(engine: &Engine, tensor: &Tensor) {
    engine.op("set").writes([tensor]).run(|[], [_tensor]| Ok(())).unwrap().wait().unwrap();
}
