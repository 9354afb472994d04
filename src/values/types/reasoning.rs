//! The reasoning of a model's messages in later requests: the members that hold it, the rule of a model, and the
//! changes of the rule that the refusals of a service teach.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::Wire;

/// The rule for sending the reasoning of a model's messages back to it.
///
/// Set in [`ModelConfig::send_reasoning`](crate::config::ModelConfig). Applies to Chat Completions, to Ollama and to
/// Anthropic Messages. Gemini and Responses always get the reasoning back that they sent; a service of the latter that
/// demands it for every message gets that too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SendReasoning {
    /// Sends the reasoning of every message, and an empty one with each later message that has none. Learns from
    /// refusals of the service that name the member.
    #[default]
    Auto,
    /// Sends the reasoning of every message, and an empty one with each message that has none.
    All,
    /// Sends the reasoning of messages with calls, and an empty one with each later such message that has none.
    Calls,
    /// Sends no reasoning.
    Never,
}

impl SendReasoning {
    /// The rules with their names in the configuration.
    pub const NAMES: [(&'static str, Self); 4] =
        [("auto", Self::Auto), ("all", Self::All), ("calls", Self::Calls), ("never", Self::Never)];
}

/// The member of a message that holds its reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReasoningField {
    /// `reasoning_content`.
    ReasoningContent,
    /// `reasoning`.
    Reasoning,
    /// `reasoning_text`.
    ReasoningText,
    /// `reasoning_details`: a list of objects.
    ReasoningDetails,
    /// `thinking`: Ollama's member, and Anthropic's block.
    Thinking,
    /// A part of the content.
    Content,
}

impl ReasoningField {
    /// Returns the name of the member. `content` is the content itself.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ReasoningContent => "reasoning_content",
            Self::Reasoning => "reasoning",
            Self::ReasoningText => "reasoning_text",
            Self::ReasoningDetails => "reasoning_details",
            Self::Thinking => "thinking",
            Self::Content => "content",
        }
    }

    /// Returns whether it is a member of Chat Completions that holds a text.
    #[must_use]
    pub fn is_chat_text(self) -> bool {
        match self {
            Self::ReasoningContent | Self::Reasoning | Self::ReasoningText => true,
            Self::ReasoningDetails | Self::Thinking | Self::Content => false,
        }
    }
}

/// The members of Chat Completions that go back with a message's reasoning.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub struct ReasoningMembers<'a> {
    /// The member of the text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<ReasoningField>,
    /// The list of details.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_details: Option<&'a RawValue>,
    /// The value that only the service reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_opaque: Option<&'a RawValue>,
}

impl ReasoningMembers<'_> {
    /// Adds the members of a later part of the message.
    pub fn add(&mut self, later: Self) {
        self.field = self.field.or(later.field);
        self.reasoning_details = later.reasoning_details.or(self.reasoning_details);
        self.reasoning_opaque = later.reasoning_opaque.or(self.reasoning_opaque);
    }
}

/// A refusal of a request because of the reasoning of its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ReasoningRefusal {
    /// The direction of the refusal.
    pub kind: ReasoningRefusalKind,
    /// The member that the service names, if it is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub field: Option<ReasoningField>,
}

/// The direction of a [`ReasoningRefusal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReasoningRefusalKind {
    /// The service demands the member.
    Missing,
    /// The service does not accept the member.
    Unwanted,
}

/// The rule of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ReasoningRule {
    /// The messages whose reasoning is sent.
    pub send: SendReasoning,
    /// The member that the service demands, if a refusal has named it. It replaces that in which the reasoning came.
    pub field: Option<ReasoningField>,
    /// True if the service refuses an empty member. A space is sent instead.
    pub refuses_empty: bool,
    /// True if the request is to a fallback model, which gets no reasoning of the messages with which the session was
    /// opened.
    pub is_fallback: bool,
}

impl ReasoningRule {
    /// Returns whether the reasoning of a message is sent.
    #[must_use]
    pub fn includes(&self, has_calls: bool) -> bool {
        match self.send {
            SendReasoning::Auto | SendReasoning::All => true,
            SendReasoning::Calls => has_calls,
            SendReasoning::Never => false,
        }
    }

