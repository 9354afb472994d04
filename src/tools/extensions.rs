//! Values of the embedding program that tools can read.

use std::any::Any;
use std::any::TypeId;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// Values of the embedding program for its tools, at most one of each type: a tenant, a user, a
/// connection. They are given with a session or a run, and a tool reads them with
/// [`ToolContext::extension`](super::ToolContext::extension). They are never stored in the journal.
/// Cloning shares the values.
///
/// ```
/// use callsheet::tool::Extensions;
///
/// #[derive(Debug, PartialEq)]
/// struct Tenant(&'static str);
///
/// let mut values = Extensions::new();
/// values.insert(Tenant("acme"));
/// assert_eq!(values.get(), Some(&Tenant("acme")));
/// ```
#[derive(Clone, Default)]
pub struct Extensions {
    values: Option<Arc<ValuesByType>>,
}

type ValuesByType = HashMap<TypeId, ExtensionValue>;

#[derive(Clone)]
struct ExtensionValue {
    type_name: &'static str,
    value: Arc<dyn Any + Send + Sync>,
}

impl Extensions {
    /// Makes an empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a value. It replaces a value of the same type.
    pub fn insert<T: Send + Sync + 'static>(&mut self, value: T) {
        let value =
            ExtensionValue { type_name: std::any::type_name::<T>(), value: Arc::new(value) };
        Arc::make_mut(self.values.get_or_insert_default()).insert(TypeId::of::<T>(), value);
    }

    /// Returns the value of this type.
    #[must_use]
    pub fn get<T: Send + Sync + 'static>(&self) -> Option<&T> {
        self.values.as_ref()?.get(&TypeId::of::<T>())?.value.downcast_ref()
    }

    /// Returns true if there is no value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.as_ref().is_none_or(|values| values.is_empty())
    }

    /// Returns these values, and those of `base` whose types are not among them.
    pub fn or(&self, base: &Self) -> Self {
        match (&self.values, &base.values) {
            (None, _) => base.clone(),
            (_, None) => self.clone(),
            (Some(values), Some(base)) => {
                let mut merged = ValuesByType::clone(base);
                merged.extend(values.iter().map(|(id, value)| (*id, value.clone())));
                Self { values: Some(Arc::new(merged)) }
            }
        }
    }
}

/// Formats the names of the types.
impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = self.values.iter().flat_map(|values| values.values());
        f.debug_set().entries(values.map(|value| value.type_name)).finish()
    }
}

/// No value of this type was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no value of the type {0} was given with the session or the run")]
pub(super) struct MissingExtension(pub(super) &'static str);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_their_type() {
        let mut values = Extensions::new();
        assert!(values.is_empty() && values.get::<u8>().is_none());
        values.insert(1_u8);
        values.insert("tenant");
        let before = values.clone();
        values.insert(2_u8);
        assert_eq!((values.get::<u8>(), before.get::<u8>()), (Some(&2), Some(&1)));
        assert_eq!(values.get::<&str>(), Some(&"tenant"));
        assert_eq!(values.get::<u16>(), None);
        let mut one = Extensions::new();
        one.insert(1_u8);
        assert_eq!(format!("{one:?}"), "{\"u8\"}");
    }

    #[test]
    fn values_of_a_run_precede_those_of_its_session() {
        let (mut run, mut session) = (Extensions::new(), Extensions::new());
        session.insert(1_u8);
        session.insert('s');
        assert_eq!(run.or(&session).get::<u8>(), Some(&1));
        run.insert(2_u8);
        let both = run.or(&session);
        assert_eq!((both.get::<u8>(), both.get::<char>()), (Some(&2), Some(&'s')));
        assert_eq!(run.or(&Extensions::new()).get::<u8>(), Some(&2));
    }
}
