/** The models of the host: circuit breaker, places, errors. */

import { api } from "./api.js";
import { el, fault, fill } from "./dom.js";
import { clock, count, duration, excerpt } from "./text.js";

const PERIOD_MS = 2000;

export class ModelsView extends HTMLElement {
  constructor() {
    super();
    this.body = el("div");
    this.append(this.body);
    this.timer = 0;
    this.shown = "";
  }

  connectedCallback() {
    this.timer = setInterval(() => {
      if (document.visibilityState === "visible") void this.load(false);
    }, PERIOD_MS);
    void this.load(true);
  }

  disconnectedCallback() {
    clearInterval(this.timer);
  }

  /** @param {boolean} isLoud */
  async load(isLoud) {
    try {
      const answer = await api("v1/host/models");
      const text = JSON.stringify(answer);
      if (text === this.shown) return;
      this.shown = text;
      fill(this.body, ...answer.models.map(modelElement));
    } catch (error) {
      if (isLoud) fault(error);
    }
  }
}

/** @param {any} model */
function modelElement(model) {
  const { name, breaker, failed, last_error: last } = model;
  const failures = Object.entries(failed ?? {}).filter(([, number]) => Number(number) > 0);
  /** @type {[string, string | undefined][]} */
  const facts = [
    ["wire", model.wire],
    ["model", model.model],
    ["places", `${count(model.in_flight)} of ${count(model.max_concurrent_requests)}`],
    ["waiting", count(model.waiting)],
    ["answered", count(model.answered)],
    [
      "failed",
      failures.length === 0
        ? "0"
        : failures
            .map(([kind, number]) => `${kind.replaceAll("_", " ")} ${count(Number(number))}`)
            .join(", "),
    ],
    ["tries again in", model.retry_in_ms ? duration(model.retry_in_ms) : undefined],
  ];
  return el(
    "section",
    { class: "model", "aria-label": name },
    el(
      "h2",
      {},
      excerpt(name, 100),
      " ",
      el("span", { class: `state breaker-${breaker}`, text: `breaker ${breaker.replaceAll("_", " ")}` }),
    ),
    el(
      "dl",
      { class: "facts wide" },
      ...facts.map(
        ([key, value]) =>
          value !== undefined &&
          value !== null &&
          el("div", {}, el("dt", { text: key }), el("dd", { text: value })),
      ),
    ),
    last &&
      el("p", {
        class: "note error",
        text: `${clock(last.time)} ${last.kind}${last.status ? ` ${last.status}` : ""}: ${excerpt(last.message ?? "", 400)}`,
      }),
  );
}

customElements.define("cs-models", ModelsView);
