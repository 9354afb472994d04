//! Reasoning in tags at the beginning of the text: `<think>..</think>answer`. Servers without a reasoning parser send
//! it so, and services that document it (MiniMax). It becomes [`Delta::Reasoning`], and
//! [`ProviderMetadata::ReasoningTags`] keeps the tags, so that the text goes back to its model as it came.
//!
//! Certain is: an opening tag before any other text, up to the first closing tag or the end of the text; further such
//! parts directly behind it; and a closing tag before any other text. Some templates (DeepSeek, Qwen) put the opening
//! tag into the prompt, so that the response begins within the reasoning. In a stream its text has been shown when the
//! closing tag comes, and stays text. In a plain body it is reasoning if the closing tag stands outside of code, and
//! not between blanks or quotes.

use super::delta::append_text;
use super::tool_protocol::TextContext;
use super::{Delta, ProviderMetadata};

/// The opening and closing tags. Sources: the chat templates of Qwen3, DeepSeek and MiniMax; Amazon Nova; Gemini's
/// endpoint for Chat Completions; Magistral; Seed-OSS; Gemma 4; Command A.
const TAGS: [(&str, &str); 7] = [
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|channel>thought\n", "<channel|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
];

/// Maximum bytes of white space that are held back. More of it is reasoning.
const BLANKS_MAX: usize = 1024;

