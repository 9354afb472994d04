//! The screen of a run: the answer on stdout, everything else on stderr.
//!
//! If stdout is a terminal, the answer is written as it streams; otherwise once, at the end. If stderr is a
//! terminal that can move its cursor, one line per open call is redrawn below the answer until the call ends;
//! otherwise stderr gets plain lines only.

use std::io::{self, IsTerminal as _, Write};
use std::os::fd::AsFd;

use callsheet_values::types::{TextSanitizer, fitting, sanitize_text, text_columns};

/// Width of an output whose width is not known.
const DEFAULT_COLUMNS: usize = 80;

/// Minimum width to which a [`Screen`] cuts and wraps lines.
const COLUMNS_MIN: usize = 20;

/// Returns the width of an output: `COLUMNS` of the environment, or else that of its terminal, or else the default.
pub(super) fn terminal_columns(output: impl AsFd) -> usize {
    let from_env = std::env::var("COLUMNS").ok();
    let measured =
        || rustix::termios::tcgetwinsize(output).ok().map(|size| usize::from(size.ws_col));
    choose_columns(from_env.as_deref(), measured)
}

/// Returns the width in `COLUMNS`, or else the measured one, or else the default. 0 is no width.
fn choose_columns(from_env: Option<&str>, measured: impl FnOnce() -> Option<usize>) -> usize {
    let is_width = |columns: &usize| *columns > 0;
    let from_env = from_env.and_then(|text| text.parse::<usize>().ok()).filter(is_width);
    from_env.or_else(|| measured().filter(is_width)).unwrap_or(DEFAULT_COLUMNS)
}

/// Returns true if an output gets colours: it is a terminal that supports them, and `NO_COLOR` is
/// not set.
pub(super) fn is_coloured(is_terminal: bool) -> bool {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    is_terminal && set("NO_COLOR").is_none() && set("TERM").is_some_and(|term| term != "dumb")
}

/// Returns true if the terminal is `TERM=dumb`, or of an unknown kind: it cannot move its cursor and may not
/// display symbols and box-drawing characters.
pub(super) fn is_dumb() -> bool {
    std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb")
}

/// Replaces symbols and box-drawing characters by ASCII characters of the same width.
pub(super) fn ascii_signs(text: &str) -> String {
    let ascii = |c| match c {
        '✓' => '+',
        '✗' | '×' => 'x',
        '·' | '…' => '.',
        '═' => '=',
        '█' => '#',
        '▒' => '%',
        '┊' => ':',
        other => other,
    };
    text.chars().map(ascii).collect()
}

/// Breaks a line between words where it exceeds the width, and indents the rest of it by two columns.
fn wrapped(line: &str, columns: usize) -> String {
    let (mut text, mut used) = (String::new(), 0);
    for word in line.split_inclusive(' ') {
        let width = text_columns(word.trim_end_matches(' '));
        if used > 2 && used + width > columns {
            text.truncate(text.trim_end_matches(' ').len());
            text.push_str("\n  ");
            used = 2;
        }
        text.push_str(word);
        used += text_columns(word);
    }
    text
}

/// Breaks a line between words if stderr is a terminal that is narrower.
pub(super) fn wrapped_on_stderr(line: &str) -> String {
    let stderr = io::stderr();
    if !stderr.is_terminal() {
        return line.to_owned();
    }
    wrapped(line, terminal_columns(&stderr))
}

/// Permanent output on the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ScreenItem {
    /// A part of the answer.
    AnswerText(String),
    /// A line about the run.
    Line(String),
}

/// The kind of the output for lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineOutput {
    /// No terminal: lines are written as they are.
    File,
    /// A terminal that cannot move its cursor: lines are wrapped, in ASCII.
    DumbTerminal,
    /// A terminal: lines are wrapped, and open calls are redrawn.
    Terminal,
}

/// Two outputs and the state of their last lines.
#[derive(Debug)]
pub(super) struct Screen<O, E> {
    out: O,
    err: E,
    /// The answer is written as it streams.
    streams_answer: bool,
    line_output: LineOutput,
    columns: usize,
    /// The lines of open calls on the terminal; the cursor is below them.
    drawn: Vec<String>,
    /// Answer text whose line is not complete. It waits while open calls are drawn below.
    held_text: String,
    /// Converts the streamed answer.
    streamed: TextSanitizer,
    /// The last line of the answer has no line end yet.
    is_line_open: bool,
}

