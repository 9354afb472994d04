/** The records of a session: read, checked, forked, and the request of a turn. */

import { api, ofSession, post, request } from "./api.js";
import { ask, button, el, fault, fill, setText, toast } from "./dom.js";
import { clock, contentOf, counted, duration, excerpt, json } from "./text.js";

/** @typedef {import("./session.js").Session} Session */

const PAGE = 200;

export class JournalView extends HTMLElement {
  /** @param {Session} session @param {EventTarget} changes */
  constructor(session, changes) {
    super();
    this.session = session;
    this.changes = changes;
    this.first = Infinity;
    this.last = 0;
    this.isReading = false;
    this.list = el("ol", { class: "records", "aria-label": "Records" });
    this.older = button("Show earlier", () => void this.readOlder(), { class: "earlier", hidden: true });
    this.filter = el("input", {
      id: "record-filter",
      type: "search",
      placeholder: "call_ended, t1a1c0, …",
      autocomplete: "off",
      oninput: () => this.applyFilter(),
    });
    this.verdict = el("p", { class: "verdict", role: "status" });
    this.append(
      el(
        "div",
        { class: "row toolbar" },
        el("label", { for: "record-filter", text: "Filter" }),
        this.filter,
        button("Verify", () => void this.verify(), { title: "Checks every rule of the journal" }),
      ),
      this.verdict,
      this.older,
      this.list,
    );
    this.timer = 0;
    this.onTimeline = () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => {
        if (!this.hidden) void this.readNewer();
      }, 200);
    };
  }

  connectedCallback() {
    this.changes.addEventListener("timeline-change", this.onTimeline);
    void this.readNewer();
  }

  disconnectedCallback() {
    this.changes.removeEventListener("timeline-change", this.onTimeline);
    clearTimeout(this.timer);
  }

  /**
   * Reads a page. It ends early if its records are large.
   * @param {number} after @param {number} limit
   * @returns {Promise<{records: any[], next: number | null}>}
   */
  async read(after, limit) {
    return await api(ofSession(this.session.id, `/records?after=${after}&limit=${limit}`));
  }

  async readNewer() {
    if (this.isReading || this.session.isGone) return;
    this.isReading = true;
    try {
      let after =
        this.last || Math.max(0, (this.session.timeline.recordSeq || this.session.snapshot?.seq || 0) - PAGE);
      for (;;) {
        const { records, next } = await this.read(after, PAGE);
        if (records.length === 0) break;
        this.first = Math.min(this.first, records[0].seq);
        this.last = records.at(-1).seq;
        after = this.last;
        this.list.append(...records.map((record) => this.row(record)));
        if (next === null) break;
      }
      this.older.hidden = this.first <= 1;
      this.applyFilter();
    } catch (error) {
      fault(error);
    } finally {
      this.isReading = false;
    }
  }

  async readOlder() {
    const after = Math.max(0, this.first - 1 - PAGE);
    try {
      /** @type {any[]} */
      const records = [];
      for (let from = after; from < this.first - 1;) {
        const page = await this.read(from, this.first - 1 - from);
        records.push(...page.records);
        const last = page.records.at(-1)?.seq;
        if (last === undefined) break;
        from = last;
      }
      this.list.prepend(...records.map((record) => this.row(record)));
      this.first = after + 1;
      this.older.hidden = this.first <= 1;
      this.applyFilter();
    } catch (error) {
      fault(error);
    }
  }

  applyFilter() {
    const wanted = this.filter.value.trim().toLowerCase();
    for (const row of this.list.children) {
      if (row instanceof HTMLElement)
        row.hidden = wanted !== "" && !(row.dataset.search ?? "").includes(wanted);
    }
  }

  /** @param {any} record */
  row(record) {
    const { seq, time, type } = record;
    const brief = briefly(record);
    const body = el("div", { class: "record-body" });
    const details = el(
      "details",
      {},
      el(
        "summary",
        {},
        el("span", { class: "seq", text: seq }),
        el("time", { text: clock(time) }),
        el("span", { class: "type", text: type }),
        el("span", { class: "brief", text: brief }),
      ),
      body,
    );
    details.addEventListener("toggle", () => {
      if (!details.open || body.childElementCount > 0) return;
      fill(
        body,
        el(
          "div",
          { class: "row" },
          button("Fork here", () => void this.fork(seq), {
            title: "Opens a new session with the records up to this one",
          }),
          type === "attempt_started" &&
            button("Request of this turn", () => void this.showRequest(record.turn, body)),
        ),
        el("pre", { tabindex: 0, text: excerpt(json(record), 200_000) }),
      );
    });
    return el(
      "li",
      {
        "data-search":
          `${type} ${brief} ${record.call?.key ? `t${record.call.key.turn}a${record.call.key.attempt}c${record.call.key.index}` : ""}`.toLowerCase(),
      },
      details,
    );
  }

  async verify() {
    try {
      const answer = await post(ofSession(this.session.id, "/verify"), {});
      /** @type {{seq: number, invariant: string, what: string}[]} */
      const breaches = answer.breaches;
      const isGood = breaches.length === 0;
      this.verdict.className = isGood ? "verdict ok" : "verdict bad";
      fill(
        this.verdict,
        isGood
          ? `✓ ${counted(answer.records, "record")}: every rule holds`
          : `✗ ${counted(breaches.length, "rule is broken", "rules are broken")}`,
        ...breaches.map(({ seq, invariant, what }) =>
          el("span", { class: "problem", text: `record ${seq}: ${invariant}: ${what}` }),
        ),
      );
    } catch (error) {
      setText(this.verdict, "");
      fault(error);
    }
  }

  /** @param {number} at */
  async fork(at) {
    const values = await ask({
      title: `Fork at record ${at}`,
      body: [
        el("label", { for: "fork-id", text: "Id of the new session" }),
        el("input", {
          id: "fork-id",
          name: "id",
          type: "text",
          autocomplete: "off",
          pattern: "[A-Za-z0-9_\\-]{1,64}",
          placeholder: "made by the host",
        }),
      ],
      confirm: "Fork",
    });
    if (!values) return;
    try {
      const { id } = await post(
        ofSession(this.session.id, "/fork"),
        values.id ? { at, id: values.id } : { at },
      );
      toast(`Forked to ${id}`);
      location.hash = `#/s/${encodeURIComponent(id)}/chat`;
    } catch (error) {
      fault(error);
    }
  }

  /** @param {number} turn @param {HTMLElement} body */
  async showRequest(turn, body) {
    try {
      const response = await request(ofSession(this.session.id, `/turns/${turn}/request`));
      const text = await response.text();
      let shown = text;
      try {
        shown = json(JSON.parse(text));
      } catch {
        // Shown as it is.
      }
      body.querySelector(".request")?.remove();
      body.append(
        el(
          "div",
          { class: "request" },
          el("h2", {
            text: `Request of turn ${turn}, attempt ${response.headers.get("callsheet-attempt")}, ${response.headers.get("callsheet-model")}`,
          }),
          el("pre", { tabindex: 0, text: excerpt(shown, 400_000) }),
        ),
      );
    } catch (error) {
      fault(error);
    }
  }
}

