/** A session that is shown: its records are read, its events are watched, and it stays right over breaks. */

import { api, ApiError, ofSession } from "./api.js";
import { fault } from "./dom.js";
import { live } from "./live.js";
import { Timeline } from "./timeline.js";
import { noteEvent } from "./vitals.js";

/** Records on a page. */
const PAGE = 500;

export class Session extends EventTarget {
  /** @param {string} id */
  constructor(id) {
    super();
    this.id = id;
    this.timeline = new Timeline(id);
    /** @type {any[]} Records before the first run that is shown; they belong to an older page. */
    this.leftover = [];
    /** The first record that was read. */
    this.firstSeq = 0;
    this.isLoaded = false;
    this.isGone = false;
    /** @type {(() => void) | undefined} */
    this.unwatch = undefined;
    this.syncTimer = 0;
    /** @type {Promise<void> | undefined} */
    this.syncing = undefined;
    this.isSyncWanted = false;
    this.isClosed = false;
    this.timeline.onchange = () => {};
    /** @type {any} The snapshot without history. */
    this.snapshot = undefined;
  }

  /** True if older records are left. */
  get hasOlder() {
    return this.firstSeq > 1 || this.leftover.length > 0;
  }

  /** Reads the newest records, then watches. */
  async load() {
    this.snapshot = await this.#readSnapshot();
    const last = this.snapshot.seq;
    const records = await this.#readBack(last, []);
    const start = this.#firstRun(records);
    this.leftover = records.slice(0, start);
    this.timeline.agent = this.snapshot.agent;
    this.timeline.metadata = this.snapshot.metadata;
    for (const record of records.slice(start)) this.timeline.fold(record);
    this.timeline.recordSeq = Math.max(this.timeline.recordSeq, records.at(-1)?.seq ?? 0);
    this.#readQueue();
    this.isLoaded = true;
    if (this.isClosed) return;
    this.unwatch = live.watch(this.id, {
      position: () => this.position(),
      handle: (event, id) => this.#handle(event, id),
      gone: () => this.#gone(),
    });
  }

  /** The position behind which events are wanted. */
  position() {
    const { recordSeq, eventPosition, turn } = this.timeline;
    if (eventPosition[0] > recordSeq) return eventPosition.join(".");
    // No record has the text of a response in progress. If none of it has come, the attempt's beginning is
    // wanted: it is before the position of a stream that another tab has in the middle of the text.
    const attempt = turn && !turn.isOver && !turn.isResponseRecorded ? turn.attempt : undefined;
    if (attempt) return attempt.bytes > 0 ? `${recordSeq}.${attempt.bytes}` : `${attempt.seq}.0`;
    const bytes = eventPosition[0] === recordSeq ? eventPosition[1] : 0;
    return `${recordSeq}.${bytes}`;
  }

  close() {
    this.isClosed = true;
    clearTimeout(this.syncTimer);
    this.unwatch?.();
  }

  async #readSnapshot() {
    // No message: only the state.
    return await api(ofSession(this.id, "?after=999999999&limit=1"));
  }

  /** Reads the state anew, such as the variables and the queue. */
  async refresh() {
    this.snapshot = await this.#readSnapshot();
    this.#readQueue();
    return this.snapshot;
  }

  #readQueue() {
    /** @type {any[]} */
    const queued = this.snapshot?.queued ?? [];
    // The snapshot may be older than the events that came meanwhile.
    this.timeline.queued = queued
      .filter((own) => !this.timeline.runs.has(own.run_id))
      .map((own) => ({ runId: own.run_id, input: own.input, seq: own.seq ?? 0 }));
    this.timeline.onchange(this.timeline, "queued");
  }

  /**
   * Reads pages backwards until one has the start of a run.
   * @param {number} before The last record that is wanted. @param {any[]} known Records behind it.
   */
  async #readBack(before, known) {
    let records = known;
    let last = before;
    while (last > 0) {
      const after = Math.max(0, last - PAGE);
      const page = await this.#readPage(after, last);
      records = [...page, ...records];
      this.firstSeq = after + 1;
      last = after;
      if (page.some((record) => record.type === "run_started")) break;
    }
    return records;
  }

  /** @param {number} after @param {number} last @returns {Promise<any[]>} */
  async #readPage(after, last) {
    /** @type {any[]} */
    const records = [];
    let from = after;
    while (from < last) {
      const page = await api(
        ofSession(this.id, `/records?after=${from}&limit=${Math.min(PAGE, last - from)}`),
      );
      records.push(...page.records);
      const reached = page.records.at(-1)?.seq;
      if (reached === undefined) break;
      from = reached;
    }
    return records.filter((record) => record.seq <= last);
  }

  /** The index of the first record from which on they can be folded. @param {any[]} records */
  #firstRun(records) {
    if (records[0]?.seq === 1) return 0;
    const start = records.findIndex((record) => record.type === "run_started");
    return start < 0 ? 0 : start;
  }

  /** Reads older records and puts their items before the others. Returns how many items came. */
  async loadOlder() {
    if (!this.hasOlder) return 0;
    const records = await this.#readBack(this.firstSeq - 1, this.leftover);
    const start = this.#firstRun(records);
    this.leftover = records.slice(0, start);
    const past = new Timeline(this.id);
    for (const record of records.slice(start)) past.fold(record);
    this.timeline.prepend(past);
    return past.items.length;
  }

  /** @param {any} event @param {string} id */
  #handle(event, id) {
    noteEvent(event.timestamp);
    if (event.parent_tool_id !== undefined) {
      this.timeline.applyChild(event);
      return;
    }
    if (event.type === "session_state") {
      if (event.state === "closed") this.#gone();
      return;
    }
    if (event.type === "error" && event.code === "journal_failed") fault(event.message);
    if (this.timeline.apply(event, id)) this.sync();
  }

  #gone() {
    this.isGone = true;
    this.close();
    this.timeline.isClosed = true;
    this.timeline.onchange(this.timeline, "closed");
  }

  /** Reads the records behind those that are known, soon. */
  sync() {
    if (this.isClosed) return;
    clearTimeout(this.syncTimer);
    this.syncTimer = setTimeout(() => void this.#sync(), 60);
  }

  async #sync() {
    if (this.syncing) {
      this.isSyncWanted = true;
      return;
    }
    this.syncing = (async () => {
      for (;;) {
        const { recordSeq } = this.timeline;
        const page = await api(ofSession(this.id, `/records?after=${recordSeq}&limit=${PAGE}`));
        for (const record of page.records) this.timeline.fold(record);
        if (page.next === null || this.timeline.recordSeq === recordSeq) return;
      }
    })();
    try {
      await this.syncing;
    } catch (error) {
      if (error instanceof ApiError && error.status === 404) this.#gone();
      // While the host is away: the events that follow lead here again.
      else if (!(error instanceof ApiError) || error.code !== "unreachable") fault(error);
    } finally {
      this.syncing = undefined;
      if (this.isSyncWanted) {
        this.isSyncWanted = false;
        this.sync();
      }
    }
  }
}
