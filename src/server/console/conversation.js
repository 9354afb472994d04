/** The runs of a timeline as elements, which only grow. */

import { ToolCard, inputElement } from "./card.js";
import { beforePaint, button, el, fill, setText } from "./dom.js";
import { GrowingText, markdown } from "./markdown.js";
import { clock, contentOf, count, counted, duration, excerpt, json } from "./text.js";

/**
 * @typedef {import("./timeline.js").Timeline} Timeline
 * @typedef {import("./objects.js").Run} Run
 * @typedef {import("./objects.js").Turn} Turn
 * @typedef {import("./objects.js").Item} Item
 * @typedef {import("./objects.js").Part} Part
 * @typedef {import("./objects.js").Segment} Segment
 * @typedef {{element: HTMLElement, mark: (what?: string) => void}} View
 */

/** Items that are drawn at first, and more of when the reader scrolls up. */
const WINDOW = 40;

/** The views of the objects of timelines. @type {WeakMap<object, View>} */
const views = new WeakMap();

/** Tells the view of an object that it changed. @param {object} changed @param {string} [what] */
export function changed(changed, what) {
  views.get(changed)?.mark(what);
}

/** The words for the end of a run. @type {Record<string, string>} */
const ENDS = {
  answered: "answered",
  max_turns: "out of turns",
  stopped: "stopped",
  refused: "refused",
  failed: "failed",
  timed_out: "timed out",
  interrupted: "interrupted",
  loop_detected: "loop detected",
  budget: "out of budget",
  all_tools_failed: "all tools failed",
};

class SegmentView {
  /** @param {Segment} segment */
  constructor(segment) {
    this.segment = segment;
    this.shown = 0;
    this.isEnded = false;
    this.body = el("div", { class: "prose" });
    this.text = new GrowingText(this.body);
    if (segment.kind === "thinking") {
      this.label = el("summary", { text: "Thinking" });
      this.element = el("details", { class: "thinking" }, this.label, this.body);
    } else this.element = el("div", { class: "said" }, this.body);
    this.draw = this.draw.bind(this);
    views.set(segment, this);
    this.draw();
  }

  mark() {
    beforePaint(this.draw);
  }

  draw() {
    const { segment } = this;
    if (this.shown < segment.text.length) {
      this.text.append(segment.text.slice(this.shown));
      this.shown = segment.text.length;
    }
    if (segment.isDone && !this.isEnded) {
      this.isEnded = true;
      this.text.end();
    }
    this.element.classList.toggle("streaming", !segment.isDone);
    this.element.classList.toggle("void", segment.isVoid);
    if (this.label)
      setText(
        this.label,
        segment.isDone ? `Thought (${counted(segment.text.length, "character")})` : "Thinking…",
      );
  }
}

class TurnView {
  /** @param {Turn} turn @param {string} session */
  constructor(turn, session) {
    this.turn = turn;
    this.session = session;
    /** @type {Map<Part | object, HTMLElement>} */
    this.drawn = new Map();
    this.parts = el("div", { class: "parts" });
    this.attempts = el("div", { class: "attempts" });
    this.foot = el("p", { class: "turn-foot" });
    this.element = el("div", { class: "turn" }, this.attempts, this.parts, this.foot);
    this.isReset = false;
    this.shownAttempts = "";
    this.draw = this.draw.bind(this);
    views.set(turn, this);
    this.draw();
  }

  /** @param {string} [what] */
  mark(what) {
    if (what === "reset") this.isReset = true;
    beforePaint(this.draw);
  }

