//! The parts of a text in which nothing is a call: code, quoted lines, quoted results and reasoning.

/// The position in a text of Markdown, as far as it matters to calls. It is given each character once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TextContext {
    /// The indentation, while the line has nothing else.
    indent: Option<usize>,
    /// The line begins with `>`.
    is_quoted: bool,
    /// The open block of code.
    fence: Option<Fence>,
    /// The run of backticks or tildes at the end.
    run: Option<MarkRun>,
    /// Number of backticks that opened the code within the line. 0: there is none.
    span: usize,
    /// The closing tag of the open region.
    region_end: Option<&'static str>,
    /// The tag at the end, as far as it has come. Empty if the end is no tag.
    tag: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fence {
    mark: char,
    length: usize,
    /// The line is that of the opening marks.
    is_opening: bool,
    /// The line has closing marks, and nothing after them so far.
    is_closing: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MarkRun {
    mark: char,
    length: usize,
    is_first_in_line: bool,
}

/// Maximum indentation of a line's start. Markdown takes lines that are indented more for code.
const INDENT_MAX: usize = 3;

/// Minimum number of marks of a fence.
const FENCE_MARKS: usize = 3;

/// The regions of reasoning and of quoted results: the text that opens one, and its end.
const REGIONS: [(&str, &str); 3] = [
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<tool_response", "</tool_response>"),
];

/// Length of the longest tag.
const TAG_BYTES_MAX: usize = 16;

impl Default for TextContext {
    fn default() -> Self {
        Self {
            indent: Some(0),
            is_quoted: false,
            fence: None,
            run: None,
            span: 0,
            region_end: None,
            tag: String::new(),
        }
    }
}

impl TextContext {
    /// Returns true if no call can begin at this position. `next` is the character that follows.
    pub(crate) fn resolve_protection(&mut self, next: char) -> bool {
        self.end_run(next);
        self.fence.is_some() || self.span > 0 || self.is_quoted || self.region_end.is_some()
    }

    /// Returns whether the line has nothing but a small indentation so far.
    pub(super) fn is_line_start(&self) -> bool {
        self.indent.is_some_and(|indent| indent <= INDENT_MAX)
    }

    /// Continues after a call, as at a line's start.
    pub(super) fn after_call(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn push(&mut self, c: char) {
        self.end_run(c);
        match c {
            '\n' => self.end_line(),
            '`' | '~' => self.add_mark(c),
            c if c.is_whitespace() => {
                let more = if c == '\t' { INDENT_MAX + 1 } else { 1 };
                self.indent = self.indent.map(|indent| indent + more);
            }
            c => {
                self.is_quoted |= c == '>' && self.is_line_start();
                self.indent = None;
                if let Some(fence) = &mut self.fence {
                    fence.is_closing = false;
                }
            }
        }
        self.add_to_tag(c);
    }

    fn end_line(&mut self) {
        self.fence = self.fence.filter(|fence| !fence.is_closing);
        if let Some(fence) = &mut self.fence {
            fence.is_opening = false;
        }
        (self.indent, self.is_quoted, self.span) = (Some(0), false, 0);
    }

    fn add_mark(&mut self, mark: char) {
        match &mut self.run {
            Some(run) => run.length += 1,
            None => {
                let is_first_in_line = self.is_line_start();
                self.run = Some(MarkRun { mark, length: 1, is_first_in_line });
            }
        }
        self.indent = None;
    }

    /// Ends the run of marks, unless the next character continues it.
    fn end_run(&mut self, next: char) {
        let Some(run) = self.run.filter(|run| run.mark != next) else { return };
        self.run = None;
        let MarkRun { mark, length, is_first_in_line } = run;
        match &mut self.fence {
            // `` ```x``` `` is code within a line.
            Some(fence) if fence.is_opening && fence.mark == '`' && mark == '`' => {
                self.span = if fence.length == length { 0 } else { fence.length };
                self.fence = None;
            }
            Some(fence) => {
                fence.is_closing = is_first_in_line && mark == fence.mark && length >= fence.length;
            }
            None if is_first_in_line && length >= FENCE_MARKS && self.span == 0 => {
                let fence = Fence { mark, length, is_opening: true, is_closing: false };
                self.fence = Some(fence);
            }
            None if mark == '`' && self.span == 0 => self.span = length,
            None if mark == '`' && self.span == length => self.span = 0,
            None => {}
        }
    }

    fn add_to_tag(&mut self, c: char) {
        if c == '<' {
            self.tag.clear();
        } else if self.tag.is_empty() {
            return;
        }
        self.tag.push(c);
        let is_code = self.fence.is_some() || self.span > 0;
        match self.region_end {
            // A region ends in code too, and the code with it, because a model may leave code open.
            Some(end) if end == self.tag => {
                (self.region_end, self.fence, self.span) = (None, None, 0);
            }
            None if !is_code && !self.is_quoted => {
                let region = REGIONS.iter().find(|(open, _)| *open == self.tag);
                self.region_end = region.map(|(_, end)| *end);
            }
            Some(_) | None => {}
        }
        if c == '>' || self.tag.len() > TAG_BYTES_MAX {
            self.tag.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether the place of `^` in a text is protected.
    fn is_protected(text: &str) -> bool {
        let mut context = TextContext::default();
        let (before, _) = text.split_once('^').unwrap();
        before.chars().for_each(|c| context.push(c));
        context.resolve_protection('^')
    }

    #[test]
    fn code_quotes_and_regions_are_protected() {
        for text in [
            "```\n^",
            "```json\n{}\n^",
            "a\n  ~~~\n```\n^",
            "````\n```\n^",
            "```\n``` x\n^",
            "```\n    ```\n^",
            "see `^",
            "see ``a`^",
            "> ^",
            " > a ^",
            "<think>a\n\n^",
            "<tool_response id=\"c\">\n^",
            "```\na\n```^",
            "<think>\n```\na\n^",
        ] {
            assert!(is_protected(text), "{text}");
        }
        for text in [
            "^",
            "a\n^",
            "```\na\n```\n^",
            "```\na\n````  \n^",
            "~~~\na\n~~~\n^",
            "see `a` ^",
            "see ``a`b`` ^",
            "a ` b\n^",
            "> a\n^",
            "a > b ^",
            "<think>a</think>^",
            "<think>\n```\na\n</think>^",
            "<think>a ` b</think>^",
            "`<think>` ^",
            "> <think>\n^",
            "<tool_response>a</tool_response>\n^",
            "```a```\n^",
            "a ~~b~~ ^",
        ] {
            assert!(!is_protected(text), "{text}");
        }
    }

    #[test]
    fn a_line_starts_within_three_spaces() {
        for (text, expected) in
            [("", true), ("   ", true), ("    ", false), ("\t", false), ("a", false), ("a\n", true)]
        {
            let mut context = TextContext::default();
            text.chars().for_each(|c| context.push(c));
            assert_eq!(context.is_line_start(), expected, "{text:?}");
        }
    }
}
