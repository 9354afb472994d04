/** The card of a call: drawn once, updated in place. */

import { api, ofSession, post } from "./api.js";
import { beforePaint, button, el, fault, fill, setText } from "./dom.js";
import { questionForm } from "./question.js";
import { contentOf, counted, duration, excerpt, json, size } from "./text.js";
import { Timeline } from "./timeline.js";

/** @typedef {import("./objects.js").Call} Call */

/** The words for what a call waits for. @type {Record<string, string>} */
const WAITS = {
  finish: "the response to end",
  ticket: "calls before it",
  exclusive: "an exclusive call",
  capacity: "capacity",
  rate: "its rate limit",
  approval: "approval",
  server: "its server",
  hook: "a hook",
  client: "the client, which runs it",
};

/** Characters of a result that a card shows at first. */
const RESULT_SHOWN = 4000;

/**
 * The state of a call: a class, a glyph for those who see no colours, and words.
 * @param {Call} call
 * @returns {{state: string, glyph: string, words: string}}
 */
export function stateOf(call) {
  if (call.status === "discarded") return { state: "void", glyph: "∅", words: "discarded" };
  if (call.result) {
    const { status, kind } = call.result;
    if (status === "success") return { state: "ok", glyph: "✓", words: "success" };
    const words = kind && kind !== status ? `${status}: ${kind.replaceAll("_", " ")}` : status;
    return { state: status === "cancelled" ? "void" : "bad", glyph: "✗", words };
  }
  if (call.openQuestion) {
    const { phase } = call.openQuestion;
    return {
      state: "ask",
      glyph: "?",
      words:
        phase === "input"
          ? "asks for input"
          : phase === "after"
            ? "waits for approval of its result"
            : "waits for approval",
    };
  }
  if (call.status === "running")
    return {
      state: "run",
      glyph: "●",
      words:
        call.by === "service"
          ? "runs at the service"
          : call.by === "client" || call.waitingFor === "client"
            ? "runs at the client"
            : "running",
    };
  if (call.waitingFor)
    return { state: "wait", glyph: "·", words: `waits for ${WAITS[call.waitingFor] ?? call.waitingFor}` };
  if (call.status === "finished")
    return { state: "ok", glyph: "✓", words: call.by === "service" ? "ran at the service" : "finished" };
  return { state: "wait", glyph: "·", words: call.status };
}

/** The id of a card's element. @param {string} session @param {string} call */
export function cardId(session, call) {
  return `call-${session}-${call}`.replaceAll(/[^\w-]/gu, "_");
}

/** The time of a running call changes without events. @type {Set<ToolCard>} */
const running = new Set();
setInterval(() => {
  for (const card of running) beforePaint(card.drawTime);
}, 500);

export class ToolCard extends HTMLElement {
  /**
   * @param {Call} call
   * @param {string} session The session that answers for the call.
   * @param {(timeline: Timeline) => HTMLElement & {update: () => void}} nest Draws a child session.
   */
  constructor(call, session, nest) {
    super();
    this.call = call;
    this.session = session;
    this.nest = nest;
    this.id = cardId(session, call.id);
    this.draw = this.draw.bind(this);
    this.drawTime = this.drawTime.bind(this);
    this.glyph = el("span", { class: "glyph", "aria-hidden": "true" });
    this.name = el("span", { class: "name" });
    this.input = el("span", { class: "summary" });
    this.words = el("span", { class: "words" });
    this.time = el("span", { class: "time" });
    this.badges = el("span", { class: "badges" });
    this.details = el("div", { class: "details", hidden: true });
    this.question = el("div", { class: "question", hidden: true });
    this.nested = el("div", { class: "nested", hidden: true });
    this.head = el(
      "button",
      { type: "button", class: "head", "aria-expanded": "false", onclick: () => this.toggle() },
      this.glyph,
      this.name,
      this.input,
      this.badges,
      this.words,
      this.time,
    );
    /** @type {import("./objects.js").Question | undefined} The question that is drawn. */
    this.drawn = undefined;
    /** @type {string | undefined} The whole result, if it was asked for. */
    this.whole = undefined;
    /** @type {any} The arguments of the summary. */
    this.summarised = undefined;
    this.summaryText = "";
    /** @type {Map<string, HTMLElement & {update: () => void}>} */
    this.childViews = new Map();
    this.append(this.head, this.question, this.details, this.nested);
    this.draw();
  }

  disconnectedCallback() {
    running.delete(this);
  }

  update() {
    beforePaint(this.draw);
  }

  toggle() {
    const isOpen = this.details.hidden;
    this.details.hidden = !isOpen;
    this.head.setAttribute("aria-expanded", String(isOpen));
    if (isOpen) this.drawDetails();
  }

