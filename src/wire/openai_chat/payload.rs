//! The members of a response that the dialect reads.

use serde::Deserialize;
use serde::de::MapAccess;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::decode::finish_kind;
use crate::fast_path::{ChangeKind, FieldRole, TemplateFields};
use crate::lenient::{
    JsonText, Lenient, LenientList, Number, ObjectListSeed, ObjectSeed, ReadMembers, Scalar,
    TextContent,
};
use callsheet_values::types::{FinishKind, FinishReason};

#[derive(Default)]
pub(super) struct ChunkPayload<'a> {
    pub(super) choices: LenientList<ChoicePayload<'a>>,
    /// `choices` is a list, which may be empty, or a single choice.
    pub(super) has_choices: bool,
    pub(super) usage: Option<&'a RawValue>,
    pub(super) x_groq: Lenient<Box<GroqPayload<'a>>>,
    pub(super) error: Option<&'a RawValue>,
    /// Not read. It changes with every response.
    pub(super) id: Scalar<'a>,
    /// Not read. It changes with every response.
    pub(super) created: Option<&'a RawValue>,
    /// Not read. It changes with every payload.
    pub(super) obfuscation: Option<&'a RawValue>,
}

impl<'de> ReadMembers<'de> for ChunkPayload<'de> {
    fn read_member<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "choices" => {
                self.choices = LenientList::default();
                self.has_choices = map.next_value_seed(ObjectListSeed(&mut self.choices))?;
            }
            "usage" => self.usage = map.next_value()?,
            "x_groq" => self.x_groq = map.next_value()?,
            "error" => self.error = map.next_value()?,
            "id" => self.id = map.next_value()?,
            "created" => self.created = map.next_value()?,
            "obfuscation" => self.obfuscation = map.next_value()?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// The member `x_groq`, in which Groq's API sends token counts and errors.
#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct GroqPayload<'a> {
    pub(super) usage: Option<&'a RawValue>,
    pub(super) error: Option<&'a RawValue>,
}

#[derive(Default)]
pub(super) struct ChoicePayload<'a> {
    pub(super) index: Scalar<'a>,
    pub(super) delta: MessagePayload<'a>,
    pub(super) message: Option<Box<MessagePayload<'a>>>,
    pub(super) finish_reason: Scalar<'a>,
    /// The word of the service behind a gateway.
    pub(super) native_finish_reason: Scalar<'a>,
    /// Anthropic's details of a refusal, which gateways pass on.
    pub(super) stop_details: Option<&'a RawValue>,
    /// Azure's judgement of the content.
    pub(super) filter_results: Option<&'a RawValue>,
    pub(super) usage: Option<&'a RawValue>,
    pub(super) error: Option<&'a RawValue>,
}

impl<'de> ReadMembers<'de> for ChoicePayload<'de> {
    fn read_member<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "index" => self.index = map.next_value()?,
            "delta" => drop(map.next_value_seed(ObjectSeed(&mut self.delta))?),
            "message" => {
                let message = self.message.insert(Box::default());
                map.next_value_seed(ObjectSeed(&mut **message))?;
            }
            "finish_reason" => self.finish_reason = map.next_value()?,
            "native_finish_reason" => self.native_finish_reason = map.next_value()?,
            "stop_details" => self.stop_details = map.next_value()?,
            "content_filter_results" | "content_filter_result" => {
                self.filter_results = map.next_value()?;
            }
            "usage" => self.usage = map.next_value()?,
            "error" => self.error = map.next_value()?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// A `delta` or a `message`.
#[derive(Default)]
pub(super) struct MessagePayload<'a> {
    pub(super) content: TextContent<'a>,
    pub(super) reasoning_content: TextContent<'a>,
    pub(super) reasoning: TextContent<'a>,
    pub(super) reasoning_text: TextContent<'a>,
    pub(super) reasoning_details: Option<&'a RawValue>,
    pub(super) reasoning_opaque: Option<&'a RawValue>,
    pub(super) refusal: TextContent<'a>,
    pub(super) tool_calls: LenientList<Box<CallPayload<'a>>>,
    pub(super) function_call: Lenient<Box<FunctionPayload<'a>>>,
}

impl<'de> ReadMembers<'de> for MessagePayload<'de> {
    fn read_member<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "content" => self.content = map.next_value()?,
            "reasoning_content" => self.reasoning_content = map.next_value()?,
            "reasoning" => self.reasoning = map.next_value()?,
            "reasoning_text" => self.reasoning_text = map.next_value()?,
            "reasoning_details" => self.reasoning_details = map.next_value()?,
            "reasoning_opaque" => self.reasoning_opaque = map.next_value()?,
            "refusal" => self.refusal = map.next_value()?,
            "tool_calls" => self.tool_calls = map.next_value()?,
            "function_call" => self.function_call = map.next_value()?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct CallPayload<'a> {
    pub(super) index: Number<'a>,
    pub(super) id: Scalar<'a>,
    pub(super) function: Lenient<FunctionPayload<'a>>,
    pub(super) custom: Lenient<CustomPayload<'a>>,
    pub(super) extra_content: Option<Value>,
    pub(super) provider_specific_fields: Option<Value>,
    pub(super) thought_signature: Option<Value>,
    /// The name and the arguments, from services that leave out the object `function`.
    pub(super) name: Scalar<'a>,
    pub(super) arguments: JsonText<'a>,
}

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct FunctionPayload<'a> {
    pub(super) name: Scalar<'a>,
    pub(super) arguments: JsonText<'a>,
    pub(super) provider_specific_fields: Option<Value>,
    pub(super) thought_signature: Option<Value>,
}

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct CustomPayload<'a> {
    pub(super) name: Scalar<'a>,
    pub(super) input: Scalar<'a>,
}

