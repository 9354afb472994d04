/**
 * The live events of all sessions that any tab shows, over one connection. One tab, the leader, reads the
 * stream and passes the events on to the others. When it is closed, another one becomes the leader.
 */

import { BASE, currentToken, request, setToken, shareToken, ApiError } from "./api.js";
import { fault } from "./dom.js";
import { position } from "./timeline.js";

/**
 * @typedef {"connecting" | "live" | "offline"} Status
 * @typedef {[string, string]} Item The event's id, or an empty text, and its JSON.
 * @typedef {{t: "who"} | {t: "wants", tab: string, wants: [string, string][]} | {t: "bye", tab: string}
 *   | {t: "events", items: Item[]} | {t: "status", status: Status} | {t: "gone", id: string}
 *   | {t: "reload"} | {t: "token?"} | {t: "token", token: string}} Message
 */

/** No byte for so long: the connection is dead, such as after a sleep. The host sends a comment every 15 s. */
const SILENCE_MS = 40_000;

/** A page does not read itself anew more often than this. */
const RELOAD_MS = 10_000;
const RELOADED = "callsheet-reloaded";

const NAME = `callsheet-console ${BASE.pathname}`;

/** @param {string} a @param {string} b */
function isBefore(a, b) {
  const [first, second] = [position(a), position(b)];
  return first[0] < second[0] || (first[0] === second[0] && first[1] < second[1]);
}

/** A session that tabs watch. */
class Watched {
  constructor() {
    /** @type {Map<string, string>} The position from which each tab wants the events. */
    this.tabs = new Map();
    /** The position up to which the stream was passed on; undefined if it was never part of a stream. */
    /** @type {string | undefined} */
    this.reached = undefined;
  }
}

class Live {
  constructor() {
    this.tab = [...crypto.getRandomValues(new Uint8Array(8))].map((byte) => byte.toString(16)).join("");
    /** @type {Map<string, {position: () => string, handle: (event: any, id: string) => void, gone: () => void}>} */
    this.handlers = new Map();
    /** @type {Set<(event: any) => void>} */
    this.stateHandlers = new Set();
    /** @type {Set<(status: Status) => void>} */
    this.statusHandlers = new Set();
    /** @type {Status} */
    this.status = "connecting";
    this.isLeader = false;
    /** @type {Map<string, Watched>} For the leader. */
    this.watched = new Map();
    /** @type {AbortController | undefined} */
    this.stream = undefined;
    /** @type {(() => void) | undefined} */
    this.wake = undefined;
    this.restartTimer = 0;
    /** @type {BroadcastChannel | undefined} */
    this.channel = undefined;
    this.otherTabs = new Set();
    /** @type {(() => void) | undefined} */
    this.onToken = undefined;
  }

  /** Begins. Without Web Locks (pages that are not secure) every tab has its own stream. */
  start() {
    if (navigator.locks && "BroadcastChannel" in globalThis) {
      this.channel = new BroadcastChannel(NAME);
      this.channel.onmessage = ({ data }) => this.#receive(/** @type {Message} */ (data));
      addEventListener("pagehide", () => this.#post({ t: "bye", tab: this.tab }));
      addEventListener("pageshow", ({ persisted }) => {
        if (persisted) this.#announceWants();
      });
      // Held as long as the tab lives, so that the leader knows of tabs that ended without a word.
      void navigator.locks.request(`${NAME} tab ${this.tab}`, () => new Promise(() => {}));
      void navigator.locks.request(`${NAME} leader`, () => {
        void this.#lead();
        return new Promise(() => {});
      });
      shareToken(
        () => this.#askForToken(),
        (token) => this.#post({ t: "token", token }),
      );
      // A leader answers with the status, and sends events from now on.
      this.#announceWants();
    } else void this.#lead();
    const again = () => this.wake?.();
    addEventListener("online", again);
    document.addEventListener("visibilitychange", again);
  }

  /**
   * Watches a session. `from` returns the position behind which the events are wanted.
   * @param {string} id
   * @param {{position: () => string, handle: (event: any, id: string) => void, gone: () => void}} handler
   */
  watch(id, handler) {
    this.handlers.set(id, handler);
    this.#announceWants();
    return () => {
      if (this.handlers.get(id) !== handler) return;
      this.handlers.delete(id);
      this.#announceWants();
    };
  }

  /** @param {(event: any) => void} handler */
  onState(handler) {
    this.stateHandlers.add(handler);
    return () => this.stateHandlers.delete(handler);
  }

  /** @param {(status: Status) => void} handler */
  onStatus(handler) {
    this.statusHandlers.add(handler);
    handler(this.status);
    return () => this.statusHandlers.delete(handler);
  }

  /** @param {Message} message */
  #post(message) {
    this.channel?.postMessage(message);
  }

