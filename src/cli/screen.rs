//! Shows a run: the answer on stdout, everything about it on stderr.
//!
//! On a terminal the answer is written as it comes, and the open calls are lines below it that are
//! drawn anew until they end. Without one, stdout gets the whole answer once, and stderr plain
//! lines.

use std::io::{self, Write};
use std::os::fd::AsFd;

use super::progress::ScreenItem;
use crate::types::{fitting, harmless};

/// Columns where nobody says how many there are.
const COLUMNS: usize = 80;

/// How many columns an output has: what the environment says, or else its terminal.
pub(super) fn terminal_columns(output: impl AsFd) -> usize {
    let said = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let measured = || rustix::termios::tcgetwinsize(output).ok().map(|size| size.ws_col.into());
    said.or_else(measured).filter(|columns| *columns > 0).unwrap_or(COLUMNS)
}

/// Whether an output gets colours: a terminal does, unless `NO_COLOR` is set or it knows none.
pub(super) fn is_coloured(is_terminal: bool) -> bool {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    is_terminal && set("NO_COLOR").is_none() && set("TERM").is_some_and(|term| term != "dumb")
}

/// Two outputs and what stands on them.
#[derive(Debug)]
pub(super) struct Screen<O, E> {
    out: O,
    err: E,
    /// Whether pieces of the answer are written as they come.
    streams: bool,
    /// Whether open calls are drawn.
    draws: bool,
    columns: usize,
    /// StdinLines of open calls on the terminal, the cursor below them.
    drawn: Vec<String>,
    /// Text that waits for the end of its line, because open calls stand below.
    held: String,
    /// Whether the last line of text has no end yet.
    line_open: bool,
}

impl<O: Write, E: Write> Screen<O, E> {
    /// A screen on two outputs, each a terminal or not. StdinLines that are drawn anew have at most
    /// `columns`: one that wraps would not be erased whole.
    pub(super) fn new(
        out: O,
        out_is_terminal: bool,
        err: E,
        err_is_terminal: bool,
        columns: usize,
    ) -> Self {
        Self {
            out,
            err,
            streams: out_is_terminal,
            draws: err_is_terminal,
            columns: columns.max(20),
            drawn: Vec::new(),
            held: String::new(),
            line_open: false,
        }
    }

    /// Whether open calls are drawn, so that it is worth to draw them often.
    pub(super) fn draws(&self) -> bool {
        self.draws
    }

    /// Shows what there is to show, and below it the open calls.
    ///
    /// # Errors
    /// When stdout cannot be written.
    pub(super) fn show(
        &mut self,
        shows: impl IntoIterator<Item = ScreenItem>,
        live: &[String],
    ) -> io::Result<()> {
        let live = if self.draws { live } else { &[] };
        let mut shows = shows.into_iter().peekable();
        if shows.peek().is_none() && self.drawn == live {
            return Ok(());
        }
        self.erase();
        for show in shows {
            match show {
                ScreenItem::Text(text) if self.streams => self.held.push_str(&harmless(&text)),
                ScreenItem::Text(_) => {}
                ScreenItem::Line(line) => {
                    self.end_line()?;
                    self.say(&format!("{line}\n"));
                }
            }
        }
        if live.is_empty() {
            let held = std::mem::take(&mut self.held);
            return self.write(&held);
        }
        if let Some(end) = self.held.rfind('\n') {
            let rest = self.held.split_off(end + 1);
            let lines = std::mem::replace(&mut self.held, rest);
            self.write(&lines)?;
        }
        if self.line_open {
            self.write("\n")?;
        }
        let mut lines = String::new();
        for line in live {
            lines.push_str(fitting(line, self.columns - 1));
            lines.push('\n');
        }
        self.say(&lines);
        self.drawn = live.to_vec();
        Ok(())
    }

    /// Says the question, and leaves the cursor behind it.
    ///
    /// # Errors
    /// When stdout cannot be written.
    pub(super) fn ask(&mut self, question: &str) -> io::Result<()> {
        self.erase();
        self.end_line()?;
        self.say(question);
        Ok(())
    }

