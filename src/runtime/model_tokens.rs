//! The windows and token ratios of models (`context::tokens::model`), which all sessions of a host share and the
//! journal keeps.

use std::sync::Arc;

use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

use super::task::{self, with_journal};
use crate::config::{ModelConfig, REHEARSAL};
use crate::context::tokens::ModelTokens;
use crate::journal::{Journal, JournalError};

/// The numbers of one model. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct LearntTokens {
    /// The key of the journal's document.
    key: Arc<str>,
    state: Arc<Mutex<LearntState>>,
    /// Locked while they are being stored.
    storing: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug, Default)]
struct LearntState {
    now: ModelTokens,
    /// The numbers that the journal has.
    stored: ModelTokens,
}

impl LearntTokens {
    /// Creates the numbers of a model of which nothing is known yet.
    pub(super) fn new(name: &str, config: &ModelConfig) -> Self {
        let key = document_key(name, config).into();
        Self { key, state: Arc::default(), storing: Arc::default() }
    }

    /// Reads the numbers from the journal.
    pub(super) fn read(&self, journal: &dyn Journal) -> Result<(), JournalError> {
        let text = journal.document(&self.key)?;
        // An unreadable document is as if there were none.
        if let Some(tokens) = text.and_then(|text| serde_json::from_str(&text).ok()) {
            let mut state = self.state.lock();
            (state.now, state.stored) = (tokens, tokens);
        }
        Ok(())
    }

    /// Returns the numbers.
    pub(super) fn get(&self) -> ModelTokens {
        self.state.lock().now
    }

    /// Changes the numbers.
    pub(super) fn update(&self, change: impl FnOnce(&mut ModelTokens)) {
        change(&mut self.state.lock().now);
    }

    /// Stores the numbers soon, if they differ enough from the stored ones.
    pub(super) fn store_soon(&self, journal: &Arc<dyn Journal>) {
        let is_storing = self.storing.try_lock().is_err();
        if !is_storing && self.unstored().is_some() {
            let (learnt, journal) = (self.clone(), Arc::clone(journal));
            task::detach(async move { learnt.store(&journal).await });
        }
    }

    /// Stores the numbers, if they differ enough from the stored ones. If they are being stored, waits for that first.
    pub(super) async fn store(&self, journal: &Arc<dyn Journal>) {
        let _storing = self.storing.lock().await;
        while let Some(tokens) = self.unstored() {
            let (key, text) =
                (Arc::clone(&self.key), serde_json::to_string(&tokens).unwrap_or_default());
            let stored =
                with_journal(journal, move |journal| journal.put_document(&key, &text)).await;
            match stored {
                Ok(()) => self.state.lock().stored = tokens,
                Err(error) => {
                    tracing::warn!(%error, "model_tokens_not_stored");
                    return;
                }
            }
        }
    }

    /// Returns the numbers if they differ enough from the stored ones.
    fn unstored(&self) -> Option<ModelTokens> {
        let state = self.state.lock();
        state.now.differs_from(&state.stored).then_some(state.now)
    }
}

/// Returns the key of the journal's document. It changes with the settings that say which model answers, so that
/// another model or service inherits nothing.
fn document_key(name: &str, config: &ModelConfig) -> String {
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
    format!("model-{digits}")
}
