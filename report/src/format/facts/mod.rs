//! A trace's parts as named facts: what files can hold whose format knows nothing of operations or leases.
//!
//! Each part has two functions in [`convert`], one to facts and one back; a file format only has to write and
//! read [`Fact`].
//!
//! | part | what it has |
//! |---|---|
//! | `convert` | each part of a trace to facts, and back |
//! | `words` | the words of files for the model's enumerations, both ways |

mod convert;
mod words;

pub(crate) use convert::{
    Head, Totals, edge, edge_from, head, head_from, lease, lease_from, loose_edge, operation, operation_from,
    stall, stall_from, variable, variable_from,
};
pub(crate) use words::{Word, blocker_name};

use crate::model::Text;

pub(crate) type Named = (&'static str, Fact);

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Fact {
    Uint(u64),
    Text(Text),
    Word(&'static str),
    List(Vec<Fact>),
    Facts(Facts),
}

/// Facts about one thing, in order: what is written.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Facts(pub Vec<Named>);

impl Facts {
    fn uint(mut self, name: &'static str, value: u64) -> Self {
        self.0.push((name, Fact::Uint(value)));
        self
    }

    fn maybe(self, name: &'static str, value: Option<u64>) -> Self {
        match value {
            Some(value) => self.uint(name, value),
            None => self,
        }
    }

    fn index(self, name: &'static str, value: Option<usize>) -> Self {
        self.maybe(name, value.map(|value| value as u64))
    }

    fn text(mut self, name: &'static str, value: &Text) -> Self {
        self.0.push((name, Fact::Text(value.clone())));
        self
    }

    /// Adds one of a few texts that the format knows.
    fn word(mut self, name: &'static str, value: &'static str) -> Self {
        self.0.push((name, Fact::Word(value)));
        self
    }

    /// Adds facts about each of several things, unless there are none.
    pub(crate) fn list(mut self, name: &'static str, values: impl Iterator<Item = Fact>) -> Self {
        let values: Vec<Fact> = values.collect();
        if !values.is_empty() {
            self.0.push((name, Fact::List(values)));
        }
        self
    }
}

/// Facts about one thing: what is read. A reader shows them where they lie; nothing is copied that is not
/// asked for.
pub(crate) trait ReadFacts: Sized {
    fn find_uint(&self, name: &str) -> Option<u64>;

    fn find_text(&self, name: &str) -> Option<&Text>;

    /// The elements of the list of that name; none where there is no such list.
    fn find_list(&self, name: &str) -> impl Iterator<Item = Result<Item<Self>, String>>;

    /// The facts about each thing of a list.
    fn find_things(&self, name: &str) -> impl Iterator<Item = Result<Self, String>> {
        self.find_list(name).map(|item| match item? {
            Item::Facts(facts) => Ok(facts),
            Item::Text(_) => Err("has a value where facts should be".to_owned()),
        })
    }

    fn find_index(&self, name: &str) -> Option<usize> {
        self.find_uint(name).and_then(|value| usize::try_from(value).ok())
    }

    fn need_uint(&self, name: &str) -> Result<u64, String> {
        self.find_uint(name).ok_or_else(|| format!("lacks its number `{name}`"))
    }

    fn need_text(&self, name: &str) -> Result<&Text, String> {
        self.find_text(name).ok_or_else(|| format!("lacks its text `{name}`"))
    }
}

pub(crate) enum Item<T> {
    Text(Text),
    Facts(T),
}
