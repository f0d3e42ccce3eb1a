//! Columns of numbers, packed into bytes.
//!
//! A number is LEB128 (seven bits a byte, lowest first) of its zigzag form (0, -1, 1, -2, ...), so small
//! numbers of either sign are a byte. All columns are one after another in one array of bytes; JSON has where
//! each of them is. `script/data.js` unpacks them.

use serde_json::{Value, json};

/// Columns, one after another. Each function adds one and gives its place: where it begins and how long it
/// is, in bytes.
#[derive(Default)]
pub struct Columns(pub Vec<u8>);

impl Columns {
    /// Numbers as they are.
    pub fn plain(&mut self, values: impl Iterator<Item = i64>) -> Value {
        let begin = self.0.len();
        values.for_each(|value| push(&mut self.0, value));
        json!([begin, self.0.len() - begin])
    }

    /// Differences: the first number, then what is added each time.
    pub fn steps(&mut self, values: impl Iterator<Item = u64>) -> Value {
        let mut before = 0;
        self.plain(values.map(|value| {
            let step = value.wrapping_sub(before) as i64;
            before = value;
            step
        }))
    }

    /// Numbers of which some are missing: 0 for those, one more for the others.
    pub fn indices(&mut self, values: impl Iterator<Item = Option<usize>>) -> Value {
        self.plain(values.map(|value| value.map_or(0, |value| value as i64 + 1)))
    }

    /// Times of which some are missing, from another time on: 0 for those; a difference that is not negative
    /// is one more.
    pub fn times(&mut self, values: impl Iterator<Item = (u64, Option<u64>)>) -> Value {
        self.plain(values.map(|(base, time)| match time {
            None => 0,
            Some(time) if time >= base => (time - base) as i64 + 1,
            Some(time) => -((base - time) as i64),
        }))
    }
}

fn push(bytes: &mut Vec<u8>, value: i64) {
    let mut left = ((value << 1) ^ (value >> 63)) as u64;
    while left >= 0x80 {
        bytes.push(left as u8 | 0x80);
        left >>= 7;
    }
    bytes.push(left as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_numbers_of_either_sign_take_a_byte() {
        let mut columns = Columns::default();
        assert_eq!(columns.plain([0, -1, 1, 63, -64].into_iter()), json!([0, 5]));
        assert_eq!(columns.plain([64, 300].into_iter()), json!([5, 4]));
        assert_eq!(columns.0, [0, 1, 2, 126, 127, 0x80, 1, 0xd8, 4]);
    }

    #[test]
    fn steps_are_differences_and_missing_times_are_zero() {
        let mut columns = Columns::default();
        columns.steps([5, 7, 6].into_iter());
        columns.times([(5, Some(5)), (5, None), (5, Some(4))].into_iter());
        columns.indices([None, Some(0)].into_iter());
        assert_eq!(columns.0, [10, 4, 1, 2, 0, 1, 0, 2]);
    }
}
