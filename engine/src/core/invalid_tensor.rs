//! The error of everything that comes from outside: it names the field and says what is wrong with it.

use std::borrow::Cow;
use std::fmt;

/// A tensor description that cannot be used, with the field (of DLPack, or of Arrow) that makes it so.
///
/// Its text reads `shape[1] is -3`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} {reason}", self.place())]
pub struct InvalidTensor {
    field: &'static str,
    index: Option<usize>,
    reason: Cow<'static, str>,
}

impl InvalidTensor {
    /// An error about `field`; `reason` continues the sentence that the field's name begins.
    pub(crate) fn new(field: &'static str, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { field, index: None, reason: reason.into() }
    }

    /// The same about one entry of `field`, for example `shape[1]`.
    pub(crate) fn at(field: &'static str, index: usize, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { field, index: Some(index), reason: reason.into() }
    }

    fn place(&self) -> impl fmt::Display {
        let (field, index) = (self.field, self.index);
        std::fmt::from_fn(move |f| match index {
            Some(index) => write!(f, "{field}[{index}]"),
            None => f.write_str(field),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_names_the_field_and_the_entry() {
        assert_eq!(InvalidTensor::at("shape", 1, "is -3").to_string(), "shape[1] is -3");
        let error = InvalidTensor::new("ndim", format!("is {}", -1));
        assert_eq!(error.to_string(), "ndim is -1");
    }
}
