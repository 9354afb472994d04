/** The conversation of a session, and what an operator says to it. */

import { idempotencyKey, ofSession, post, request } from "./api.js";
import { cardId } from "./card.js";
import { changed, TimelineView } from "./conversation.js";
import { announce, beforePaint, button, el, fault, fill, setText, toast } from "./dom.js";
import { contentOf, counted, excerpt } from "./text.js";

/** @typedef {import("./session.js").Session} Session */

/** The API takes bodies of 4 MiB. */
const IMAGES_MAX = 3 * 1024 * 1024;

export class ChatView extends HTMLElement {
  /** @param {Session} session */
  constructor(session) {
    super();
    this.session = session;
    this.isAtEnd = true;
    this.timelineView = new TimelineView(session.timeline, session.id, undefined, () => session.loadOlder());
    this.timelineView.onearlier = () => this.timelineView.setHasOlder(session.hasOlder);
    this.timelineView.setHasOlder(session.hasOlder);
    this.end = el("div", { class: "end" });
    this.empty = el("p", { class: "empty", text: "No messages yet. Say something below." });
    this.log = el(
      "div",
      { class: "log", role: "log", "aria-live": "off", "aria-label": "Conversation", tabindex: 0 },
      this.empty,
      this.timelineView,
      this.end,
    );
    this.toEnd = button("Newest ↓", () => this.scrollToEnd(), { class: "to-end", hidden: true });
    this.questions = el("div", {
      class: "asks",
      hidden: true,
      role: "region",
      "aria-label": "Calls that wait for an answer",
    });
    this.queue = el("div", { class: "queue", hidden: true });
    this.banner = el("div", { class: "banner", hidden: true, role: "status" });
    /** @type {{name: string, url: string}[]} */
    this.images = [];
    this.thumbnails = el("div", { class: "thumbnails" });
    this.prompt = this.promptField();
    this.sendButton = el("button", { type: "submit", class: "primary", text: "Send" });
    this.queueButton = button("Queue", () => void this.send("queue"), {
      title: "Starts a run of its own when this one has ended",
      hidden: true,
    });
    this.stopTurn = button("Stop after turn", () => void this.stop("after_turn"), { hidden: true });
    this.stopNow = button("Stop now", () => void this.stop("now"), { class: "danger", hidden: true });
    this.options = this.runOptions();
    this.append(this.log, this.toEnd, this.questions, this.queue, this.banner, this.composer());
    // Blocks that get their real height late move the log, too; only a person leaves the end.
    let touched = 0;
    const touch = () => {
      touched = performance.now();
    };
    for (const kind of ["wheel", "touchmove", "keydown", "pointerdown"])
      this.log.addEventListener(kind, touch, { passive: true });
    this.log.addEventListener(
      "scroll",
      () => {
        const { scrollHeight, scrollTop, clientHeight } = this.log;
        const isAtEnd = scrollHeight - scrollTop - clientHeight < 48;
        if (isAtEnd || performance.now() - touched < 1500) this.isAtEnd = isAtEnd;
        else if (this.isAtEnd) beforePaint(this.follow);
        this.toEnd.hidden = this.isAtEnd;
      },
      { passive: true },
    );
    this.follow = this.follow.bind(this);
    // Bars below the log come and go, and blocks get their real height late.
    this.observer = new ResizeObserver(() => beforePaint(this.follow));
    this.observer.observe(this.log);
    this.observer.observe(this.timelineView);
    this.drawState = this.drawState.bind(this);
    session.timeline.onitem = () => this.timelineView.update();
    session.timeline.onchange = (object, what) => this.onTimeline(object, what);
    this.drawState();
    beforePaint(() => this.scrollToEnd());
  }

  disconnectedCallback() {
    this.observer.disconnect();
  }

  /** @param {object} object @param {string} [what] */
  onTimeline(object, what) {
    changed(object, what);
    if (what === "ended") {
      const run = /** @type {import("./objects.js").Run} */ (object);
      announce(`Run ${run.end}`);
      void this.session.refresh().catch(() => {});
    }
    if (what !== undefined || !("text" in object)) beforePaint(this.drawState);
    beforePaint(this.follow);
    this.dispatchEvent(new CustomEvent("timeline-change"));
  }

  /** Stays at the end while the reader is there. */
  follow() {
    if (this.isAtEnd) this.log.scrollTop = this.log.scrollHeight;
  }

  scrollToEnd() {
    this.isAtEnd = true;
    this.log.scrollTop = this.log.scrollHeight;
  }

