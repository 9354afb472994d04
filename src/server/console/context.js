/** The context of a session: the parts of the model's window, what was cleared and summarised, and the variables. */

import { api, ofSession, post } from "./api.js";
import { beforePaint, button, el, fault, fill, toast } from "./dom.js";
import { clock, count, excerpt, json, size } from "./text.js";

/** @typedef {import("./session.js").Session} Session */

/** @type {Record<string, string>} */
const PARTS = {
  tools: "Tools",
  system: "System",
  user: "Users",
  assistant: "Assistant",
  results: "Results",
  summary: "Summary",
};

export class ContextView extends HTMLElement {
  /** @param {Session} session @param {EventTarget} changes */
  constructor(session, changes) {
    super();
    this.session = session;
    this.changes = changes;
    this.body = el("div");
    this.compact = button("Summarise now", () => void this.summarise());
    this.append(
      el(
        "div",
        { class: "row toolbar" },
        this.compact,
        button("Refresh", () => void this.load()),
      ),
      this.body,
    );
    this.timer = 0;
    this.onTimeline = () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => {
        if (!this.hidden) void this.load();
      }, 800);
    };
    /** @type {any} */
    this.usage = undefined;
    this.draw = this.draw.bind(this);
  }

  connectedCallback() {
    this.changes.addEventListener("timeline-change", this.onTimeline);
    void this.load();
  }

  disconnectedCallback() {
    this.changes.removeEventListener("timeline-change", this.onTimeline);
    clearTimeout(this.timer);
  }

  async load() {
    try {
      [this.usage] = await Promise.all([api(ofSession(this.session.id, "/context")), this.session.refresh()]);
      beforePaint(this.draw);
    } catch (error) {
      fault(error);
    }
  }

  async summarise() {
    this.compact.disabled = true;
    try {
      const { tokens_before: before, tokens_after: after } = await post(
        ofSession(this.session.id, "/compact"),
        {},
      );
      toast(`About ${count(before)} tokens, now ${count(after)}`);
      await this.load();
    } catch (error) {
      fault(error);
    } finally {
      this.compact.disabled = false;
    }
  }

  draw() {
    const { usage, session } = this;
    if (!usage) return;
    const whole = usage.window ?? Math.max(1, usage.used);
    const bar = el("div", { class: "fill", "aria-hidden": "true" });
    for (const { part, tokens } of usage.parts) {
      if (tokens === 0) continue;
      const piece = el("i", { class: `part ${part}`, title: PARTS[part] ?? part });
      piece.style.setProperty("width", `${Math.min(100, (tokens / whole) * 100).toFixed(2)}%`);
      bar.append(piece);
    }
    const share = (/** @type {number} */ tokens) => `${((tokens / whole) * 100).toFixed(1)} %`;
    const of = usage.window
      ? ` of ${count(usage.window)} (${usage.source === "config" ? "configured" : "learnt from the service"})`
      : "; the window of the model is not known";
    const rows = usage.parts.map((/** @type {any} */ { part, tokens, bytes }) =>
      el(
        "tr",
        {},
        el(
          "th",
          { scope: "row" },
          el("i", { class: `part ${part}`, "aria-hidden": "true" }),
          PARTS[part] ?? part,
        ),
        el("td", { class: "number", text: count(tokens) }),
        el("td", { class: "number", text: share(tokens) }),
        el("td", { class: "number", text: size(bytes) }),
      ),
    );
    const { compactions } = session.timeline;
    const variables = Object.entries(session.snapshot?.variables ?? {});
    const total = session.snapshot?.usage ?? {};
    fill(
      this.body,
      el("h2", { text: "Window" }),
      el("p", {}, el("strong", { text: `${count(usage.used)} tokens` }), of),
      bar,
      el(
        "div",
        { class: "scroll", tabindex: 0 },
        el(
          "table",
          { class: "plain" },
          el("caption", { class: "hidden", text: "Parts of the next request" }),
          el(
            "thead",
            {},
            el(
              "tr",
              {},
              el("th", { scope: "col", text: "Part" }),
              ...["Tokens", usage.window ? "Of the window" : "Share", "Size"].map((text) =>
                el("th", { scope: "col", class: "number", text }),
              ),
            ),
          ),
          el("tbody", {}, ...rows),
        ),
      ),
      el("h2", { text: "Made smaller" }),
      compactions.length === 0
        ? el("p", { class: "hint", text: "Nothing of the shown runs was cleared or summarised." })
        : el(
            "div",
            { class: "scroll", tabindex: 0 },
            el(
              "table",
              { class: "plain" },
              el(
                "thead",
                {},
                el(
                  "tr",
                  {},
                  ...["When", "What", "Up to turn", "Before", "After"].map((text) =>
                    el("th", { scope: "col", text }),
                  ),
                ),
              ),
              el(
                "tbody",
                {},
                ...compactions.map((own) =>
                  el(
                    "tr",
                    {},
                    el("td", { text: clock(own.time) }),
                    el("td", { text: own.kind }),
                    el("td", { class: "number", text: own.upto }),
                    el("td", { class: "number", text: count(own.before) }),
                    el("td", { class: "number", text: count(own.after) }),
                  ),
                ),
              ),
            ),
          ),
      el("h2", { text: "Variables" }),
      variables.length === 0
        ? el("p", { class: "hint", text: "None." })
        : el(
            "dl",
            { class: "variables" },
            ...variables.flatMap(([name, value]) => [
              el("dt", {}, el("code", { text: excerpt(name, 100) })),
              el("dd", {}, el("pre", { tabindex: 0, text: excerpt(json(value), 4000) })),
            ]),
          ),
      el("h2", { text: "Tokens of all runs" }),
      el(
        "dl",
        { class: "facts wide" },
        ...[
          ["input", total.input_tokens],
          ["of it cached", total.cached_tokens],
          ["output", total.output_tokens],
          ["of it reasoning", total.reasoning_tokens],
        ].map(([name, value]) =>
          el("div", {}, el("dt", { text: name }), el("dd", { text: count(value ?? 0) })),
        ),
      ),
    );
  }
}

customElements.define("cs-context", ContextView);