    /// Ends the answer. Where it was not written as it came, or not wholly, it is written now.
    ///
    /// # Errors
    /// When stdout cannot be written.
    pub(super) fn finish(&mut self, answer: &str, complete: bool) -> io::Result<()> {
        self.erase();
        self.end_line()?;
        if answer.is_empty() || (self.streams && complete) {
            return Ok(());
        }
        if self.streams {
            self.write(&harmless(answer))?;
        } else {
            self.write(answer)?;
        }
        self.end_line()
    }

    fn erase(&mut self) {
        let drawn = std::mem::take(&mut self.drawn).len();
        if drawn > 0 {
            self.say(&format!("\x1b[{drawn}A\r\x1b[J"));
        }
    }

    fn end_line(&mut self) -> io::Result<()> {
        let held = std::mem::take(&mut self.held);
        self.write(&held)?;
        if self.line_open { self.write("\n") } else { Ok(()) }
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        self.line_open = !text.ends_with('\n');
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }

    /// What is said about the run may get lost without harm.
    fn say(&mut self, text: &str) {
        let _ = self.err.write_all(text.as_bytes()).and_then(|()| self.err.flush());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn screen(out: bool, err: bool) -> Screen<Vec<u8>, Vec<u8>> {
        Screen::new(Vec::new(), out, Vec::new(), err, COLUMNS)
    }

    fn text(text: &str) -> ScreenItem {
        ScreenItem::Text(text.to_owned())
    }

    fn line(text: &str) -> ScreenItem {
        ScreenItem::Line(text.to_owned())
    }

    fn written(screen: Screen<Vec<u8>, Vec<u8>>) -> (String, String) {
        let read = |bytes| String::from_utf8(bytes).expect("read what was written");
        (read(screen.out), read(screen.err))
    }

    #[test]
    fn without_terminals_the_answer_comes_once_and_whole() {
        let mut screen = screen(false, false);
        screen.show([text("An"), text("swer")], &["spin".to_owned()]).expect("show");
        screen.show([line("✓ clock")], &[]).expect("show");
        screen.finish("Answer", true).expect("finish");
        assert_eq!(written(screen), ("Answer\n".to_owned(), "✓ clock\n".to_owned()));
    }

    #[test]
    fn on_a_terminal_the_answer_streams_and_is_not_repeated() {
        let mut screen = screen(true, false);
        screen.show([text("An")], &[]).expect("show");
        assert_eq!(screen.out, b"An");
        screen.show([text("swer\u{1b}[2J")], &[]).expect("show");
        screen.finish("Answer", true).expect("finish");
        assert_eq!(written(screen).0, "Answer[2J\n");
    }

    #[test]
    fn an_answer_that_was_not_shown_wholly_is_shown_at_the_end() {
        let mut screen = screen(true, false);
        screen.show([text("Ans")], &[]).expect("show");
        screen.finish("Answer", false).expect("finish");
        assert_eq!(written(screen).0, "Ans\nAnswer\n");
    }

    #[test]
    fn open_calls_stand_below_the_text_and_are_drawn_anew() {
        let mut screen = screen(true, true);
        screen.show([text("Let me look")], &["a".to_owned(), "b".to_owned()]).expect("show");
        assert_eq!(screen.out, b"", "the line has no end, and the calls stand where it would go");
        screen.show([text(".\nMore")], &["b".to_owned()]).expect("show");
        assert_eq!(screen.out, b"Let me look.\n");
        screen.show([line("✓ b")], &[]).expect("show");
        screen.finish("More", true).expect("finish");
        let (out, err) = written(screen);
        assert_eq!(out, "Let me look.\nMore\n");
        assert_eq!(err, "a\nb\n\x1b[2A\r\x1b[Jb\n\x1b[1A\r\x1b[J✓ b\n");
    }

    #[test]
    fn a_question_stands_on_a_line_of_its_own_and_nothing_is_drawn_below() {
        let mut screen = screen(true, true);
        screen.show([text("So")], &[]).expect("show");
        screen.show([], &["a".to_owned()]).expect("show");
        screen.ask("may it? ").expect("ask");
        screen.show([line("✓ a")], &[]).expect("show");
        let (out, err) = written(screen);
        assert_eq!((out.as_str(), err.as_str()), ("So\n", "a\n\x1b[1A\r\x1b[Jmay it? ✓ a\n"));
    }
}