  draw() {
    const { turn } = this;
    if (this.isReset) {
      this.isReset = false;
      const kept = new Map([...this.drawn].filter(([, element]) => element instanceof ToolCard));
      this.parts.replaceChildren();
      this.drawn = new Map();
      for (const part of turn.parts) this.#append(part, kept);
    } else {
      for (const part of turn.parts) {
        const key = part.kind === "call" ? part.call : part;
        if (!this.drawn.has(key)) this.#append(part);
      }
    }
    for (const part of turn.parts) if (part.kind !== "call" && part.isVoid) views.get(part)?.mark();
    const lines = turn.attempts.flatMap((attempt, index) => {
      const next = turn.attempts[index + 1];
      const error = attempt.error ?? next?.reason;
      if (error === undefined) return [];
      const followed = next
        ? `; attempt ${next.attempt} at ${next.model} followed${next.waitMs ? ` after ${duration(next.waitMs)}` : ""}`
        : "";
      return [`Attempt ${attempt.attempt} at ${attempt.model} failed${followed}: ${error}`];
    });
    const key = lines.join("\n");
    if (this.shownAttempts !== key) {
      this.shownAttempts = key;
      fill(this.attempts, ...lines.map((text) => el("p", { class: "note warn", text })));
    }
    const isOdd =
      turn.finishReason &&
      !["stop", "tool_calls", "end_turn", "tool_use", "completed", "STOP"].includes(turn.finishReason);
    setText(
      this.foot,
      [
        isOdd ? `finish reason: ${turn.finishReason}` : "",
        turn.droppedCalls ? `${counted(turn.droppedCalls, "call")} dropped` : "",
      ]
        .filter(Boolean)
        .join(" · "),
    );
  }

  /** @param {Part} part @param {Map<object, HTMLElement>} [kept] */
  #append(part, kept) {
    const key = part.kind === "call" ? part.call : part;
    let element = kept?.get(key);
    if (!element && part.kind === "call") {
      const card = new ToolCard(
        part.call,
        this.session,
        (child) => new TimelineView(child, child.id, Infinity),
      );
      views.set(part.call, { element: card, mark: () => card.update() });
      element = card;
    } else if (!element && part.kind !== "call") element = new SegmentView(part).element;
    if (!element) return;
    this.drawn.set(key, element);
    this.parts.append(element);
  }
}

class RunView {
  /** @param {Run} run @param {string} session */
  constructor(run, session) {
    this.run = run;
    this.session = session;
    /** @type {Map<object, HTMLElement>} */
    this.drawn = new Map();
    this.input = el("div", { class: "from-user" });
    this.hasInput = false;
    this.entries = el("div", { class: "entries" });
    this.error = el("p", { class: "note error", hidden: true });
    this.output = el("pre", { class: "output", tabindex: 0, hidden: true, "aria-label": "Typed answer" });
    this.foot = el("p", { class: "run-foot" });
    this.element = el(
      "article",
      { class: "run", "aria-label": "Run" },
      this.input,
      this.entries,
      this.output,
      this.error,
      this.foot,
    );
    this.draw = this.draw.bind(this);
    views.set(run, this);
    this.draw();
  }

  mark() {
    beforePaint(this.draw);
  }

  draw() {
    const { run } = this;
    if (!this.hasInput && run.input !== undefined) {
      this.hasInput = true;
      this.input.append(inputElement(run.input));
    }
    /** @type {HTMLElement | undefined} */
    let before;
    for (const entry of run.entries) {
      let element = this.drawn.get(entry);
      if (!element) {
        element =
          entry.kind === "turn"
            ? new TurnView(entry, this.session).element
            : entry.kind === "steer"
              ? el("div", { class: "from-user steer" }, inputElement(entry.input))
              : noteElement(entry);
        this.drawn.set(entry, element);
        if (before) before.after(element);
        else this.entries.prepend(element);
      }
      before = element;
    }
    const { end, stats, error } = run;
    this.element.dataset.end = end ?? "running";
    this.error.hidden = !error;
    if (error) setText(this.error, `${error.code}: ${error.message}`);
    this.output.hidden = run.output === undefined || run.output === null;
    if (!this.output.hidden) setText(this.output, json(run.output));
    const facts = [
      clock(run.start),
      end === undefined ? (run.waitingFor ? `waits for ${run.waitingFor}` : "running") : (ENDS[end] ?? end),
    ];
    if (stats) {
      facts.push(counted(stats.turns, "turn"));
      if (stats.tool_calls) facts.push(counted(stats.tool_calls, "call"));
      facts.push(
        duration(stats.duration_ms),
        `${count(stats.input_tokens)} tokens in, ${count(stats.output_tokens)} out`,
      );
      if (stats.overlap_saved_ms > 0) facts.push(`early start saved ${duration(stats.overlap_saved_ms)}`);
    }
    setText(this.foot, facts.join(" · "));
  }
}