  promptField() {
    const prompt = el("textarea", {
      id: "prompt",
      rows: 2,
      placeholder: "Message. Enter sends, Shift+Enter breaks the line",
      "aria-describedby": "prompt-hint",
      onkeydown: (/** @type {KeyboardEvent} */ event) => {
        if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
        event.preventDefault();
        void this.send(this.isRunning ? "steer" : "run");
      },
      onpaste: (/** @type {ClipboardEvent} */ event) =>
        void this.attach([...(event.clipboardData?.files ?? [])]),
      oninput: () => {
        prompt.style.setProperty("height", "auto");
        prompt.style.setProperty("height", `${Math.min(240, prompt.scrollHeight + 2)}px`);
      },
    });
    return prompt;
  }

  composer() {
    const file = el("input", {
      type: "file",
      accept: "image/png,image/jpeg,image/gif,image/webp",
      multiple: true,
      hidden: true,
      "aria-label": "Images",
      onchange: () => {
        void this.attach([...(file.files ?? [])]);
        file.value = "";
      },
    });
    return el(
      "form",
      {
        class: "composer",
        "aria-label": "Message to the session",
        onsubmit: (/** @type {SubmitEvent} */ event) => {
          event.preventDefault();
          void this.send(this.isRunning ? "steer" : "run");
        },
        ondragover: (/** @type {DragEvent} */ event) => event.preventDefault(),
        ondrop: (/** @type {DragEvent} */ event) => {
          event.preventDefault();
          void this.attach([...(event.dataTransfer?.files ?? [])]);
        },
      },
      el("label", { for: "prompt", class: "hidden", text: "Message" }),
      this.prompt,
      this.thumbnails,
      el(
        "div",
        { class: "row" },
        button("Image", () => file.click(), { title: "Adds images" }),
        file,
        this.options.element,
        el("span", { id: "prompt-hint", class: "hidden", text: "Enter sends, Shift+Enter breaks the line" }),
        el("span", { class: "space" }),
        this.stopTurn,
        this.stopNow,
        this.queueButton,
        this.sendButton,
      ),
    );
  }

