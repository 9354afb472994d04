//! The members of a response that the dialect reads.

use std::borrow::Cow;

use serde::de::{IgnoredAny, MapAccess};
use serde_json::Value;
use serde_json::value::RawValue;

use super::arguments::ArgumentValue;
use crate::lenient::{JsonText, LenientList, ObjectListSeed, ObjectSeed, ReadMembers, Scalar};

#[derive(Default)]
pub(super) struct ChunkPayload<'a> {
    pub(super) candidates: LenientList<CandidatePayload<'a>>,
    pub(super) usage: Option<&'a RawValue>,
    /// The service's judgement of the prompt.
    pub(super) feedback: Option<&'a RawValue>,
    pub(super) error: Option<&'a RawValue>,
}

impl<'de> ReadMembers<'de> for ChunkPayload<'de> {
    fn read_member<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "candidates" => {
                self.candidates = LenientList::default();
                map.next_value_seed(ObjectListSeed(&mut self.candidates))?;
            }
            "usageMetadata" | "usage_metadata" => self.usage = map.next_value()?,
            "promptFeedback" | "prompt_feedback" => self.feedback = map.next_value()?,
            "error" => self.error = map.next_value()?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

#[derive(Default)]
pub(super) struct CandidatePayload<'a> {
    pub(super) index: Scalar<'a>,
    pub(super) content: ContentPayload<'a>,
    pub(super) finish_reason: Scalar<'a>,
    /// Says more about the finish reason.
    pub(super) finish_message: Scalar<'a>,
    pub(super) safety_ratings: Option<&'a RawValue>,
}

impl<'de> ReadMembers<'de> for CandidatePayload<'de> {
    fn read_member<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "index" => self.index = map.next_value()?,
            "content" => drop(map.next_value_seed(ObjectSeed(&mut self.content))?),
            "finishReason" | "finish_reason" => self.finish_reason = map.next_value()?,
            "finishMessage" | "finish_message" => self.finish_message = map.next_value()?,
            "safetyRatings" | "safety_ratings" => self.safety_ratings = map.next_value()?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

#[derive(Default)]
pub(super) struct ContentPayload<'a> {
    pub(super) parts: LenientList<PartPayload<'a>>,
}

impl<'de> ReadMembers<'de> for ContentPayload<'de> {
    fn read_member<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "parts" => {
                self.parts = LenientList::default();
                map.next_value_seed(ObjectListSeed(&mut self.parts))?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

#[derive(Default)]
pub(super) struct PartPayload<'a> {
    pub(super) text: Scalar<'a>,
    pub(super) thought: JsonText<'a>,
    pub(super) signature: Scalar<'a>,
    pub(super) call: Option<Box<CallPayload<'a>>>,
    /// The JSON of the other members that are not null: an object without its closing brace. Empty without any.
    pub(super) other_members: String,
}

impl<'de> ReadMembers<'de> for PartPayload<'de> {
    fn read_member<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "text" => self.text = map.next_value()?,
            "thought" => self.thought = map.next_value()?,
            "thoughtSignature" | "thought_signature" => self.signature = map.next_value()?,
            "functionCall" | "function_call" => {
                let mut call = Box::<CallPayload<'_>>::default();
                self.call = map.next_value_seed(ObjectSeed(&mut *call))?.then_some(call);
            }
            _ => {
                if let Some(value) = map.next_value::<Option<&RawValue>>()? {
                    let separator = if self.other_members.is_empty() { '{' } else { ',' };
                    self.other_members.push(separator);
                    self.other_members.push_str(&Value::from(key).to_string());
                    self.other_members.push(':');
                    self.other_members.push_str(value.get());
                }
            }
        }
        Ok(true)
    }
}

/// A `functionCall`.
#[derive(Default)]
pub(super) struct CallPayload<'a> {
    pub(super) id: Scalar<'a>,
    pub(super) name: Scalar<'a>,
    pub(super) args: Option<&'a RawValue>,
    pub(super) partial: LenientList<PartialArgumentPayload<'a>>,
    pub(super) will_continue: JsonText<'a>,
}

impl<'de> ReadMembers<'de> for CallPayload<'de> {
    fn read_member<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "id" => self.id = map.next_value()?,
            "name" => self.name = map.next_value()?,
            "args" => self.args = map.next_value()?,
            "partialArgs" | "partial_args" => {
                self.partial = LenientList::default();
                map.next_value_seed(ObjectListSeed(&mut self.partial))?;
            }
            "willContinue" | "will_continue" => self.will_continue = map.next_value()?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// An item of `partialArgs`: a value, or a piece of a text, with its path.
#[derive(Default)]
pub(super) struct PartialArgumentPayload<'a> {
    pub(super) path: Scalar<'a>,
    pub(super) value: Option<ArgumentValue<'a>>,
}

impl<'de> ReadMembers<'de> for PartialArgumentPayload<'de> {
    fn read_member<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "jsonPath" | "json_path" => self.path = map.next_value()?,
            "stringValue" | "string_value" => {
                let text = map.next_value::<JsonText<'de>>()?.0;
                self.value = text.map(ArgumentValue::Text).or(self.value.take());
            }
            "numberValue" | "number_value" | "boolValue" | "bool_value" => {
                let text = map.next_value::<JsonText<'de>>()?.0;
                self.value = text.map(scalar_value).or(self.value.take());
            }
            "nullValue" | "null_value" => {
                map.next_value::<IgnoredAny>()?;
                self.value.get_or_insert(ArgumentValue::Complete(Value::Null));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Returns a number or a boolean. Any other text stays text.
fn scalar_value(text: Cow<'_, str>) -> ArgumentValue<'_> {
    match serde_json::from_str(&text) {
        Ok(value @ (Value::Number(_) | Value::Bool(_))) => ArgumentValue::Complete(value),
        Ok(Value::Null | Value::String(_) | Value::Array(_) | Value::Object(_)) | Err(_) => {
            ArgumentValue::Text(text)
        }
    }
}
