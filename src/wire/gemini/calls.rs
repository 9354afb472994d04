//! Calls as they come: whole in one part, or opened, filled by later parts and closed.
//!
//! Vertex AI opens a call with `willContinue`; the parts after it bring values with their paths,
//! and one without `willContinue` closes it. So does a call that begins, and a good ending: the
//! last part is sometimes missing
//! (<https://cloud.google.com/vertex-ai/generative-ai/docs/multimodal/function-calling>).

use std::borrow::Cow;

use serde::de::{IgnoredAny, MapAccess};
use serde_json::Value;
use serde_json::value::RawValue;

use super::arguments::{Arguments, Bit};
use crate::types::excerpt;
use crate::wire::fields::{Fields, FillEach, List};
use crate::wire::loose::{JsonText, Scalar};
use crate::wire::{CallDelta, Delta, Problem, ProviderMetadata};

/// Pieces of one part that are read; one more means that some were passed over.
const PIECES_MAX: usize = 4096;

/// The calls of a response, as far as they have come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Calls {
    begun: u64,
    open: Option<Box<Open>>,
}

/// A call whose arguments still come.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Open {
    index: u64,
    name: Option<String>,
    arguments: Arguments,
}

/// A `functionCall`.
#[derive(Default)]
pub(super) struct Call<'a> {
    id: Scalar<'a>,
    name: Scalar<'a>,
    args: Option<&'a RawValue>,
    partial: List<PartialArgument<'a>>,
    will_continue: JsonText<'a>,
}

impl<'de> Fields<'de> for Call<'de> {
    fn take<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "id" => self.id = map.next_value()?,
            "name" => self.name = map.next_value()?,
            "args" => self.args = map.next_value()?,
            "partialArgs" | "partial_args" => {
                self.partial = List::default();
                map.next_value_seed(FillEach(&mut self.partial))?;
            }
            "willContinue" | "will_continue" => self.will_continue = map.next_value()?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// A value, or a piece of one, with its path.
#[derive(Default)]
struct PartialArgument<'a> {
    path: Scalar<'a>,
    bit: Option<Bit<'a>>,
}

impl<'de> Fields<'de> for PartialArgument<'de> {
    fn take<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "jsonPath" | "json_path" => self.path = map.next_value()?,
            "stringValue" | "string_value" => {
                let text = map.next_value::<JsonText<'de>>()?.0;
                self.bit = text.map(Bit::Text).or(self.bit.take());
            }
            "numberValue" | "number_value" | "boolValue" | "bool_value" => {
                let text = map.next_value::<JsonText<'de>>()?.0;
                self.bit = text.map(bit_of).or(self.bit.take());
            }
            "nullValue" | "null_value" => {
                map.next_value::<IgnoredAny>()?;
                self.bit.get_or_insert(Bit::Whole(Value::Null));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl Calls {
    /// Whether none has begun.
    pub(super) fn is_empty(&self) -> bool {
        self.begun == 0
    }

    /// Takes what a part says of a call, with what goes back beside it.
    pub(super) fn take(&mut self, call: Call<'_>, members: Option<Box<str>>, out: &mut Vec<Delta>) {
        let Call { id, name, args, mut partial, will_continue } = call;
        let (id, name) = (id.into_text(), name.into_text());
        let goes_on = will_continue.0.as_deref() == Some("true");
        let in_pieces = goes_on || !partial.is_empty();
        let continues = match &self.open {
            Some(open) => {
                // Its name may be said with every piece, but alone it opens another call.
                let says_more = !partial.is_empty() || !goes_on;
                name.is_none() || (name == open.name && args.is_none() && says_more)
            }
            None => false,
        };
        if !continues {
            if name.is_none() && id.is_none() && args.is_none() && !in_pieces {
                // A close for what is closed.
                return;
            }
            self.close(out);
            self.begin(id, name, args.filter(|_| !in_pieces), in_pieces, out);
        } else if let (Some(open), true) = (&self.open, id.is_some()) {
            out.push(Delta::Call(CallDelta {
                index: Some(open.index),
                id,
                ..CallDelta::default()
            }));
        }
        if let (Some(members), Some(index)) = (members, self.begun.checked_sub(1)) {
            out.push(Delta::Metadata(ProviderMetadata::Call { index, members }));
        }
        let Some(open) = self.open.as_mut() else { return };
        if let Some(object) = args
            && open.arguments.replace(object.get()).is_err()
        {
            out.push(misplaced(object.get()));
        }
        let mut pieces = 0;
        for PartialArgument { path, bit } in partial.items_mut() {
            pieces += 1;
            let path = path.as_text().unwrap_or_default();
            if let Some(bit) = bit.take()
                && open.arguments.fill(path, bit).is_err()
            {
                out.push(misplaced(path));
            }
        }
        if pieces > PIECES_MAX {
            open.arguments.lose();
            out.push(misplaced("too many pieces at once"));
        }
        if !goes_on {
            self.close(out);
        }
    }

    /// Begins a call: whole, or open.
    fn begin(
        &mut self,
        id: Option<String>,
        name: Option<String>,
        args: Option<&RawValue>,
        in_pieces: bool,
        out: &mut Vec<Delta>,
    ) {
        let index = self.begun;
        self.begun += 1;
        let arguments = match args {
            // Never closed, this is no object: nobody takes the call for one without arguments.
            None if in_pieces => "{",
            None => "{}",
            Some(args) => args.get(),
        };
        if in_pieces {
            let arguments = Arguments::default();
            self.open = Some(Box::new(Open { index, name: name.clone(), arguments }));
        }
        out.push(Delta::Call(CallDelta {
            index: Some(index),
            id,
            name,
            arguments: Some(arguments.to_owned()),
            begins: true,
            ..CallDelta::default()
        }));
        if !in_pieces {
            out.push(Delta::Seal { index, arguments: None });
        }
    }

    /// Closes the open call: all of it has come.
    pub(super) fn close(&mut self, out: &mut Vec<Delta>) {
        if let Some(open) = self.open.take() {
            let arguments = Some(open.arguments.into_text());
            out.push(Delta::Seal { index: open.index, arguments });
        }
    }

    /// Leaves the open call as it is: cut off.
    pub(super) fn give_up(&mut self, out: &mut Vec<Delta>) {
        if let Some(open) = self.open.take() {
            out.push(Delta::Call(CallDelta {
                index: Some(open.index),
                arguments: Some(open.arguments.into_rest()),
                ..CallDelta::default()
            }));
        }
    }
}

/// A number or a truth value; what is neither stays text.
fn bit_of(text: Cow<'_, str>) -> Bit<'_> {
    match serde_json::from_str(&text) {
        Ok(value @ (Value::Number(_) | Value::Bool(_))) => Bit::Whole(value),
        Ok(Value::Null | Value::String(_) | Value::Array(_) | Value::Object(_)) | Err(_) => {
            Bit::Text(text)
        }
    }
}

fn misplaced(what: &str) -> Delta {
    Delta::Problem(Problem { code: "argument_without_place", detail: excerpt(what, 200) })
}
