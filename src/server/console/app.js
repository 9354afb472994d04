/** The page: its routes, and the frame of a session. */

import { ApprovalsView } from "./approvals.js";
import { ChatView } from "./chat.js";
import { ContextView } from "./context.js";
import { button, el, fault, fill, setText } from "./dom.js";
import { JournalView } from "./journal.js";
import { live } from "./live.js";
import { ModelsView } from "./models.js";
import { Session } from "./session.js";
import { deleteSession, sessionList, SessionsView } from "./sessions.js";
import { excerpt } from "./text.js";
import { ToolsView } from "./tools.js";
import { startVitals } from "./vitals.js";
import { Waterfall } from "./waterfall.js";

/** @typedef {"chat" | "turns" | "context" | "journal"} Tab */

/** @type {Record<Tab, string>} */
const TABS = { chat: "Chat", turns: "Turns", context: "Context", journal: "Journal" };

/** The pages beside the list of sessions. @type {Record<string, {title: string, View: new () => HTMLElement}>} */
const PAGES = {
  approvals: { title: "Approvals", View: ApprovalsView },
  tools: { title: "Tools", View: ToolsView },
  models: { title: "Models", View: ModelsView },
};

/** The views of one session. They stay while the session is shown. */
class SessionFrame {
  /** @param {string} id */
  constructor(id) {
    this.id = id;
    this.session = new Session(id);
    /** @type {Partial<Record<Tab, HTMLElement>>} */
    this.views = {};
    this.agent = el("span", { class: "agent" });
    this.state = el("span", { class: "state" });
    this.tabs = el(
      "nav",
      { class: "tabs", "aria-label": "Session" },
      ...Object.entries(TABS).map(([tab, text]) =>
        el("a", { href: `#/s/${encodeURIComponent(id)}/${tab}`, "data-tab": tab, text }),
      ),
    );
    this.pane = el("div", { class: "pane" }, el("p", { class: "empty", text: "Loading…" }));
    this.element = el(
      "div",
      { class: "session" },
      el(
        "header",
        {},
        el("h1", { title: id, text: id }),
        this.state,
        this.agent,
        button("Delete", () => void this.delete(), { class: "quiet" }),
        this.tabs,
      ),
      this.pane,
    );
    this.drawHead = this.drawHead.bind(this);
    sessionList.addEventListener("change", this.drawHead);
    this.loaded = this.load();
  }

  async load() {
    try {
      await this.session.load();
      this.chat = new ChatView(this.session);
      this.chat.addEventListener("timeline-change", this.drawHead);
      this.views.chat = this.chat;
      this.pane.replaceChildren(this.chat);
      this.chat.hidden = true;
      this.drawHead();
      if (this.tab) this.show(this.tab);
    } catch (error) {
      fill(
        this.pane,
        el("p", { class: "empty", text: error instanceof Error ? error.message : String(error) }),
      );
    }
  }

  drawHead() {
    const { timeline, snapshot } = this.session;
    const state = timeline.isClosed
      ? "closed"
      : timeline.run
        ? timeline.openQuestions.length > 0
          ? "waiting"
          : "running"
        : (sessionList.sessions.get(this.id)?.state ?? (snapshot?.current_run ? "idle" : (snapshot?.state ?? "")));
    this.state.className = `state ${state}`;
    setText(this.state, state);
    setText(this.agent, timeline.agent ? `agent ${excerpt(timeline.agent, 60)}` : "");
  }

  /** @param {Tab} tab */
  show(tab) {
    this.tab = tab;
    for (const link of this.tabs.querySelectorAll("a")) {
      if (link.dataset.tab === tab) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    const { chat } = this;
    if (!chat) return;
    const isNew = !this.views[tab];
    this.views[tab] ??=
      tab === "turns"
        ? new Waterfall(this.session, chat)
        : tab === "context"
          ? new ContextView(this.session, chat)
          : new JournalView(this.session, chat);
    for (const [name, view] of Object.entries(this.views)) view.hidden = name !== tab;
    const view = this.views[tab];
    if (isNew && view) this.pane.append(view);
    else if (view instanceof Waterfall) view.draw();
    else if (view instanceof ContextView) void view.load();
    else if (view instanceof JournalView) void view.readNewer();
  }

  async delete() {
    if (await deleteSession(this.id)) location.hash = "#/";
  }

  close() {
    sessionList.removeEventListener("change", this.drawHead);
    this.session.close();
    this.element.remove();
  }
}

class App {
  constructor() {
    this.view = /** @type {HTMLElement} */ (document.getElementById("view"));
    this.side = /** @type {HTMLElement} */ (document.getElementById("side"));
    this.status = /** @type {HTMLElement} */ (document.getElementById("connection"));
    /** @type {SessionFrame | undefined} */
    this.frame = undefined;
    /** @type {SessionsView | undefined} */
    this.sideList = undefined;
    this.isFirst = true;
  }

  start() {
    live.start();
    startVitals();
    live.onStatus((status) => {
      const words = status === "offline" ? "reconnecting" : status;
      this.status.className = `connection ${status}`;
      this.status.title = `Connection to the host: ${words}`;
      setText(this.status, words);
    });
    addEventListener("hashchange", () => this.route());
    document.querySelector(".skip")?.addEventListener("click", (event) => {
      event.preventDefault();
      this.view.focus();
    });
    this.route();
  }

  route() {
    const [, name = "", id = "", tab = "chat"] = location.hash.split("/");
    for (const link of document.querySelectorAll("#top a[data-route]")) {
      const isCurrent = /** @type {HTMLElement} */ (link).dataset.route === (name === "s" ? "" : name);
      if (isCurrent) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    if (name === "s" && id) {
      let decoded = id;
      try {
        decoded = decodeURIComponent(id);
      } catch {
        // Shown as it is: no session has such an id.
      }
      this.showSession(decoded, /** @type {Tab} */ (tab in TABS ? tab : "chat"));
    } else {
      this.frame?.close();
      this.frame = undefined;
      this.side.hidden = true;
      const { title, View } = PAGES[name] ?? { title: "Sessions", View: SessionsView };
      const view = new View();
      this.show(title, el("div", { class: "page" }, el("h1", { text: title }), view));
    }
  }

  /** @param {string} id @param {Tab} tab */
  showSession(id, tab) {
    if (this.frame?.id !== id) {
      this.frame?.close();
      this.frame = new SessionFrame(id);
      if (!this.sideList) {
        this.sideList = new SessionsView({ compact: true });
        this.side.append(this.sideList);
      }
      this.side.hidden = false;
      this.show(id, this.frame.element);
    }
    this.sideList && (this.sideList.current = id);
    this.sideList?.draw();
    this.frame.show(tab);
  }

  /** @param {string} title @param {HTMLElement} element */
  show(title, element) {
    this.view.replaceChildren(element);
    document.title = `${excerpt(title, 60)} · Callsheet`;
    // The focus follows the route, but not at the start.
    if (!this.isFirst) this.view.focus({ preventScroll: true });
    this.isFirst = false;
  }
}

addEventListener("unhandledrejection", (event) => {
  if (event.reason?.name !== "AbortError") fault(event.reason);
});

new App().start();
