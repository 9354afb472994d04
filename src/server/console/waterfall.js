/** A run on one time axis: the answers of the model, and of each call its seal, wait, run and release. */

import { stateOf } from "./card.js";
import { beforePaint, el, fill } from "./dom.js";
import { Axis } from "./waterfall-axis.js";
import { clock, contentOf, count, counted, duration, excerpt } from "./text.js";

/** @typedef {import("./session.js").Session} Session */
/** @typedef {import("./objects.js").Run} Run */
/** @typedef {import("./objects.js").Call} Call */
/** @typedef {{kind: string, from: number, to: number, title?: string}} Bar */
/** @typedef {{name: string, words: string, className: string, bars: Bar[], marks: {kind: string, at: number}[], text: string}} Row */

/**
 * @param {Call} call @param {number} now @param {number} start
 * @param {number} responseEnd The end of the response that made the call.
 * @returns {Row}
 */
function callRow(call, now, start, responseEnd) {
  const { times, result } = call;
  const { words, state, glyph } = stateOf(call);
  /** @type {Bar[]} */
  const bars = [];
  const marks = [];
  const facts = [];
  const since = (/** @type {number} */ time) => duration(time - start);
  const sealed = times.sealed ?? (call.isOver ? undefined : times.detected);
  const begun = times.started;
  if (sealed !== undefined) {
    marks.push({ kind: "seal", at: sealed });
    facts.push(`sealed at ${since(sealed)}`);
    const until = begun ?? (call.isOver ? undefined : now);
    const asked = call.questions.some(({ phase }) => phase === "before");
    if (until !== undefined && until > sealed) {
      bars.push({ kind: asked ? "asked" : "waited", from: sealed, to: until });
      facts.push(`waited ${duration(until - sealed)}`);
    }
  }
  if (begun !== undefined) {
    const end = times.ended ?? (call.isOver ? begun + (call.durationMs ?? 0) : now);
    const early = Math.min(end, responseEnd);
    const kind = state === "bad" ? "failed" : "ran";
    facts.push(`started at ${since(begun)}`, `ran ${duration(end - begun)}`);
    if (early > begun && kind === "ran") {
      bars.push({ kind: "early", from: begun, to: early }, { kind, from: early, to: end });
      facts.push(`${duration(early - begun)} of it while the model answered`);
    } else bars.push({ kind, from: begun, to: end });
    const held = call.questions.some(({ phase }) => phase === "after") ? "asked" : "held";
    const until = result?.releasedAt ?? (call.isOver || state === "run" ? end : now);
    if (until > end + 1) bars.push({ kind: held, from: end, to: until });
  }
  if (result) {
    marks.push({ kind: "release", at: result.releasedAt });
    facts.push(`released at ${since(result.releasedAt)}`);
  }
  const time =
    begun === undefined
      ? call.isOver
        ? "not run"
        : ""
      : duration(call.durationMs ?? (times.ended ?? now) - begun);
  return {
    name: `${glyph} ${excerpt(call.name, 60)}`,
    words: state === "ok" || state === "run" ? time : begun === undefined ? words : `${words}, ${time}`,
    className: `call ${state}${call.isEarly ? " early" : ""}`,
    bars,
    marks,
    text: facts.join(", "),
  };
}

