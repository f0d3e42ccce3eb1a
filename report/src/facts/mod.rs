//! A recording's parts as named facts: what files can hold whose format knows nothing of operations or leases.
//!
//! Each part has two functions in [`convert`], one to facts and one back; a file format only has to write and read [`Fact`].

mod convert;
mod words;

pub(crate) use convert::{
    Head, Totals, edge, edge_from, head, head_from, lease, lease_from, loose_edge, operation, operation_from,
    stall, stall_from, variable, variable_from,
};
pub(crate) use words::{OPERATION_KINDS, culprit_name, lane_kind_word};

use std::borrow::Cow;

/// A named fact.
pub(crate) type Named = (Cow<'static, str>, Fact);

/// A value of a fact.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Fact {
    Uint(u64),
    Text(String),
    List(Vec<Fact>),
    Facts(Facts),
}

/// Facts about one thing, in order.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Facts(pub Vec<Named>);

impl Facts {
    /// Adds a number.
    fn uint(mut self, name: &'static str, value: u64) -> Self {
        self.0.push((name.into(), Fact::Uint(value)));
        self
    }

    /// Adds a number if there is one.
    fn maybe(self, name: &'static str, value: Option<u64>) -> Self {
        match value {
            Some(value) => self.uint(name, value),
            None => self,
        }
    }

    /// Adds an index if there is one.
    fn index(self, name: &'static str, value: Option<usize>) -> Self {
        self.maybe(name, value.map(|value| value as u64))
    }

    /// Adds a text.
    fn text(mut self, name: &'static str, value: &str) -> Self {
        self.0.push((name.into(), Fact::Text(value.to_owned())));
        self
    }

    /// Adds facts about each of several things, unless there are none.
    pub(crate) fn list(mut self, name: &'static str, values: impl Iterator<Item = Fact>) -> Self {
        let values: Vec<Fact> = values.collect();
        if !values.is_empty() {
            self.0.push((name.into(), Fact::List(values)));
        }
        self
    }

    fn find(&self, name: &str) -> Option<&Fact> {
        self.0.iter().find(|(its_name, _)| its_name == name).map(|(_, fact)| fact)
    }

    fn find_uint(&self, name: &str) -> Option<u64> {
        match self.find(name) {
            Some(&Fact::Uint(value)) => Some(value),
            _ => None,
        }
    }

    fn find_index(&self, name: &str) -> Option<usize> {
        self.find_uint(name).and_then(|value| usize::try_from(value).ok())
    }

    fn find_text(&self, name: &str) -> Option<&str> {
        match self.find(name) {
            Some(Fact::Text(value)) => Some(value),
            _ => None,
        }
    }

    /// The values of a list; none where there is no such list.
    pub(crate) fn find_list(&self, name: &str) -> &[Fact] {
        match self.find(name) {
            Some(Fact::List(values)) => values,
            _ => &[],
        }
    }

    fn need_uint(&self, name: &str) -> Result<u64, String> {
        self.find_uint(name).ok_or_else(|| format!("lacks its number `{name}`"))
    }

    fn need_text(&self, name: &str) -> Result<&str, String> {
        self.find_text(name).ok_or_else(|| format!("lacks its text `{name}`"))
    }
}

impl Fact {
    /// The facts that a list holds about one of its things.
    pub(crate) fn facts(&self) -> Result<&Facts, String> {
        match self {
            Self::Facts(facts) => Ok(facts),
            _ => Err("is a value where facts should be".to_owned()),
        }
    }
}
