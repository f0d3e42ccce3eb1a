//! Changes of the device's behaviour for a test or an example: held tasks, faults, jitter.

use std::collections::HashSet;

use crate::DeviceError;

/// The script of one device. Deterministic: chance comes from the seed only.
#[derive(Debug)]
pub(super) struct Script {
    seed: u64,
    pub(super) held: HashSet<String>,
    /// Fails the task that would complete next.
    pub(super) fail_next: Option<DeviceError>,
    /// Fails the task of that name when it would complete.
    pub(super) fail_named: Vec<(String, DeviceError)>,
}

impl Script {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, held: HashSet::new(), fail_next: None, fail_named: Vec::new() }
    }

    /// The fault that the task `name`, which would complete now, was given. Each fault happens once.
    pub(super) fn fault_of(&mut self, name: &str) -> Option<DeviceError> {
        let named = self.fail_named.iter().position(|(victim, _)| victim == name);
        named.map(|place| self.fail_named.remove(place).1).or_else(|| self.fail_next.take())
    }

    pub(super) fn draw(&mut self) -> u64 {
        // SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.seed;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
