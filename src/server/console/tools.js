/** The tools of an agent, with their policies, and a call by hand. */

import { api, post } from "./api.js";
import { button, el, fault, fill } from "./dom.js";
import { sessionList } from "./sessions.js";
import { count, duration, excerpt, json } from "./text.js";

const COLUMNS = ["Kind", "Effect", "Starts", "Idempotent", "Approval", "Tokens"];

export class ToolsView extends HTMLElement {
  constructor() {
    super();
    this.agent = el("input", {
      id: "tools-agent",
      type: "text",
      list: "tool-agents",
      autocomplete: "off",
      value: "default",
      onchange: () => void this.load(),
    });
    this.agents = el("datalist", { id: "tool-agents" });
    this.rows = el("tbody");
    this.sum = el("p", { class: "hint" });
    this.tool = el("select", { id: "call-tool" });
    this.input = el("textarea", {
      id: "call-input",
      rows: 4,
      spellcheck: "false",
      class: "code",
      value: "{}",
    });
    this.approve = el("input", { id: "call-approve", type: "checkbox" });
    this.send = el("button", { type: "submit", class: "primary", text: "Run" });
    this.answer = el("div", { class: "answer", role: "status" });
    this.append(
      el(
        "form",
        {
          class: "row toolbar",
          onsubmit: (/** @type {SubmitEvent} */ event) => {
            event.preventDefault();
            void this.load();
          },
        },
        el("label", { for: "tools-agent", text: "Agent" }),
        this.agent,
        this.agents,
        button("Refresh", () => void this.load()),
      ),
      el(
        "div",
        { class: "scroll", tabindex: 0, role: "region", "aria-label": "List of tools" },
        el(
          "table",
          { class: "plain tools" },
          el(
            "thead",
            {},
            el(
              "tr",
              {},
              ...["Tool", ...COLUMNS].map((text) =>
                el("th", { scope: "col", text, class: text === "Tokens" ? "number" : undefined }),
              ),
            ),
          ),
          this.rows,
        ),
      ),
      this.sum,
      el("h2", { text: "Call by hand" }),
      el(
        "form",
        {
          class: "by-hand",
          onsubmit: (/** @type {SubmitEvent} */ event) => {
            event.preventDefault();
            void this.call();
          },
        },
        el("div", { class: "field" }, el("label", { for: "call-tool", text: "Tool" }), this.tool),
        el(
          "div",
          { class: "field" },
          el("label", { for: "call-input", text: "Arguments (JSON)" }),
          this.input,
        ),
        el(
          "div",
          { class: "row" },
          this.approve,
          el("label", { for: "call-approve", text: "Approve it, if it asks" }),
        ),
        el(
          "div",
          { class: "row" },
          this.send,
          el("span", { class: "hint", text: "The call is real: it has its effects." }),
        ),
      ),
      this.answer,
    );
  }

  connectedCallback() {
    sessionList.start();
    fill(
      this.agents,
      ...[...new Set([...sessionList.sessions.values()].map(({ agent }) => agent).filter(Boolean))].map(
        (agent) => el("option", { value: agent }),
      ),
    );
    void this.load();
  }

  async load() {
    const agent = this.agent.value.trim() || "default";
    try {
      const { tools, tokens } = await api(`v1/tools?agent=${encodeURIComponent(agent)}`);
      fill(
        this.rows,
        ...tools.map((/** @type {any} */ tool) =>
          el(
            "tr",
            { class: tool.left_out ? "left-out" : undefined },
            el(
              "th",
              { scope: "row" },
              el("code", { text: excerpt(tool.name, 100) }),
              tool.left_out && el("span", { class: "now", text: `not offered: ${tool.left_out}` }),
            ),
            ...[
              tool.server ? `${tool.kind} (${tool.server})` : tool.kind,
              tool.effect,
              String(tool.start).replaceAll("_", " "),
              tool.idempotent ? "yes" : "no",
              tool.approval,
              count(tool.tokens),
            ].map((text, column) => toolCell(COLUMNS[column] ?? "", text)),
          ),
        ),
      );
      this.sum.textContent =
        tokens === undefined ? "" : `All definitions together have about ${count(tokens)} tokens.`;
      const chosen = this.tool.value;
      fill(
        this.tool,
        ...tools
          .filter((/** @type {any} */ tool) => !tool.left_out && tool.kind !== "host")
          .map((/** @type {any} */ { name }) => el("option", { value: name, text: excerpt(name, 100) })),
      );
      if (chosen && [...this.tool.options].some(({ value }) => value === chosen)) this.tool.value = chosen;
    } catch (error) {
      fault(error);
    }
  }

  async call() {
    /** @type {unknown} */
    let input;
    try {
      input = JSON.parse(this.input.value || "{}");
    } catch (error) {
      fault(`arguments: ${error instanceof Error ? error.message : error}`);
      return;
    }
    this.send.disabled = true;
    fill(this.answer, el("p", { class: "hint", text: "running…" }));
    try {
      const agent = this.agent.value.trim() || "default";
      const answer = await post(`v1/tools/${encodeURIComponent(this.tool.value)}/call`, {
        input,
        agent,
        approve: this.approve.checked,
      });
      fill(this.answer, ...answerRows(answer));
    } catch (error) {
      fill(
        this.answer,
        el("p", { class: "note error", text: error instanceof Error ? error.message : String(error) }),
      );
    } finally {
      this.send.disabled = false;
    }
  }
}

/** A cell, which names its column where the page is too narrow for columns. @param {string} label @param {string} text */
function toolCell(label, text) {
  return el("td", { class: label === "Tokens" ? "number" : undefined, "data-label": label, text });
}

/** @param {any} answer */
function answerRows({ call, error, run_end: end }) {
  if (!call)
    return [
      el("p", {
        class: "note error",
        text: error ? `${error.code}: ${error.message}` : `no call was made: ${end}`,
      }),
    ];
  const isGood = call.status === "success";
  const kind = call.metadata?.kind ? `: ${String(call.metadata.kind).replaceAll("_", " ")}` : "";
  return [
    el("p", {
      class: isGood ? "verdict ok" : "verdict bad",
      text: `${isGood ? "✓" : "✗"} ${call.status}${kind}, ${duration(call.duration_ms)}`,
    }),
    el("pre", { tabindex: 0, text: excerpt(call.result || "(empty)", 100_000) }),
    ...(call.content?.length ? [el("pre", { tabindex: 0, text: excerpt(json(call.content), 20_000) })] : []),
  ];
}

customElements.define("cs-tools", ToolsView);
