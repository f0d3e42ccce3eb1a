//! Columns of numbers, packed into text.
//!
//! A number is LEB128 (seven bits a byte, lowest first) of its zigzag form (0, -1, 1, -2, ...), so small numbers of either sign
//! are a byte; a column is the base64 of its numbers. `script/data.js` unpacks them.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

/// Numbers as they are.
pub fn plain(values: impl Iterator<Item = i64>) -> String {
    let mut bytes = Vec::new();
    values.for_each(|value| push(&mut bytes, value));
    BASE64_STANDARD.encode(bytes)
}

/// Differences: the first number, then what is added each time.
pub fn steps(values: impl Iterator<Item = u64>) -> String {
    let mut before = 0;
    plain(values.map(|value| {
        let step = value.wrapping_sub(before) as i64;
        before = value;
        step
    }))
}

/// Numbers of which some are missing: 0 for those, one more for the others.
pub fn indices(values: impl Iterator<Item = Option<usize>>) -> String {
    plain(values.map(|value| value.map_or(0, |value| value as i64 + 1)))
}

/// Times of which some are missing, from another time on: 0 for those; a difference that is not negative is one more.
pub fn times(values: impl Iterator<Item = (u64, Option<u64>)>) -> String {
    plain(values.map(|(base, time)| match time {
        None => 0,
        Some(time) if time >= base => (time - base) as i64 + 1,
        Some(time) => -((base - time) as i64),
    }))
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

    fn bytes(column: &str) -> Vec<u8> {
        BASE64_STANDARD.decode(column).expect("it is base64")
    }

    #[test]
    fn small_numbers_of_either_sign_take_a_byte() {
        assert_eq!(bytes(&plain([0, -1, 1, 63, -64].into_iter())), [0, 1, 2, 126, 127]);
        assert_eq!(bytes(&plain([64, 300].into_iter())), [0x80, 1, 0xd8, 4]);
    }

    #[test]
    fn steps_are_differences_and_missing_times_are_zero() {
        assert_eq!(bytes(&steps([5, 7, 6].into_iter())), [10, 4, 1]);
        assert_eq!(bytes(&times([(5, Some(5)), (5, None), (5, Some(4))].into_iter())), [2, 0, 1]);
        assert_eq!(bytes(&indices([None, Some(0)].into_iter())), [0, 2]);
    }
}