/// Separates the reasoning from the text deltas of one response. Other deltas pass unchanged.
///
/// The deltas do not depend on how the text was cut, except that a text may come in several of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ReasoningTagReader {
    state: TagState,
    /// The text that is held back.
    held: String,
    /// The opening tag of the reasoning, with the white space around it.
    open: String,
    /// The closing tag of the reasoning that has ended, with the white space around it.
    close: String,
    /// The body is plain, so that nothing of its text has been shown yet.
    is_plain: bool,
    /// The service has sent reasoning of its own.
    has_reasoning: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum TagState {
    /// Before any text, or behind reasoning.
    #[default]
    Start,
    /// In reasoning that this tag ends.
    Reasoning { close: &'static str, has_text: bool },
    /// In the answer.
    Answer,
}

impl ReasoningTagReader {
    pub(super) fn new(is_plain: bool) -> Self {
        Self { is_plain, ..Self::default() }
    }

    /// Returns whether all further deltas pass unchanged.
    pub(super) fn is_over(&self) -> bool {
        self.state == TagState::Answer
    }

    /// Reads the deltas from a position on.
    pub(super) fn read(&mut self, deltas: &mut Vec<Delta>, from: usize) {
        let new = deltas.get(from..).unwrap_or_default();
        self.has_reasoning |= new.iter().any(|delta| matches!(delta, Delta::Reasoning(_)));
        if self.state == TagState::Start && self.held.is_empty() && self.close.is_empty() {
            let mut texts = new.iter().filter_map(|delta| {
                let Delta::Text(text) = delta else { return None };
                Some(text.trim_start())
            });
            match texts.next() {
                None => return,
                // Nearly every text begins with no tag, and stays where it is.
                Some(text) if !self.is_plain && !text.is_empty() && !may_begin_tag(text) => {
                    self.state = TagState::Answer;
                    return;
                }
                Some(_) => {}
            }
        }
        for delta in deltas.split_off(from.min(deltas.len())) {
            match &delta {
                Delta::Text(text) if self.state != TagState::Answer => {
                    self.held.push_str(text);
                    self.advance(deltas);
                    continue;
                }
                Delta::Text(_)
                | Delta::Reasoning(_)
                | Delta::Usage { .. }
                | Delta::Problem(_)
                | Delta::Metadata(
                    ProviderMetadata::Reasoning { .. }
                    | ProviderMetadata::ReasoningTags { .. }
                    | ProviderMetadata::Call { .. }
                    | ProviderMetadata::LastCall { .. },
                ) => {}
                Delta::Metadata(ProviderMetadata::Text { .. } | ProviderMetadata::RawPart(_))
                | Delta::Refusal(_)
                | Delta::Call(_)
                | Delta::Seal { .. }
                | Delta::Finish(_)
                | Delta::Error(_)
                | Delta::Done => self.finish(deltas),
            }
            deltas.push(delta);
        }
    }

    /// Appends what is held back. A tag that is not whole is text, and reasoning without a closing tag ends here.
    pub(super) fn finish(&mut self, out: &mut Vec<Delta>) {
        let held = std::mem::take(&mut self.held);
        match self.state {
            TagState::Start => {
                let text = held.trim_start();
                let blanks = held.len() - text.len();
                if !self.close.is_empty() {
                    self.close.push_str(held.get(..blanks).unwrap_or_default());
                    self.end_reasoning(out);
                    append_some(Delta::Text, text, out);
                } else {
                    append_some(Delta::Text, &held, out);
                }
                if !text.is_empty() {
                    self.state = TagState::Answer;
                }
            }
            TagState::Reasoning { .. } => {
                append_some(Delta::Reasoning, &held, out);
                self.end_reasoning(out);
                self.state = TagState::Start;
            }
            TagState::Answer => {}
        }
    }

    fn advance(&mut self, out: &mut Vec<Delta>) {
        loop {
            let goes_on = match self.state {
                TagState::Start => self.advance_start(out),
                TagState::Reasoning { close, has_text } => {
                    self.advance_reasoning(close, has_text, out)
                }
                TagState::Answer => false,
            };
            if !goes_on {
                return;
            }
        }
    }

    /// Reads the text before the answer. Returns false if more text is needed, or the answer begins.
    fn advance_start(&mut self, out: &mut Vec<Delta>) -> bool {
        let text = self.held.trim_start();
        let blanks = self.held.len() - text.len();
        if let Some((open, close)) = TAGS.iter().find(|(open, _)| text.starts_with(open)) {
            let head = blanks + open.len();
            if self.close.is_empty() {
                self.open = self.held.get(..head).unwrap_or_default().to_owned();
            } else {
                self.close.push_str(self.held.get(..blanks).unwrap_or_default());
                self.end_reasoning(out);
                self.open = (*open).to_owned();
            }
            if std::mem::take(&mut self.has_reasoning) {
                // The reasoning that the service has sent as such is a part of its own.
                out.push(Delta::Metadata(ProviderMetadata::Reasoning { members: None }));
            }
            self.held.drain(..head);
            self.state = TagState::Reasoning { close, has_text: false };
            return true;
        }
        if self.close.is_empty()
            && let Some((_, close)) = TAGS.iter().find(|(_, close)| text.starts_with(close))
        {
            self.close = self.held.get(..blanks + close.len()).unwrap_or_default().to_owned();
            self.held.drain(..blanks + close.len());
            return true;
        }
        let is_begun =
            TAGS.iter().any(|(open, close)| open.starts_with(text) || close.starts_with(text));
        if is_begun && blanks < BLANKS_MAX {
            return false;
        }
        if self.is_plain
            && self.close.is_empty()
            && let Some((at, close)) = find_close_alone(&self.held)
        {
            let reasoning = self.held.get(..at).unwrap_or_default();
            let kept = reasoning.trim_end().len();
            append_some(Delta::Reasoning, reasoning.get(..kept).unwrap_or_default(), out);
            let end = at + close.len();
            self.close = self.held.get(kept..end).unwrap_or_default().to_owned();
            self.held.drain(..end);
            return true;
        }
        self.finish(out);
        self.state = TagState::Answer;
        false
    }

    /// Reads reasoning. Returns false if more text is needed.
    fn advance_reasoning(
        &mut self,
        close: &'static str,
        has_text: bool,
        out: &mut Vec<Delta>,
    ) -> bool {
        if !has_text {
            let blanks = self.held.len() - self.held.trim_start().len();
            self.open.push_str(self.held.get(..blanks).unwrap_or_default());
            self.held.drain(..blanks);
            if self.held.is_empty() {
                return false;
            }
        }
        let found = self.held.find(close);
        // Without the tag, the end of the text may hold its beginning.
        let end = found.unwrap_or_else(|| self.held.len() - begun_bytes(&self.held, close));
        let text = self.held.get(..end).unwrap_or_default();
        let kept = text.trim_end().len();
        let kept = if found.is_none() && end - kept > BLANKS_MAX { end } else { kept };
        append_some(Delta::Reasoning, text.get(..kept).unwrap_or_default(), out);
        let Some(at) = found else {
            let has_text = has_text || kept > 0;
            self.held.drain(..kept);
            self.state = TagState::Reasoning { close, has_text };
            return false;
        };
        self.close = self.held.get(kept..at + close.len()).unwrap_or_default().to_owned();
        self.held.drain(..at + close.len());
        self.state = TagState::Start;
        true
    }

    /// Appends the tags of the reasoning that ends.
    fn end_reasoning(&mut self, out: &mut Vec<Delta>) {
        let open = std::mem::take(&mut self.open).into_boxed_str();
        let close = std::mem::take(&mut self.close).into_boxed_str();
        out.push(Delta::Metadata(ProviderMetadata::ReasoningTags { open, close }));
    }
}

fn append_some(kind: fn(String) -> Delta, text: &str, out: &mut Vec<Delta>) {
    if !text.is_empty() {
        append_text(kind, text, out);
    }
}

fn may_begin_tag(text: &str) -> bool {
    text.starts_with(['<', '['])
}

/// Returns the number of bytes at a text's end with which a tag may begin.
fn begun_bytes(text: &str, tag: &str) -> usize {
    let heads = (1..tag.len()).rev().filter_map(|at| tag.get(..at));
    heads.into_iter().find(|head| text.ends_with(head)).map_or(0, str::len)
}

/// Returns the position of a closing tag without an opening one, and the tag. It stands outside of code and quoted
/// lines, and not between blanks or quotes, as it would in a sentence about it.
fn find_close_alone(text: &str) -> Option<(usize, &'static str)> {
    let (_, tag) = *TAGS.first()?;
    memchr::memmem::find(text.as_bytes(), tag.as_bytes())?;
    let is_prose = |c: char| {
        c.is_ascii_punctuation() && c != '.' && c != '!' && c != '?' && c != ':' || c == ' '
    };
    let mut context = TextContext::default();
    let mut before = None;
    for (at, c) in text.char_indices() {
        if let Some(rest) =
            text.get(at..).filter(|_| c == '<').and_then(|rest| rest.strip_prefix(tag))
            && !context.resolve_protection(c)
            && !before.is_some_and(is_prose)
            && !rest.starts_with([' ', '"', '\'', '`', ',', ')'])
        {
            return Some((at, tag));
        }
        context.push(c);
        before = Some(c);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use callsheet_values::types::{FinishKind, FinishReason};

    /// The reasoning, the text, and the tags of each part.
    type Read = (String, String, Vec<(String, String)>);

    fn read(pieces: &[&str], is_plain: bool) -> Read {
        let mut reader = ReasoningTagReader::new(is_plain);
        let mut deltas = Vec::new();
        for piece in pieces {
            let before = deltas.len();
            deltas.push(Delta::Text((*piece).to_owned()));
            reader.read(&mut deltas, before);
        }
        let before = deltas.len();
        let reason = FinishReason::new(FinishKind::Stop, "stop");
        deltas.push(Delta::Finish(reason.clone()));
        reader.read(&mut deltas, before);
        assert_eq!(deltas.pop(), Some(Delta::Finish(reason)), "nothing is held back at the end");
        let mut read = Read::default();
        for delta in deltas {
            #[expect(clippy::wildcard_enum_match_arm, reason = "the test expects no other delta")]
            match delta {
                Delta::Reasoning(text) => read.0.push_str(&text),
                Delta::Text(text) => read.1.push_str(&text),
                Delta::Metadata(ProviderMetadata::ReasoningTags { open, close }) => {
                    read.2.push((open.into(), close.into()));
                }
                other => panic!("{other:?}"),
            }
        }
        read
    }

    /// Reads a text in every pair of pieces and character by character.
    #[track_caller]
    fn read_all_cuts(text: &str) -> Read {
        let whole = read(&[text], false);
        let chars: Vec<&str> = text.split("").filter(|piece| !piece.is_empty()).collect();
        assert_eq!(read(&chars, false), whole, "character by character: {text}");
        for at in (0..text.len()).filter(|at| text.is_char_boundary(*at)) {
            let (head, rest) = text.split_at(at);
            assert_eq!(read(&[head, rest], false), whole, "cut at {at}: {text}");
        }
        whole
    }

    #[track_caller]
    fn check(text: &str, reasoning: &str, answer: &str, tags: &[(&str, &str)]) {
        let read = read_all_cuts(text);
        let found: Vec<_> = read.2.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        assert_eq!((&*read.0, &*read.1, &*found), (reasoning, answer, tags), "{text}");
    }

    #[test]
    fn reasoning_in_tags_at_the_beginning_is_no_text() {
        let tags = [("<think>\n", "\n</think>\n\n")];
        check("<think>\nHm, é.\n</think>\n\nHello.", "Hm, é.", "Hello.", &tags);
        check("\n <think>a</think>b", "a", "b", &[("\n <think>", "</think>")]);
        check("<think>\n\n</think>\n\nb", "", "b", &[("<think>\n\n", "</think>\n\n")]);
        check("<think>a\n<b </th\nc</think>d", "a\n<b </th\nc", "d", &[("<think>", "</think>")]);
        let two = [("<think>", "</think>\n"), ("<think>", "</think>")];
        check("<think>a</think>\n<think>b</think>c", "ab", "c", &two);
        for (open, close) in TAGS {
            check(&format!("{open}a{close} b"), "a", "b", &[(open, &format!("{close} "))]);
        }
    }

    #[test]
    fn reasoning_without_an_end_is_reasoning() {
        check("<think>\nHm,", "Hm,", "", &[("<think>\n", "")]);
        check("<think>Hm </thin", "Hm </thin", "", &[("<think>", "")]);
        check("<think>", "", "", &[("<think>", "")]);
        check("<think>a</think>", "a", "", &[("<think>", "</think>")]);
    }

    #[test]
    fn a_closing_tag_before_any_text_is_no_text() {
        check("\n</think>\n\nHello.", "", "Hello.", &[("", "\n</think>\n\n")]);
    }

    #[test]
    fn tags_within_the_text_stay() {
        for text in [
            "a <think>b</think>",
            "<thinker>",
            "<thin",
            "<",
            " \n ",
            "",
            "[THIN] x",
            "`<think>` is a tag",
            "Hm, so.\n</think>\n\nHello.",
        ] {
            check(text, "", text, &[]);
        }
    }

    #[test]
    fn a_plain_body_may_begin_within_the_reasoning() {
        let check = |text: &str, reasoning: &str, answer: &str| {
            let (read, shown, _) = read(&[text], true);
            assert_eq!((&*read, &*shown), (reasoning, answer), "{text}");
        };
        check("Hm, so.\n</think>\n\nHello.", "Hm, so.", "Hello.");
        check("Hm, so.</think>391", "Hm, so.", "391");
        for text in [
            "The tag </think> ends it.",
            "It ends with `</think>`.",
            "It ends with \"</think>\".",
            "```\na\n</think>\n```\n",
        ] {
            check(text, "", text);
        }
    }
}
