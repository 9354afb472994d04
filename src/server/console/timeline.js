/**
 * A session as the page knows it: runs, turns, parts of responses, calls. Two sources are folded into the
 * same objects: records, which are complete and final, and events, which are early. Both may come again.
 * Pure: it knows neither elements nor requests.
 */

import { Call, Run, Turn } from "./objects.js";

/**
 * @typedef {import("./objects.js").Segment} Segment
 * @typedef {import("./objects.js").Question} Question
 * @typedef {import("./objects.js").Attempt} Attempt
 * @typedef {import("./objects.js").Note} Note
 * @typedef {import("./objects.js").Steer} Steer
 * @typedef {import("./objects.js").Part} Part
 * @typedef {import("./objects.js").Item} Item
 * @typedef {import("./objects.js").Queued} Queued
 */

/**
 * The position that an event's id names: of a record, and in the text of an attempt.
 * @param {string} id
 * @returns {[number, number]}
 */
export function position(id) {
  const own = id.slice(id.lastIndexOf(":") + 1);
  const [seq, bytes] = own.split(".");
  return [Number(seq) || 0, Number(bytes) || 0];
}

/** The types of events that do not tell of a run in progress. */
const WITHOUT_RUN = [
  "stream_start",
  "stream_end",
  "input_removed",
  "tools_changed",
  "server_released",
  "session_stats",
];

const encoder = new TextEncoder();

/** @param {string} text */
function byteLength(text) {
  // The common case, without a copy.
  return /^[\u0000-\u007f]*$/u.test(text) ? text.length : encoder.encode(text).length;
}

/** The rest of a text behind its first bytes. @param {string} text @param {number} bytes */
function behind(text, bytes) {
  if (bytes <= 0) return text;
  return new TextDecoder().decode(encoder.encode(text).slice(bytes));
}

/** @param {{turn: number, attempt: number, index: number}} key */
function toolId(key) {
  return `t${key.turn}a${key.attempt}c${key.index}`;
}

export class Timeline {
  /** @param {string} id */
  constructor(id) {
    this.id = id;
    this.agent = "";
    /** @type {Record<string, string> | undefined} */
    this.metadata = undefined;
    /** @type {string[] | undefined} Names of the agents from the first one down, of a child. */
    this.agentPath = undefined;
    /** @type {Item[]} */
    this.items = [];
    /** @type {Map<string, Run>} */
    this.runs = new Map();
    /** @type {Map<number, Turn>} */
    this.turns = new Map();
    /** @type {Map<string, any>} Inputs that this page sent, by their runs. */
    this.sentInputs = new Map();
    /** @type {Queued[]} */
    this.queued = [];
    /** @type {{kind: string, before: number, after: number, upto: number, time: number, seq: number}[]} */
    this.compactions = [];
    /** @type {Run | undefined} The run in progress, as far as records and events say. */
    this.run = undefined;
    /** @type {Run | undefined} The run in progress as of the last record: events may be ahead. */
    this.recordRun = undefined;
    this.isFolding = false;
    /** @type {Turn | undefined} */
    this.turn = undefined;
    /** The last record that was folded. */
    this.recordSeq = 0;
    /** @type {[number, number]} The last event with an id. */
    this.eventPosition = [0, 0];
    this.isClosed = false;
    /** @type {(changed: Run | Turn | Call | Segment | Timeline, what?: string) => void} */
    this.onchange = () => {};
    /** @type {(item: Item) => void} */
    this.onitem = () => {};
  }

  /**
   * The calls that wait for an answer, in order, with the sessions that take it.
   * @returns {{call: Call, session: string}[]}
   */
  get openQuestions() {
    const calls = [...(this.run?.turns.at(-1)?.calls.values() ?? [])];
    return calls.flatMap((call) => [
      ...(call.openQuestion ? [{ call, session: this.id }] : []),
      ...[...call.children.values()].flatMap((child) => child.openQuestions),
    ]);
  }

