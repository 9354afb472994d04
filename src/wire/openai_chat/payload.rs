//! What the payloads hold, so far as it is read.

use serde::Deserialize;
use serde::de::MapAccess;
use serde_json::value::RawValue;

use super::kept::{CallMembers, FunctionMembers};
use crate::wire::fields::{Fields, Fill, FillEach, List, Loose};
use crate::wire::loose::{Content, JsonText, Number, Scalar};
use crate::wire::piece::{Outline, Said, Slot};

#[derive(Default)]
pub(super) struct Chunk<'a> {
    pub(super) choices: List<Choice<'a>>,
    /// There is such a list, whatever it holds.
    pub(super) has_choices: bool,
    pub(super) usage: Option<&'a RawValue>,
    pub(super) x_groq: Loose<Box<Groq<'a>>>,
    pub(super) error: Option<&'a RawValue>,
    /// What nobody reads, and what is another in each response.
    pub(super) id: Scalar<'a>,
    pub(super) created: Option<&'a RawValue>,
    /// What nobody reads, and what is another in each payload.
    pub(super) noise: Option<&'a RawValue>,
}

impl<'de> Fields<'de> for Chunk<'de> {
    fn take<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "choices" => {
                self.choices = List::default();
                self.has_choices = map.next_value_seed(FillEach(&mut self.choices))?;
            }
            "usage" => self.usage = map.next_value()?,
            "x_groq" => self.x_groq = map.next_value()?,
            "error" => self.error = map.next_value()?,
            "id" => self.id = map.next_value()?,
            "created" => self.created = map.next_value()?,
            "obfuscation" => self.noise = map.next_value()?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// What one service puts into an object of its own.
#[derive(Default, Deserialize)]
pub(super) struct Groq<'a> {
    #[serde(borrow, default)]
    pub(super) usage: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) error: Option<&'a RawValue>,
}

#[derive(Default)]
pub(super) struct Choice<'a> {
    pub(super) index: Scalar<'a>,
    pub(super) delta: Body<'a>,
    pub(super) message: Option<Box<Body<'a>>>,
    pub(super) finish_reason: Scalar<'a>,
    pub(super) usage: Option<&'a RawValue>,
    pub(super) error: Option<&'a RawValue>,
}

impl<'de> Fields<'de> for Choice<'de> {
    fn take<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "index" => self.index = map.next_value()?,
            "delta" => drop(map.next_value_seed(Fill(&mut self.delta))?),
            "message" => {
                let message = self.message.insert(Box::default());
                map.next_value_seed(Fill(&mut **message))?;
            }
            "finish_reason" => self.finish_reason = map.next_value()?,
            "usage" => self.usage = map.next_value()?,
            "error" => self.error = map.next_value()?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// What a `delta` or a `message` holds.
#[derive(Default)]
pub(super) struct Body<'a> {
    pub(super) content: Content<'a>,
    pub(super) reasoning_content: Content<'a>,
    pub(super) reasoning: Content<'a>,
    pub(super) reasoning_text: Content<'a>,
    pub(super) reasoning_details: Option<&'a RawValue>,
    pub(super) reasoning_opaque: Option<&'a RawValue>,
    pub(super) refusal: Content<'a>,
    pub(super) tool_calls: List<Box<Call<'a>>>,
    pub(super) function_call: Loose<Box<Function<'a>>>,
}

impl<'de> Fields<'de> for Body<'de> {
    fn take<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
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
pub(super) struct Call<'a> {
    #[serde(borrow, default)]
    pub(super) index: Number<'a>,
    #[serde(borrow, default)]
    pub(super) id: Scalar<'a>,
    #[serde(borrow, default)]
    pub(super) function: Loose<Function<'a>>,
    #[serde(borrow, default)]
    pub(super) custom: Loose<Custom<'a>>,
    #[serde(borrow, default)]
    pub(super) extra_content: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) provider_specific_fields: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) thought_signature: Option<&'a RawValue>,
    /// Name and arguments of a service that leaves out the `function` around them.
    #[serde(borrow, default)]
    pub(super) name: Scalar<'a>,
    #[serde(borrow, default)]
    pub(super) arguments: JsonText<'a>,
}

