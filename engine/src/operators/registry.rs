//! Names and what they stand for.

use std::collections::BTreeMap;
use std::sync::Arc;

use estafette_report::shown::shown;
use estafette_sync::process::{Forked, ProcessBound};
use estafette_sync::sync::{Mutex, MutexGuard, OnceLock};

use crate::core::error::Error;
use crate::engine::Engine;

use super::call::OperatorCall;
use super::operator::{Implementation, Operator, Signature};

/// Names suggested in place of a mistaken one, at most.
const NEAR_MAX: usize = 3;

/// Names that look this much alike (Jaro-Winkler similarity, from 0 to 1) are near.
const NEAR: f64 = 0.75;

/// The operators of this process.
pub fn operators() -> &'static Operators {
    estafette_sync::per_process! {
        static OPERATORS: OnceLock<Operators> = OnceLock::new();
    }
    OPERATORS.get_or_init(|| Operators { known: ProcessBound::new(Mutex::default()) })
}

type OperatorMap = BTreeMap<Arc<str>, Arc<Operator>>;

/// See [`operators`].
#[derive(Debug)]
pub struct Operators {
    known: ProcessBound<Mutex<OperatorMap>>,
}

/// An operator that was not added, and why.
pub(crate) struct Refused {
    pub(crate) error: Error,
    pub(crate) operator: Operator,
}

impl Operators {
    /// Registers a function under a name. `origin` says in words where it comes from.
    ///
    /// # Errors
    /// [`Error::Conflict`] for a name that is taken; [`Error::Invalid`] for a signature that cannot be;
    /// [`Error::Forked`].
    pub(crate) fn register(
        &self,
        name: &str,
        signature: Signature,
        origin: impl Into<String>,
        implementation: impl Implementation,
    ) -> Result<(), Error> {
        signature.check(name)?;
        self.add(Operator::new(Arc::from(name), signature, origin.into(), implementation))
            .map(drop)
            .map_err(|refused| refused.error)
    }

    /// Adds an operator, or returns it with the reason.
    pub(crate) fn add(&self, operator: Operator) -> Result<Arc<Operator>, Box<Refused>> {
        let mut known = match self.known() {
            Ok(known) => known,
            Err(forked) => return Err(Box::new(Refused { error: forked.into(), operator })),
        };
        // The values that an implementation drops are foreign, so the caller drops a refused operator,
        // outside of the map's lock.
        if let Some(taken) = known.get(&operator.name) {
            let (name, by) = (shown(&operator.name), shown(&taken.origin));
            let text = format!("operator `{name}` is registered already, by {by}; `unregister` takes it out");
            return Err(Box::new(Refused { error: Error::Conflict(text), operator }));
        }
        let operator = Arc::new(operator);
        known.insert(Arc::clone(&operator.name), Arc::clone(&operator));
        Ok(operator)
    }

    /// Takes an operator out. Calls under way still end, and keep what they need alive.
    ///
    /// # Errors
    /// [`Error::NoOperator`]; [`Error::Forked`].
    pub fn unregister(&self, name: &str) -> Result<(), Error> {
        let removed = self.known()?.remove(name);
        match removed {
            Some(_dropped_here) => Ok(()),
            None => Err(self.unknown(name)),
        }
    }

    /// Takes out this operator, and none that another thread has registered under its name since.
    pub(super) fn remove(&self, operator: &Arc<Operator>) {
        // The caller keeps the operator, so nothing is dropped under the lock.
        if let Ok(mut known) = self.known()
            && known.get(&operator.name).is_some_and(|known| Arc::ptr_eq(known, operator))
        {
            known.remove(&operator.name);
        }
    }

    /// The operator of that name.
    ///
    /// # Errors
    /// [`Error::NoOperator`], with names that are near; [`Error::Forked`].
    pub(crate) fn get(&self, name: &str) -> Result<Arc<Operator>, Error> {
        let found = self.known()?.get(name).cloned();
        found.ok_or_else(|| self.unknown(name))
    }

    /// All operators, by name.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn list(&self) -> Result<Vec<Arc<Operator>>, Error> {
        Ok(self.known()?.values().cloned().collect())
    }

    pub(super) fn known(&self) -> Result<MutexGuard<'_, OperatorMap>, Forked> {
        Ok(self.known.get()?.lock())
    }

    fn unknown(&self, name: &str) -> Error {
        let known = match self.known() {
            Ok(known) => known,
            Err(forked) => return forked.into(),
        };
        let mut near: Vec<(f64, Arc<str>)> = known
            .keys()
            .map(|known| (strsim::jaro_winkler(name, known), Arc::clone(known)))
            .filter(|(likeness, _)| *likeness >= NEAR)
            .collect();
        near.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        let near = near.into_iter().take(NEAR_MAX).map(|(_, name)| name.to_string()).collect();
        Error::NoOperator { name: name.to_string(), near }
    }
}

impl Engine {
    /// Begins a call of the operator of that name.
    ///
    /// # Errors
    /// [`Error::NoOperator`], with names that are near; [`Error::Forked`].
    pub fn operator(&self, name: &str) -> Result<OperatorCall, Error> {
        Ok(OperatorCall::new(self.clone(), operators().get(name)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bindings::Invocation;
    use crate::operators::OperatorKind;

    struct Nothing;

    impl Implementation for Nothing {
        fn start(&self, _call: Invocation) {}
    }

    #[test]
    fn an_operator_that_is_taken_back_leaves_another_one_of_its_name() {
        let signature =
            Signature { kind: OperatorKind::Allocating, inputs: None, outputs: 1, in_place: false };
        let new = || Operator::new("taken back".into(), signature, "a test".into(), Nothing);
        let first = operators().add(new()).ok().expect("a free name");
        operators().unregister("taken back").unwrap();
        let second = operators().add(new()).ok().expect("a free name");
        operators().remove(&first);
        assert!(Arc::ptr_eq(&operators().get("taken back").unwrap(), &second));
        operators().remove(&second);
        assert!(operators().get("taken back").is_err());
    }
}