export class Waterfall extends HTMLElement {
  /** @param {Session} session @param {EventTarget} changes */
  constructor(session, changes) {
    super();
    this.session = session;
    this.changes = changes;
    /** @type {string | undefined} The run that was chosen; else the newest. */
    this.chosen = undefined;
    this.draw = this.draw.bind(this);
    this.onTimeline = () => beforePaint(this.draw);
    this.timer = 0;
    this.select = el("select", {
      id: "run-select",
      onchange: () => {
        this.chosen = this.select.value;
        this.draw();
      },
    });
    this.facts = el("dl", { class: "facts wide" });
    this.table = el("table", { class: "waterfall" });
    this.legend = el(
      "p",
      { class: "legend" },
      ...[
        ["streams", "model answers"],
        ["waited", "waits"],
        ["asked", "waits for approval"],
        ["early", "runs while the model answers"],
        ["ran", "runs"],
        ["failed", "failed"],
        ["held", "held until its release"],
        ["gap", "nothing runs (shortened)"],
      ].map(([kind, text]) => el("span", {}, el("i", { class: `bar ${kind}`, "aria-hidden": "true" }), text)),
      el("span", {}, el("i", { class: "mark seal", "aria-hidden": "true" }), "arguments sealed"),
      el("span", {}, el("i", { class: "mark release", "aria-hidden": "true" }), "result released"),
    );
    this.empty = el("p", { class: "empty", text: "No runs yet." });
    this.head = el(
      "div",
      { class: "row toolbar" },
      el("label", { for: "run-select", text: "Run" }),
      this.select,
    );
    this.append(this.head, this.facts, this.empty, this.table, this.legend);
  }

  connectedCallback() {
    this.changes.addEventListener("timeline-change", this.onTimeline);
    this.timer = setInterval(() => {
      if (this.session.timeline.run && !this.hidden) beforePaint(this.draw);
    }, 250);
    this.draw();
  }

  disconnectedCallback() {
    this.changes.removeEventListener("timeline-change", this.onTimeline);
    clearInterval(this.timer);
  }

  draw() {
    if (this.hidden) return;
    const runs = /** @type {Run[]} */ (this.session.timeline.items.filter((item) => item.kind === "run"));
    this.empty.hidden = runs.length > 0;
    for (const part of [this.head, this.table, this.legend, this.facts]) part.hidden = runs.length === 0;
    const run = runs.find(({ id }) => id === this.chosen) ?? runs.at(-1);
    if (!run) return;
    this.drawSelect(runs, run);
    this.drawFacts(run);
    this.drawTable(run);
  }

  /** @param {Run[]} runs @param {Run} run */
  drawSelect(runs, run) {
    const shown = runs.slice(-200).reverse();
    const key = shown.map(({ id, input }) => `${id}${input === undefined}`).join();
    if (this.select.dataset.key !== key) {
      this.select.dataset.key = key;
      fill(
        this.select,
        ...shown.map((own) =>
          el("option", {
            value: own.id,
            text: `${clock(own.start)}  ${excerpt(contentOf(own.input ?? "").text.replaceAll(/\s+/gu, " "), 60)}`,
          }),
        ),
      );
    }
    this.select.value = run.id;
  }

  /** @param {Run} run */
  drawFacts(run) {
    const { stats } = run;
    /** @type {[string, string][]} */
    const facts = [
      ["run", run.id],
      ["model", run.model],
      ["execution", run.execution],
      ["state", run.end ?? "running"],
    ];
    if (stats) {
      facts.push(
        ["total", duration(stats.duration_ms)],
        ["model time", duration(stats.model_ms)],
        ["tools", duration(stats.tools_ms)],
      );
      if (stats.people_ms) facts.push(["approvals", duration(stats.people_ms)]);
      if (stats.waits_ms) facts.push(["waits", duration(stats.waits_ms)]);
      facts.push(
        ["overhead", duration(stats.overhead_ms)],
        ["early start saved", duration(stats.overlap_saved_ms)],
        ["tokens", `${count(stats.input_tokens)} in, ${count(stats.output_tokens)} out`],
      );
    }
    const key = JSON.stringify(facts);
    if (this.facts.dataset.key === key) return;
    this.facts.dataset.key = key;
    fill(
      this.facts,
      ...facts.map(([name, value]) => el("div", {}, el("dt", { text: name }), el("dd", { text: value }))),
    );
  }