  draw() {
    const { call } = this;
    const { state, glyph, words } = stateOf(call);
    if (this.dataset.state !== state) this.dataset.state = state;
    setText(this.glyph, glyph);
    setText(this.name, excerpt(call.name, 80));
    setText(this.words, words);
    setText(this.input, this.summary());
    this.drawBadges(call);
    this.drawTime();
    if (state === "run") running.add(this);
    else running.delete(this);
    this.drawQuestion();
    const isTyping =
      this.details.contains(document.activeElement) && document.activeElement?.matches("textarea, input");
    if (!this.details.hidden && (!isTyping || call.isOver)) this.drawDetails();
    this.drawChildren(call);
  }

  summary() {
    const { call } = this;
    if (!call.isOver && call.progress.length > 0) return excerpt(call.progress.at(-1) ?? "", 200);
    if (call.arguments === undefined) return call.summary;
    if (this.summarised !== call.arguments) {
      this.summarised = call.arguments;
      this.summaryText = excerpt(json(call.arguments, 0), 200);
    }
    return this.summaryText;
  }

  /** @param {Call} call */
  drawBadges(call) {
    const badges = [];
    if (call.isEarly) badges.push(["early", "started before the response had ended"]);
    if (call.by === "client") badges.push(["client", "the client of the API runs this call"]);
    if (call.by === "service") badges.push(["service", "the model's service runs this call"]);
    const metadata = call.result?.metadata ?? {};
    if (metadata.conflict) badges.push(["conflict", "it used variables that an earlier call changed"]);
    if (metadata.duplicate_of) badges.push(["copy", `same call as ${metadata.duplicate_of}, same result`]);
    if (metadata.arguments_changed) badges.push(["changed", "its arguments were changed by a hook"]);
    const key = badges.map(([name]) => name).join(" ");
    if (this.badges.dataset.key === key) return;
    this.badges.dataset.key = key;
    fill(this.badges, ...badges.map(([name, title]) => el("span", { class: "badge", title, text: name })));
  }

  drawTime() {
    const { call } = this;
    const ms =
      call.durationMs ??
      (call.status === "running" && call.times.started ? Date.now() - call.times.started : null);
    setText(this.time, call.result && call.times.started === undefined ? "" : duration(ms));
  }

  drawDetails() {
    const { call } = this;
    const rows = [];
    rows.push(el("h3", { text: "Input" }));
    const shown = call.arguments === undefined ? call.summary || "not complete yet" : json(call.arguments);
    rows.push(el("pre", { tabindex: 0, text: excerpt(shown, 100_000) }));
    if (call.progress.length > 0) {
      rows.push(el("h3", { text: "Progress" }), el("pre", { tabindex: 0, text: call.progress.join("\n") }));
    }
    for (const { on, decision } of call.hooks) {
      rows.push(
        el("h3", { text: `Hooks (${on.replaceAll("_", " ")})` }),
        el("pre", { tabindex: 0, text: json(decision) }),
      );
    }
    if (call.result) rows.push(...this.resultRows(call.result));
    if (call.waitingFor === "client" && !call.isOver) rows.push(this.clientForm(call));
    rows.push(this.facts(call));
    const focused = this.details.contains(document.activeElement);
    fill(this.details, ...rows);
    if (focused) this.head.focus();
  }

  /** @param {import("./objects.js").Result} result */
  resultRows(result) {
    const text = this.whole ?? result.text;
    const isCut = this.whole === undefined && text.length > RESULT_SHOWN;
    /** @type {HTMLElement[]} */
    const rows = [
      el("h3", { text: result.isWhole || this.whole !== undefined ? "Result" : "Result (beginning)" }),
      el("pre", {
        class: "result",
        tabindex: 0,
        text: isCut ? excerpt(text, RESULT_SHOWN) : text || "(empty)",
      }),
    ];
    for (const part of result.content) rows.push(contentPart(part));
    if (isCut || !result.isWhole) {
      rows.push(
        button(`Show all${result.isWhole ? ` (${size(text.length)})` : ""}`, () => void this.showWhole()),
      );
    }
    return rows;
  }

  async showWhole() {
    const { call } = this;
    if (!call.result) return;
    try {
      if (call.result.isWhole) this.whole = call.result.text;
      else
        this.whole = String(
          (await api(ofSession(this.session, `/results/${encodeURIComponent(call.id)}`))).content,
        );
      this.draw();
    } catch (error) {
      fault(error);
    }
  }

  /** The form that answers in place of the client. @param {Call} call */
  clientForm(call) {
    const text = el("textarea", { id: `${this.id}-result`, rows: 3 });
    const isError = el("input", { id: `${this.id}-error`, type: "checkbox" });
    return el(
      "form",
      {
        class: "by-hand",
        onsubmit: async (/** @type {SubmitEvent} */ event) => {
          event.preventDefault();
          try {
            await post(ofSession(this.session, `/results/${encodeURIComponent(call.id)}`), {
              content: text.value,
              is_error: isError.checked,
            });
          } catch (error) {
            fault(error);
          }
        },
      },
      el(
        "div",
        { class: "field" },
        el("label", { for: text.id, text: "Result, in place of the client" }),
        text,
      ),
      el(
        "div",
        { class: "row" },
        isError,
        el("label", { for: isError.id, text: "is an error" }),
        el("button", { type: "submit", text: "Answer" }),
      ),
    );
  }

