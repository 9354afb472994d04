//! Rows on a common time axis, as text.

use super::axis::Axis;
use super::{Bar, Look, Mark, Row, Run, What, heading};
use crate::types::{fitting, text_columns};

/// Turns and rows that share an axis, where that is more than one turn: with more of them nothing
/// is told apart.
const AN_AXIS: (usize, usize) = (8, 24);

/// Calls of a turn that are drawn, each in a row of its own.
const CALLS_MAX: usize = 16;

/// Columns of what stands behind the bars, wide and narrow.
const BEHIND: (usize, usize) = (17, 8);

/// From so many columns on it is wide.
const WIDE: usize = 60;

/// What is drawn, and how it is coloured.
pub(super) type Cell = (char, &'static str);

pub(super) const BLANK: Cell = (' ', "");

impl What {
    pub(super) fn cell(self) -> Cell {
        match self {
            Self::Wait => ('·', "2"),
            Self::People => ('?', "33"),
            Self::Model => ('═', "36"),
            Self::Tool => ('█', "32"),
            Self::Broken => ('×', "31"),
        }
    }
}

impl Bar {
    /// Whether it is of that kind, and seen.
    pub(super) fn is(&self, what: What) -> bool {
        let is_empty = self.from == self.until && matches!(what, What::Wait | What::People);
        self.what == what && !is_empty
    }
}

impl Mark {
    fn cell(self) -> Cell {
        match self {
            Self::Model => BLANK,
            Self::Ok => ('✓', "32"),
            Self::Failed => ('✗', "31"),
            Self::NotRun => ('-', "31"),
            Self::Open => ('…', "33"),
        }
    }
}

/// A run: its heading, then its turns, some to an axis.
pub(super) fn draw(run: &Run<'_>, look: Look) -> String {
    let columns = look.columns.clamp(40, 400);
    let mut text = String::new();
    line(&mut text, &heading(run), columns);
    let left_out = run.turns.len().saturating_sub(look.turns_max);
    if left_out > 0 {
        line(&mut text, &format!("({left_out} turns before these are not drawn)"), columns);
    }
    let shown = run.turns.get(left_out..).unwrap_or_default();
    let label = shown.iter().flatten().map(label_columns).max().unwrap_or_default();
    let label = label.min(columns * 3 / 10);
    let mut left = shown;
    // The first axis begins with the run.
    let mut begin = (left_out == 0).then_some(run.began);
    while !left.is_empty() {
        let (turns, behind) = left.split_at(turns_of_an_axis(left));
        let page = Page { run, label, columns, begin: begin.take(), coloured: look.coloured };
        page.draw(&mut text, turns);
        left = behind;
    }
    text
}

/// How many of the turns, at least one, share the next axis.
fn turns_of_an_axis(turns: &[Vec<Row>]) -> usize {
    let rows = turns.iter().scan(0, |sum, rows| {
        *sum += rows.len().min(CALLS_MAX);
        Some(*sum)
    });
    rows.take(AN_AXIS.0).take_while(|rows| *rows <= AN_AXIS.1).count().max(1)
}

/// What the signs mean that are in these runs.
pub(super) fn legend(runs: &[Run<'_>], look: Look) -> String {
    let rows = || runs.iter().flat_map(|run| run.turns.iter().flatten());
    let is_drawn = |what| rows().any(|row| row.bars.iter().any(|bar| bar.is(what)));
    let bars = [
        (What::Model, "model streams"),
        (What::Wait, "waits"),
        (What::People, "waits for people"),
        (What::Tool, "tool runs"),
        (What::Broken, "broke or failed"),
    ];
    let bars = bars.into_iter().filter(|(what, _)| is_drawn(*what));
    let marks = [(Mark::NotRun, "never ran"), (Mark::Open, "open")];
    let marks = marks.into_iter().filter(|(mark, _)| rows().any(|row| row.mark == *mark));
    let signs = bars.map(|(what, meaning)| (what.cell(), meaning));
    let (mut text, mut used) = (String::new(), 0);
    for (cell, meaning) in signs.chain(marks.map(|(mark, meaning)| (mark.cell(), meaning))) {
        let wide = text_columns(meaning) + 2;
        if used > 0 && used + 2 + wide > look.columns.clamp(40, 400) {
            text.push('\n');
            used = 0;
        } else if used > 0 {
            text.push_str("  ");
            used += 2;
        }
        used += wide;
        put(&mut text, &[cell], look.coloured);
        text.push(' ');
        text.push_str(meaning);
    }
    text.push('\n');
    text
}

/// Where time was left out.
pub(super) const CUT: Cell = ('┊', "2");

/// Some turns of a run that share an axis.
struct Page<'a> {
    run: &'a Run<'a>,
    label: usize,
    columns: usize,
    /// Where the axis begins, if not with the first bar.
    begin: Option<u64>,
    coloured: bool,
}

impl Page<'_> {
    fn draw(&self, text: &mut String, turns: &[Vec<Row>]) {
        let behind = self.behind();
        let room = self.columns - self.label - 1 - behind;
        let bars = turns.iter().flatten().flat_map(|row| row.bars.iter().copied());
        let axis = Axis::new(bars.collect(), self.begin, room);
        let margin = " ".repeat(self.label + 1);
        let ticks = axis.ticks(self.run.began);
        text.push_str(&margin);
        put(text, &ticks, self.coloured);
        text.push('\n');
        for rows in turns {
            let mut calls = 0;
            let is_shown = |row: &&Row| {
                calls += usize::from(row.mark != Mark::Model);
                row.mark == Mark::Model || calls <= CALLS_MAX
            };
            for row in rows.iter().filter(is_shown) {
                self.row(text, &axis, row);
            }
            if let Some(row) = rest(rows) {
                self.row(text, &axis, &row);
            }
        }
        for (from, until) in axis.cuts() {
            let (from, idle) = (from.saturating_sub(self.run.began), until - from);
            let what = format!("┊ {} without a stream or a tool, from", how_long(idle));
            line(text, &format!("{margin}{what} {}", how_long(from)), self.columns);
        }
    }

    fn behind(&self) -> usize {
        if self.columns >= WIDE { BEHIND.0 } else { BEHIND.1 }
    }

    fn row(&self, text: &mut String, axis: &Axis, row: &Row) {
        let mut head = Vec::with_capacity(self.label);
        if row.mark != Mark::Model {
            head.extend([BLANK, row.mark.cell(), BLANK]);
        }
        let clean: String = row.label.chars().filter(|c| !c.is_control()).collect();
        let left = self.label.saturating_sub(head.len());
        let fits = fitting(&clean, left);
        let fits = if fits == clean { fits } else { fitting(&clean, left.saturating_sub(1)) };
        head.extend(fits.chars().map(|c| (c, "")));
        let mut used = text_columns(fits) + head.len() - fits.chars().count();
        if fits != clean {
            head.push(('…', ""));
            used += 1;
        }
        head.extend(std::iter::repeat_n(BLANK, self.label.saturating_sub(used) + 1));
        head.extend(axis.cells(&row.bars));
        let told = self.told(row);
        let blanks = self.behind().saturating_sub(text_columns(&told));
        head.extend(std::iter::repeat_n(BLANK, blanks));
        head.extend(told.chars().map(|c| (c, "")));
        while head.last().is_some_and(|(c, _)| *c == ' ') {
            head.pop();
        }
        put(text, &head, self.coloured);
        text.push('\n');
    }

    /// How long it took, and the word for what became of it where both fit.
    fn told(&self, row: &Row) -> String {
        let took = row.took.map(how_long);
        match took {
            Some(took) if row.word.is_empty() => took,
            Some(took) if self.columns >= WIDE => format!("{} {took}", row.word),
            Some(_) | None => row.word.to_owned(),
        }
    }
}

