//! A small generator of random numbers with a printed seed, so that failures repeat.

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// Dice that fall the same way for the same seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    pub fn roll(&mut self, sides: usize) -> usize {
        assert!(sides > 0, "dice have sides");
        (self.bits() % sides as u64) as usize
    }

    /// True once in `times` on average.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.roll(times) == 0
    }

    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.roll(choices.len())]
    }
}

/// Spreads every bit of `value` over the result.
pub fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// True if `cargo xtask test` runs without `--all`: a tenth of what takes long will do.
pub fn few_examples() -> bool {
    std::env::var_os("ESTAFETTE_FEW_EXAMPLES").is_some()
}

/// The number that an environment variable holds, or `default`.
pub fn from_environment(variable: &str, default: u64) -> u64 {
    std::env::var(variable)
        .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{variable}={text} is not a number")))
}
