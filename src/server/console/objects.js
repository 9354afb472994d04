/** The parts of a session as the page knows it: runs, turns, segments of text, calls. */

/** @typedef {import("./timeline.js").Timeline} Timeline */

/**
 * @typedef {{kind: "text" | "thinking", text: string, isDone: boolean, isVoid: boolean, attempt: number}} Segment
 * @typedef {{phase: string, input: any, sha256: string, outputSummary: string | null, message?: string, form?: any, url?: string, verdict?: string}} Question
 * @typedef {{status: string, kind?: string, text: string, isWhole: boolean, content: any[], metadata: any, releasedAt: number}} Result
 * @typedef {{attempt: number, model: string, streamed: boolean, reason?: string, waitMs: number, start: number, end?: number, error?: string, isVoid: boolean, bytes: number, seq: number}} Attempt
 * @typedef {{kind: "note", key: string, text: string, detail?: string, tone?: "warn" | "error", time: number, seq: number}} Note
 * @typedef {{kind: "steer", key: string, input: any, time: number, seq: number}} Steer
 * @typedef {{kind: "message", message: any, seq: number}} Seed
 * @typedef {{kind: "call", call: Call}} CallPart
 * @typedef {Segment | CallPart} Part
 * @typedef {Turn | Note | Steer} Entry
 * @typedef {Run | Note | Seed} Item
 * @typedef {{runId: string, input: any, seq: number}} Queued
 */

/** A call of a tool. */
export class Call {
  /** @param {string} id @param {string} name @param {Turn | undefined} turn */
  constructor(id, name, turn) {
    this.id = id;
    this.name = name;
    this.turn = turn;
    /** @type {number | null} */
    this.index = null;
    /** @type {any} The arguments; undefined while they are not known as a whole. */
    this.arguments = undefined;
    this.summary = "";
    /** @type {"detected" | "waiting" | "running" | "finished" | "discarded"} */
    this.status = "detected";
    /** @type {string | null} */
    this.waitingFor = null;
    this.isEarly = false;
    /** @type {string | undefined} Who runs it, if not the host. */
    this.by = undefined;
    /** @type {string[]} */
    this.progress = [];
    /** @type {Question[]} */
    this.questions = [];
    /** @type {{on: string, decision: any}[]} */
    this.hooks = [];
    /** @type {Result | undefined} */
    this.result = undefined;
    /** @type {string | undefined} */
    this.reference = undefined;
    /** @type {{detected?: number, sealed?: number, started?: number, ended?: number}} Unix milliseconds. */
    this.times = {};
    /** @type {number | null} */
    this.durationMs = null;
    this.waitMs = 0;
    /** @type {Map<string, Timeline>} Sessions of agents below this call. */
    this.children = new Map();
    this.isRecorded = false;
  }

  get isOver() {
    return this.status === "discarded" || this.result !== undefined;
  }

  /** The question that waits for an answer. */
  get openQuestion() {
    return this.isOver ? undefined : this.questions.find((question) => question.verdict === undefined);
  }
}

/** A turn: a response and its calls. */
export class Turn {
  /** @param {number} number @param {Run} run */
  constructor(number, run) {
    this.kind = /** @type {const} */ ("turn");
    this.number = number;
    this.run = run;
    /** @type {Attempt[]} */
    this.attempts = [];
    /** @type {Part[]} */
    this.parts = [];
    /** @type {Map<string, Call>} */
    this.calls = new Map();
    /** @type {string | undefined} */
    this.finishReason = undefined;
    /** @type {any} */
    this.usage = undefined;
    /** @type {any} */
    this.times = undefined;
    this.isResponseRecorded = false;
    this.isOver = false;
    this.droppedCalls = 0;
  }

  get attempt() {
    return this.attempts.at(-1);
  }

  /** The record with which it began. */
  get seq() {
    return this.attempts[0]?.seq ?? Infinity;
  }
}

/** A run: an input and its turns. */
export class Run {
  /** @param {string} id @param {number} seq */
  constructor(id, seq) {
    this.kind = /** @type {const} */ ("run");
    this.id = id;
    this.seq = seq;
    /** @type {any} Undefined until the record of its start is read. */
    this.input = undefined;
    this.start = 0;
    this.model = "";
    this.execution = "";
    /** @type {Record<string, string> | undefined} */
    this.metadata = undefined;
    /** @type {Entry[]} */
    this.entries = [];
    /** @type {string | undefined} */
    this.waitingFor = undefined;
    /** @type {string | undefined} */
    this.end = undefined;
    this.endTime = 0;
    this.text = "";
    /** @type {any} */
    this.error = undefined;
    /** @type {any} */
    this.stats = undefined;
    /** @type {any} */
    this.output = undefined;
  }

  get turns() {
    return /** @type {Turn[]} */ (this.entries.filter((entry) => entry.kind === "turn"));
  }
}
