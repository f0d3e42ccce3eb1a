use std::ffi::CString;

/// A running program: its remaining bytes.
#[derive(Debug)]
pub struct Bytes<'a> {
    rest: &'a [u8],
}

impl<'a> Bytes<'a> {
    pub fn new(program: &'a [u8]) -> Self {
        Self { rest: program }
    }

    pub fn is_over(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next byte; 0 at the end.
    pub fn byte(&mut self) -> u8 {
        match self.rest.split_first() {
            Some((first, rest)) => {
                self.rest = rest;
                *first
            }
            None => 0,
        }
    }

    pub fn below(&mut self, limit: usize) -> usize {
        usize::from(self.byte()) % limit.max(1)
    }

    /// Any number. Small ones and the ends of ranges come more often than the rest.
    pub fn number(&mut self) -> i64 {
        const ENDS: [i64; 16] = [
            -1,
            -2,
            i64::MIN,
            i64::MIN + 1,
            i64::MAX,
            i64::MAX - 1,
            i32::MAX as i64,
            i32::MIN as i64,
            u32::MAX as i64,
            u32::MAX as i64 + 1,
            1 << 16,
            1 << 40,
            1 << 60,
            1 << 61,
            1 << 62,
            (1 << 62) - 1,
        ];
        match self.byte() {
            small @ 0..0xe0 => i64::from(small),
            end @ 0xe0..0xf0 => ENDS[usize::from(end) - 0xe0],
            _ => i64::from_le_bytes(std::array::from_fn(|_| self.byte())),
        }
    }

    /// Up to `limit` bytes as a C string, which ends at the first zero.
    pub fn text(&mut self, limit: usize) -> CString {
        let length = self.below(limit + 1);
        let bytes: Vec<u8> = (0..length).map(|_| self.byte()).take_while(|byte| *byte != 0).collect();
        CString::new(bytes).expect("no zero is in it")
    }

    /// True once in so many times.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 1
    }
}
