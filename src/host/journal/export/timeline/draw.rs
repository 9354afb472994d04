//! Rows of a timeline as text, some turns on a common time axis.

use std::collections::BTreeSet;

use super::{Bar, Row, RunTimeline, Symbol, TimelineStyle};
use crate::journal::export::sanitized_line;
use callsheet_values::types::{fitting, text_columns};

/// The largest number of rows of the turns that share an axis. A turn with more rows has its own.
const AXIS_ROWS_MAX: usize = 24;

/// The smallest number of columns from one tick of an axis to the next.
const TICK_COLUMNS: u64 = 12;

/// Time without a model or a tool is folded if it is longer than this and than all busy time of the axis together.
const IDLE_MS: u64 = 1_000;

/// The smallest width that has room for a word and a duration after the bars.
const WIDE_COLUMNS: usize = 60;

/// A character and its colour: an SGR parameter of a terminal.
type Cell = (char, &'static str);

const BLANK: Cell = (' ', "");
const DIM: &str = "2";

impl Symbol {
    /// Returns the cell and its meaning in the legend.
    fn cell(self) -> (Cell, &'static str) {
        match self {
            Self::Wait => (('·', DIM), "waits"),
            Self::Agent => (('▒', "32"), "agent runs"),
            Self::People => (('?', "33"), "waits for approval"),
            Self::Model => (('═', "36"), "model answers"),
            Self::Tool => (('█', "32"), "tool runs"),
            Self::Broken => (('×', "31"), "broke or failed"),
            Self::Ok => (('✓', "32"), ""),
            Self::Failed => (('✗', "31"), ""),
            Self::NotRun => (('-', "31"), "never ran"),
            Self::Open => (('…', "33"), "open"),
        }
    }
}

impl Bar {
    fn is_drawn(&self) -> bool {
        self.from < self.until || !matches!(self.symbol, Symbol::Wait | Symbol::People)
    }
}

/// Draws a run: its heading, then its turns.
pub(super) fn draw(run: &RunTimeline, style: TimelineStyle) -> String {
    let style = TimelineStyle { columns: style.columns.clamp(40, 400), ..style };
    let heading = run.heading.iter().map(|part| cells(&sanitized_line(part), ""));
    let mut text = wrapped(heading, ", ", style);
    let turns = drawn_turns(run, style);
    let hidden = run.turns.len() - turns.len();
    if hidden > 0 {
        text.push_str(&format!("({hidden} earlier turns are not drawn)\n"));
    }
    let label = turns.iter().flatten().map(|row| label_cells(row, usize::MAX).1).max();
    let label = label.unwrap_or_default().min(style.columns * 2 / 5);
    let notes = if style.columns >= WIDE_COLUMNS { 17 } else { 8 };
    // The axis of the run's first turn begins with the run, the others with their first bar.
    let mut begin = (hidden == 0).then_some(run.began);
    let mut rows = 0;
    let groups = turns.chunk_by(|turn, next| {
        rows += turn.len();
        let fits = rows + next.len() <= AXIS_ROWS_MAX;
        rows *= usize::from(fits);
        fits
    });
    for turns in groups {
        let bars: Vec<&Bar> = turns.iter().flatten().flat_map(|row| &row.bars).collect();
        let axis = Axis::new(&bars, begin.take(), style.columns - label - 1 - notes);
        let mut line = vec![BLANK; label + 1];
        line.extend(axis.ticks(run.began));
        put(&mut text, &line, style.coloured);
        text.push('\n');
        for row in turns.iter().flatten() {
            let (mut line, used) = label_cells(row, label);
            line.extend(std::iter::repeat_n(BLANK, label + 1 - used));
            line.extend(axis.cells(&row.bars));
            let note = match row.duration_ms.map(format_duration) {
                Some(duration) if row.word.is_empty() => duration,
                Some(duration) if notes > 8 => format!("{} {duration}", row.word),
                Some(_) | None => row.word.to_owned(),
            };
            line.extend(cells(&format!("{note:>notes$}"), ""));
            let end = line.iter().rposition(|(c, _)| *c != ' ').map_or(0, |last| last + 1);
            put(&mut text, line.get(..end).unwrap_or_default(), style.coloured);
            text.push('\n');
        }
        for part in &axis.parts {
            let Some(reason) = part.folded else { continue };
            let idle = format!("┊ {} {reason}", format_duration(part.until - part.from));
            let from = format_duration(part.from.saturating_sub(run.began));
            let parts = [idle, format!("from {from}")];
            text.push_str(&wrapped(parts.iter().map(|part| cells(part, "")), ", ", style));
        }
    }
    text
}

/// Returns the turns of a run that are drawn: the last ones.
fn drawn_turns(run: &RunTimeline, style: TimelineStyle) -> &[Vec<Row>] {
    let hidden = run.turns.len().saturating_sub(style.turns_max);
    run.turns.get(hidden..).unwrap_or_default()
}

/// Returns the meaning of the symbols in the drawn turns of these runs.
pub(super) fn legend(runs: &[RunTimeline], style: TimelineStyle) -> String {
    let style = TimelineStyle { columns: style.columns.clamp(40, 400), ..style };
    let rows = runs.iter().flat_map(|run| drawn_turns(run, style).iter().flatten());
    let symbols = rows.flat_map(|row| {
        let bars = row.bars.iter().filter(|bar| bar.is_drawn());
        bars.map(|bar| bar.symbol).chain(row.symbol)
    });
    let symbols: BTreeSet<Symbol> = symbols.collect();
    let symbols = symbols.into_iter().map(Symbol::cell).filter(|(_, meaning)| !meaning.is_empty());
    let parts = symbols.map(|(cell, meaning)| [vec![cell, BLANK], cells(meaning, "")].concat());
    wrapped(parts, "  ", style)
}

/// Returns the indentation, the symbol and the label of a row, cut to `columns`, and the number of their columns.
fn label_cells(row: &Row, columns: usize) -> (Vec<Cell>, usize) {
    let mut line = vec![BLANK; 2 * row.depth];
    line.extend(row.symbol.into_iter().flat_map(|symbol| [BLANK, symbol.cell().0, BLANK]));
    let mut label = sanitized_line(&row.label);
    let room = columns.saturating_sub(line.len());
    if text_columns(&label) > room {
        label = format!("{}…", fitting(&label, room.saturating_sub(1)));
    }
    let used = line.len() + text_columns(&label);
    line.extend(cells(&label, ""));
    (line, used)
}

fn cells(text: &str, colour: &'static str) -> Vec<Cell> {
    text.chars().map(|c| (c, colour)).collect()
}

/// Joins parts to lines that fit the picture. A line before another one ends with the separator.
fn wrapped(
    parts: impl Iterator<Item = Vec<Cell>>,
    separator: &str,
    style: TimelineStyle,
) -> String {
    let (mut text, mut used) = (String::new(), 0);
    let line_end = separator.trim_end();
    let mut parts = parts.peekable();
    while let Some(mut part) = parts.next() {
        let room = style.columns - parts.peek().map_or(0, |_| line_end.len());
        part.truncate(room);
        if used > 0 && used + separator.len() + part.len() > room {
            text.push_str(line_end);
            text.push('\n');
            used = 0;
        } else if used > 0 {
            text.push_str(separator);
            used += separator.len();
        }
        used += part.len();
        put(&mut text, &part, style.coloured);
    }
    text + "\n"
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

/// Maps times to columns. Long idle times are folded.
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
    /// Its begin and its length on the axis, in milliseconds that are drawn.
    at: u64,
    length: u64,
    /// The reason of idle time that is folded.
    folded: Option<&'static str>,
}

impl Axis {
    fn new(bars: &[&Bar], begin: Option<u64>, columns: usize) -> Self {
        let begin = bars.iter().map(|bar| bar.from).chain(begin).min().unwrap_or_default();
        let end = bars.iter().map(|bar| bar.until).max().unwrap_or_default().max(begin + 1);
        let busy = bars.iter().filter(|bar| matches!(bar.symbol, Symbol::Model | Symbol::Tool));
        let mut busy: Vec<_> = busy.map(|bar| (bar.from, bar.until)).collect();
        busy.sort_unstable();
        let mut at = begin;
        // Idle time, then busy time that does not overlap the time before.
        let spans = busy.into_iter().chain([(end, end)]).map(|(from, until)| {
            let from = from.max(at);
            (std::mem::replace(&mut at, until.max(from)), from, until.max(from))
        });
        let spans: Vec<_> = spans.collect();
        let sum: u64 = spans.iter().map(|(_, from, until)| until - from).sum();
        let mut axis = Self { columns: columns as u64, parts: Vec::new(), drawn: 0 };
        for (idle, from, until) in spans {
            let has = |symbol| {
                bars.iter().any(|bar| bar.symbol == symbol && bar.from < from && bar.until > idle)
            };
            let reason = match (has(Symbol::People), has(Symbol::Wait)) {
                (true, _) => "waiting for approval",
                (false, true) => "waiting",
                (false, false) => "without a model or a tool",
            };
            let folded = (from - idle > sum.max(IDLE_MS)).then_some(reason);
            axis.push(idle, from, folded.map_or(from - idle, |_| (sum / 8).max(1)), folded);
            axis.push(from, until, until - from, None);
        }
        axis
    }

    fn push(&mut self, from: u64, until: u64, length: u64, folded: Option<&'static str>) {
        if until > from {
            self.parts.push(AxisPart { from, until, at: self.drawn, length, folded });
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
        let mut bars: Vec<&Bar> = bars.iter().filter(|bar| bar.is_drawn()).collect();
        bars.sort_by_key(|bar| bar.symbol);
        let mut cells = vec![BLANK; usize::try_from(self.columns).unwrap_or_default()];
        for Bar { from, until, symbol } in bars {
            let until = self.column(*until);
            // A failure is drawn over the end of what failed.
            let at_end = until.saturating_sub(1);
            let at_begin = self.column(*from).min(self.columns - 1);
            let from = if *symbol == Symbol::Broken { at_end } else { at_begin };
            for at in from..until.max(from + 1) {
                let cell = usize::try_from(at).ok().and_then(|at| cells.get_mut(at));
                cell.into_iter().for_each(|cell| *cell = symbol.cell().0);
            }
        }
        cells
    }

    /// Draws the axis itself: round times since the run began, and symbols where time is folded.
    fn ticks(&self, began: u64) -> Vec<Cell> {
        let mut line = Vec::new();
        // Puts a text at a column, unless it would touch the one before or leave the axis.
        let mut put_at = |at: u64, text: String| {
            let column = usize::try_from(at).unwrap_or(usize::MAX);
            let fits = at + text.chars().count() as u64 <= self.columns;
            if fits && (line.is_empty() || line.len() < column) {
                line.resize(column, BLANK);
                line.extend(cells(&text, DIM));
            }
        };
        let least = scaled(TICK_COLUMNS, self.drawn, self.columns).max(1);
        let tens = (0..19).map(|exponent| 10_u64.pow(exponent));
        let interval = tens.flat_map(|ten| [ten, 2 * ten, 5 * ten]).find(|ms| *ms >= least);
        let interval = interval.unwrap_or(u64::MAX);
        for part in &self.parts {
            if part.folded.is_some() {
                put_at(self.column(part.from).midpoint(self.column(part.until)), "┊".to_owned());
                continue;
            }
            // Recorded durations can be so long that sums overflow.
            let first = part.from.saturating_sub(began).checked_next_multiple_of(interval);
            let ticks = std::iter::successors(first, |since| since.checked_add(interval));
            for since in ticks {
                let Some(time) = began.checked_add(since).filter(|time| *time < part.until) else {
                    break;
                };
                put_at(self.column(time), format!("|{}", tick(since, interval)));
            }
        }
        line
    }
}

/// Formats a time on the axis, precise enough to differ from the next one.
fn tick(ms: u64, interval: u64) -> String {
    match (ms, interval) {
        (1_000.., 0..1_000) => seconds(ms),
        // 1:00:05, as long as the `1 h 0 m` of other intervals.
        (3_600_000.., 1_000..60_000) => {
            format!("{}:{:02}:{:02}", ms / 3_600_000, ms / 60_000 % 60, ms / 1_000 % 60)
        }
        _ => format_duration(ms),
    }
}

fn scaled(value: u64, to: u64, of: u64) -> u64 {
    let value = u128::from(value) * u128::from(to) / u128::from(of.max(1));
    u64::try_from(value).unwrap_or(u64::MAX)
}

/// Formats a duration with few digits.
pub(super) fn format_duration(ms: u64) -> String {
    let (seconds_all, minutes) = (ms / 1_000, ms / 60_000);
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..60_000 => seconds(ms / 10 * 10),
        60_000..3_600_000 => format!("{minutes} m {} s", seconds_all % 60),
        _ => format!("{} h {} m", minutes / 60, minutes % 60),
    }
}

/// Formats seconds with up to three decimals.
fn seconds(ms: u64) -> String {
    let text = format!("{}.{:03}", ms / 1_000, ms % 1_000);
    format!("{} s", text.trim_end_matches('0').trim_end_matches('.'))
}
