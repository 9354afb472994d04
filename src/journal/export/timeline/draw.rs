//! Rows of a timeline as text, some turns on a common time axis.

use std::collections::BTreeSet;

use super::{Bar, Row, RunTimeline, Sign, TimelineStyle};
use crate::types::{fitting, text_columns};

/// The largest numbers of turns and of rows that share an axis. A turn with more rows has its own.
const AXIS_TURNS_MAX: usize = 8;
const AXIS_ROWS_MAX: usize = 24;

/// The number of calls of a turn that have a row each. The others share one.
const CALL_ROWS_MAX: usize = 16;

/// The smallest number of columns from one tick of an axis to the next.
const TICK_COLUMNS: u64 = 12;

/// Time without a stream or a tool is shortened if it is longer than this and than all busy time.
const IDLE_MS: u64 = 1_000;

/// The smallest width that has room for words after the bars.
const WIDE_COLUMNS: usize = 60;

/// A character and its colour: an SGR parameter of a terminal.
type Cell = (char, &'static str);

const BLANK: Cell = (' ', "");
const CUT: Cell = ('┊', "2");

const LEGEND: [(Sign, &str); 7] = [
    (Sign::Model, "model streams"),
    (Sign::Wait, "waits"),
    (Sign::People, "waits for people"),
    (Sign::Tool, "tool runs"),
    (Sign::Broken, "broke or failed"),
    (Sign::NotRun, "never ran"),
    (Sign::Open, "open"),
];

impl Sign {
    fn cell(self) -> Cell {
        match self {
            Self::Wait => ('·', "2"),
            Self::People => ('?', "33"),
            Self::Model => ('═', "36"),
            Self::Tool => ('█', "32"),
            Self::Broken => ('×', "31"),
            Self::Ok => ('✓', "32"),
            Self::Failed => ('✗', "31"),
            Self::NotRun => ('-', "31"),
            Self::Open => ('…', "33"),
        }
    }
}

impl Bar {
    fn is_drawn(self) -> bool {
        self.from < self.until || !matches!(self.sign, Sign::Wait | Sign::People)
    }
}

/// Draws a run: its heading, then its turns.
pub(super) fn draw(run: &RunTimeline, style: TimelineStyle) -> String {
    let columns = style.columns.clamp(40, 400);
    let mut text = format!("{}\n", fitting(&run.heading, columns));
    let hidden = run.turns.len().saturating_sub(style.turns_max);
    if hidden > 0 {
        let line = format!("({hidden} turns before these are not drawn)");
        text.push_str(&format!("{}\n", fitting(&line, columns)));
    }
    let mut turns = run.turns.get(hidden..).unwrap_or_default();
    let label = turns
        .iter()
        .flatten()
        .map(|row| text_columns(&row.label) + if row.mark.is_some() { 3 } else { 0 });
    let label = label.max().unwrap_or_default().min(columns * 3 / 10);
    let notes = if columns >= WIDE_COLUMNS { 17 } else { 8 };
    // The first axis begins with the run, the others with their first bar.
    let mut begin = (hidden == 0).then_some(run.began);
    while !turns.is_empty() {
        let rows = turns.iter().scan(0, |sum, rows| {
            *sum += rows.len().min(CALL_ROWS_MAX);
            Some(*sum)
        });
        let fit = rows.take(AXIS_TURNS_MAX).take_while(|rows| *rows <= AXIS_ROWS_MAX).count();
        let (own, others) = turns.split_at(fit.max(1));
        let bars = own.iter().flatten().flat_map(|row| row.bars.iter().copied()).collect();
        let axis = Axis::new(bars, begin.take(), columns - label - 1 - notes);
        let layout = RowLayout { label, notes, coloured: style.coloured, axis };
        layout.draw(&mut text, run.began, own, columns);
        turns = others;
    }
    text
}

/// Returns the meaning of the signs in these runs.
pub(super) fn legend(runs: &[RunTimeline], style: TimelineStyle) -> String {
    let rows = runs.iter().flat_map(|run| run.turns.iter().flatten());
    let signs = rows.flat_map(|row| {
        let bars = row.bars.iter().filter(|bar| bar.is_drawn());
        bars.map(|bar| bar.sign).chain(row.mark)
    });
    let signs: BTreeSet<Sign> = signs.collect();
    let (mut text, mut used) = (String::new(), 0);
    for (sign, meaning) in LEGEND.into_iter().filter(|(sign, _)| signs.contains(sign)) {
        let columns = text_columns(meaning) + 2;
        if used > 0 && used + 2 + columns > style.columns.clamp(40, 400) {
            text.push('\n');
            used = 0;
        } else if used > 0 {
            text.push_str("  ");
            used += 2;
        }
        used += columns;
        put(&mut text, &[sign.cell()], style.coloured);
        text.push_str(&format!(" {meaning}"));
    }
    text + "\n"
}

/// The columns of a row: label, bars on an axis, notes.
struct RowLayout {
    label: usize,
    notes: usize,
    coloured: bool,
    axis: Axis,
}

impl RowLayout {
    fn draw(&self, text: &mut String, began: u64, turns: &[Vec<Row>], columns: usize) {
        let margin = " ".repeat(self.label + 1);
        text.push_str(&margin);
        put(text, &self.axis.ticks(began), self.coloured);
        text.push('\n');
        for rows in turns {
            let (mut calls, mut hidden) = (0, Vec::new());
            for row in rows {
                calls += usize::from(row.mark.is_some());
                if row.mark.is_none() || calls <= CALL_ROWS_MAX {
                    self.row(text, row);
                } else {
                    hidden.push(row);
                }
            }
            if let Some(row) = summary(&hidden) {
                self.row(text, &row);
            }
        }
        for part in self.axis.parts.iter().filter(|part| part.is_cut) {
            let (idle, from) =
                (format_duration(part.until - part.from), part.from.saturating_sub(began));
            let from = format_duration(from);
            let line = format!("{margin}┊ {idle} without a stream or a tool, from {from}");
            text.push_str(&format!("{}\n", fitting(&line, columns)));
        }
    }

    fn row(&self, text: &mut String, row: &Row) {
        let mut cells = Vec::with_capacity(self.label);
        if let Some(mark) = row.mark {
            cells.extend([BLANK, mark.cell(), BLANK]);
        }
        let mut label: String = row.label.chars().filter(|c| !c.is_control()).collect();
        let room = self.label.saturating_sub(cells.len());
        if text_columns(&label) > room {
            label = format!("{}…", fitting(&label, room.saturating_sub(1)));
        }
        let blanks = (self.label + 1).saturating_sub(cells.len() + text_columns(&label));
        cells.extend(label.chars().map(|c| (c, "")));
        cells.extend(std::iter::repeat_n(BLANK, blanks));
        cells.extend(self.axis.cells(&row.bars));
        let is_wide = self.notes > 8;
        let notes = match row.duration_ms.map(format_duration) {
            Some(duration) if row.word.is_empty() => duration,
            Some(duration) if is_wide => format!("{} {duration}", row.word),
            Some(_) | None => row.word.to_owned(),
        };
        let blanks = self.notes.saturating_sub(text_columns(&notes));
        cells.extend(std::iter::repeat_n(BLANK, blanks));
        cells.extend(notes.chars().map(|c| (c, "")));
        let end = cells.iter().rposition(|(c, _)| *c != ' ').map_or(0, |last| last + 1);
        cells.truncate(end);
        put(text, &cells, self.coloured);
        text.push('\n');
    }
}

/// Returns one row for the calls that have none of their own.
fn summary(calls: &[&Row]) -> Option<Row> {
    let mark = Some(calls.iter().filter_map(|row| row.mark).max()?);
    let bars = calls.iter().flat_map(|row| row.bars.iter().copied()).collect();
    let wrong =
        calls.iter().filter(|row| matches!(row.mark, Some(Sign::Failed | Sign::NotRun))).count();
    let label = match wrong {
        0 => format!("{} more", calls.len()),
        wrong => format!("{} more, {wrong} not ok", calls.len()),
    };
    Some(Row { mark, label, bars, word: "", duration_ms: None })
}

/// Appends cells, with colour sequences where the colour changes.
fn put(text: &mut String, cells: &[Cell], coloured: bool) {
    let mut colour = "";
    for (c, wanted) in cells.iter().chain([&('\0', "")]) {
        if coloured && *wanted != colour {
            text.push_str(if colour.is_empty() { "" } else { "\x1b[0m" });
            if !wanted.is_empty() {
                text.push_str(&format!("\x1b[{wanted}m"));
            }
            colour = wanted;
        }
        text.extend((*c != '\0').then_some(*c));
    }
}

/// Maps times to columns. Long idle times are shortened.
struct Axis {
    columns: u64,
    /// Consecutive parts, in order.
    parts: Vec<AxisPart>,
    /// The sum of all drawn lengths.
    drawn: u64,
}

struct AxisPart {
    from: u64,
    until: u64,
    /// Its begin and its length on the axis.
    at: u64,
    length: u64,
    is_cut: bool,
}

impl Axis {
    fn new(mut bars: Vec<Bar>, begin: Option<u64>, columns: usize) -> Self {
        let begin = bars.iter().map(|bar| bar.from).chain(begin).min().unwrap_or_default();
        let end = bars.iter().map(|bar| bar.until).max().unwrap_or_default().max(begin + 1);
        bars.retain(|bar| matches!(bar.sign, Sign::Model | Sign::Tool));
        bars.sort_by_key(|bar| bar.from);
        let mut busy: Vec<(u64, u64)> = Vec::new();
        for Bar { from, until, .. } in bars {
            match busy.last_mut().filter(|(_, last)| from <= *last) {
                Some((_, last)) => *last = until.max(*last),
                None => busy.push((from, until)),
            }
        }
        let sum: u64 = busy.iter().map(|(from, until)| until - from).sum();
        let mut axis = Self { columns: columns as u64, parts: Vec::new(), drawn: 0 };
        let mut at = begin;
        for (from, until) in busy.into_iter().chain([(end, end)]) {
            let from = from.max(at);
            let is_cut = from - at > sum.max(IDLE_MS);
            axis.push(at, from, if is_cut { (sum / 8).max(1) } else { from - at }, is_cut);
            at = until.max(from);
            axis.push(from, at, at - from, false);
        }
        axis
    }

    fn push(&mut self, from: u64, until: u64, length: u64, is_cut: bool) {
        if until > from {
            self.parts.push(AxisPart { from, until, at: self.drawn, length, is_cut });
            self.drawn += length;
        }
    }

    /// Returns the column of a time. The end of the axis is one after the last column.
    fn column(&self, time: u64) -> u64 {
        let part = self.parts.iter().find(|part| time <= part.until).or(self.parts.last());
        let Some(part) = part else { return 0 };
        let into = time.clamp(part.from, part.until) - part.from;
        let at = part.at + scaled(into, part.length, part.until - part.from);
        scaled(at, self.columns, self.drawn)
    }

    fn cells(&self, bars: &[Bar]) -> Vec<Cell> {
        let mut bars: Vec<Bar> = bars.iter().copied().filter(|bar| bar.is_drawn()).collect();
        bars.sort_by_key(|bar| bar.sign);
        let mut cells = vec![BLANK; usize::try_from(self.columns).unwrap_or_default()];
        for Bar { from, until, sign } in bars {
            let until = self.column(until);
            // A failure is drawn over the end of what failed.
            let at_end = until.saturating_sub(1);
            let at_begin = self.column(from).min(self.columns - 1);
            let from = if sign == Sign::Broken { at_end } else { at_begin };
            for at in from..until.max(from + 1) {
                let cell = usize::try_from(at).ok().and_then(|at| cells.get_mut(at));
                cell.into_iter().for_each(|cell| *cell = sign.cell());
            }
        }
        cells
    }

    /// Draws the axis itself: round times since the run began, and signs where time was cut.
    fn ticks(&self, began: u64) -> Vec<Cell> {
        let mut cells = Vec::new();
        let least = scaled(TICK_COLUMNS, self.drawn, self.columns).max(1);
        let tens = (0..19).map(|exponent| 10_u64.pow(exponent));
        let interval = tens.flat_map(|ten| [ten, 2 * ten, 5 * ten]).find(|ms| *ms >= least);
        let interval = interval.unwrap_or(u64::MAX);
        for part in &self.parts {
            if part.is_cut {
                let at = self.column(part.from).midpoint(self.column(part.until));
                put_at(&mut cells, at, &[CUT]);
                continue;
            }
            let mut since = part.from.saturating_sub(began).next_multiple_of(interval);
            while began + since < part.until {
                let sign = format!("|{}", tick(since, interval));
                let sign: Vec<Cell> = sign.chars().map(|c| (c, CUT.1)).collect();
                let at = self.column(began + since);
                if at + sign.len() as u64 <= self.columns {
                    put_at(&mut cells, at, &sign);
                }
                since += interval;
            }
        }
        cells
    }
}

/// Formats a time on the axis, precise enough to differ from the next one.
fn tick(ms: u64, interval: u64) -> String {
    if ms < 60_000 || interval >= 1_000 {
        return format_duration(ms);
    }
    let text = format!("{}.{:03}", ms / 1_000, ms % 1_000);
    format!("{} s", text.trim_end_matches('0').trim_end_matches('.'))
}

/// Puts a sign at a column, unless it would touch the one before.
fn put_at(cells: &mut Vec<Cell>, at: u64, sign: &[Cell]) {
    let at = usize::try_from(at).unwrap_or(usize::MAX);
    if cells.is_empty() || cells.len() < at {
        cells.resize(at, BLANK);
        cells.extend(sign);
    }
}

fn scaled(value: u64, to: u64, of: u64) -> u64 {
    let value = u128::from(value) * u128::from(to) / u128::from(of.max(1));
    u64::try_from(value).unwrap_or(u64::MAX)
}

/// Formats a duration with few digits.
pub(super) fn format_duration(ms: u64) -> String {
    let (seconds, minutes) = (ms / 1_000, ms / 60_000);
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..60_000 => {
            let text = format!("{seconds}.{:02}", ms % 1_000 / 10);
            format!("{} s", text.trim_end_matches('0').trim_end_matches('.'))
        }
        60_000..3_600_000 => format!("{minutes} m {} s", seconds % 60),
        _ => format!("{} h {} m", minutes / 60, minutes % 60),
    }
}