/// One row for the calls that have none of their own.
fn rest(rows: &[Row]) -> Option<Row> {
    let calls: Vec<&Row> =
        rows.iter().filter(|row| row.mark != Mark::Model).skip(CALLS_MAX).collect();
    let mark = calls.iter().map(|row| row.mark).max()?;
    let bars = calls.iter().flat_map(|row| row.bars.iter().copied()).collect();
    let wrong = calls.iter().filter(|row| matches!(row.mark, Mark::Failed | Mark::NotRun)).count();
    let label = match wrong {
        0 => format!("{} more", calls.len()),
        wrong => format!("{} more, {wrong} not ok", calls.len()),
    };
    Some(Row { mark, label, bars, word: "", took: None })
}

fn label_columns(row: &Row) -> usize {
    text_columns(&row.label) + if row.mark == Mark::Model { 0 } else { 3 }
}

/// Cells as text, with the signs for colours where these change.
fn put(text: &mut String, cells: &[Cell], coloured: bool) {
    let mut ink = "";
    for (c, wanted) in cells {
        if coloured && *wanted != ink {
            if !ink.is_empty() {
                text.push_str("\x1b[0m");
            }
            if !wanted.is_empty() {
                text.push_str(&format!("\x1b[{wanted}m"));
            }
            ink = wanted;
        }
        text.push(*c);
    }
    if !ink.is_empty() {
        text.push_str("\x1b[0m");
    }
}

fn line(text: &mut String, line: &str, columns: usize) {
    text.push_str(fitting(line, columns));
    text.push('\n');
}

/// A time as short as it stays useful.
pub(super) fn how_long(ms: u64) -> String {
    let (seconds, minutes) = (ms / 1_000, ms / 60_000);
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..60_000 => {
            let text = format!("{seconds}.{:03}", ms % 1_000);
            let text = text.get(..text.len() - 1).unwrap_or_default();
            format!("{} s", text.trim_end_matches('0').trim_end_matches('.'))
        }
        60_000..3_600_000 => format!("{minutes} m {} s", seconds % 60),
        _ => format!("{} h {} m", minutes / 60, minutes % 60),
    }
}
