//! Strings by number: both directions of interning, for the four kinds of strings that events refer to.

use std::borrow::Cow;
use std::collections::HashMap;

use super::messages::{DebugAnnotation, InternedData, InternedName};
use crate::facts::{Fact, Facts};

/// Numbers given to strings since the last block began, and those not yet written.
#[derive(Debug, Default)]
pub struct Interner {
    categories: Numbers,
    events: Numbers,
    names: Numbers,
    texts: Numbers,
}

#[derive(Debug, Default)]
struct Numbers {
    given: HashMap<String, u64>,
    unwritten: Vec<InternedName>,
}

impl Numbers {
    fn number(&mut self, text: &str) -> u64 {
        if let Some(&number) = self.given.get(text) {
            return number;
        }
        let number = self.given.len() as u64 + 1; // 0 means none in Perfetto
        self.given.insert(text.to_owned(), number);
        self.unwritten.push(InternedName { iid: Some(number), text: Some(text.to_owned()) });
        number
    }
}

impl Interner {
    pub fn category(&mut self, text: &str) -> u64 {
        self.categories.number(text)
    }

    pub fn event(&mut self, name: &str) -> u64 {
        self.events.number(name)
    }

    /// Facts as annotations.
    pub fn annotations(&mut self, facts: &Facts) -> Vec<DebugAnnotation> {
        let annotate = |(name, fact): &(Cow<'static, str>, Fact)| {
            let name_iid = Some(self.names.number(name));
            DebugAnnotation { name_iid, ..self.annotation(fact) }
        };
        facts.0.iter().map(annotate).collect()
    }

    fn annotation(&mut self, fact: &Fact) -> DebugAnnotation {
        let mut annotation = DebugAnnotation::default();
        match fact {
            Fact::Uint(value) => annotation.uint_value = Some(*value),
            Fact::Text(text) => annotation.string_value_iid = Some(self.texts.number(text)),
            Fact::List(facts) => {
                annotation.array_values = facts.iter().map(|fact| self.annotation(fact)).collect();
            }
            Fact::Facts(facts) => annotation.dict_entries = self.annotations(facts),
        }
        annotation
    }

    /// What the next packet has to carry, if anything.
    pub fn take(&mut self) -> Option<InternedData> {
        let data = InternedData {
            event_categories: std::mem::take(&mut self.categories.unwritten),
            event_names: std::mem::take(&mut self.events.unwritten),
            debug_annotation_names: std::mem::take(&mut self.names.unwritten),
            debug_annotation_string_values: std::mem::take(&mut self.texts.unwritten),
        };
        (data != InternedData::default()).then_some(data)
    }
}

/// The strings that a block of a file has introduced so far.
#[derive(Debug, Default)]
pub struct Known {
    categories: HashMap<u64, String>,
    events: HashMap<u64, String>,
    names: HashMap<u64, String>,
    texts: HashMap<u64, String>,
}

impl Known {
    pub fn learn(&mut self, data: InternedData) {
        let learn = |known: &mut HashMap<u64, String>, new: Vec<InternedName>| {
            known.extend(new.into_iter().map(|new| (new.iid.unwrap_or(0), new.text.unwrap_or_default())));
        };
        learn(&mut self.categories, data.event_categories);
        learn(&mut self.events, data.event_names);
        learn(&mut self.names, data.debug_annotation_names);
        learn(&mut self.texts, data.debug_annotation_string_values);
    }

    pub fn category(&self, number: u64) -> Option<&str> {
        self.categories.get(&number).map(String::as_str)
    }

    pub fn event(&self, number: u64) -> Option<&str> {
        self.events.get(&number).map(String::as_str)
    }

    /// Annotations as facts, or what is wrong with them.
    pub fn facts(&self, annotations: &[DebugAnnotation]) -> Result<Facts, String> {
        let named = |annotation: &DebugAnnotation| {
            let name = annotation.name_iid.and_then(|number| self.names.get(&number));
            let name = name.ok_or("has an annotation whose name is lost")?;
            Ok((Cow::Owned(name.clone()), self.fact(annotation)?))
        };
        annotations.iter().map(named).collect::<Result<_, String>>().map(Facts)
    }

    fn fact(&self, annotation: &DebugAnnotation) -> Result<Fact, String> {
        if let Some(value) = annotation.uint_value {
            Ok(Fact::Uint(value))
        } else if let Some(number) = annotation.string_value_iid {
            let text = self.texts.get(&number).ok_or("has an annotation whose text is lost")?;
            Ok(Fact::Text(text.clone()))
        } else if !annotation.array_values.is_empty() {
            let facts = annotation.array_values.iter().map(|value| self.fact(value));
            facts.collect::<Result<_, _>>().map(Fact::List)
        } else {
            self.facts(&annotation.dict_entries).map(Fact::Facts)
        }
    }
}
