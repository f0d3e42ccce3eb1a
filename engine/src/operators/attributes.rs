//! The options of a call: pairs of a name and a text, as in MXNet's operators, so that every language can say
//! them.

use std::str::FromStr;

use estafette_report::shown::shown;

use crate::core::error::Error;

/// Names and values, in the order in which they were given; a name that is given again has its last value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attributes {
    pub(crate) attributes: Vec<Attribute>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attribute {
    pub(crate) key: String,
    pub(crate) value: String,
    /// True if the value is text where the call was made. Else it may be a number or the like, as text.
    pub(crate) is_text: bool,
}

impl Attributes {
    /// Sets the value of `key`.
    pub(crate) fn set(&mut self, key: impl Into<String>, value: impl Into<String>, is_text: bool) {
        let attribute = Attribute { key: key.into(), value: value.into(), is_text };
        match self.attributes.iter_mut().find(|known| known.key == attribute.key) {
            Some(known) => *known = attribute,
            None => self.attributes.push(attribute),
        }
    }

    /// The value of `key`.
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.iter().find(|(known, _)| *known == key).map(|(_, value)| value)
    }

    /// The value of `key`, read as a `T`; `default` when it is not given.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a value that is no `T`.
    pub fn parse<T: FromStr>(&self, key: &str, default: T) -> Result<T, Error> {
        let Some(value) = self.get(key) else { return Ok(default) };
        let kind = std::any::type_name::<T>();
        value.parse().map_err(|_| {
            Error::invalid(format!("attribute `{}` is `{}`, which is no {kind}", shown(key), shown(value)))
        })
    }

    /// All pairs.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.attributes.iter().map(|known| (known.key.as_str(), known.value.as_str()))
    }

    /// In C, a text ends at its first NUL.
    pub(super) fn check(&self) -> Result<(), Error> {
        match self.iter().find(|(key, value)| key.contains('\0') || value.contains('\0')) {
            Some((key, _)) => Err(Error::invalid(format!("attribute {key:?} contains a NUL byte"))),
            None => Ok(()),
        }
    }
}
