/** The sessions of the host. */

import { api, ofSession, post } from "./api.js";
import { ask, beforePaint, button, el, fault, fill, setText, toast } from "./dom.js";
import { live } from "./live.js";
import { ago, count, counted, excerpt } from "./text.js";

/** @typedef {{id: string, agent: string, state: string, seq: number, opened: number, touched: number, host?: string, now?: string}} Summary */

const PAGE = 500;
const SHOWN = 200;
const STATES = ["running", "waiting", "idle", "hibernated"];

/** @type {Record<string, string>} */
const HEADS = { Host: "host", Records: "number" };

/** @param {string} state */
const hasRun = (state) => state === "running" || state === "waiting";

/** The known sessions, kept up to date by events. */
class SessionList extends EventTarget {
  constructor() {
    super();
    /** @type {Map<string, Summary>} */
    this.sessions = new Map();
    /** @type {string | null | undefined} Of the next page; null: there is none; undefined: none was read. */
    this.next = undefined;
    this.refreshTimer = 0;
    /** @type {Map<string, any> | undefined} The last event of each session since the reading of the list began. */
    this.changes = undefined;
    this.isStarted = false;
  }

  start() {
    if (this.isStarted) return;
    this.isStarted = true;
    live.onState((event) => this.#handle(event));
    live.onStatus((status) => {
      if (status === "live") this.refreshSoon(300);
    });
    void this.refresh();
  }

  /** @param {any} event */
  #handle(event) {
    this.changes?.set(event.session_id, event);
    this.#apply(event);
    this.changed();
  }

  /** @param {any} event */
  #apply({ session_id: id, state, timestamp }) {
    const known = this.sessions.get(id);
    if (state === "closed") this.sessions.delete(id);
    else if (known)
      Object.assign(known, {
        state,
        touched: Math.max(known.touched, timestamp ?? Date.now()),
        now: hasRun(state) ? known.now : undefined,
      });
    else if (!id.startsWith("sub_")) {
      const time = timestamp ?? Date.now();
      this.sessions.set(id, { id, state, agent: "", seq: 0, opened: time, touched: time });
      this.refreshSoon(1500);
    }
  }

  changed() {
    this.dispatchEvent(new Event("change"));
  }

  /** @param {number} ms */
  refreshSoon(ms) {
    if (this.refreshTimer) return;
    this.refreshTimer = setTimeout(() => {
      this.refreshTimer = 0;
      void this.refresh();
    }, ms);
  }

  /** Reads as many sessions as are known, at least a page. */
  async refresh() {
    const wanted = Math.max(PAGE, this.sessions.size);
    /** @type {Map<string, any>} */
    const changes = new Map();
    this.changes = changes;
    /** @type {Map<string, Summary>} */
    const read = new Map();
    try {
      /** @type {string | null} */
      let next = null;
      do {
        /** @type {any} */
        const page = await api(
          `v1/sessions?limit=${PAGE}${next === null ? "" : `&after=${encodeURIComponent(next)}`}`,
        );
        for (const session of page.sessions)
          read.set(session.id, { ...session, now: this.sessions.get(session.id)?.now });
        next = page.next;
      } while (next !== null && read.size < wanted);
      this.sessions = read;
      this.next = next;
      for (const event of changes.values()) this.#apply(event);
    } catch (error) {
      if (this.next === undefined) fault(error);
    }
    this.changed();
  }

  async more() {
    if (!this.next) return;
    try {
      const page = await api(`v1/sessions?limit=${PAGE}&after=${encodeURIComponent(this.next)}`);
      for (const session of page.sessions) this.sessions.set(session.id, session);
      this.next = page.next;
      this.changed();
    } catch (error) {
      fault(error);
    }
  }

  /** The sessions in the order of their last activity. */
  get sorted() {
    const rank = (/** @type {Summary} */ { state }) => (hasRun(state) ? 0 : 1);
    return [...this.sessions.values()].sort(
      (a, b) => rank(a) - rank(b) || b.touched - a.touched || a.id.localeCompare(b.id),
    );
  }
}

export const sessionList = new SessionList();