  /** @param {Run} run */
  drawTable(run) {
    const now = run.end === undefined ? Date.now() : run.endTime;
    const { start } = run;
    /** @type {(Row & {attempt?: boolean})[]} */
    const rows = [];
    /** @type {[number, number][]} */
    const busy = [];
    let end = start + 1;
    for (const turn of run.turns) {
      for (const attempt of turn.attempts) {
        const to = Math.max(attempt.start, attempt.end ?? (turn.isOver ? attempt.start : now));
        busy.push([attempt.start, to]);
        const isVoid = attempt.isVoid || attempt.error !== undefined;
        rows.push({
          name: `turn ${turn.number}${turn.attempts.length > 1 ? `, attempt ${attempt.attempt}` : ""}`,
          words: isVoid ? `void, ${duration(to - attempt.start)}` : duration(to - attempt.start),
          className: isVoid ? "attempt void" : "attempt",
          bars: [{ kind: isVoid ? "broke" : "streams", from: attempt.start, to }],
          marks: [],
          text: `${attempt.model}, from ${duration(attempt.start - start)} to ${duration(to - start)}${attempt.error ? `, failed: ${attempt.error}` : ""}`,
        });
        const calls = turn.parts.flatMap((part) => (part.kind === "call" ? [part.call] : []));
        for (const call of calls) {
          if (
            !call.id.startsWith(`t${turn.number}a${attempt.attempt}`) &&
            !(
              attempt === turn.attempt &&
              !turn.attempts.some((own) => call.id.startsWith(`t${turn.number}a${own.attempt}`))
            )
          )
            continue;
          const row = callRow(call, now, start, to);
          for (const bar of row.bars)
            if (["ran", "early", "failed"].includes(bar.kind)) busy.push([bar.from, bar.to]);
          for (const bar of row.bars) end = Math.max(end, bar.to);
          rows.push(row);
        }
        end = Math.max(end, to);
      }
    }
    const axis = new Axis(busy, start, end);
    const percent = (/** @type {number} */ share) => `${(share * 100).toFixed(3)}%`;
    const place = (
      /** @type {HTMLElement} */ element,
      /** @type {number} */ left,
      /** @type {number} */ width = 0,
    ) => {
      element.style.setProperty("left", percent(left));
      if (width > 0) element.style.setProperty("width", percent(width));
      return element;
    };
    const body = el("tbody");
    for (const row of rows) {
      const track = el("td", { class: "track" }, el("span", { class: "hidden", text: row.text }));
      track.title = row.text;
      for (const bar of row.bars) {
        const left = axis.at(bar.from);
        track.append(
          place(el("i", { class: `bar ${bar.kind}` }), left, Math.max(0.002, axis.at(bar.to) - left)),
        );
      }
      for (const mark of row.marks)
        track.append(place(el("i", { class: `mark ${mark.kind}` }), axis.at(mark.at)));
      for (const gap of axis.pieces)
        if (gap.isGap) track.append(place(el("i", { class: "gap" }), gap.left, gap.width));
      body.append(
        el(
          "tr",
          { class: row.className },
          el("th", { scope: "row", text: row.name, title: row.name }),
          track,
          el("td", { class: "words", text: row.words }),
        ),
      );
    }
    const scale = el("td", { class: "axis", "aria-hidden": "true" });
    for (const { place: at, label } of axis.ticks()) scale.append(place(el("span", { text: label }), at));
    for (const gap of axis.pieces) {
      if (!gap.isGap) continue;
      const length = duration(gap.to - gap.from);
      const label = el("span", { class: "gap-label", text: length, title: `${length}, shortened` });
      // The last one begins further left, because it may be wider than its gap.
      if (gap.left + gap.width > 0.9)
        label.style.setProperty("right", percent(Math.max(0, 1 - gap.left - gap.width)));
      else place(label, gap.left, gap.width);
      scale.append(label);
    }
    fill(
      this.table,
      el("caption", { class: "hidden", text: `${counted(run.turns.length, "turn")} on a time axis` }),
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          el("th", { scope: "col" }, el("span", { class: "hidden", text: "Turn or call" })),
          scale,
          el("th", { scope: "col", class: "words" }, el("span", { class: "hidden", text: "Outcome" })),
        ),
      ),
      body,
    );
  }
}

customElements.define("cs-waterfall", Waterfall);
