//! The last step of reading a response, after the decoder: restores tool names, finds calls in the text, redacts secrets.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::DeltaRedactor;
use crate::{CallDelta, CallReader, Delta};
use callsheet_values::types::ProviderError;

/// Reads the decoded deltas of one response. Restores the names of tools that were sent under an alias, finds calls in
/// the text, and replaces secrets.
#[derive(Debug, Default)]
pub struct ResponseReader {
    /// The names of tools that were sent under an alias, by alias.
    pub tool_names: BTreeMap<Arc<str>, String>,
    /// `None` if calls come in the form of the wire format.
    pub calls: Option<Box<CallReader>>,
    /// `None` if the host has no secrets.
    pub redactor: Option<DeltaRedactor>,
}

impl ResponseReader {
    /// Reads a batch of deltas. Returns those that follow from it, perhaps none: the end of the text is held back as
    /// long as it may be the beginning of a call or of a secret.
    #[must_use]
    pub fn read(&mut self, mut batch: Vec<Delta>) -> Vec<Delta> {
        self.restore_names(&mut batch);
        if let Some(calls) = &mut self.calls {
            batch = calls.read(batch);
        }
        self.redact(batch)
    }

    /// Returns the deltas of what was held back. Called when the response has ended, with an error or without one.
    #[must_use]
    pub fn finish(&mut self) -> Vec<Delta> {
        let held = self.calls.as_mut().map(|calls| calls.finish()).unwrap_or_default();
        let mut held = self.redact(held);
        if let Some(redactor) = &mut self.redactor {
            held.extend(std::iter::from_fn(|| redactor.finish()));
        }
        held
    }

    /// Replaces secrets in the error with which the response ends.
    pub fn redact_error(&self, error: &mut ProviderError) {
        if let Some(redactor) = &self.redactor {
            redactor.redact_error(error);
        }
    }

    fn redact(&mut self, batch: Vec<Delta>) -> Vec<Delta> {
        match &mut self.redactor {
            Some(redactor) => redactor.redact(batch),
            None => batch,
        }
    }

    fn restore_names(&self, batch: &mut [Delta]) {
        if self.tool_names.is_empty() {
            return;
        }
        for delta in batch {
            if let Delta::Call(CallDelta { name: Some(name), .. }) = delta
                && let Some(original) = self.tool_names.get(&**name)
            {
                name.clone_from(original);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use callsheet_values::types::{ProviderErrorKind, REDACTED, Secrets, ToolProtocol};
    use serde_json::json;

    use super::*;
    use crate::ToolDefinition;

    const SECRET: &str = "a-secret-of-the-host";

    fn reader(protocol: ToolProtocol) -> ResponseReader {
        let tools = [ToolDefinition::new("f", "for a test", json!({}))].into();
        ResponseReader {
            tool_names: [("f_1".into(), "f".to_owned())].into(),
            calls: CallReader::new(protocol, &tools).map(Box::new),
            redactor: DeltaRedactor::new(&Secrets::new([SECRET])),
        }
    }

    fn text(text: &str) -> Vec<Delta> {
        vec![Delta::Text(text.to_owned())]
    }

    #[test]
    fn what_is_held_back_comes_at_the_end_and_an_error_has_no_secret() {
        let mut reader = reader(ToolProtocol::Hermes);
        // The end of the text may be the beginning of a call.
        assert_eq!(reader.read(text("Look: <tool_c")), text("Look: "));
        let held = reader.finish();
        assert!(matches!(held.as_slice(), [Delta::Problem(_)]), "{held:?}");
        let message = format!("the key {SECRET} is not known");
        let mut error = ProviderError::new(ProviderErrorKind::Transport, message);
        reader.redact_error(&mut error);
        assert_eq!(error.message, format!("the key {REDACTED} is not known"));
    }

    #[test]
    fn a_secret_in_the_text_of_a_call_is_replaced() {
        let mut reader = reader(ToolProtocol::Hermes);
        let (first, last) = SECRET.split_at(9);
        let call = format!(r#"<tool_call>{{"name": "f", "arguments": {{"key": "{first}"#);
        let mut deltas = reader.read(text(&call));
        deltas.extend(reader.read(text(&format!(r#"{last}"}}}}</tool_call>"#))));
        deltas.extend(reader.finish());
        let deltas = format!("{deltas:?}");
        assert!(deltas.contains(REDACTED) && !deltas.contains(SECRET), "{deltas}");
    }

    #[test]
    fn the_text_before_the_end_is_complete() {
        let mut reader = reader(ToolProtocol::Native);
        assert_eq!(reader.read(text("It is a-sec")), text("It is "));
        assert_eq!(reader.finish(), text("a-sec"));
    }

    #[test]
    fn a_call_has_the_name_of_its_tool() {
        let mut reader = reader(ToolProtocol::Native);
        let named = |name: &str| {
            let name = Some(name.to_owned());
            vec![Delta::Call(CallDelta { index: Some(0), name, ..CallDelta::default() })]
        };
        assert_eq!(reader.read(named("f_1")), named("f"));
        assert_eq!(reader.read(named("g")), named("g"));
    }
}
