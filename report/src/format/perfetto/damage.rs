//! The damage of a file, in words: the first of much, and how much more there is.

/// Places of damage that are kept.
const KEPT: usize = 100;

/// Damage that was found.
#[derive(Debug, Default)]
pub struct Damage {
    kept: Vec<String>,
    more: u64,
}

impl Damage {
    /// Adds damage; `words` is called only if it is kept.
    pub fn add(&mut self, words: impl FnOnce() -> String) {
        if self.kept.len() < KEPT {
            self.kept.push(words());
        } else {
            self.more += 1;
        }
    }

    /// In words.
    pub fn words(mut self) -> Vec<String> {
        if self.more > 0 {
            self.kept.push(format!("and {} more", self.more));
        }
        self.kept
    }
}