  runOptions() {
    const execution = el(
      "select",
      { id: "option-execution" },
      ...[
        ["", "as the agent"],
        ["sequential", "sequential"],
        ["parallel:4", "parallel, 4"],
        ["parallel:16", "parallel, 16"],
      ].map(([value, text]) => el("option", { value, text })),
    );
    const approval = el(
      "select",
      { id: "option-approval" },
      ...[
        ["", "as the tools"],
        ["destructive", "destructive calls"],
        ["writes", "calls with effects"],
        ["before", "every call"],
      ].map(([value, text]) => el("option", { value, text })),
    );
    const model = el("input", {
      id: "option-model",
      type: "text",
      autocomplete: "off",
      placeholder: "as the agent",
    });
    const turns = el("input", { id: "option-turns", type: "number", min: 1, placeholder: "as the agent" });
    const field = (/** @type {string} */ text, /** @type {HTMLElement} */ control) =>
      el("div", { class: "field" }, el("label", { for: control.id, text }), control);
    const element = el(
      "details",
      { class: "options" },
      el("summary", { text: "Options" }),
      el(
        "div",
        { class: "panel" },
        field("Execution", execution),
        field("Ask before", approval),
        field("Model", model),
        field("Turns at most", turns),
      ),
    );
    element.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && element.open) {
        element.open = false;
        element.querySelector("summary")?.focus();
      }
    });
    const values = () => {
      /** @type {Record<string, unknown>} */
      const body = {};
      if (execution.value) body.execution = execution.value;
      if (approval.value) body.approval = approval.value;
      if (model.value.trim()) body.model = model.value.trim();
      if (turns.value) body.limits = { max_turns: Number(turns.value) };
      return body;
    };
    return { element, values };
  }

  /** @param {File[]} files */
  async attach(files) {
    for (const file of files) {
      if (!/^image\/(png|jpeg|gif|webp)$/u.test(file.type)) {
        toast(`${file.name}: only PNG, JPEG, GIF and WebP`, true);
        continue;
      }
      /** @type {string} */
      const url = await new Promise((resolve, reject) => {
        const reader = new FileReader();
        reader.onload = () => resolve(String(reader.result));
        reader.onerror = () => reject(reader.error);
        reader.readAsDataURL(file);
      });
      const total = this.images.reduce((sum, image) => sum + image.url.length, url.length);
      if (total > IMAGES_MAX) {
        toast(`${file.name}: the images of a message may have 3 MiB`, true);
        continue;
      }
      this.images.push({ name: file.name, url });
    }
    this.drawImages();
  }

  drawImages() {
    fill(
      this.thumbnails,
      ...this.images.map((image) =>
        el(
          "span",
          { class: "thumbnail" },
          el("img", { src: image.url, alt: image.name }),
          button(
            "Remove",
            () => {
              this.images = this.images.filter((own) => own !== image);
              this.drawImages();
              this.prompt.focus();
            },
            { "aria-label": `Remove ${image.name}` },
          ),
        ),
      ),
    );
  }

  get isRunning() {
    return this.session.timeline.run !== undefined;
  }

  /** @param {"run" | "steer" | "queue"} how */
  async send(how) {
    const text = this.prompt.value;
    if (!text.trim() && this.images.length === 0) return;
    const { images } = this;
    const input =
      images.length === 0
        ? text
        : [
            ...(text.trim() ? [{ type: "text", text }] : []),
            ...images.map(({ url }) => ({ type: "image_url", image_url: { url } })),
          ];
    const body =
      how === "steer"
        ? { input }
        : { input, ...this.options.values(), ...(how === "queue" ? { queue: true } : {}) };
    this.prompt.value = "";
    this.prompt.style.removeProperty("height");
    this.images = [];
    this.drawImages();
    this.isAtEnd = true;
    try {
      const started = await post(ofSession(this.session.id, how === "steer" ? "/steer" : "/runs"), body, {
        "idempotency-key": idempotencyKey(),
      });
      if (how === "run") this.session.timeline.noteInput(started.run_id, input);
      this.session.sync();
    } catch (error) {
      if (!this.prompt.value) this.prompt.value = text;
      if (this.images.length === 0) {
        this.images = images;
        this.drawImages();
      }
      fault(error);
    }
  }

  /** @param {"now" | "after_turn"} mode */
  async stop(mode) {
    try {
      await post(ofSession(this.session.id, "/stop"), { mode });
    } catch (error) {
      fault(error);
    }
  }

  /** Takes back a queued input. @param {string} runId */
  async removeInput(runId) {
    try {
      await request(ofSession(this.session.id, `/queue/${encodeURIComponent(runId)}`), { method: "DELETE" });
    } catch (error) {
      fault(error);
    }
    await this.session.refresh();
  }

  drawState() {
    const { session, isRunning } = this;
    const { timeline } = session;
    this.empty.hidden = timeline.items.length > 0;
    setText(this.sendButton, isRunning ? "Steer" : "Send");
    for (const control of [this.queueButton, this.stopTurn, this.stopNow]) control.hidden = !isRunning;
    for (const control of [this.prompt, this.sendButton]) control.disabled = timeline.isClosed;
    this.drawQuestions();
    this.queue.hidden = timeline.queued.length === 0;
    if (!this.queue.hidden) {
      fill(
        this.queue,
        el("p", { text: `${counted(timeline.queued.length, "input")} queued` }),
        el(
          "ol",
          {},
          ...timeline.queued.map(({ runId, input }) => {
            const text = excerpt(contentOf(input).text, 200);
            const remove = button("Take back", () => void this.removeInput(runId), {
              "aria-label": `Take back: ${text}`,
            });
            return el("li", { dir: "auto" }, `${text} `, remove);
          }),
        ),
      );
    }
    const isSuspended = session.snapshot?.current_run?.suspended === true && isRunning;
    this.banner.hidden = !timeline.isClosed && !isSuspended;
    if (timeline.isClosed) setText(this.banner, "This session was deleted.");
    else if (isSuspended && this.banner.childElementCount === 0) {
      fill(
        this.banner,
        "The end of the host interrupted this run. ",
        button("Resume", () => void this.resume()),
      );
    }
  }

  async resume() {
    try {
      await post(ofSession(this.session.id, "/resume"), {});
      await this.session.refresh();
      this.drawState();
    } catch (error) {
      fault(error);
    }
  }

  drawQuestions() {
    const open = this.session.timeline.openQuestions;
    const calls = open.map(({ call }) => call);
    const key = open
      .map(({ call, session }) => `${session} ${call.id} ${call.openQuestion?.sha256}`)
      .join(" ");
    if (this.questions.dataset.key === key) return;
    const isNew = calls.length > 0 && this.questions.dataset.key !== undefined;
    this.questions.dataset.key = key;
    this.questions.hidden = calls.length === 0;
    fill(
      this.questions,
      calls.length > 0 &&
        el("span", {
          text: `${counted(calls.length, "call")} ${calls.length === 1 ? "waits" : "wait"} for an answer:`,
        }),
      ...open
        .slice(0, 8)
        .map(({ call, session }) => button(excerpt(call.name, 40), () => showCall(session, call.id))),
    );
    if (isNew) announce(`${calls.map(({ name }) => name).join(", ")}: waits for an answer`);
  }
}

/** @param {string} session @param {string} id */
function showCall(session, id) {
  const card = document.getElementById(cardId(session, id));
  if (!card) return;
  card.scrollIntoView({ block: "nearest" });
  /** @type {HTMLElement | null} */ (
    card.querySelector(".question button.primary") ?? card.querySelector("button")
  )?.focus();
}

customElements.define("cs-chat", ChatView);
