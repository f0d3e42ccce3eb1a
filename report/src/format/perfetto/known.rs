//! Strings by number, as they are read, and the facts that refer to them.

use std::collections::{HashMap, HashSet};

use super::wire::{Fields, Garbled, Value};
use crate::format::budget::{Budget, Spent};
use crate::format::facts::{Item, ReadFacts};
use crate::model::Text;

/// Bytes of a text that are kept; the rest is cut off. Names and reasons are shorter; what is longer would be
/// shown again and again.
const TEXT_MAX: usize = 4_096;

/// Facts about one thing at most.
const FACTS_MAX: usize = 64;

/// The texts of a whole reading, each once.
#[derive(Debug, Default)]
pub struct Texts(HashSet<Text>);

impl Texts {
    pub fn shared(&mut self, text: &str, budget: &mut Budget) -> Result<Text, Spent> {
        let text = &text[..text.floor_char_boundary(TEXT_MAX)];
        if let Some(known) = self.0.get(text) {
            return Ok(known.clone());
        }
        // The text, its counts and its place in the set.
        budget.take(text.len() + 4 * size_of::<Text>())?;
        let new = Text::from(text);
        self.0.insert(new.clone());
        Ok(new)
    }
}

/// Texts by number. Writers count from 1.
#[derive(Debug, Default)]
struct Numbered {
    counted: Vec<Text>,
    others: HashMap<u64, Text>,
}

impl Numbered {
    fn get(&self, number: u64) -> Option<&Text> {
        let counted = number.checked_sub(1).and_then(|at| self.counted.get(usize::try_from(at).ok()?));
        counted.or_else(|| self.others.get(&number))
    }

    fn insert(&mut self, number: u64, text: Text) {
        let count = self.counted.len() as u64;
        match number.checked_sub(1) {
            Some(at) if at < count => self.counted[at as usize] = text,
            Some(at) if at == count => self.counted.push(text),
            _ => _ = self.others.insert(number, text),
        }
    }
}

/// The strings that a block of a file has introduced so far.
#[derive(Debug, Default)]
pub struct KnownStrings {
    categories: Numbered,
    events: Numbered,
    names: Numbered,
    texts: Numbered,
}

/// The reason why a part of a file is not taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    Garbled,
    Spent,
}

impl From<Garbled> for Refused {
    fn from(_: Garbled) -> Self {
        Self::Garbled
    }
}

impl From<Spent> for Refused {
    fn from(_: Spent) -> Self {
        Self::Spent
    }
}

impl KnownStrings {
    /// Takes in the interned data of a packet.
    pub fn learn(&mut self, data: &[u8], texts: &mut Texts, budget: &mut Budget) -> Result<(), Refused> {
        for field in Fields::of(data) {
            let (number, Value::Bytes(entry)) = field? else { continue };
            let kind = match number {
                1 => &mut self.categories,
                2 => &mut self.events,
                3 => &mut self.names,
                29 => &mut self.texts,
                _ => continue,
            };
            let (mut iid, mut text) = (0, "");
            for field in Fields::of(entry) {
                match field? {
                    (1, Value::Varint(number)) => iid = number,
                    (2, Value::Bytes(bytes)) => text = str::from_utf8(bytes).map_err(|_| Garbled)?,
                    _ => {}
                }
            }
            // A place in a table, which is released at the end of the block only.
            budget.take(size_of::<Text>())?;
            kind.insert(iid, texts.shared(text, budget)?);
        }
        Ok(())
    }

    pub fn category(&self, number: u64) -> Option<&Text> {
        self.categories.get(number)
    }

    pub fn event(&self, number: u64) -> Option<&Text> {
        self.events.get(number)
    }

    /// The facts in the annotations that are field `field` of `message`, or what is wrong with them.
    pub fn facts<'a>(&'a self, message: &'a [u8], field: u32) -> Result<Read<'a>, String> {
        let mut facts = Vec::new();
        for entry in Fields::of(message) {
            match entry.map_err(|_| "is garbled")? {
                (number, Value::Bytes(annotation)) if number == field => {
                    if facts.len() == FACTS_MAX {
                        return Err("has more facts than anything has".to_owned());
                    }
                    let (name, found) = self.annotation(annotation)?;
                    facts.push((name.ok_or("has an annotation whose name is lost")?.as_str(), found));
                }
                _ => {}
            }
        }
        Ok(Read { known: self, facts })
    }

    fn annotation<'a>(&'a self, annotation: &'a [u8]) -> Result<(Option<&'a Text>, FactValue<'a>), String> {
        let (mut name, mut found) = (None, FactValue::Facts(annotation));
        for field in Fields::of(annotation) {
            match field.map_err(|_| "is garbled")? {
                (1, Value::Varint(number)) => name = self.names.get(number),
                (3, Value::Varint(value)) => found = FactValue::Uint(value),
                (17, Value::Varint(number)) => {
                    found = FactValue::Text(
                        self.texts.get(number).ok_or("has an annotation whose text is lost")?,
                    );
                }
                (12, Value::Bytes(_)) => found = FactValue::List(annotation),
                _ => {}
            }
        }
        Ok((name, found))
    }
}

/// A value, where it lies.
#[derive(Debug, Clone, Copy)]
enum FactValue<'a> {
    Uint(u64),
    Text(&'a Text),
    /// The annotation whose array this is.
    List(&'a [u8]),
    /// The annotation whose dictionary this is.
    Facts(&'a [u8]),
}

/// Fields of an annotation.
const DICTIONARY: u32 = 11;
const ARRAY: u32 = 12;

/// Facts about one thing.
#[derive(Debug)]
pub struct Read<'a> {
    known: &'a KnownStrings,
    facts: Vec<(&'a str, FactValue<'a>)>,
}

impl<'a> Read<'a> {
    fn find(&self, name: &str) -> Option<FactValue<'a>> {
        self.facts.iter().find(|(its_name, _)| *its_name == name).map(|(_, found)| *found)
    }
}

impl ReadFacts for Read<'_> {
    fn find_uint(&self, name: &str) -> Option<u64> {
        match self.find(name) {
            Some(FactValue::Uint(value)) => Some(value),
            _ => None,
        }
    }

    fn find_text(&self, name: &str) -> Option<&Text> {
        match self.find(name) {
            Some(FactValue::Text(text)) => Some(text),
            _ => None,
        }
    }

    fn find_list(&self, name: &str) -> impl Iterator<Item = Result<Item<Self>, String>> {
        let list: &[u8] = match self.find(name) {
            Some(FactValue::List(list)) => list,
            _ => &[],
        };
        let known = self.known;
        Fields::of(list).filter_map(move |field| match field {
            Ok((ARRAY, Value::Bytes(annotation))) => {
                Some(known.annotation(annotation).and_then(|(_, found)| match found {
                    FactValue::Text(text) => Ok(Item::Text(text.clone())),
                    FactValue::Facts(facts) => known.facts(facts, DICTIONARY).map(Item::Facts),
                    FactValue::Uint(_) | FactValue::List(_) => {
                        Err("has a value where facts should be".to_owned())
                    }
                }))
            }
            Ok(_) => None,
            Err(Garbled) => Some(Err("is garbled".to_owned())),
        })
    }
}
