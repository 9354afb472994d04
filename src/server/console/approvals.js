/** What waits for a person, in all sessions: each can be answered here. */

import { api } from "./api.js";
import { button, el, fault, fill, setText } from "./dom.js";
import { live } from "./live.js";
import { questionForm } from "./question.js";
import { ago, counted, excerpt } from "./text.js";

/** @typedef {{session_id: string, tool_id: string, tool_name: string, phase: string, agent_path: string[], root_session_id: string, since: number, arguments: any, arguments_sha256: string, output_summary?: string, message?: string, form?: any, url?: string}} Approval */

const PAGE = 50;
const PERIOD_MS = 5000;

/** @param {Approval} approval */
function keyOf({ session_id: session, tool_id: call, phase, arguments_sha256: sha256 }) {
  return `${session} ${call} ${phase} ${sha256}`;
}

export class ApprovalsView extends HTMLElement {
  constructor() {
    super();
    this.agent = el("input", {
      id: "approvals-agent",
      type: "text",
      autocomplete: "off",
      placeholder: "all",
      onchange: () => void this.load(),
    });
    this.sum = el("p", { class: "hint", role: "status" });
    this.list = el("div");
    this.more = button("Show more", () => void this.load(this.next), { hidden: true });
    /** @type {Map<string, HTMLElement>} The rows that are shown. */
    this.rows = new Map();
    /** @type {string | null} */
    this.next = null;
    this.timer = 0;
    this.append(
      el("div", { class: "row toolbar" }, el("label", { for: "approvals-agent", text: "Agent" }), this.agent),
      this.sum,
      this.list,
      this.more,
    );
  }

  connectedCallback() {
    this.unsubscribe = live.onState(() => this.loadSoon(300));
    this.loadSoon(0);
  }

  disconnectedCallback() {
    this.unsubscribe?.();
    clearTimeout(this.timer);
  }

  /** @param {number} ms */
  loadSoon(ms) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      if (document.visibilityState === "visible") void this.load();
      if (this.isConnected) this.loadSoon(PERIOD_MS);
    }, ms);
  }

  /** Reads the first pages again, or the next one. @param {string | null} [after] */
  async load(after = null) {
    try {
      /** @type {Approval[]} */
      const open = [];
      const wanted = after === null ? Math.max(PAGE, this.rows.size) : PAGE;
      /** @type {string | null} */
      let next = after;
      do {
        const query = new URLSearchParams({ limit: String(PAGE), full: "true" });
        if (this.agent.value.trim()) query.set("agent", this.agent.value.trim());
        if (next !== null) query.set("after", next);
        const page = await api(`v1/approvals?${query}`);
        open.push(...page.approvals);
        next = page.next;
      } while (next !== null && open.length < wanted);
      this.next = next;
      this.draw(open, after !== null);
    } catch (error) {
      fault(error);
    }
  }

  /** @param {Approval[]} open @param {boolean} isMore */
  draw(open, isMore) {
    const keys = new Set(open.map(keyOf));
    if (!isMore) {
      for (const [key, row] of this.rows) {
        if (keys.has(key)) continue;
        row.remove();
        this.rows.delete(key);
      }
    }
    for (const approval of open) {
      const key = keyOf(approval);
      const known = this.rows.get(key);
      // A row that is shown keeps what was typed into it.
      if (known) setText(/** @type {HTMLElement} */ (known.querySelector(".since")), ago(approval.since));
      else {
        const row = this.row(approval);
        this.rows.set(key, row);
        this.list.append(row);
      }
    }
    const { size } = this.rows;
    const wait = size === 1 ? "waits" : "wait";
    setText(this.sum, size === 0 ? "Nothing waits." : `${counted(size, "call")} ${wait}, the oldest first.`);
    this.more.hidden = this.next === null;
  }

  /** @param {Approval} approval */
  row(approval) {
    const { session_id: session, root_session_id: root, tool_id: call, tool_name: name } = approval;
    const key = keyOf(approval);
    const link = (/** @type {string} */ id) =>
      el("a", { href: `#/s/${encodeURIComponent(id)}/chat`, text: excerpt(id, 60) });
    const row = el("section", { class: "question approval", "aria-label": `${name} in ${session}` });
    const form = questionForm(
      {
        phase: approval.phase,
        input: approval.arguments,
        sha256: approval.arguments_sha256,
        outputSummary: approval.output_summary ?? null,
        message: approval.message,
        form: approval.form,
        url: approval.url,
      },
      {
        id: `approval-${session}-${call}-${approval.phase}`,
        session,
        call,
        name: excerpt(name, 100),
        answered: () => {
          row.remove();
          this.rows.delete(key);
          this.loadSoon(300);
        },
      },
    );
    fill(
      row,
      el(
        "p",
        { class: "child-head" },
        link(root),
        el("span", { text: approval.agent_path.join(" › ") }),
        root !== session && link(session),
        el("span", { class: "since", text: ago(approval.since) }),
      ),
      form,
    );
    return row;
  }
}

customElements.define("cs-approvals", ApprovalsView);