  #announceWants() {
    /** @type {[string, string][]} */
    const wants = [...this.handlers].map(([id, handler]) => [id, handler.position()]);
    if (this.isLeader) this.#want(this.tab, wants);
    else this.#post({ t: "wants", tab: this.tab, wants });
  }

  /** Asks the other tabs for their token, and waits a moment for it. @returns {Promise<void>} */
  #askForToken() {
    return new Promise((resolve) => {
      this.onToken = resolve;
      setTimeout(resolve, 200);
      this.#post({ t: "token?" });
    });
  }

  /** @param {Message} message */
  #receive(message) {
    switch (message.t) {
      case "who":
        this.#announceWants();
        break;
      case "wants":
        this.otherTabs.add(message.tab);
        if (this.isLeader) {
          this.#want(message.tab, message.wants);
          this.#post({ t: "status", status: this.status });
        }
        break;
      case "bye":
        this.otherTabs.delete(message.tab);
        if (this.isLeader) this.#want(message.tab, []);
        break;
      case "events":
        if (!this.isLeader) this.#deliver(message.items);
        break;
      case "status":
        if (!this.isLeader) this.#setStatus(message.status);
        break;
      case "gone":
        if (!this.isLeader) this.handlers.get(message.id)?.gone();
        break;
      case "reload":
        this.#reload();
        break;
      case "token?":
        if (currentToken()) this.#post({ t: "token", token: currentToken() });
        break;
      case "token":
        if (message.token !== currentToken()) setToken(message.token);
        this.onToken?.();
        this.wake?.();
        break;
      default:
        break;
    }
  }

  /** @param {Status} status */
  #setStatus(status) {
    if (this.status === status) return;
    this.status = status;
    if (this.isLeader) this.#post({ t: "status", status });
    for (const handler of this.statusHandlers) handler(status);
  }

  /** @param {Item[]} items */
  #deliver(items) {
    for (const [id, text] of items) {
      try {
        const event = JSON.parse(text);
        if (event.type === "session_state") for (const handler of this.stateHandlers) handler(event);
        if (event.parent_tool_id === undefined) this.handlers.get(event.session_id)?.handle(event, id);
        else for (const handler of this.handlers.values()) handler.handle(event, "");
      } catch (error) {
        reportError(error);
      }
    }
  }

  /** For the leader: sets what a tab wants. @param {string} tab @param {[string, string][]} wants */
  #want(tab, wants) {
    let isRestart = false;
    const own = new Map(wants);
    for (const watched of this.watched.values()) watched.tabs.delete(tab);
    for (const [id, from] of own) {
      let watched = this.watched.get(id);
      if (!watched) {
        watched = new Watched();
        this.watched.set(id, watched);
      }
      watched.tabs.set(tab, from);
      if (watched.reached === undefined || isBefore(from, watched.reached)) {
        watched.reached = from;
        isRestart = true;
      }
    }
    for (const [id, watched] of this.watched) if (watched.tabs.size === 0) this.watched.delete(id);
    if (!isRestart) return;
    clearTimeout(this.restartTimer);
    // Several tabs often say at once what they want.
    this.restartTimer = setTimeout(() => {
      this.stream?.abort();
      this.wake?.();
    }, 20);
  }

  async #lead() {
    this.isLeader = true;
    this.#post({ t: "who" });
    this.#announceWants();
    setInterval(() => void this.#forgetDeadTabs(), 15_000);
    let pause = 0;
    for (;;) {
      const controller = new AbortController();
      this.stream = controller;
      let isForbidden = false;
      try {
        await this.#read(controller, () => {
          pause = 0;
        });
      } catch (error) {
        if (error instanceof ApiError && error.status === 404) await this.#findGone();
        else if (error instanceof ApiError && error.code === "unknown_event_id") this.#startAgain();
        else if (error instanceof ApiError && error.status === 403) {
          fault(error);
          isForbidden = true;
        }
      }
      if (controller.signal.aborted && controller.signal.reason !== "silent") {
        pause = 0;
        continue;
      }
      this.#setStatus("offline");
      // The host may know another scope of the token after its next start.
      pause = isForbidden ? 60_000 : Math.min(5000, pause === 0 ? 200 : pause * 1.7);
      await new Promise((done) => {
        this.wake = () => done(undefined);
        setTimeout(done, pause * (0.8 + 0.4 * Math.random()));
      });
    }
  }

  /** The sessions of a stream, in its parameters. */
  #url() {
    const ids = [...this.watched.keys()];
    const after = [...this.watched].map(([id, { reached }]) => `${id}:${reached}`);
    const query = new URLSearchParams({ sessions: ["*", ...ids].join(","), full: "true" });
    if (after.length > 0) query.set("after", after.join(","));
    return `v1/events?${query}`;
  }

  /** Reads one stream to its end. @param {AbortController} controller @param {() => void} onopen */
  async #read(controller, onopen) {
    const response = await request(this.#url(), {
      signal: controller.signal,
      headers: { accept: "text/event-stream" },
    });
    const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
    if (!reader) return;
    onopen();
    this.#setStatus("live");
    let timer = 0;
    let text = "";
    let searched = 0;
    for (;;) {
      timer = setTimeout(() => controller.abort("silent"), SILENCE_MS);
      const { value, done } = await reader.read().finally(() => clearTimeout(timer));
      if (done) return;
      text += value;
      /** @type {Item[]} */
      const items = [];
      let from = 0;
      for (
        let end = text.indexOf("\n\n", Math.max(0, searched - 1));
        end >= 0;
        end = text.indexOf("\n\n", from)
      ) {
        const item = parse(text.slice(from, end));
        from = end + 2;
        if (item) items.push(item);
      }
      text = text.slice(from);
      searched = text.length;
      if (items.length > 0) this.#pass(items);
    }
  }

  /** Passes events on to all tabs. @param {Item[]} items */
  #pass(items) {
    for (const [id, text] of items) {
      if (!id) continue;
      // Cheaper than to parse it: the members of the API stand in this order.
      const session = /"session_id":"([\w-]+)"/u.exec(text)?.[1];
      const watched = session === undefined ? undefined : this.watched.get(session);
      if (watched) watched.reached = id.slice(id.lastIndexOf(":") + 1);
    }
    if (this.otherTabs.size > 0) this.#post({ t: "events", items });
    this.#deliver(items);
  }

  /** Finds which watched sessions do not exist, and drops them. */
  async #findGone() {
    for (const id of [...this.watched.keys()]) {
      try {
        await request(`v1/sessions/${encodeURIComponent(id)}?limit=1`);
      } catch (error) {
        if (!(error instanceof ApiError) || error.status !== 404) continue;
        this.watched.delete(id);
        this.#post({ t: "gone", id });
        this.handlers.get(id)?.gone();
      }
    }
  }

  /** The host does not know a position: it has lost records. All tabs that show sessions read anew. */
  #startAgain() {
    for (const watched of this.watched.values()) watched.reached = undefined;
    this.#post({ t: "reload" });
    this.#reload();
  }

  #reload() {
    const last = Number(sessionStorage.getItem(RELOADED) ?? 0);
    if (this.handlers.size === 0 || Date.now() - last < RELOAD_MS) return;
    sessionStorage.setItem(RELOADED, String(Date.now()));
    location.reload();
  }

  async #forgetDeadTabs() {
    const held = (await navigator.locks?.query())?.held ?? [];
    const names = new Set(held.map(({ name }) => name));
    if (names.size === 0) return;
    for (const tab of [...this.otherTabs]) {
      if (names.has(`${NAME} tab ${tab}`)) continue;
      this.otherTabs.delete(tab);
      this.#want(tab, []);
    }
  }
}

/** Parses one event of a stream. @param {string} text @returns {Item | undefined} */
function parse(text) {
  let [id, data] = ["", ""];
  for (const line of text.split("\n")) {
    if (line.startsWith("data:")) data += line.slice(5).trimStart();
    else if (line.startsWith("id:")) id = line.slice(3).trim();
  }
  return data ? [id, data] : undefined;
}

export const live = new Live();