impl<O: Write, E: Write> Screen<O, E> {
    /// Makes a screen. Redrawn lines are cut to `columns`, because a wrapped line could not be erased.
    pub(super) fn new(
        out: O,
        out_is_terminal: bool,
        err: E,
        line_output: LineOutput,
        columns: usize,
    ) -> Self {
        Self {
            out,
            err,
            streams_answer: out_is_terminal,
            line_output,
            columns: columns.max(COLUMNS_MIN),
            drawn: Vec::new(),
            held_text: String::new(),
            streamed: TextSanitizer::default(),
            is_line_open: false,
        }
    }

    /// Sets the width of the terminal, which its user may have changed. Lines that are on the screen stay as they
    /// are.
    pub(super) fn set_columns(&mut self, columns: usize) {
        self.columns = columns.max(COLUMNS_MIN);
    }

    /// Returns true if the output shows the time that passes, and needs regular updates.
    pub(super) fn needs_ticks(&self) -> bool {
        self.line_output != LineOutput::File
    }

    /// Returns true if the output is a terminal that cannot redraw lines.
    pub(super) fn is_dumb(&self) -> bool {
        self.line_output == LineOutput::DumbTerminal
    }

    /// Returns true if open calls are drawn.
    fn draws_calls(&self) -> bool {
        self.line_output == LineOutput::Terminal
    }

    /// Writes permanent output and redraws the lines of open calls below it.
    ///
    /// # Errors
    /// If stdout cannot be written.
    pub(super) fn update(
        &mut self,
        items: impl IntoIterator<Item = ScreenItem>,
        open_calls: &[String],
    ) -> io::Result<()> {
        let open_calls = if self.draws_calls() { open_calls } else { &[] };
        let mut items = items.into_iter().peekable();
        if items.peek().is_none() && self.drawn == open_calls {
            return Ok(());
        }
        self.erase();
        for item in items {
            match item {
                ScreenItem::AnswerText(text) if self.streams_answer => {
                    self.held_text.push_str(&self.streamed.push(&text))
                }
                ScreenItem::AnswerText(_) => {}
                ScreenItem::Line(line) => {
                    self.end_line()?;
                    self.write_line(&line);
                }
            }
        }
        if open_calls.is_empty() {
            let held = std::mem::take(&mut self.held_text);
            return self.write_out(&held);
        }
        // Above open calls, only whole lines of the answer are written.
        if let Some(end) = self.held_text.rfind('\n') {
            let incomplete = self.held_text.split_off(end + 1);
            let lines = std::mem::replace(&mut self.held_text, incomplete);
            self.write_out(&lines)?;
        }
        if self.is_line_open {
            self.write_out("\n")?;
        }
        let mut lines = String::new();
        for line in open_calls {
            lines.push_str(fitting(line, self.columns - 1));
            lines.push('\n');
        }
        self.write_err(&lines);
        self.drawn = open_calls.to_vec();
        Ok(())
    }

    /// Writes a prompt and leaves the cursor after it.
    ///
    /// # Errors
    /// If stdout cannot be written.
    pub(super) fn prompt(&mut self, prompt: &str) -> io::Result<()> {
        self.erase();
        self.end_line()?;
        self.write_err(&self.fitted(prompt));
        Ok(())
    }

    /// Ends the answer. Writes the whole answer now if it was not streamed, or not completely.
    ///
    /// # Errors
    /// If stdout cannot be written.
    pub(super) fn finish(&mut self, answer: &str, complete: bool) -> io::Result<()> {
        self.erase();
        self.end_line()?;
        if answer.is_empty() || (self.streams_answer && complete) {
            return Ok(());
        }
        if self.streams_answer {
            self.write_out(&sanitize_text(answer))?;
        } else {
            self.write_out(answer)?;
        }
        self.end_line()
    }

    fn erase(&mut self) {
        let drawn = std::mem::take(&mut self.drawn).len();
        if drawn > 0 {
            // Each line by itself: tmux keeps a copy of a screen that is erased down from its first row. The line
            // of the cursor may hold what was typed.
            self.write_err(&format!("\r\x1b[K{}", "\x1b[A\x1b[K".repeat(drawn)));
        }
    }