  /** @param {Item} item */
  #addItem(item) {
    this.items.push(item);
    this.onitem(item);
  }

  /** @param {string} id @param {number} seq */
  #run(id, seq) {
    let run = this.runs.get(id);
    if (!run) {
      run = new Run(id, seq);
      run.input = this.sentInputs.get(id);
      this.runs.set(id, run);
      this.#addItem(run);
    }
    return run;
  }

  /** Notes the input of a run that this page started, which the events lack. @param {string} id @param {any} input */
  noteInput(id, input) {
    this.sentInputs.set(id, input);
    const run = this.runs.get(id);
    if (!run || run.input !== undefined) return;
    run.input = input;
    this.onchange(run);
  }

  /** @param {number} number */
  #turn(number) {
    let turn = this.turns.get(number);
    if (!turn) {
      const run = this.isFolding ? this.recordRun : this.run;
      if (!run) return undefined;
      turn = new Turn(number, run);
      this.turns.set(number, turn);
      run.entries.push(turn);
      run.waitingFor = undefined;
      this.onchange(run, "entries");
    }
    return turn;
  }

  /** @param {Note | Steer} entry */
  #addEntry(entry) {
    const run = this.isFolding ? this.recordRun : this.run;
    if (!run) {
      if (entry.kind !== "note" || this.items.some((item) => item.kind === "note" && item.key === entry.key))
        return;
      this.#addItem(entry);
      return;
    }
    if (run.entries.some((own) => own.kind !== "turn" && own.key === entry.key)) return;
    // Events of later turns may be there already.
    const later = run.entries.findIndex((own) => own.seq > entry.seq);
    run.entries.splice(later < 0 ? run.entries.length : later, 0, entry);
    this.onchange(run, "entries");
  }

  /** @param {Turn} turn @param {string} id @param {string} name */
  #call(turn, id, name) {
    let call = turn.calls.get(id);
    if (!call) {
      call = new Call(id, name, turn);
      turn.calls.set(id, call);
      this.#endSegment(turn);
      turn.parts.push({ kind: "call", call });
      this.onchange(turn, "parts");
    }
    return call;
  }

  /** @param {Turn} turn */
  #endSegment(turn) {
    const last = turn.parts.at(-1);
    if (last && last.kind !== "call" && !last.isDone) {
      last.isDone = true;
      this.onchange(last);
    }
  }

  /** @param {Turn} turn @param {"text" | "thinking"} kind @param {string} text */
  #appendText(turn, kind, text) {
    if (!text) return;
    let last = turn.parts.at(-1);
    if (!last || last.kind !== kind || last.isDone || last.isVoid) {
      this.#endSegment(turn);
      last = { kind, text: "", isDone: false, isVoid: false, attempt: turn.attempt?.attempt ?? 1 };
      turn.parts.push(last);
      this.onchange(turn, "parts");
    }
    last.text += text;
    this.onchange(last);
  }

  /** Makes void what the attempts before this one showed. @param {Turn} turn @param {number} attempt */
  #voidBefore(turn, attempt) {
    for (const part of turn.parts) {
      if (part.kind !== "call") {
        if (part.attempt >= attempt || part.isVoid) continue;
        part.isVoid = true;
        part.isDone = true;
      } else if (attemptOf(part.call.id) < attempt && !part.call.isOver) {
        part.call.status = "discarded";
        this.onchange(part.call);
      }
    }
    for (const past of turn.attempts) if (past.attempt < attempt) past.isVoid = true;
    this.onchange(turn, "parts");
  }

  /**
   * @param {Turn} turn
   * @param {Pick<Attempt, "attempt" | "model"> & Partial<Attempt>} values
   */
  #attempt(turn, values) {
    let attempt = turn.attempts.find((own) => own.attempt === values.attempt);
    if (!attempt) {
      if (turn.attempts.length > 0) this.#voidBefore(turn, values.attempt);
      attempt = { streamed: true, waitMs: 0, start: 0, isVoid: false, bytes: 0, seq: 0, ...values };
      turn.attempts.push(attempt);
    } else Object.assign(attempt, values);
    this.onchange(turn);
    return attempt;
  }

  /**
   * Folds the next record.
   * @param {any} record
   */
  fold(record) {
    const { seq, time } = record;
    if (seq <= this.recordSeq) return;
    this.recordSeq = seq;
    this.isFolding = true;
    this.#fold(record, seq, time);
    this.isFolding = false;
  }

  /** @param {any} record @param {number} seq @param {number} time */
  #fold(record, seq, time) {
    switch (record.type) {
      case "session_opened":
        this.agent = record.agent;
        this.metadata = record.metadata;
        for (const message of record.messages ?? []) this.#addItem({ kind: "message", message, seq });
        break;
      case "session_forked":
        this.#addEntry({
          kind: "note",
          key: `r${seq}`,
          text: `Forked from ${record.from} at record ${record.at}`,
          time,
          seq,
        });
        break;
      case "input_queued":
        // Events are ahead of the records: the run may have started.
        if (this.runs.has(record.run_id)) this.noteInput(record.run_id, record.input);
        else this.queued.push({ runId: record.run_id, input: record.input, seq });
        this.onchange(this, "queued");
        break;
      case "input_removed":
        this.#dequeue(record.run_id);
        break;
      case "run_started":
        this.#foldRunStarted(record);
        break;
      case "attempt_started": {
        const turn = this.#turn(record.turn);
        if (turn) {
          if (!turn.isOver) this.turn = turn;
          const { attempt, model, streamed, reason, wait_ms: waitMs = 0 } = record;
          this.#attempt(turn, { attempt, model, streamed, reason, waitMs, start: time, seq });
        }
        break;
      }
      case "attempt_failed": {
        const turn = this.#turn(record.turn);
        const attempt = turn?.attempts.find((own) => own.attempt === record.attempt);
        if (!turn || !attempt) break;
        attempt.end = time;
        attempt.error = record.error?.message ?? record.error?.kind ?? "failed";
        if (!record.kept) this.#voidBefore(turn, record.attempt + 1);
        this.onchange(turn);
        break;
      }
      case "response_ended":
        this.#foldResponse(record);
        break;
      case "call_intended": {
        const call = this.#keyed(record.call.key, record.call.name);
        if (!call) break;
        call.arguments = record.call.arguments;
        this.onchange(call);
        break;
      }
      case "call_reported": {
        const call = this.#keyed(record.key);
        if (!call) break;
        call.times.ended = time;
        this.onchange(call);
        break;
      }
      case "approval_asked":
        this.#foldQuestion(record.asked);
        break;
      case "approval_given":
        this.#decided(this.#keyed(record.key), record);
        break;
      case "hooks_decided": {
        const call = this.#keyed(record.key);
        if (!call) break;
        call.hooks.push({ on: record.on, decision: record.decision });
        this.onchange(call);
        break;
      }
      case "call_ended":
        this.#foldCallEnded(record);
        break;
      case "turn_committed":
        this.#foldCommit(record);
        break;
      case "steered":
        this.#addEntry({ kind: "steer", key: `r${seq}`, input: record.input, time, seq });
        break;
      case "stop_asked":
        this.#addEntry({
          kind: "note",
          key: `r${seq}`,
          text:
            record.mode === "now" ? "A client asked to stop now" : "A client asked to stop after this turn",
          time,
          seq,
        });
        break;
      case "limit_reached":
        this.#limit(record, time, seq);
        break;
      case "instructed":
        this.#addEntry({
          kind: "note",
          key: `r${seq}`,
          text: "The host added a message",
          detail: record.text,
          time,
          seq,
        });
        break;
      case "turn_hooks_decided":
        this.#addEntry({
          kind: "note",
          key: `r${seq}`,
          text: `Hooks decided (${record.on})`,
          detail: JSON.stringify(record.decision),
          time,
          seq,
        });
        break;
      case "compacted":
        this.#compacted(
          kindOfChange(record.change),
          record.tokens_before,
          record.tokens_after,
          record.upto,
          time,
          seq,
        );
        break;
      case "run_ended": {
        const run = this.#run(record.run_id, seq);
        this.#endRun(run, { ...record, run_end: record.end }, time);
        this.recordRun = undefined;
        run.stats = record.stats;
        this.onchange(run);
        break;
      }
      case "run_reopened": {
        const run = this.#run(record.run_id, seq);
        this.#reopenRun(run);
        this.recordRun = run;
        this.onchange(run);
        break;
      }
      case "session_closed":
        this.isClosed = true;
        this.onchange(this, "closed");
        break;
      default:
        // The journal shows it.
        break;
    }
  }

  /** @param {any} record */
  #foldRunStarted(record) {
    const run = this.#run(record.run_id, record.seq);
    if (record.input !== undefined) run.input = record.input;
    run.input ??= this.#dequeue(run.id);
    run.seq = record.seq;
    run.start = record.time;
    run.model = record.model;
    run.execution = record.execution;
    run.metadata = record.metadata;
    this.recordRun = run;
    if (run.end === undefined) this.run = run;
    this.onchange(run);
  }

  /** Takes the input of a run out of the queue, and returns it. @param {string} runId */
  #dequeue(runId) {
    const queued = this.queued.findIndex((own) => own.runId === runId);
    if (queued < 0) return undefined;
    const [entry] = this.queued.splice(queued, 1);
    this.onchange(this, "queued");
    return entry?.input;
  }

  /** @param {any} record */
  #foldResponse(record) {
    const turn = this.#turn(record.turn);
    if (!turn) return;
    const attempt = turn.attempts.find((own) => own.attempt === record.attempt);
    if (attempt) attempt.end = record.time;
    turn.finishReason = record.finish_reason?.raw ?? record.finish_reason?.kind;
    turn.usage = record.usage;
    turn.droppedCalls = record.dropped_calls?.length ?? 0;
    const message = record.message ?? {};
    this.#endSegment(turn);
    const kept = new Set();
    for (const made of message.calls ?? []) {
      const call = this.#call(turn, toolId(made.key), made.name);
      kept.add(call.id);
      call.index = made.key.index;
      call.name = made.name;
      call.arguments ??= made.arguments;
      if (call.status === "detected") call.status = "waiting";
      this.onchange(call);
    }
    this.#orderCalls(turn, record.attempt);
    this.#replaceText(turn, record);
    for (const call of turn.calls.values()) {
      if (kept.has(call.id) || call.isOver || call.by === "service" || attemptOf(call.id) !== record.attempt)
        continue;
      call.status = "discarded";
      this.onchange(call);
    }
    turn.isResponseRecorded = true;
    this.onchange(turn);
  }

  /** Puts the calls of an attempt in the order of their index. @param {Turn} turn @param {number} attempt */
  #orderCalls(turn, attempt) {
    const places = [...turn.parts.keys()].filter((at) => {
      const part = turn.parts[at];
      return part?.kind === "call" && part.call.index !== null && attemptOf(part.call.id) === attempt;
    });
    const index = (/** @type {Part | undefined} */ part) =>
      part?.kind === "call" ? (part.call.index ?? 0) : 0;
    const sorted = places.map((at) => turn.parts[at]).sort((a, b) => index(a) - index(b));
    if (places.every((at, order) => turn.parts[at] === sorted[order])) return;
    places.forEach((at, order) => {
      const part = sorted[order];
      if (part) turn.parts[at] = part;
    });
    this.onchange(turn, "reset");
  }

  /** Replaces the text of events, if it is not that of the record. @param {Turn} turn @param {any} record */
  #replaceText(turn, record) {
    const message = record.message ?? {};
    const current = (/** @type {string} */ kind) =>
      turn.parts
        .map((part) => (part.kind !== "call" && part.kind === kind && !part.isVoid ? part.text : ""))
        .join("");
    const [text, reasoning] = [message.text ?? "", message.reasoning ?? ""];
    if (current("text") === text && current("thinking") === reasoning) return;
    const others = turn.parts.filter((part) => part.kind === "call" || part.isVoid);
    /** @type {Part[]} */
    const own = [];
    if (reasoning)
      own.push({ kind: "thinking", text: reasoning, isDone: true, isVoid: false, attempt: record.attempt });
    if (text) own.push({ kind: "text", text, isDone: true, isVoid: false, attempt: record.attempt });
    const isPast = (/** @type {Part} */ part) =>
      part.kind === "call" ? attemptOf(part.call.id) < record.attempt : true;
    const first = others.findIndex((part) => !isPast(part));
    const at = first < 0 ? others.length : first;
    turn.parts = [...others.slice(0, at), ...own, ...others.slice(at)];
    this.onchange(turn, "reset");
  }

  /** @param {any} key @param {string} [name] */
  #keyed(key, name) {
    const turn = this.#turn(key.turn);
    if (!turn) return undefined;
    const id = toolId(key);
    return name === undefined ? turn.calls.get(id) : this.#call(turn, id, name);
  }

  /** @param {any} asked */
  #foldQuestion(asked) {
    const call = this.#keyed(asked.call.key, asked.call.name);
    if (!call) return;
    this.#question(call, {
      phase: asked.phase,
      input: asked.arguments,
      sha256: asked.arguments_sha256,
      outputSummary: asked.output_summary ?? null,
      message: asked.message ?? asked.question?.message,
      form: asked.form ?? asked.question?.form,
      url: asked.url ?? asked.question?.url,
    });
  }

  /** @param {Call | undefined} call @param {{phase: string, verdict: string}} decision */
  #decided(call, { phase, verdict }) {
    const question = call?.questions.findLast((own) => own.phase === phase && own.verdict === undefined);
    if (!call || !question) return;
    question.verdict = verdict;
    if (call.waitingFor === "approval") call.waitingFor = null;
    this.onchange(call);
    this.onchange(this, "questions");
  }

  /** @param {Call} call @param {Question} question */
  #question(call, question) {
    if (question.phase === "client") {
      // Nothing is decided: the client runs the call and sends its result.
      call.by = "client";
      call.arguments = question.input;
      call.waitingFor = "client";
      this.onchange(call);
      return;
    }
    if (question.phase !== "input") call.arguments = question.input;
    const same = call.questions.find((own) => own.phase === question.phase && own.sha256 === question.sha256);
    if (same) {
      const { verdict } = same;
      Object.assign(same, question, verdict === undefined ? {} : { verdict });
    } else call.questions.push(question);
    this.onchange(call);
    this.onchange(this, "questions");
  }

  /** @param {any} record */
  #foldCallEnded(record) {
    const call = this.#keyed(record.call.key, record.call.name);
    if (!call?.turn) return;
    const { run } = call.turn;
    const notes = record.notes ?? {};
    if (!record.amended || !call.result) {
      const outcome = record.outcome;
      call.result = {
        status: outcome.status,
        kind: outcome.kind,
        text: typeof outcome.content === "string" ? outcome.content : JSON.stringify(outcome.content),
        isWhole: true,
        content: outcome.full?.content ?? [],
        metadata: { ...call.result?.metadata },
        releasedAt: record.time,
      };
      const { child, attempts } = outcome;
      if (attempts) call.result.metadata.attempts = attempts;
      if (child) {
        const { session, run: runId, tokens, calls } = child;
        call.result.metadata.child = { session_id: session, run_id: runId, tokens, tool_calls: calls };
      }
      call.waitMs = record.wait_ms ?? 0;
      call.durationMs = record.duration_ms ?? null;
      if (record.started_ms !== undefined) {
        const started = run.start + record.started_ms;
        const ended = started + (record.duration_ms ?? 0);
        Object.assign(call.times, { sealed: started - call.waitMs, started, ended });
      } else if (call.times.started !== undefined && record.duration_ms !== undefined) {
        call.times.ended = call.times.started + record.duration_ms;
      }
      call.isEarly = record.early ?? false;
    }
    for (const [name, value] of Object.entries(notes)) {
      if (name === "by_client") call.by = "client";
      else if (call.result && !["before", "after"].includes(name)) {
        call.result.metadata[name] =
          name === "duplicate_of" && typeof value === "object" ? toolId(/** @type {any} */ (value)) : value;
      }
    }
    call.status = "finished";
    call.waitingFor = null;
    call.isRecorded = true;
    this.#endChildren(call, record.time);
    this.onchange(call);
  }

  /** @param {any} record */
  #foldCommit(record) {
    const turn = this.#turn(record.turn);
    if (!turn) return;
    turn.isOver = true;
    turn.times = record.summary?.times;
    turn.usage = record.summary?.usage ?? turn.usage;
    turn.finishReason ??= record.summary?.finish_reason?.raw;
    this.#endSegment(turn);
    for (const call of turn.calls.values()) {
      if (call.isOver) continue;
      call.status = call.by === "service" ? "finished" : "discarded";
      this.onchange(call);
    }
    this.onchange(turn);
  }

  /** @param {any} values @param {number} time @param {number} seq */
  #limit({ limit, value, maximum, action }, time, seq) {
    this.#addEntry({
      kind: "note",
      key: `r${seq}`,
      text: `Limit ${limit}: ${value} of ${maximum}, ${String(action).replaceAll("_", " ")}`,
      tone: "warn",
      time,
      seq,
    });
  }

  /**
   * @param {string} kind @param {number} before @param {number} after @param {number} upto
   * @param {number} time @param {number} seq
   */
  #compacted(kind, before, after, upto, time, seq) {
    if (this.compactions.some((own) => own.seq === seq)) return;
    this.compactions.push({ kind, before, after, upto, time, seq });
    this.#addEntry({
      kind: "note",
      key: `r${seq}`,
      text: `Context ${kind}: about ${before} tokens, now ${after}`,
      time,
      seq,
    });
    this.onchange(this, "compactions");
  }

  /** @param {Run} run @param {any} values @param {number} time */
  #endRun(run, values, time) {
    const isNew = run.end === undefined;
    run.end = values.run_end;
    run.endTime = time;
    run.text = values.text ?? "";
    run.error = values.error ?? undefined;
    run.output = values.output;
    run.waitingFor = undefined;
    for (const turn of run.turns) {
      turn.isOver = true;
      this.#endSegment(turn);
      for (const call of turn.calls.values()) {
        if (call.isOver) continue;
        call.status = "discarded";
        this.onchange(call);
      }
    }
    if (this.run === run) {
      this.run = undefined;
      this.turn = undefined;
    }
    this.onchange(run, isNew ? "ended" : undefined);
  }

  /** Lets a run go on that was interrupted. @param {Run} run */
  #reopenRun(run) {
    run.end = undefined;
    run.endTime = 0;
    run.text = "";
    run.stats = undefined;
    this.run = run;
  }

  /**
   * Applies an event of this session. Returns true if records should be read: something began or ended.
   * @param {any} event
   * @param {string} id The event's id, or an empty text.
   * @returns {boolean}
   */
  apply(event, id) {
    const [seq, bytes] = id ? position(id) : [0, 0];
    const isText = event.type === "content_delta" || (event.type === "thinking" && event.text !== "");
    if (id && !isText) {
      const [lastSeq, lastBytes] = this.eventPosition;
      if (seq <= this.recordSeq || seq < lastSeq || (seq === lastSeq && bytes < lastBytes)) return false;
    }
    if (
      id &&
      (seq > this.eventPosition[0] || (seq === this.eventPosition[0] && bytes > this.eventPosition[1]))
    ) {
      this.eventPosition = [seq, bytes];
    }
    if (
      !this.run &&
      event.run_id &&
      !WITHOUT_RUN.includes(event.type)
    ) {
      // The page joined in the middle of a run.
      const known = this.runs.get(event.run_id);
      if (known?.end !== undefined) return false;
      this.run = this.#run(event.run_id, seq);
    }
    switch (event.type) {
      case "stream_start": {
        const run = this.#run(event.run_id, seq);
        if (run.end !== undefined) {
          if (!event.reopened) return false;
          this.#reopenRun(run);
        }
        this.run = run;
        run.start ||= event.timestamp;
        run.model = event.model;
        run.execution = event.execution;
        run.metadata = event.metadata;
        run.input ??= this.#dequeue(run.id) ?? event.input;
        this.onchange(run);
        return true;
      }
      case "steered":
        this.#addEntry({ kind: "steer", key: `r${seq}`, input: event.input, time: event.timestamp, seq });
        return false;
      case "input_removed":
        this.#dequeue(event.run_id);
        return false;
      case "run_waiting":
        if (this.run) {
          this.run.waitingFor = `servers: ${(event.servers ?? []).join(", ")}`;
          this.onchange(this.run);
        }
        return false;
      case "thinking":
      case "content_delta":
        return this.#applyText(event, seq, bytes);
      case "tool_use":
        this.#applyToolUse(event);
        return false;
      case "tool_progress": {
        const call = this.turns.get(event.turn)?.calls.get(event.tool_id);
        if (!call || call.isOver || call.progress.at(-1) === event.text) return false;
        call.progress.push(event.text);
        if (call.progress.length > 50) call.progress.shift();
        this.onchange(call);
        return false;
      }
      case "tool_approval": {
        const call = this.#eventCall(event);
        if (!call || call.isOver) return false;
        this.#question(call, {
          phase: event.phase,
          input: event.input,
          sha256: event.arguments_sha256,
          outputSummary: event.output_summary ?? null,
          message: event.message,
          form: event.form,
          url: event.url,
        });
        return false;
      }
      case "approval_decided":
        this.#decided(this.turns.get(event.turn)?.calls.get(event.tool_id), event);
        return false;
      case "tool_result":
        this.#applyResult(event);
        return false;
      case "turn_end": {
        const turn = this.turns.get(event.turn);
        if (!turn) return true;
        turn.finishReason = event.finish_reason;
        turn.usage = event.usage;
        turn.isOver = true;
        if (turn.attempt) turn.attempt.end ??= event.timestamp;
        this.#endSegment(turn);
        this.onchange(turn);
        return true;
      }
      case "attempt": {
        const turn = this.#turn(event.turn);
        if (!turn) return true;
        // After the end of a host, the same attempt may begin anew.
        const isAgain = turn.attempt?.attempt === event.attempt;
        this.#voidBefore(turn, isAgain ? event.attempt + 1 : event.attempt);
        const { attempt, model, streamed, reason, wait_ms: waitMs } = event;
        this.#attempt(turn, {
          attempt,
          model,
          streamed,
          reason,
          waitMs,
          start: event.timestamp,
          seq,
          bytes: 0,
          isVoid: false,
        });
        return true;
      }
      case "limit_reached":
        this.#limit(event, event.timestamp, seq);
        return false;
      case "context_compacted":
        this.#compacted(
          event.kind,
          event.tokens_before,
          event.tokens_after,
          event.upto,
          event.timestamp,
          seq,
        );
        return false;
      case "session_stats":
        if (this.runs.has(event.run_id)) {
          const run = /** @type {Run} */ (this.runs.get(event.run_id));
          run.stats = event;
          this.onchange(run);
        }
        return false;
      case "error":
        if (event.code === "session_closed") {
          this.isClosed = true;
          this.onchange(this, "closed");
        }
        return false;
      case "stream_end":
        this.#endRun(this.#run(event.run_id, seq), event, event.timestamp);
        return true;
      default:
        return false;
    }
  }

  /** @param {any} event @param {number} seq @param {number} bytes */
  #applyText(event, seq, bytes) {
    const turn = this.#turn(event.turn);
    if (!turn || turn.isResponseRecorded || turn.isOver) return false;
    this.turn = turn;
    const isNew = turn.attempts.length === 0;
    const attempt =
      turn.attempt ?? this.#attempt(turn, { attempt: 1, model: turn.run.model, start: event.timestamp, seq });
    if (seq < attempt.seq) return isNew;
    if (!event.text) return isNew;
    let { text } = event;
    if (bytes > 0) {
      const start = bytes - byteLength(text);
      if (bytes <= attempt.bytes) return isNew;
      if (start < attempt.bytes) text = behind(text, attempt.bytes - start);
      attempt.bytes = bytes;
    }
    this.#appendText(turn, event.type === "thinking" ? "thinking" : "text", text);
    return isNew;
  }

  /** @param {any} event */
  #eventCall(event) {
    const turn = this.#turn(event.turn);
    return turn && this.#call(turn, event.tool_id, event.tool_name);
  }

  /** @param {any} event */
  #applyToolUse(event) {
    const known = this.turns.get(event.turn);
    if (known?.calls.get(event.tool_id)?.isOver || (known?.isOver && !known.calls.has(event.tool_id))) return;
    const call = this.#eventCall(event);
    if (!call) return;
    call.index = event.call_index;
    call.name = event.tool_name;
    call.by = event.by ?? call.by;
    call.status = event.status;
    call.waitingFor = event.waiting_for;
    if (event.input !== undefined) call.arguments = event.input;
    if (event.input_summary !== null) call.summary = event.input_summary ?? call.summary;
    call.isEarly = event.early;
    const { times } = call;
    times.detected ??= event.timestamp;
    if (event.status !== "detected") times.sealed ??= event.timestamp;
    if (event.status === "running") times.started ??= event.timestamp;
    if (event.status === "finished") times.ended ??= event.timestamp;
    this.onchange(call);
    if (event.waiting_for !== "approval") this.onchange(this, "questions");
  }

  /** @param {any} event */
  #applyResult(event) {
    const call = this.#eventCall(event);
    if (!call || call.isRecorded) return;
    const content = event.content ?? [];
    // A result that is no more than text has it as its only part.
    const whole = content.length === 1 && content[0].type === "text" ? content[0].text : undefined;
    call.result = {
      status: event.status,
      kind: event.metadata?.kind,
      text: whole ?? event.output_summary ?? "",
      isWhole: whole !== undefined,
      content: whole === undefined ? content : [],
      metadata: event.metadata ?? {},
      releasedAt: event.timestamp,
    };
    call.reference = event.reference;
    call.waitMs = event.wait_ms;
    call.durationMs = event.duration_ms;
    call.status = "finished";
    call.waitingFor = null;
    this.#endChildren(call, event.timestamp);
    this.onchange(call);
    this.onchange(this, "questions");
  }

  /** Ends the runs below a call that is over: their own ends are not always told. @param {Call} call @param {number} time */
  #endChildren(call, time) {
    for (const child of call.children.values()) {
      if (child.run) child.#endRun(child.run, { run_end: "ended" }, time);
    }
  }

  /**
   * Applies an event of a child session below the call that started it. Returns false if the call is unknown.
   * @param {any} event
   * @returns {boolean}
   */
  applyChild(event) {
    for (const turn of [...this.turns.values()].reverse()) {
      for (const call of turn.calls.values()) {
        const isParent = event.parent_session_id === undefined || event.parent_session_id === this.id;
        if (
          isParent &&
          call.id === event.parent_tool_id &&
          (call.children.has(event.session_id) || !call.isOver)
        ) {
          let child = call.children.get(event.session_id);
          if (!child) {
            child = new Timeline(event.session_id);
            child.agentPath = event.agent_path;
            child.onchange = (changed, what) => {
              this.onchange(changed, what);
              if (what === "questions") this.onchange(this, "questions");
            };
            call.children.set(event.session_id, child);
          }
          child.apply(event, "");
          this.onchange(call, "children");
          return true;
        }
        for (const child of call.children.values()) if (child.applyChild(event)) return true;
      }
    }
    return false;
  }

  /** Puts an older timeline, folded from the records before, before this one. @param {Timeline} past */
  prepend(past) {
    this.items.unshift(...past.items);
    for (const [id, run] of past.runs) this.runs.set(id, run);
    for (const [number, turn] of past.turns) if (!this.turns.has(number)) this.turns.set(number, turn);
    this.compactions.unshift(...past.compactions);
    this.agent = past.agent || this.agent;
    this.metadata = past.metadata ?? this.metadata;
  }
}

/** The attempt in the id of a call. @param {string} id */
function attemptOf(id) {
  return Number(/^t\d+a(\d+)/u.exec(id)?.[1] ?? 0);
}

/** @param {any} change */
function kindOfChange(change) {
  if (!change || typeof change !== "object") return String(change);
  return change.kind ?? Object.keys(change)[0] ?? "changed";
}