/** Opens a session that the user describes. */
async function createSession() {
  const agents = new Set([
    "default",
    ...[...sessionList.sessions.values()].map(({ agent }) => agent).filter(Boolean),
  ]);
  const values = await ask({
    title: "New session",
    body: [
      el("label", { for: "new-id", text: "Id" }),
      el("input", {
        id: "new-id",
        name: "id",
        type: "text",
        autocomplete: "off",
        pattern: "[A-Za-z0-9_\\-]{1,64}",
        placeholder: "made by the host",
        title: "Letters, digits, _ and -, at most 64",
      }),
      el("label", { for: "new-agent", text: "Agent" }),
      el("input", {
        id: "new-agent",
        name: "agent",
        type: "text",
        autocomplete: "off",
        list: "agents",
        placeholder: "default",
      }),
      el("datalist", { id: "agents" }, ...[...agents].map((agent) => el("option", { value: agent }))),
    ],
    confirm: "Open",
  });
  if (!values) return;
  try {
    /** @type {Record<string, string>} */
    const body = {};
    if (values.id) body.id = values.id;
    if (values.agent) body.agent = values.agent;
    const { id } = await post("v1/sessions", body);
    location.hash = `#/s/${encodeURIComponent(id)}/chat`;
  } catch (error) {
    fault(error);
  }
}

/** Deletes a session, if the user confirms it. Returns true if it is deleted. @param {string} id */
export async function deleteSession(id) {
  const values = await ask({
    title: "Delete the session?",
    body: [
      el("p", {}, el("code", { text: id }), " is stopped, and everything that is stored of it is deleted."),
    ],
    confirm: "Delete",
    danger: true,
  });
  if (!values) return false;
  try {
    await api(ofSession(id), { method: "DELETE" });
    sessionList.sessions.delete(id);
    sessionList.changed();
    toast(`${id} is deleted`);
    return true;
  } catch (error) {
    fault(error);
    return false;
  }
}

/** The page of sessions, or the list beside a session. */
export class SessionsView extends HTMLElement {
  /** @param {{compact?: boolean}} [options] */
  constructor({ compact = false } = {}) {
    super();
    this.isCompact = compact;
    this.state = "";
    this.shown = SHOWN;
    /** @type {string | undefined} */
    this.current = undefined;
    this.draw = this.draw.bind(this);
    this.onTimeline = () => beforePaint(this.draw);
    this.timer = 0;
    const id = compact ? "search-side" : "search";
    this.search = el("input", {
      id,
      type: "search",
      placeholder: "Search",
      autocomplete: "off",
      oninput: this.onTimeline,
    });
    this.states = el("div", { class: "filters", role: "group", "aria-label": "State" });
    this.list = compact ? el("ul", { class: "session-list" }) : el("tbody");
    this.more = button("Show more", () => void this.showMore(), { class: "earlier", hidden: true });
    this.empty = el("p", { class: "empty", hidden: true });
    const table = compact
      ? this.list
      : el(
          "div",
          { class: "scroll", tabindex: 0, role: "region", "aria-label": "List of sessions" },
          el(
            "table",
            { class: "plain sessions" },
            el(
              "thead",
              {},
              el(
                "tr",
                {},
                ...["State", "Session", "Agent", "Host", "Records", "Last activity"].map((text) =>
                  el("th", { scope: "col", text, class: HEADS[text] }),
                ),
                el("th", { scope: "col" }, el("span", { class: "hidden", text: "Delete" })),
              ),
            ),
            this.list,
          ),
        );
    this.append(
      el(
        "div",
        { class: "row toolbar" },
        el("label", { for: id, class: "hidden", text: "Search sessions" }),
        this.search,
        !compact && this.states,
        button(compact ? "New" : "New session", () => void createSession(), { class: "primary" }),
      ),
      this.empty,
      table,
      this.more,
    );
  }

