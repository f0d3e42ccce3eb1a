//! Protobuf messages where they lie: field by field, nothing copied. What a message would take decoded may be
//! many times its size, so what comes from a file is read this way.

use prost::encoding::decode_varint;

/// A field's value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    /// A number of any of the types that are written so.
    Varint(u64),
    /// A text, bytes, or a message.
    Bytes(&'a [u8]),
    /// Of a type that is not used here.
    Fixed,
}

/// The message ends within a field, or what is there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Garbled;

/// The fields of a message, in order: number and value. Ends after the first error.
#[derive(Debug, Clone)]
pub struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub fn of(message: &'a [u8]) -> Self {
        Self(message)
    }

    fn field(&mut self) -> Result<(u32, Value<'a>), Garbled> {
        let key = decode_varint(&mut self.0).map_err(|_| Garbled)?;
        let number = u32::try_from(key >> 3).ok().filter(|number| *number > 0).ok_or(Garbled)?;
        let value = match key & 7 {
            0 => Value::Varint(decode_varint(&mut self.0).map_err(|_| Garbled)?),
            1 => {
                self.take(8)?;
                Value::Fixed
            }
            2 => {
                let length = decode_varint(&mut self.0).map_err(|_| Garbled)?;
                Value::Bytes(self.take(usize::try_from(length).map_err(|_| Garbled)?)?)
            }
            5 => {
                self.take(4)?;
                Value::Fixed
            }
            _ => return Err(Garbled),
        };
        Ok((number, value))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Garbled> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Garbled)?;
        self.0 = rest;
        Ok(taken)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Value<'a>), Garbled>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_in_order_and_the_first_error_is_the_last_item() {
        let message =
            [0x08, 0x96, 0x01, 0x12, 0x02, b'h', b'i', 0x19, 1, 2, 3, 4, 5, 6, 7, 8, 0x12, 0x05, b'x'];
        let fields: Vec<_> = Fields::of(&message).collect();
        assert_eq!(
            fields,
            [Ok((1, Value::Varint(150))), Ok((2, Value::Bytes(b"hi"))), Ok((3, Value::Fixed)), Err(Garbled)]
        );
    }
}