    /// Returns the text for a message without reasoning.
    #[must_use]
    pub fn filler(&self) -> &'static str {
        if self.refuses_empty { " " } else { "" }
    }
}

/// The rules for a model's reasoning that the refusals of its service have shown. All sessions share them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct LearntReasoning {
    /// The rule that replaces `auto`.
    #[serde(skip_serializing_if = "Option::is_none")]
    send: Option<SendReasoning>,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<ReasoningField>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    refuses_empty: bool,
}

impl LearntReasoning {
    /// Returns the rule for the next request to a model with this configured rule.
    #[must_use]
    pub fn rule(&self, configured: SendReasoning, is_fallback: bool) -> ReasoningRule {
        let send = match configured {
            SendReasoning::Auto => self.send.unwrap_or_default(),
            SendReasoning::All | SendReasoning::Calls | SendReasoning::Never => configured,
        };
        let Self { field, refuses_empty, .. } = *self;
        ReasoningRule { send, field, refuses_empty, is_fallback }
    }

    /// Learns from the refusal of a request with this rule. Returns whether the next request differs.
    ///
    /// A demand leads to the next of: messages with calls only (if the member was refused before), all messages, a
    /// space instead of an empty member. A refusal of the member goes the other way: all messages, messages with calls
    /// only (if the member was demanded before), none. Anthropic's own blocks are always sent as they came: there, a
    /// refusal only ends the sending of blocks that the model has not written. The same holds for the items of Responses,
    /// where only a refusal that names the text counts: OpenAI's errors about the order of its items name the item.
    pub fn handle_refusal(
        &mut self,
        refusal: ReasoningRefusal,
        wire: Wire,
        configured: SendReasoning,
        sent: ReasoningRule,
    ) -> bool {
        use SendReasoning::{All, Auto, Calls, Never};
        let is_auto = configured == Auto;
        // The model's own blocks and items are sent as they came, whatever the rule.
        let is_fixed = match wire {
            Wire::OpenaiChat | Wire::OllamaChat => false,
            Wire::AnthropicMessages => true,
            Wire::OpenaiResponses => {
                let is_text = |field: ReasoningField| {
                    matches!(
                        field,
                        ReasoningField::ReasoningText | ReasoningField::ReasoningContent
                    )
                };
                if !refusal.field.is_some_and(is_text) {
                    return false;
                }
                true
            }
            Wire::GeminiGenerate => return false,
        };
        match refusal.kind {
            ReasoningRefusalKind::Missing if configured == Never => return false,
            ReasoningRefusalKind::Missing => {
                let is_chat = wire == Wire::OpenaiChat;
                let field = refusal.field.filter(|field| {
                    is_chat && (field.is_chat_text() || *field == ReasoningField::ReasoningDetails)
                });
                let is_new_field = field.is_some() && field != sent.field;
                self.field = field.or(self.field);
                match sent.send {
                    Auto | Calls if is_auto => self.send = Some(All),
                    Never if is_auto => self.send = Some(if is_fixed { All } else { Calls }),
                    // Another field is tried before another value.
                    Auto | All | Calls | Never if is_new_field => {}
                    Auto | All | Calls | Never => self.refuses_empty = true,
                }
            }
            ReasoningRefusalKind::Unwanted if !is_auto => return false,
            ReasoningRefusalKind::Unwanted => match sent.send {
                All if is_fixed => self.send = None,
                Auto | Calls | Never if is_fixed => return false,
                All => self.send = Some(Calls),
                Auto | Calls | Never => self.send = Some(Never),
            },
        }
        self.rule(configured, sent.is_fallback) != sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ReasoningField::{Reasoning, ReasoningContent};
    use ReasoningRefusalKind::{Missing, Unwanted};
    use SendReasoning::{All, Auto, Calls, Never};

    /// Answers each request with the next refusal. Returns the rules of the requests that followed.
    fn learn(
        wire: Wire,
        configured: SendReasoning,
        refusals: &[(ReasoningRefusalKind, ReasoningField)],
    ) -> Vec<(SendReasoning, Option<ReasoningField>, &'static str)> {
        let mut learnt = LearntReasoning::default();
        let mut rules = Vec::new();
        for (kind, field) in refusals {
            let refusal = ReasoningRefusal { kind: *kind, field: Some(*field) };
            let sent = learnt.rule(configured, false);
            if !learnt.handle_refusal(refusal, wire, configured, sent) {
                break;
            }
            let rule = learnt.rule(configured, false);
            rules.push((rule.send, rule.field, rule.filler()));
            let stored = serde_json::to_string(&learnt).unwrap();
            assert_eq!(serde_json::from_str::<LearntReasoning>(&stored).unwrap(), learnt);
        }
        rules
    }

    #[test]
    fn a_demand_widens_the_rule_and_a_refusal_narrows_it() {
        let (demanded, refused) = ((Missing, ReasoningContent), (Unwanted, ReasoningContent));
        let field = Some(ReasoningContent);
        let chat = |refusals: &[_]| learn(Wire::OpenaiChat, Auto, refusals);
        assert_eq!(chat(&[demanded; 4]), [(All, field, ""), (All, field, " ")]);
        assert_eq!(chat(&[refused; 2]), [(Never, None, "")]);
        assert_eq!(chat(&[refused, demanded]), [(Never, None, ""), (Calls, field, "")]);
        let both = [demanded, refused, refused, demanded, demanded];
        let rules = chat(&both).into_iter().map(|(send, ..)| send).collect::<Vec<_>>();
        assert_eq!(rules, [All, Calls, Never, Calls, All]);
        // The model's own member is refused, and another one is demanded.
        let other = chat(&[(Unwanted, Reasoning), demanded]);
        assert_eq!(other, [(Never, None, ""), (Calls, field, "")]);
    }

    #[test]
    fn a_configured_rule_stays_and_learns_only_the_member() {
        let (demanded, refused) = ((Missing, Reasoning), (Unwanted, Reasoning));
        let field = Some(Reasoning);
        let chat = |configured, refusals: &[_]| learn(Wire::OpenaiChat, configured, refusals);
        assert_eq!(chat(All, &[demanded; 3]), [(All, field, ""), (All, field, " ")]);
        assert_eq!(chat(Calls, &[demanded; 3]), [(Calls, field, ""), (Calls, field, " ")]);
        assert_eq!(chat(All, &[refused]), []);
        assert_eq!(chat(Never, &[demanded]), []);
    }

    #[test]
    fn anthropics_own_blocks_are_always_sent() {
        let (demanded, refused) =
            ((Missing, ReasoningField::Thinking), (Unwanted, ReasoningField::Thinking));
        let of = |refusals: &[_]| learn(Wire::AnthropicMessages, Auto, refusals);
        assert_eq!(of(&[refused]), []);
        assert_eq!(of(&[demanded, refused]), [(All, None, ""), (Auto, None, "")]);
        assert_eq!(of(&[demanded; 3]), [(All, None, ""), (All, None, " ")]);
        let text = (Missing, ReasoningField::ReasoningText);
        assert_eq!(learn(Wire::OpenaiResponses, Auto, &[text])[0].0, All);
        assert_eq!(learn(Wire::OpenaiResponses, Auto, &[(Missing, Reasoning)]), []);
        assert_eq!(learn(Wire::GeminiGenerate, Auto, &[text]), []);
    }

    #[test]
    fn a_request_with_an_older_rule_is_sent_again_with_the_current_one() {
        let mut learnt = LearntReasoning::default();
        let refusal =
            ReasoningRefusal { kind: Unwanted, field: Some(ReasoningField::ReasoningContent) };
        let sent = learnt.rule(Auto, false);
        for _ in 0..2 {
            assert!(learnt.handle_refusal(refusal, Wire::OpenaiChat, Auto, sent));
        }
        assert_eq!(learnt.rule(Auto, false).send, Never);
    }
}