    fn write_line(&mut self, line: &str) {
        self.write_err(&format!("{}\n", self.fitted(line)));
    }

    /// Wraps lines for a terminal, in ASCII for one that may not display other characters.
    fn fitted(&self, lines: &str) -> String {
        match self.line_output {
            LineOutput::File => lines.to_owned(),
            LineOutput::DumbTerminal => ascii_signs(&self.wrapped_lines(lines)),
            LineOutput::Terminal => self.wrapped_lines(lines),
        }
    }

    fn wrapped_lines(&self, lines: &str) -> String {
        let lines: Vec<_> = lines.split('\n').map(|line| wrapped(line, self.columns)).collect();
        lines.join("\n")
    }

    fn end_line(&mut self) -> io::Result<()> {
        let held = std::mem::take(&mut self.held_text) + &self.streamed.finish();
        self.write_out(&held)?;
        if self.is_line_open { self.write_out("\n") } else { Ok(()) }
    }

    fn write_out(&mut self, text: &str) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        self.is_line_open = !text.ends_with('\n');
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }

    /// Writes to stderr and ignores errors: these lines are not part of the answer.
    fn write_err(&mut self, text: &str) {
        let _ = self.err.write_all(text.as_bytes()).and_then(|()| self.err.flush());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn screen(out: bool, err: bool) -> Screen<Vec<u8>, Vec<u8>> {
        let line_output = if err { LineOutput::Terminal } else { LineOutput::File };
        Screen::new(Vec::new(), out, Vec::new(), line_output, DEFAULT_COLUMNS)
    }

    fn text(text: &str) -> ScreenItem {
        ScreenItem::AnswerText(text.to_owned())
    }

    fn line(text: &str) -> ScreenItem {
        ScreenItem::Line(text.to_owned())
    }

    fn written(screen: Screen<Vec<u8>, Vec<u8>>) -> (String, String) {
        let read = |bytes| String::from_utf8(bytes).expect("read what was written");
        (read(screen.out), read(screen.err))
    }

    #[test]
    fn without_terminals_the_answer_is_written_once() {
        let mut screen = screen(false, false);
        screen.update([text("An"), text("swer")], &["spin".to_owned()]).expect("update");
        screen.update([line("✓ clock")], &[]).expect("update");
        screen.finish("Answer", true).expect("finish");
        assert_eq!(written(screen), ("Answer\n".to_owned(), "✓ clock\n".to_owned()));
    }

    #[test]
    fn on_a_terminal_the_answer_streams_and_is_not_repeated() {
        let mut screen = screen(true, false);
        screen.update([text("An")], &[]).expect("update");
        assert_eq!(screen.out, b"An");
        screen.update([text("swer\u{1b}[2J")], &[]).expect("update");
        screen.finish("Answer", true).expect("finish");
        assert_eq!(written(screen).0, "Answer[2J\n");
    }

    #[test]
    fn a_joiner_at_the_edge_of_a_piece_is_shown_as_in_the_whole_text() {
        for (whole, expected) in [
            ("a \u{1f469}\u{200d}\u{1f4bb}.", "a \u{1f469}\u{200d}\u{1f4bb}.\n"),
            ("\u{645}\u{6cc}\u{200c}\u{62e}", "\u{645}\u{6cc}\u{200c}\u{62e}\n"),
            ("\u{e9}\u{200d}\u{200d}\u{e9}", "\u{e9}\\u{200d}\\u{200d}\u{e9}\n"),
            ("\u{e9}\u{200d}a", "\u{e9}\\u{200d}a\n"),
            ("\u{e9}\u{200d}", "\u{e9}\\u{200d}\n"),
        ] {
            let splits = whole.char_indices().map(|(at, _)| whole.split_at(at));
            let splits = splits.map(|(one, two)| vec![text(one), text(two)]);
            let chars = whole.chars().map(|c| text(&c.to_string())).collect();
            for pieces in splits.chain([chars]) {
                let mut screen = screen(true, false);
                for piece in pieces.clone() {
                    screen.update([piece], &[]).expect("update");
                }
                screen.finish(whole, true).expect("finish");
                assert_eq!(written(screen).0, expected, "{pieces:?}");
            }
        }
    }

    #[test]
    fn an_incompletely_streamed_answer_is_repeated_at_the_end() {
        let mut screen = screen(true, false);
        screen.update([text("Ans")], &[]).expect("update");
        screen.finish("Answer", false).expect("finish");
        assert_eq!(written(screen).0, "Ans\nAnswer\n");
    }

    #[test]
    fn open_calls_are_redrawn_below_the_answer() {
        let mut screen = screen(true, true);
        screen.update([text("Let me look")], &["a".to_owned(), "b".to_owned()]).expect("update");
        assert_eq!(
            screen.out, b"",
            "the line is incomplete, and the open calls are drawn in its place"
        );
        screen.update([text(".\nMore")], &["b".to_owned()]).expect("update");
        assert_eq!(screen.out, b"Let me look.\n");
        screen.update([line("✓ b")], &[]).expect("update");
        screen.finish("More", true).expect("finish");
        let (out, err) = written(screen);
        assert_eq!(out, "Let me look.\nMore\n");
        assert_eq!(err, "a\nb\n\r\x1b[K\x1b[A\x1b[K\x1b[A\x1b[Kb\n\r\x1b[K\x1b[A\x1b[K✓ b\n");
    }

    #[test]
    fn lines_are_wrapped_between_words_and_a_dumb_terminal_gets_ascii_only() {
        for (line_output, expected) in [
            (LineOutput::File, "✗ pay {\"sum\":12}  1.5 s  not run: too expensive\n"),
            (LineOutput::Terminal, "✗ pay {\"sum\":12}  1.5\n  s  not run: too\n  expensive\n"),
            (LineOutput::DumbTerminal, "x pay {\"sum\":12}  1.5\n  s  not run: too\n  expensive\n"),
        ] {
            let mut screen = Screen::new(Vec::new(), false, Vec::new(), line_output, 22);
            let item = line("✗ pay {\"sum\":12}  1.5 s  not run: too expensive");
            screen.update([item], &["waits".to_owned()][..0]).expect("update");
            assert_eq!(written(screen).1, expected);
        }
    }

    #[test]
    fn lines_have_the_width_that_was_set_last() {
        let mut screen = screen(true, true);
        let item = || line("✗ pay {\"sum\":12}  1.5 s");
        let open_calls = ["calculator {\"expression\":\"1+1\"}".to_owned()];
        screen.update([item()], &open_calls).expect("update");
        screen.set_columns(22);
        screen.update([item()], &open_calls).expect("update");
        screen.set_columns(1);
        screen.update([], &["a".repeat(30)]).expect("update");
        let expected = "✗ pay {\"sum\":12}  1.5 s\ncalculator {\"expression\":\"1+1\"}\n\
                        \r\x1b[K\x1b[A\x1b[K✗ pay {\"sum\":12}  1.5\n  s\ncalculator {\"expressi\n\
                        \r\x1b[K\x1b[A\x1b[Kaaaaaaaaaaaaaaaaaaa\n";
        assert_eq!(written(screen).1, expected);
    }

    #[test]
    fn a_width_of_0_is_ignored() {
        for (from_env, measured, expected) in [
            (Some("100"), Some(40), 100),
            (Some("0"), Some(40), 40),
            (Some("wide"), Some(40), 40),
            (None, Some(40), 40),
            (Some("0"), Some(0), DEFAULT_COLUMNS),
            (None, None, DEFAULT_COLUMNS),
        ] {
            assert_eq!(
                choose_columns(from_env, || measured),
                expected,
                "{from_env:?} {measured:?}"
            );
        }
    }

    #[test]
    fn a_prompt_has_its_own_line_and_hides_open_calls() {
        let mut screen = screen(true, true);
        screen.update([text("So")], &[]).expect("update");
        screen.update([], &["a".to_owned()]).expect("update");
        screen.prompt("may it? ").expect("prompt");
        screen.update([line("✓ a")], &[]).expect("update");
        let (out, err) = written(screen);
        assert_eq!((out.as_str(), err.as_str()), ("So\n", "a\n\r\x1b[K\x1b[A\x1b[Kmay it? ✓ a\n"));
    }
}
