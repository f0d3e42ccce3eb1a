//! Maps and sets of addresses.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// Hashes addresses. They differ in their middle bits, which a multiplication moves to the top.
#[derive(Default)]
pub(crate) struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_usize(usize::from(*byte)));
    }

    fn write_usize(&mut self, address: usize) {
        const ODD: u64 = 0x9E37_79B9_7F4A_7C15;
        self.0 = (self.0 ^ address as u64).wrapping_mul(ODD).rotate_left(26);
    }
}

pub(crate) type Map<K, X> = HashMap<K, X, BuildHasherDefault<AddressHasher>>;
pub(crate) type Set<K> = HashSet<K, BuildHasherDefault<AddressHasher>>;
