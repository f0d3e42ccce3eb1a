//! Fresh memory costs what is used of it, and goes back to the system.

use estafette::{DType, Error};
use tests::churn::resident_bytes;
use tests::ops::{engine, exclusive, until};

/// More than anything else here takes, and far less than the blocks.
const SLACK: usize = 32 << 20;

/// A large block.
const LARGE: usize = 512 << 20;

fn resident() -> usize {
    resident_bytes().expect("Linux tells resident memory")
}

/// The portable form clears memory by writing to it.
#[cfg(not(estafette_portable))]
#[test]
fn large_memory_that_nobody_has_touched_is_not_resident() {
    let _alone = exclusive();
    let engine = engine(1);
    let before = resident();
    let empty = engine.zeros(&[LARGE as i64], DType::U8).unwrap();
    let zeros = engine.zeros(&[LARGE as i64], DType::U8).unwrap();
    let grown = resident().saturating_sub(before);
    assert!(grown < SLACK, "resident memory grew by {grown} bytes");
    assert!(empty.is_ready() && zeros.is_ready());
}

#[test]
fn a_large_block_goes_back_to_the_system_when_its_tensor_is_gone() {
    let _alone = exclusive();
    let engine = engine(1);
    let before = resident();
    let block = engine.zeros(&[LARGE as i64 / 2], DType::U8).unwrap();
    let fill = engine.op("fill").writes([&block]).run(|[], [mut block]| {
        block.as_mut_slice::<u8>()?.fill(1);
        Ok(())
    });
    fill.unwrap().wait().unwrap();
    assert!(resident() > before + LARGE / 4, "it was written");
    drop(block);
    engine.wait_all(None).unwrap();
    tests::nothing_left::assert_nothing_left(&[&engine]);
    // The worker may be the last one that has the block, and be releasing it.
    until("the block goes back", || resident().saturating_sub(before) < SLACK);
}

#[test]
fn memory_is_zero_however_it_was_used_before() {
    let _alone = exclusive();
    let engine = engine(1);
    for bytes in [64, 4_000, 100_000, 1 << 20, 5 << 20] {
        for _ in 0..4 {
            let block = engine.zeros(&[bytes], DType::U8).unwrap();
            let used = engine.op("use").updates([&block]).run(|[], [], [mut block]| {
                let block = block.as_mut_slice::<u8>()?;
                let clean = block.iter().all(|byte| *byte == 0);
                block.fill(0xff);
                if clean { Ok(()) } else { Err("another owner's bytes".into()) }
            });
            used.unwrap().wait().unwrap();
        }
    }
}

#[test]
fn a_block_that_no_machine_has_is_refused_with_its_size() {
    let engine = engine(1);
    // More than user space has addresses for, so that no machine lends it.
    let bytes: i64 = 1 << 47;
    let refused = engine.zeros(&[bytes], DType::U8).unwrap_err();
    assert!(matches!(refused, Error::Device(_)), "{refused:?}");
    assert!(refused.to_string().contains(&bytes.to_string()), "{refused}");
    // The engine goes on.
    assert!(engine.zeros(&[1], DType::U8).unwrap().is_ready());
}
