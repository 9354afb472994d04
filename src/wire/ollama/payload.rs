//! The members of a response that the dialect reads.

use serde::Deserialize;
use serde::de::MapAccess;
use serde_json::value::RawValue;

use crate::fast_path::{ChangeKind, FieldRole, TemplateFields};
use crate::lenient::{
    JsonText, Lenient, LenientList, ObjectSeed, ReadMembers, Scalar, TextContent,
};

/// One line of a stream, or a plain body.
#[derive(Default)]
pub(super) struct ChunkPayload<'a> {
    pub(super) message: MessagePayload<'a>,
    pub(super) has_message: bool,
    done: JsonText<'a>,
    pub(super) done_reason: Scalar<'a>,
    pub(super) prompt_eval_count: Option<&'a RawValue>,
    pub(super) eval_count: Option<&'a RawValue>,
    pub(super) error: Option<&'a RawValue>,
    /// The HTTP status that some errors carry.
    pub(super) status: Scalar<'a>,
    created_at: Option<&'a RawValue>,
}

impl<'de> ReadMembers<'de> for ChunkPayload<'de> {
    fn read_member<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "message" => {
                self.has_message = map.next_value_seed(ObjectSeed(&mut self.message))?;
            }
            "done" => self.done = map.next_value()?,
            "done_reason" => self.done_reason = map.next_value()?,
            "prompt_eval_count" => self.prompt_eval_count = map.next_value()?,
            "eval_count" => self.eval_count = map.next_value()?,
            "error" => self.error = map.next_value()?,
            "created_at" => self.created_at = map.next_value()?,
            "StatusCode" | "status_code" => self.status = map.next_value()?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

#[derive(Default)]
pub(super) struct MessagePayload<'a> {
    pub(super) content: TextContent<'a>,
    pub(super) thinking: TextContent<'a>,
    pub(super) tool_calls: LenientList<Box<CallPayload<'a>>>,
}

impl<'de> ReadMembers<'de> for MessagePayload<'de> {
    fn read_member<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "content" => self.content = map.next_value()?,
            "thinking" => self.thinking = map.next_value()?,
            "tool_calls" => self.tool_calls = map.next_value()?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct CallPayload<'a> {
    pub(super) id: Scalar<'a>,
    pub(super) function: Lenient<FunctionPayload<'a>>,
    /// The name and the arguments, from services that leave out the object `function`.
    pub(super) name: Scalar<'a>,
    pub(super) arguments: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct FunctionPayload<'a> {
    pub(super) name: Scalar<'a>,
    pub(super) arguments: Option<&'a RawValue>,
}

impl<'a> ChunkPayload<'a> {
    pub(super) fn is_done(&self) -> bool {
        self.done.0.as_deref() == Some("true")
    }

    /// Returns the fields of a template if the chunk holds a single change.
    pub(super) fn template_fields(&self) -> Option<TemplateFields<'a>> {
        let MessagePayload { content, thinking, tool_calls } = &self.message;
        let others = [self.prompt_eval_count, self.eval_count, self.error];
        let has_more = !tool_calls.is_empty()
            || !self.done_reason.is_blank()
            || others.iter().any(Option::is_some)
            || self.is_done();
        if has_more || !self.has_message {
            return None;
        }
        let fields = match (content.is_blank(), thinking.is_blank()) {
            (_, true) => TemplateFields::new(ChangeKind::Text).content(FieldRole::Text, content)?,
            (true, false) => {
                TemplateFields::new(ChangeKind::Reasoning).content(FieldRole::Text, thinking)?
            }
            (false, false) => return None,
        };
        fields.ignored(FieldRole::IgnoredVarying, self.created_at)
    }
}