  connectedCallback() {
    sessionList.start();
    sessionList.addEventListener("change", this.onTimeline);
    this.timer = setInterval(() => void this.#tick(), 3000);
    this.draw();
    // The list is known soon.
    setTimeout(() => void this.#tick(), 400);
  }

  disconnectedCallback() {
    sessionList.removeEventListener("change", this.onTimeline);
    clearInterval(this.timer);
  }

  /** Asks what the first running sessions do. */
  async #tick() {
    if (document.visibilityState !== "visible" || this.isCompact || this.closest("[hidden]")) return;
    beforePaint(this.draw);
    const running = this.matching()
      .filter(({ state }) => hasRun(state))
      .slice(0, 20);
    await Promise.all(
      running.map(async (session) => {
        try {
          const { current_run: run, queued } = await api(ofSession(session.id, "?after=999999999&limit=1"));
          const facts = run ? [`turn ${run.turn}`] : [];
          if (run?.quarantined) facts.push("set aside: the host ended each time it went on");
          else if (run?.suspended) facts.push("waits for a resume");
          if (run?.approvals.length)
            facts.push(
              `${counted(run.approvals.length, "call")} ${run.approvals.length === 1 ? "waits" : "wait"} for an answer`,
            );
          if (queued.length) facts.push(`${queued.length} queued`);
          const known = sessionList.sessions.get(session.id);
          if (known) known.now = facts.join(", ");
        } catch {
          // The session has gone, or the host is away; the list says so.
        }
      }),
    );
    beforePaint(this.draw);
  }

  matching() {
    const wanted = this.search.value.trim().toLowerCase();
    return sessionList.sorted.filter(
      (session) =>
        (!this.state || session.state === this.state) &&
        (!wanted ||
          session.id.toLowerCase().includes(wanted) ||
          session.agent.toLowerCase().includes(wanted) ||
          session.host?.toLowerCase().includes(wanted)),
    );
  }

  async showMore() {
    this.shown += SHOWN;
    if (this.shown > this.matching().length) await sessionList.more();
    this.draw();
  }

  draw() {
    const all = this.matching();
    const shown = all.slice(0, this.shown);
    this.more.hidden = all.length <= this.shown && !sessionList.next;
    this.drawStates();
    // A host that has its journal for itself has no other.
    this.classList.toggle("one-host", !all.some(({ host }) => host));
    const wanted = this.search.value.trim();
    this.empty.hidden = all.length > 0;
    if (!this.empty.hidden) {
      const isId = /^[\w-]{1,64}$/u.test(wanted);
      fill(
        this.empty,
        wanted ? "No known session matches. " : sessionList.next === undefined ? "" : "No sessions.",
        isId && el("a", { href: `#/s/${encodeURIComponent(wanted)}/chat`, text: `Open ${wanted}` }),
      );
    }
    this.drawRows(shown);
  }

  drawStates() {
    if (this.isCompact) return;
    /** @type {Record<string, number>} */
    const counts = {};
    for (const { state } of sessionList.sessions.values()) counts[state] = (counts[state] ?? 0) + 1;
    const more = sessionList.next ? "+" : "";
    const chips = [
      ["", "all", sessionList.sessions.size],
      ...STATES.map((state) => [state, state, counts[state] ?? 0]),
    ];
    if (this.states.childElementCount === 0) {
      fill(
        this.states,
        ...chips.map(([state]) =>
          el("button", {
            type: "button",
            "aria-pressed": "false",
            onclick: () => {
              this.state = String(state);
              this.draw();
            },
          }),
        ),
      );
    }
    chips.forEach(([state, name, number], index) => {
      const chip = this.states.children[index];
      if (!chip) return;
      chip.setAttribute("aria-pressed", String(this.state === state));
      setText(chip, `${name} ${count(Number(number))}${more}`);
    });
  }

  /** Draws rows anew only where they changed, so that the focus stays. @param {Summary[]} shown */
  drawRows(shown) {
    const rows = new Map(
      [...this.list.children].map((row) => [/** @type {HTMLElement} */ (row).dataset.id, row]),
    );
    /** @type {Element | null} */
    let at = this.list.firstElementChild;
    for (const session of shown) {
      let row = rows.get(session.id);
      rows.delete(session.id);
      if (!row) row = this.#row(session);
      this.#update(/** @type {HTMLElement} */ (row), session);
      if (row === at) at = at.nextElementSibling;
      else this.list.insertBefore(row, at);
    }
    for (const row of rows.values()) row.remove();
  }

  /** @param {Summary} session */
  #row({ id }) {
    const link = el("a", { href: `#/s/${encodeURIComponent(id)}/chat`, text: id });
    if (this.isCompact)
      return el("li", { "data-id": id }, el("span", { class: "state" }), link, el("span", { class: "when" }));
    return el(
      "tr",
      { "data-id": id },
      el("td", {}, el("span", { class: "state" })),
      el("th", { scope: "row" }, link, el("span", { class: "now" })),
      el("td", { class: "agent" }),
      el("td", { class: "host" }),
      el("td", { class: "number seq" }),
      el("td", { class: "when" }),
      el(
        "td",
        {},
        button("Delete", () => void deleteSession(id), { class: "quiet", "aria-label": `Delete ${id}` }),
      ),
    );
  }

  /** @param {HTMLElement} row @param {Summary} session */
  #update(row, session) {
    const set = (/** @type {string} */ selector, /** @type {string} */ text) => {
      const element = row.querySelector(selector);
      if (element) setText(element, text);
    };
    const state = row.querySelector(".state");
    if (state) {
      state.className = `state ${session.state}`;
      setText(state, session.state);
    }
    row.querySelector("a")?.setAttribute("aria-current", session.id === this.current ? "true" : "false");
    set(".now", hasRun(session.state) ? (session.now ?? "") : "");
    set(".agent", excerpt(session.agent, 60));
    set("td.host", (session.host ?? "").replace(/^https?:\/\//u, ""));
    set(".seq", session.seq ? count(session.seq) : "");
    set(".when", ago(session.touched));
  }
}

customElements.define("cs-sessions", SessionsView);