/** @param {import("./objects.js").Note} note */
function noteElement(note) {
  const text = el("p", { class: `note ${note.tone ?? ""}`, text: note.text });
  return note.detail
    ? el(
        "details",
        { class: "note-more" },
        el("summary", { text: note.text }),
        el("pre", { tabindex: 0, text: excerpt(note.detail, 20_000) }),
      )
    : text;
}

/** A message that the session was opened with. @param {any} message */
function seedElement(message) {
  const { role, content, tool_calls: calls = [] } = message;
  const { text } = contentOf(content);
  if (role === "user") return el("div", { class: "from-user" }, inputElement(content));
  if (role === "tool") {
    return el(
      "details",
      { class: "seed-result" },
      el("summary", {}, "result of ", el("code", { text: message.tool_call_id })),
      el("pre", { tabindex: 0, text: excerpt(text, 20_000) }),
    );
  }
  const element = el("div", { class: "said" });
  if (text) element.append(markdown(text));
  for (const call of calls) {
    element.append(
      el(
        "p",
        { class: "seed-call" },
        el("code", { text: excerpt(call.function?.name ?? "", 80) }),
        " ",
        el("code", { text: excerpt(String(call.function?.arguments ?? ""), 300) }),
      ),
    );
  }
  return element;
}

/** The items of a timeline. A window of the last ones is drawn; earlier ones when they are wanted. */
export class TimelineView extends HTMLElement {
  /**
   * @param {Timeline} timeline @param {string} session @param {number} [window]
   * @param {() => Promise<number>} [loadOlder] Reads older items and returns their number.
   */
  constructor(timeline, session, window = WINDOW, loadOlder = async () => 0) {
    super();
    this.timeline = timeline;
    this.session = session;
    this.loadOlder = loadOlder;
    this.first = Math.max(0, timeline.items.length - window);
    /** @type {Set<Item>} */
    this.drawn = new Set();
    this.isLoading = false;
    /** Called when earlier items were shown. */
    this.onearlier = () => {};
    this.earlier = button("Show earlier", () => void this.showEarlier(), { class: "earlier" });
    this.list = el("div", { class: "items" });
    this.draw = this.draw.bind(this);
    if (window !== Infinity) this.append(this.earlier);
    this.append(this.list);
    this.draw();
  }

  update() {
    beforePaint(this.draw);
  }

  /** True if older items can be shown. @param {boolean} more */
  setHasOlder(more) {
    this.earlier.hidden = !(more || this.first > 0);
  }

  draw() {
    const { timeline } = this;
    for (let index = this.first; index < timeline.items.length; index += 1) {
      const item = timeline.items[index];
      if (!item || this.drawn.has(item)) continue;
      this.drawn.add(item);
      this.list.append(this.#element(item));
    }
  }

  /** @param {Item} item */
  #element(item) {
    if (item.kind === "run") return new RunView(item, this.session).element;
    return item.kind === "note" ? noteElement(item) : seedElement(item.message);
  }

  async showEarlier() {
    const { timeline } = this;
    if (this.isLoading) return;
    this.isLoading = true;
    try {
      if (this.first === 0) this.first += await this.loadOlder();
      const from = Math.max(0, this.first - WINDOW);
      const added = timeline.items.slice(from, this.first);
      this.first = from;
      const fragment = document.createDocumentFragment();
      for (const item of added) {
        this.drawn.add(item);
        fragment.append(this.#element(item));
      }
      this.list.prepend(fragment);
    } finally {
      this.isLoading = false;
    }
    this.onearlier();
  }
}

customElements.define("cs-timeline", TimelineView);