  /** @param {Call} call */
  facts(call) {
    const list = el("dl", { class: "facts" });
    const add = (/** @type {string} */ name, /** @type {string | undefined | null} */ value) => {
      if (value) list.append(el("dt", { text: name }), el("dd", { text: value }));
    };
    add("id", call.id);
    add("waited", call.waitMs ? duration(call.waitMs) : "");
    add("ran", duration(call.durationMs));
    add("reference", call.reference);
    const metadata = Object.entries(call.result?.metadata ?? {}).filter(
      ([name]) => !["error", "kind", "child"].includes(name),
    );
    for (const [name, value] of metadata)
      add(name.replaceAll("_", " "), typeof value === "string" ? value : json(value, 0));
    const child = call.result?.metadata.child;
    if (!child) return list;
    const { session_id: id, tokens, tool_calls: calls } = child;
    const link = el("a", { href: `#/s/${encodeURIComponent(id)}/chat`, text: id });
    list.append(el("dt", { text: "session" }), el("dd", {}, link));
    add("used", `${counted(tokens, "token")}, ${counted(calls, "call")}`);
    if (!call.children.has(id)) {
      list.append(
        el("dt"),
        el(
          "dd",
          {},
          button("Show its run here", () => void this.showChild(id)),
        ),
      );
    }
    return list;
  }

  /** Reads the records of the session below this call, and shows them. @param {string} id */
  async showChild(id) {
    try {
      const timeline = new Timeline(id);
      /** @type {number | null} */
      let after = 0;
      while (after !== null) {
        /** @type {{records: any[], next: number | null}} */
        const page = await api(ofSession(id, `/records?after=${after}&limit=500`));
        for (const record of page.records) timeline.fold(record);
        after = page.next;
      }
      this.call.children.set(id, timeline);
      this.draw();
    } catch (error) {
      fault(error);
    }
  }

  drawQuestion() {
    const question = this.call.openQuestion;
    if (question === this.drawn) return;
    const hadFocus = this.question.contains(document.activeElement);
    this.drawn = question;
    this.question.hidden = !question;
    fill(this.question);
    if (question) {
      const { call, session } = this;
      const form = questionForm(question, {
        id: `${this.id}-${question.sha256.slice(0, 8)}`,
        session,
        call: call.id,
        name: call.name,
        answered: (verdict) => {
          question.verdict = verdict;
          this.update();
        },
      });
      this.question.append(form);
    } else if (hadFocus) this.head.focus();
  }

  /** @param {Call} call */
  drawChildren(call) {
    if (call.children.size === 0) return;
    this.nested.hidden = false;
    for (const [id, timeline] of call.children) {
      const known = this.childViews.get(id);
      if (known) known.update();
      else {
        const child = this.nest(timeline);
        this.childViews.set(id, child);
        const path = timeline.agentPath?.join(" › ") ?? id;
        this.nested.append(
          el(
            "div",
            { class: "child" },
            el(
              "p",
              { class: "child-head" },
              el("span", { text: path }),
              el("a", { href: `#/s/${encodeURIComponent(id)}/chat`, text: "open" }),
            ),
            child,
          ),
        );
      }
    }
  }
}

customElements.define("cs-call", ToolCard);

/** A part of a result that is more than text. @param {any} part */
function contentPart(part) {
  if (
    part.type === "image" &&
    typeof part.data === "string" &&
    /^image\/(png|jpeg|gif|webp)$/u.test(part.media_type ?? "")
  ) {
    return el("img", {
      class: "picture",
      alt: "image of the result",
      src: `data:${part.media_type};base64,${part.data}`,
    });
  }
  if (part.type === "text") return el("pre", { tabindex: 0, text: excerpt(part.text ?? "", 20_000) });
  const { data, ...rest } = part;
  return el("pre", {
    tabindex: 0,
    text: json(data ? { ...rest, data: `${size(String(data).length)} of base64` } : rest),
  });
}

/** The images of an input, as far as they are in it: nothing is loaded. @param {any} input */
export function inputElement(input) {
  const { text, images } = contentOf(input);
  const element = el("div", { class: "input" }, el("p", { dir: "auto", class: "text", text }));
  for (const url of images) {
    if (/^data:image\/(png|jpeg|gif|webp);base64,[\w+/=]+$/u.test(url))
      element.append(el("img", { class: "picture", alt: "image of the input", src: url }));
    else
      element.append(
        el("p", { class: "hint" }, "image, not loaded: ", el("code", { text: excerpt(url, 200) })),
      );
  }
  return element;
}
