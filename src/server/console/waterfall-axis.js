/** The time axis of a waterfall. */

import { duration } from "./text.js";

/** Share of the width that a long pause gets. */
const GAP_SHARE = 0.07;

/** Maps times to shares of the width. Long times in which nothing ran are shortened. */
export class Axis {
  /** @param {[number, number][]} busy Intervals in which something ran. @param {number} start @param {number} end */
  constructor(busy, start, end) {
    /** @type {[number, number][]} */
    const merged = [];
    for (const [from, to] of [...busy].sort((a, b) => a[0] - b[0])) {
      const last = merged.at(-1);
      if (last && from <= last[1]) last[1] = Math.max(last[1], to);
      else merged.push([from, to]);
    }
    const total = Math.max(
      1,
      merged.reduce((sum, [from, to]) => sum + to - from, 0),
    );
    /** @type {{from: number, to: number, isGap: boolean, left: number, width: number}[]} */
    this.pieces = [];
    let at = start;
    for (const [from, to] of merged) {
      if (from > at)
        this.pieces.push({
          from: at,
          to: from,
          isGap: from - at > total * 0.5 && from - at > 500,
          left: 0,
          width: 0,
        });
      this.pieces.push({ from: Math.max(at, from), to, isGap: false, left: 0, width: 0 });
      at = Math.max(at, to);
    }
    if (end > at || this.pieces.length === 0) {
      const isGap = this.pieces.length > 0 && end - at > total * 0.5 && end - at > 500;
      this.pieces.push({ from: at, to: Math.max(end, at + 1), isGap, left: 0, width: 0 });
    }
    const gaps = this.pieces.filter(({ isGap }) => isGap).length;
    const shown = Math.max(
      1,
      this.pieces.reduce((sum, { from, to, isGap }) => sum + (isGap ? 0 : to - from), 0),
    );
    const share = Math.max(0.3, 1 - gaps * GAP_SHARE);
    let left = 0;
    for (const piece of this.pieces) {
      piece.left = left;
      piece.width = piece.isGap ? (1 - share) / gaps : ((piece.to - piece.from) / shown) * share;
      left += piece.width;
    }
    this.start = start;
    this.shown = shown;
  }

  /** @param {number} time */
  at(time) {
    const piece = this.pieces.find(({ to }) => time <= to) ?? this.pieces.at(-1);
    if (!piece) return 0;
    const within = (time - piece.from) / Math.max(1, piece.to - piece.from);
    return Math.min(1, Math.max(0, piece.left + Math.min(1, Math.max(0, within)) * piece.width));
  }

  /** Round times with their places, at most about one for each sixth of the width. */
  ticks() {
    const rough = this.shown / 5;
    const power = 10 ** Math.floor(Math.log10(Math.max(1, rough)));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((value) => value >= rough) ?? power * 10;
    const ticks = [];
    let last = -1;
    for (const { from, to, isGap } of this.pieces) {
      if (isGap) continue;
      for (let time = Math.ceil((from - this.start) / step) * step; time <= to - this.start; time += step) {
        const place = this.at(this.start + time);
        if (last >= 0 && place - last < 0.12) continue;
        if (place > 0.93) continue;
        ticks.push({ place, label: duration(time) });
        last = place;
      }
    }
    return ticks;
  }
}
