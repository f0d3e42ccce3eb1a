//! Strings by number, as they are written: interning for the four kinds of strings that events refer to.

use std::collections::HashMap;

use super::messages::{DebugAnnotation, InternedData, InternedName};
use crate::format::facts::{Fact, Facts, Named};
use crate::model::Text;

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
    given: HashMap<Text, u64>,
    unwritten: Vec<InternedName>,
}

impl Numbers {
    fn number(&mut self, text: &str) -> u64 {
        if let Some(&number) = self.given.get(text) {
            return number;
        }
        let number = self.given.len() as u64 + 1; // 0 means none in Perfetto
        self.given.insert(text.into(), number);
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
        let annotate = |(name, fact): &Named| {
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
            Fact::Word(word) => annotation.string_value_iid = Some(self.texts.number(word)),
            Fact::List(facts) => {
                annotation.array_values = facts.iter().map(|fact| self.annotation(fact)).collect();
            }
            Fact::Facts(facts) => annotation.dict_entries = self.annotations(facts),
        }
        annotation
    }

    /// The interned strings that the next packet has to carry, if any.
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