/** The most telling values of a record. @param {any} record */
function briefly(record) {
  const key = record.key ?? record.call?.key ?? record.asked?.call?.key;
  const call = key ? `t${key.turn}a${key.attempt}c${key.index}` : "";
  const name = record.call?.name ?? record.asked?.call?.name ?? "";
  switch (record.type) {
    case "session_opened":
      return `agent ${record.agent}${record.messages ? `, ${counted(record.messages.length, "message")}` : ""}`;
    case "session_forked":
      return `from ${record.from} at ${record.at}`;
    case "input_removed":
    case "run_reopened":
      return record.run_id;
    case "input_queued":
    case "run_started":
    case "steered":
      return excerpt(contentOf(record.input).text.replaceAll(/\s+/gu, " "), 120);
    case "attempt_started":
      return `turn ${record.turn}, attempt ${record.attempt}, ${record.model}${record.reason ? `: ${record.reason}` : ""}`;
    case "attempt_failed":
      return `turn ${record.turn}, attempt ${record.attempt}: ${excerpt(record.error?.message ?? "", 120)}`;
    case "response_ended":
      return `turn ${record.turn}, ${counted(record.message?.calls?.length ?? 0, "call")}, ${excerpt((record.message?.text ?? "").replaceAll(/\s+/gu, " "), 80)}`;
    case "call_ended":
      return `${call} ${name}: ${record.outcome?.status}${record.duration_ms === undefined ? "" : `, ${duration(record.duration_ms)}`}`;
    case "approval_given":
      return `${call}: ${record.verdict}`;
    case "turn_committed":
      return `turn ${record.turn}: ${record.end}`;
    case "run_ended":
      return `${record.end}${record.error ? `: ${record.error.code}` : ""}`;
    case "limit_reached":
      return `${record.limit}: ${record.value} of ${record.maximum}`;
    case "compacted":
      return `about ${record.tokens_before} tokens, now ${record.tokens_after}`;
    case "stop_asked":
      return record.mode;
    default:
      return [call, name].filter(Boolean).join(" ");
  }
}

customElements.define("cs-journal", JournalView);