#[derive(Deserialize)]
pub(super) struct Function<'a> {
    #[serde(borrow, default)]
    pub(super) name: Scalar<'a>,
    #[serde(borrow, default)]
    pub(super) arguments: JsonText<'a>,
    #[serde(borrow, default)]
    pub(super) provider_specific_fields: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) thought_signature: Option<&'a RawValue>,
}

#[derive(Deserialize)]
pub(super) struct Custom<'a> {
    #[serde(borrow, default)]
    pub(super) name: Scalar<'a>,
    #[serde(borrow, default)]
    pub(super) input: Scalar<'a>,
}

impl<'a> Chunk<'a> {
    /// Where the piece stands, if there is nothing else in it that is read.
    pub(super) fn outline(&self) -> Option<Outline<'a>> {
        let Self { choices, has_choices: _, usage, x_groq, error, id, created, noise } = self;
        let choice = choices.only()?;
        let is_more = usage.is_some() || x_groq.0.is_some() || error.is_some();
        let is_first = choice.index.as_number().unwrap_or(0) == 0;
        let outline = choice.outline().filter(|_| is_first && !is_more)?;
        let marked = outline.unread_text(Slot::Mark, id)?.unread(Slot::Mark, *created)?;
        marked.unread(Slot::Noise, *noise)
    }
}

impl<'a> Choice<'a> {
    fn outline(&self) -> Option<Outline<'a>> {
        let Self { index: _, delta, message, finish_reason, usage, error } = self;
        let is_more = message.is_some() || usage.is_some() || error.is_some();
        if is_more {
            return None;
        }
        if finish_reason.says_nothing() {
            return delta.outline();
        }
        let ends = Outline::of(Said::Finish).scalar(Slot::Text, finish_reason)?;
        delta.says_nothing().then_some(ends)
    }
}

impl<'a> Body<'a> {
    /// Whether nothing stands in it.
    fn says_nothing(&self) -> bool {
        let Self { content, reasoning_content, reasoning, reasoning_text, .. } = self;
        let Self { reasoning_details, reasoning_opaque, refusal, .. } = self;
        let texts = [content, reasoning_content, reasoning, reasoning_text, refusal];
        texts.into_iter().all(Content::says_nothing)
            && reasoning_details.is_none()
            && reasoning_opaque.is_none()
            && self.tool_calls.is_empty()
            && self.function_call.0.is_none()
    }

    fn outline(&self) -> Option<Outline<'a>> {
        let is_more = self.reasoning_details.is_some()
            || self.reasoning_opaque.is_some()
            || self.function_call.0.is_some();
        let texts = [
            (Said::Text, &self.content),
            (Said::ReasoningContent, &self.reasoning_content),
            (Said::Reasoning, &self.reasoning),
            (Said::ReasoningText, &self.reasoning_text),
            (Said::Refusal, &self.refusal),
        ];
        let mut said = texts.iter().filter(|(_, content)| !content.says_nothing());
        match (said.next(), said.next()) {
            _ if is_more => None,
            (None, None) if !self.tool_calls.is_empty() => self.tool_calls.only()?.outline(),
            // Nothing yet, as most streams begin.
            (None, None) => Outline::of(Said::Text).content(Slot::Text, &self.content),
            (Some((said, content)), None) if self.tool_calls.is_empty() => {
                Outline::of(*said).content(Slot::Text, content)
            }
            _ => None,
        }
    }
}

impl<'a> Call<'a> {
    fn outline(&self) -> Option<Outline<'a>> {
        let Self { index, id, function, custom: _, name: _, arguments: _, .. } = self;
        let function = function.0.as_ref().filter(|_| self.members().is_empty())?;
        let outline = Outline::of(Said::Arguments).number(Slot::Index, *index)?;
        let outline = outline.scalar(Slot::Id, id)?.scalar(Slot::Name, &function.name)?;
        outline.json_text(Slot::Text, &function.arguments)
    }

    /// What stands beside it, to be sent back.
    pub(super) fn members(&self) -> CallMembers<'a> {
        let function = self.function.0.as_ref();
        CallMembers {
            extra_content: self.extra_content,
            provider_specific_fields: self.provider_specific_fields,
            thought_signature: self.thought_signature,
            function: function.map_or_else(FunctionMembers::default, |function| FunctionMembers {
                provider_specific_fields: function.provider_specific_fields,
                thought_signature: function.thought_signature,
            }),
        }
    }
}
