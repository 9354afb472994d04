//! Values that a host learns about its models: windows and token ratios (`context::tokens::model`), refused tools
//! (`set_aside_tools`), and the reasoning that services want back (`types::reasoning`). All sessions share these values,
//! and the journal stores them.

use std::sync::Arc;

use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};

use super::task;
use crate::journal::{Journal, JournalError};
use callsheet_machines::context::tokens::ModelTokens;
use callsheet_values::config::{ModelConfig, REHEARSAL};
use callsheet_values::types::LearntReasoning;

/// A value that is learnt of a model.
pub(super) trait LearntValue:
    Clone + Default + Serialize + DeserializeOwned + Send + 'static
{
    /// The beginning of the key of the journal's document.
    const DOCUMENT: &'static str;

    /// Returns whether the value differs so much from the stored one that it is stored again.
    fn needs_storing(&self, stored: &Self) -> bool;
}

impl LearntValue for ModelTokens {
    const DOCUMENT: &'static str = "model";

    fn needs_storing(&self, stored: &Self) -> bool {
        self.differs_from(stored)
    }
}

impl LearntValue for LearntReasoning {
    const DOCUMENT: &'static str = "reasoning";

    fn needs_storing(&self, stored: &Self) -> bool {
        self != stored
    }
}

/// The window and the token ratio of one model.
pub(super) type LearntTokens = Learnt<ModelTokens>;

/// A value that is learnt of one model. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Learnt<T> {
    /// The key of the journal's document.
    key: Arc<str>,
    state: Arc<Mutex<LearntState<T>>>,
    /// Locked while it is being stored.
    storing: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug, Default)]
struct LearntState<T> {
    now: T,
    /// The value that the journal has.
    stored: T,
}

impl<T: LearntValue> Learnt<T> {
    /// Creates the value of a model of which nothing is known yet.
    pub(super) fn new(name: &str, config: &ModelConfig) -> Self {
        let key = document_key(T::DOCUMENT, name, config).into();
        Self { key, state: Arc::default(), storing: Arc::default() }
    }

    /// Reads the value from the journal.
    pub(super) async fn read(&self, journal: &dyn Journal) -> Result<(), JournalError> {
        let text = journal.document(&self.key).await?;
        // An unreadable document is as if there were none.
        if let Some(value) = text.and_then(|text| serde_json::from_str::<T>(&text).ok()) {
            let mut state = self.state.lock();
            (state.now, state.stored) = (value.clone(), value);
        }
        Ok(())
    }

    /// Returns the value.
    pub(super) fn get(&self) -> T {
        self.state.lock().now.clone()
    }

    /// Changes the value.
    pub(super) fn update<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        change(&mut self.state.lock().now)
    }

    /// Stores the value soon, if it differs enough from the stored one.
    pub(super) fn store_soon(&self, journal: &Arc<dyn Journal>) {
        let is_storing = self.storing.try_lock().is_err();
        if !is_storing && self.unstored().is_some() {
            let (learnt, journal) = (self.clone(), Arc::clone(journal));
            task::detach(async move { learnt.store(&journal).await });
        }
    }

    /// Stores the value, if it differs enough from the stored one. If it is being stored, waits for that first.
    pub(super) async fn store(&self, journal: &Arc<dyn Journal>) {
        let _storing = self.storing.lock().await;
        while let Some(value) = self.unstored() {
            let text = serde_json::to_string(&value).unwrap_or_default();
            match journal.put_document(&self.key, &text, None).await {
                Ok(()) => self.state.lock().stored = value,
                Err(error) => {
                    tracing::warn!(%error, "model_tokens_not_stored");
                    return;
                }
            }
        }
    }

    /// Returns the value if it differs enough from the stored one.
    fn unstored(&self) -> Option<T> {
        let state = self.state.lock();
        state.now.needs_storing(&state.stored).then(|| state.now.clone())
    }
}

/// Returns the key of the journal's document. It changes with the settings that say which model answers, so that
/// another model or service inherits nothing.
pub(super) fn document_key(prefix: &str, name: &str, config: &ModelConfig) -> String {
    let extra_body = serde_json::to_string(&config.extra_body).unwrap_or_default();
    // The port of the built-in model differs at each start.
    let address = if config.model == REHEARSAL { "" } else { config.base_url.as_str() };
    let parts = [name, config.wire.as_str(), &config.model, address, &extra_body];
    let mut digest = Sha256::new();
    for part in parts {
        digest.update(part.len().to_le_bytes());
        digest.update(part);
    }
    let digest = digest.finalize();
    let digits: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("{prefix}-{digits}")
}