impl<'a> ChunkPayload<'a> {
    /// Returns the fields of a template if the chunk holds a single change.
    pub(super) fn template_fields(&self) -> Option<TemplateFields<'a>> {
        let Self { choices, has_choices: _, usage, x_groq, error, id, created, obfuscation } = self;
        let choice = choices.only()?;
        let has_more = usage.is_some() || x_groq.0.is_some() || error.is_some();
        let is_first = choice.index.as_number().unwrap_or(0) == 0;
        let fields = choice.template_fields().filter(|_| is_first && !has_more)?;
        let fields = fields.ignored_text(FieldRole::IgnoredConstant, id)?;
        let fields = fields.ignored(FieldRole::IgnoredConstant, *created)?;
        fields.ignored(FieldRole::IgnoredVarying, *obfuscation)
    }
}

impl<'a> ChoicePayload<'a> {
    /// Returns the finish reason of the service behind a gateway if it could not read what its model wrote. The
    /// gateway itself says `stop` or `error`.
    pub(super) fn native_error(&self) -> Option<FinishReason> {
        let word = self.native_finish_reason.as_text().filter(|word| !word.is_empty())?;
        let finish = FinishReason::new(finish_kind(word), word);
        Some(finish).filter(FinishReason::is_unparsable_output)
    }

    fn template_fields(&self) -> Option<TemplateFields<'a>> {
        let Self { index: _, delta, message, finish_reason, usage, error, .. } = self;
        let has_more = message.is_some() || usage.is_some() || error.is_some();
        if has_more || self.native_error().is_some() {
            return None;
        }
        if finish_reason.is_blank() {
            return delta.template_fields();
        }
        let ends =
            TemplateFields::new(ChangeKind::Finish).scalar(FieldRole::Text, finish_reason)?;
        // The details of a refusal are read each time.
        let is_refused = finish_reason
            .as_text()
            .is_some_and(|word| finish_kind(word) == FinishKind::ContentFilter);
        (delta.is_blank() && !is_refused).then_some(ends)
    }
}

impl<'a> MessagePayload<'a> {
    /// Returns whether it holds nothing.
    fn is_blank(&self) -> bool {
        let Self { content, reasoning_content, reasoning, reasoning_text, .. } = self;
        let Self { reasoning_details, reasoning_opaque, refusal, .. } = self;
        let texts = [content, reasoning_content, reasoning, reasoning_text, refusal];
        texts.into_iter().all(TextContent::is_blank)
            && reasoning_details.is_none()
            && reasoning_opaque.is_none()
            && self.tool_calls.is_empty()
            && self.function_call.0.is_none()
    }

    fn template_fields(&self) -> Option<TemplateFields<'a>> {
        let has_more = self.reasoning_details.is_some()
            || self.reasoning_opaque.is_some()
            || self.function_call.0.is_some();
        let texts = [
            (ChangeKind::Text, &self.content),
            (ChangeKind::ReasoningContent, &self.reasoning_content),
            (ChangeKind::Reasoning, &self.reasoning),
            (ChangeKind::ReasoningText, &self.reasoning_text),
            (ChangeKind::Refusal, &self.refusal),
        ];
        let mut present = texts.iter().filter(|(_, content)| !content.is_blank());
        match (present.next(), present.next()) {
            _ if has_more => None,
            (None, None) if !self.tool_calls.is_empty() => {
                self.tool_calls.only()?.template_fields()
            }
            // Most streams begin with a chunk without text.
            (None, None) => {
                TemplateFields::new(ChangeKind::Text).content(FieldRole::Text, &self.content)
            }
            (Some((kind, content)), None) if self.tool_calls.is_empty() => {
                TemplateFields::new(*kind).content(FieldRole::Text, content)
            }
            _ => None,
        }
    }
}

impl<'a> CallPayload<'a> {
    fn template_fields(&self) -> Option<TemplateFields<'a>> {
        let Self { index, id, function, custom: _, name: _, arguments: _, .. } = self;
        let function = function.0.as_ref().filter(|_| self.members().is_empty())?;
        let fields = TemplateFields::new(ChangeKind::Arguments).number(FieldRole::Index, *index)?;
        let fields = fields.scalar(FieldRole::Id, id)?.scalar(FieldRole::Name, &function.name)?;
        fields.json_text(FieldRole::Text, &function.arguments)
    }

    /// Returns the members that go back with the call.
    pub(super) fn members(&self) -> Map<String, Value> {
        let mut members = metadata_members([
            ("extra_content", &self.extra_content),
            ("provider_specific_fields", &self.provider_specific_fields),
            ("thought_signature", &self.thought_signature),
        ]);
        let of_function = self.function.0.as_ref().map(|function| {
            metadata_members([
                ("provider_specific_fields", &function.provider_specific_fields),
                ("thought_signature", &function.thought_signature),
            ])
        });
        if let Some(function) = of_function.filter(|members| !members.is_empty()) {
            members.insert("function".to_owned(), function.into());
        }
        members
    }
}

fn metadata_members<const N: usize>(members: [(&str, &Option<Value>); N]) -> Map<String, Value> {
    let present = |(key, value): (&str, &Option<Value>)| Some((key.to_owned(), value.clone()?));
    members.into_iter().filter_map(present).collect()
}
