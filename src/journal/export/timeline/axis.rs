//! The common time axis of some rows.

use super::draw::{BLANK, CUT, Cell, how_long};
use super::{Bar, What};

/// Columns from one sign of the axis to the next, at least.
const TICK_COLUMNS: u64 = 12;

/// A time in which nothing streamed and nothing ran is drawn as it is up to so long.
const IDLE_MS: u64 = 1_000;

/// From times to columns. Long times in which nothing goes on are drawn short.
pub(super) struct Axis {
    columns: u64,
    /// Without a gap, in order.
    parts: Vec<Part>,
    /// How long the drawn time is.
    drawn: u64,
}

struct Part {
    from: u64,
    until: u64,
    /// Where it begins in the drawn time, and how much of that it takes.
    at: u64,
    takes: u64,
    is_cut: bool,
}

impl Axis {
    pub(super) fn new(mut bars: Vec<Bar>, begin: Option<u64>, columns: usize) -> Self {
        let columns = columns as u64;
        let first = bars.iter().map(|bar| bar.from).chain(begin).min();
        let begin = first.unwrap_or_default();
        let end = bars.iter().map(|bar| bar.until).max().unwrap_or_default().max(begin + 1);
        bars.retain(|bar| matches!(bar.what, What::Model | What::Tool));
        bars.sort_by_key(|bar| bar.from);
        // Where something went on, and how long that was.
        let mut busy: Vec<(u64, u64)> = Vec::new();
        for Bar { from, until, .. } in bars {
            match busy.last_mut().filter(|(_, last)| from <= *last) {
                Some((_, last)) => *last = until.max(*last),
                None => busy.push((from, until)),
            }
        }
        let sum: u64 = busy.iter().map(|(from, until)| until - from).sum();
        let idle_max = sum.max(IDLE_MS);
        let mut axis = Self { columns, parts: Vec::new(), drawn: 0 };
        let mut at = begin;
        for (from, until) in busy.into_iter().chain([(end, end)]) {
            let from = from.max(at);
            if from - at > idle_max {
                // As much as makes it seen.
                axis.push(at, from, (sum / 8).max(1), true);
            } else {
                axis.push(at, from, from - at, false);
            }
            axis.push(from, until.max(from), until.max(from) - from, false);
            at = until.max(from);
        }
        axis
    }

    fn push(&mut self, from: u64, until: u64, takes: u64, is_cut: bool) {
        if until > from {
            self.parts.push(Part { from, until, at: self.drawn, takes, is_cut });
            self.drawn += takes;
        }
    }

    /// What was left out.
    pub(super) fn cuts(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.parts.iter().filter(|part| part.is_cut).map(|part| (part.from, part.until))
    }

    /// The column of a time; the last one's right edge at the end.
    fn column(&self, time: u64) -> u64 {
        let part = self.parts.iter().find(|part| time <= part.until).or(self.parts.last());
        let Some(part) = part else { return 0 };
        let into = time.clamp(part.from, part.until) - part.from;
        let into = scaled(into, part.takes, part.until - part.from);
        scaled(part.at + into, self.columns, self.drawn)
    }

    pub(super) fn cells(&self, bars: &[Bar]) -> Vec<Cell> {
        let mut bars = bars.to_vec();
        bars.retain(|bar| bar.is(bar.what));
        bars.sort_by_key(|bar| bar.what);
        let mut cells = vec![BLANK; usize::try_from(self.columns).unwrap_or_default()];
        for Bar { from, until, what } in bars {
            let is_end = what == What::Broken;
            let until = self.column(until);
            let from = self.column(from).min(self.columns - 1);
            let (from, until) = if is_end {
                let last = until.saturating_sub(1);
                (last, last + 1)
            } else {
                (from, until.max(from + 1))
            };
            for at in from..until {
                let at = usize::try_from(at).unwrap_or_default();
                if let Some(cell) = cells.get_mut(at) {
                    *cell = what.cell();
                }
            }
        }
        cells
    }

    /// The axis itself: round times since the run began, and where time was left out.
    pub(super) fn ticks(&self, began: u64) -> Vec<Cell> {
        let mut cells = Vec::new();
        let step = self.step();
        for part in &self.parts {
            if part.is_cut {
                let at = self.column(part.from).midpoint(self.column(part.until));
                place(&mut cells, at, &[CUT]);
                continue;
            }
            let mut since = part.from.saturating_sub(began).next_multiple_of(step);
            while began + since < part.until {
                let sign = format!("|{}", tick(since, step));
                let sign: Vec<Cell> = sign.chars().map(|c| (c, CUT.1)).collect();
                let at = self.column(began + since);
                if at + sign.len() as u64 <= self.columns {
                    place(&mut cells, at, &sign);
                }
                since += step;
            }
        }
        cells
    }

    /// 1, 2 or 5 with zeros behind it, in milliseconds.
    fn step(&self) -> u64 {
        let least = scaled(TICK_COLUMNS, self.drawn, self.columns).max(1);
        let mut ten = 1_u64;
        loop {
            for step in [ten, ten.saturating_mul(2), ten.saturating_mul(5)] {
                if step >= least {
                    return step;
                }
            }
            ten = ten.saturating_mul(10);
        }
    }
}

/// A time on the axis: fine enough to tell it from the next.
fn tick(ms: u64, step: u64) -> String {
    if ms < 60_000 || step >= 1_000 {
        return how_long(ms);
    }
    let text = format!("{}.{:03}", ms / 1_000, ms % 1_000);
    format!("{} s", text.trim_end_matches('0').trim_end_matches('.'))
}

/// Puts a sign at a column, unless one stands there that has to be kept apart.
fn place(cells: &mut Vec<Cell>, at: u64, sign: &[Cell]) {
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
