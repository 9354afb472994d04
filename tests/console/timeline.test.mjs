/** The session model alone: records and events in any mixture lead to the same session. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { Timeline } from "../../src/server/console/timeline.js";
import { json, visible } from "../../src/server/console/text.js";
import { Axis } from "../../src/server/console/waterfall-axis.js";
import { FORBIDDEN, PAYLOADS } from "./payloads.mjs";

const KEY = (turn, index, attempt = 1) => ({ turn, attempt, index });

/** A run with a failed attempt, two calls, an approval, a steer and an answer. */
const RECORDS = [
  {
    seq: 1,
    time: 1000,
    type: "session_opened",
    agent: "default",
    messages: [{ role: "user", content: "before" }],
  },
  {
    seq: 2,
    time: 1010,
    type: "run_started",
    run_id: "run_1",
    input: "go",
    model: "m",
    execution: "parallel:4",
  },
  { seq: 3, time: 1011, type: "attempt_started", turn: 1, attempt: 1, model: "m", streamed: true },
  {
    seq: 4,
    time: 1020,
    type: "attempt_failed",
    turn: 1,
    attempt: 1,
    error: { message: "broken" },
    kept: false,
    shown: 4,
  },
  {
    seq: 5,
    time: 1030,
    type: "attempt_started",
    turn: 1,
    attempt: 2,
    model: "m",
    streamed: true,
    reason: "broken",
    wait_ms: 9,
  },
  {
    seq: 6,
    time: 1060,
    type: "response_ended",
    turn: 1,
    attempt: 2,
    message: {
      text: "Grüße",
      reasoning: "hm",
      calls: [
        { key: KEY(1, 0, 2), name: "search", arguments: { q: 1 } },
        { key: KEY(1, 1, 2), name: "deploy", arguments: { v: 2 } },
      ],
    },
    finish_reason: { kind: "tool_calls", raw: "tool_calls" },
    usage: {},
  },
  {
    seq: 7,
    time: 1061,
    type: "approval_asked",
    asked: {
      call: { key: KEY(1, 1, 2), name: "deploy" },
      phase: "before",
      arguments: { v: 2 },
      arguments_sha256: "aa",
    },
  },
  {
    seq: 8,
    time: 1070,
    type: "call_ended",
    call: { key: KEY(1, 0, 2), name: "search" },
    outcome: { status: "success", content: "found" },
    notes: {},
    started_ms: 30,
    duration_ms: 30,
    early: true,
  },
  { seq: 9, time: 1080, type: "steered", input: "faster", after_turn: 1 },
  { seq: 10, time: 1090, type: "approval_given", key: KEY(1, 1, 2), phase: "before", verdict: "approved" },
  {
    seq: 11,
    time: 1100,
    type: "call_ended",
    call: { key: KEY(1, 1, 2), name: "deploy" },
    outcome: { status: "error", kind: "tool_error", content: "no" },
    notes: {},
    started_ms: 81,
    wait_ms: 21,
    duration_ms: 9,
  },
  { seq: 12, time: 1101, type: "turn_committed", turn: 1, end: "finished", summary: { usage: {} } },
  { seq: 13, time: 1102, type: "attempt_started", turn: 2, attempt: 1, model: "m", streamed: true },
  {
    seq: 14,
    time: 1110,
    type: "response_ended",
    turn: 2,
    attempt: 1,
    message: { text: "Done." },
    finish_reason: { kind: "stop", raw: "stop" },
    usage: {},
  },
  { seq: 15, time: 1111, type: "turn_committed", turn: 2, end: "finished", summary: { usage: {} } },
  {
    seq: 16,
    time: 1112,
    type: "run_ended",
    run_id: "run_1",
    end: "answered",
    text: "Done.",
    error: null,
    stats: { turns: 2 },
  },
];

const of = (turn, type, more) => ({ type, session_id: "s", run_id: "run_1", turn, timestamp: 1050, ...more });
const use = (id, status, more = {}) =>
  of(1, "tool_use", {
    call_index: Number(id.at(-1)),
    tool_id: id,
    tool_name: id === "t1a2c0" ? "search" : "deploy",
    status,
    waiting_for: null,
    input_summary: null,
    early: false,
    ...more,
  });

/** The events of that run, as they are sent live. */
const EVENTS = [
  ["2.0", of(0, "stream_start", { agent: "default", model: "m", execution: "parallel:4", input: "go" })],
  ["3.0", of(1, "thinking", { text: "" })],
  ["3.4", of(1, "content_delta", { text: "lost" })],
  ["", use("t1a1c0", "detected", { tool_id: "t1a1c0", tool_name: "search" })],
  ["5.0", of(1, "attempt", { attempt: 2, model: "m", streamed: true, reason: "broken", wait_ms: 9 })],
  ["5.2", of(1, "thinking", { text: "hm" })],
  ["5.6", of(1, "content_delta", { text: "Grü" })],
  ["5.9", of(1, "content_delta", { text: "ße" })],
  ["", use("t1a2c0", "detected")],
  ["", use("t1a2c0", "running", { early: true, input_summary: '{"q":1}' })],
  ["", use("t1a2c1", "detected")],
  ["", use("t1a2c1", "waiting", { waiting_for: "approval" })],
  [
    "7.0",
    of(1, "tool_approval", {
      call_index: 1,
      tool_id: "t1a2c1",
      tool_name: "deploy",
      phase: "before",
      input: { v: 2 },
      arguments_sha256: "aa",
      output_summary: null,
    }),
  ],
  ["", use("t1a2c0", "finished", { early: true })],
  [
    "8.0",
    of(1, "tool_result", {
      call_index: 0,
      tool_id: "t1a2c0",
      tool_name: "search",
      status: "success",
      output_summary: "found",
      content: [{ type: "text", text: "found" }],
      duration_ms: 30,
      wait_ms: 0,
      metadata: {},
    }),
  ],
  ["9.0", of(1, "steered", { input: "faster" })],
  ["", use("t1a2c1", "running", { input: { v: 2 } })],
  [
    "11.0",
    of(1, "tool_result", {
      call_index: 1,
      tool_id: "t1a2c1",
      tool_name: "deploy",
      status: "error",
      output_summary: "no",
      duration_ms: 9,
      wait_ms: 21,
      metadata: { error: true, kind: "tool_error" },
    }),
  ],
  ["12.0", of(1, "turn_end", { tool_calls: 2, finish_reason: "tool_calls", usage: {} })],
  ["13.0", of(2, "thinking", { text: "" })],
  ["13.2", of(2, "content_delta", { text: "Do" })],
  ["13.5", of(2, "content_delta", { text: "ne." })],
  ["14.0", of(2, "response_end", { attempt: 1, ending: "complete", calls: [], usage: {} })],
  ["15.0", of(2, "turn_end", { tool_calls: 0, finish_reason: "stop", usage: {} })],
  ["", of(2, "session_stats", { turns: 2 })],
  ["16.0", of(2, "stream_end", { run_end: "answered", text: "Done.", error: null })],
];

/** Returns the parts of a session that a reader sees. */
function seen(timeline) {
  return timeline.items.map((item) =>
    item.kind !== "run"
      ? item.kind
      : {
          input: item.input,
          end: item.end,
          entries: item.entries
            .filter((entry) => entry.kind !== "note")
            .map((entry) =>
              entry.kind !== "turn"
                ? { [entry.kind]: entry.input }
                : {
                    turn: entry.number,
                    parts: entry.parts
                      .filter((part) =>
                        part.kind === "call" ? part.call.status !== "discarded" : !part.isVoid,
                      )
                      .map((part) =>
                        part.kind === "call"
                          ? {
                              id: part.call.id,
                              name: part.call.name,
                              arguments: part.call.arguments,
                              status: part.call.status,
                              result: part.call.result?.status,
                              text: part.call.result?.text,
                              early: part.call.isEarly,
                              asks: part.call.openQuestion?.sha256,
                            }
                          : { [part.kind]: part.text },
                      ),
                    attempts: entry.attempts.map(({ attempt, isVoid }) => ({ attempt, isVoid })),
                  },
            ),
        },
  );
}

function folded(records) {
  const timeline = new Timeline("s");
  for (const record of records) timeline.fold(record);
  return timeline;
}

test("records alone give the whole session", () => {
  const [message, run] = seen(folded(RECORDS));
  assert.equal(message, "message");
  assert.equal(run.input, "go");
  assert.equal(run.end, "answered");
  assert.deepEqual(
    run.entries.map((entry) => entry.turn ?? entry.steer),
    [1, "faster", 2],
  );
  assert.deepEqual(
    run.entries[0].parts.map((part) => part.text ?? part.thinking ?? part.id),
    ["hm", "Grüße", "found", "no"],
  );
  assert.deepEqual(run.entries[0].attempts, [
    { attempt: 1, isVoid: true },
    { attempt: 2, isVoid: false },
  ]);
});

test("a reader who joins at any record and follows the events sees the same", () => {
  const whole = seen(folded(RECORDS));
  for (let joined = 1; joined <= RECORDS.length; joined += 1) {
    for (const synced of [joined, 6, 12, 16]) {
      const timeline = folded(RECORDS.slice(0, joined));
      // The stream begins behind the last record; states of open calls come anew, and so do all
      // events if another tab wanted them from the beginning.
      for (const [id, event] of EVENTS) {
        timeline.apply(event, id);
        if (id === `${synced}.0`) for (const record of RECORDS.slice(0, synced)) timeline.fold(record);
      }
      for (const record of RECORDS) timeline.fold(record);
      assert.deepEqual(seen(timeline), whole, `joined at ${joined}, records again at ${synced}`);
    }
  }
});

test("events alone give the input, the steer, whole arguments and whole results", () => {
  const timeline = new Timeline("s");
  for (const [id, event] of EVENTS) timeline.apply(event, id);
  const [run] = seen(timeline);
  assert.equal(run.input, "go");
  assert.deepEqual(
    run.entries.map((entry) => entry.turn ?? entry.steer),
    [1, "faster", 2],
  );
  const turn = timeline.turns.get(1);
  const [search, deploy] = [turn.calls.get("t1a2c0"), turn.calls.get("t1a2c1")];
  assert.deepEqual([search.result.text, search.result.isWhole, search.result.content], ["found", true, []]);
  assert.deepEqual(deploy.arguments, { v: 2 });
});

test("events twice, and text in larger pieces, add nothing", () => {
  const timeline = folded(RECORDS.slice(0, 2));
  for (const [id, event] of EVENTS.slice(0, 7)) timeline.apply(event, id);
  for (const [id, event] of EVENTS.slice(0, 7)) timeline.apply(event, id);
  timeline.apply(of(1, "content_delta", { text: "Grüße" }), "5.9");
  const parts = timeline.turns.get(1).parts.filter((part) => part.kind !== "call" && !part.isVoid);
  assert.deepEqual(
    parts.map(({ text }) => text),
    ["hm", "Grüße"],
  );
});

test("the calls that wait for an answer are known while they wait", () => {
  const timeline = folded(RECORDS.slice(0, 7));
  assert.deepEqual(
    timeline.openQuestions.map(({ call, session }) => [call.id, session]),
    [["t1a2c1", "s"]],
  );
  for (const record of RECORDS) timeline.fold(record);
  assert.deepEqual(timeline.openQuestions, []);
});

test("a child session nests below the call that started it", () => {
  const timeline = folded(RECORDS.slice(0, 3));
  timeline.apply(use("t1a1c0", "running", { tool_id: "t1a1c0", tool_name: "researcher" }), "");
  const child = (type, more) => ({
    type,
    session_id: "sub_1",
    run_id: "run_c",
    turn: 1,
    timestamp: 1,
    parent_session_id: "s",
    parent_tool_id: "t1a1c0",
    agent_path: ["default", "researcher"],
    ...more,
  });
  timeline.apply({ type: "session_state" }, "");
  assert.equal(timeline.applyChild(child("stream_start", { model: "m", execution: "sequential" })), true);
  timeline.applyChild(
    child("tool_use", {
      call_index: 0,
      tool_id: "t1a1c0",
      tool_name: "pay",
      status: "waiting",
      waiting_for: "approval",
      input_summary: null,
      early: false,
    }),
  );
  timeline.applyChild(
    child("tool_approval", {
      call_index: 0,
      tool_id: "t1a1c0",
      tool_name: "pay",
      phase: "before",
      input: {},
      arguments_sha256: "bb",
      output_summary: null,
    }),
  );
  const call = timeline.turns.get(1).calls.get("t1a1c0");
  assert.deepEqual([...call.children.keys()], ["sub_1"]);
  assert.deepEqual(
    timeline.openQuestions.map((own) => [own.call.name, own.session]),
    [["pay", "sub_1"]],
  );
  // Another client has decided.
  timeline.applyChild(child("approval_decided", { tool_id: "t1a1c0", phase: "before", verdict: "approved" }));
  assert.deepEqual(timeline.openQuestions, []);
  assert.equal(
    timeline.applyChild(child("stream_start", { parent_tool_id: "t9a1c0", session_id: "sub_2" })),
    false,
  );
  assert.equal(
    timeline.applyChild(child("stream_start", { parent_session_id: "other", session_id: "sub_2" })),
    false,
  );
  timeline.applyChild(
    child("stream_start", {
      parent_session_id: "sub_1",
      session_id: "sub_3",
      model: "m",
      execution: "sequential",
    }),
  );
  assert.deepEqual(
    [...call.children.get("sub_1").turns.get(1).calls.get("t1a1c0").children.keys()],
    ["sub_3"],
  );
});

test("a call that the client runs is no question, and keeps its arguments", () => {
  const timeline = folded(RECORDS.slice(0, 6));
  timeline.fold({
    seq: 7,
    time: 1061,
    type: "approval_asked",
    asked: {
      call: { key: KEY(1, 1, 2), name: "deploy" },
      phase: "client",
      arguments: { v: 3 },
      arguments_sha256: "aa",
    },
  });
  const call = timeline.turns.get(1).calls.get("t1a2c1");
  assert.deepEqual(
    [call.by, call.waitingFor, call.arguments, timeline.openQuestions],
    ["client", "client", { v: 3 }, []],
  );
  timeline.fold({
    seq: 8,
    time: 1070,
    type: "call_ended",
    call: { key: KEY(1, 1, 2), name: "deploy" },
    outcome: { status: "success", content: "ok" },
    notes: { by_client: true },
  });
  assert.deepEqual([call.by, call.result.status, call.result.metadata], ["client", "success", {}]);
});

test("hidden characters are shown, and JSON stays the same value", () => {
  for (const payload of PAYLOADS) {
    assert.doesNotMatch(visible(payload), FORBIDDEN, JSON.stringify(payload));
    assert.doesNotMatch(json({ payload }), FORBIDDEN);
    assert.deepEqual(JSON.parse(json({ payload })), { payload });
  }
  assert.equal(visible("pay \u202e001"), "pay [U+202E]001");
  assert.equal(visible("\u001b[31m"), "␛[31m");
  assert.equal(visible("a\r\nb\tc"), "a\nb\tc");
  for (const kept of ["नमस्ते", "שלום", "👩‍👩‍👧", "❤️", "é", "日本語"]) assert.equal(visible(kept), kept);
});

test("long pauses get little of the axis, and the order of times stays", () => {
  const axis = new Axis(
    [
      [0, 100],
      [5000, 5100],
    ],
    0,
    5100,
  );
  assert.ok(axis.at(100) > 0.4 && axis.at(5000) < 0.6, `${axis.at(100)} ${axis.at(5000)}`);
  let last = -1;
  for (let time = 0; time <= 5100; time += 10) {
    assert.ok(axis.at(time) >= last);
    last = axis.at(time);
  }
  assert.equal(axis.at(5100), 1);
  assert.equal(new Axis([], 0, 0).at(0), 0);
});

test("an input that starts leaves the queue, whether its event or its records come first", () => {
  const queued = { seq: 20, time: 1200, type: "input_queued", run_id: "run_2", input: "next" };
  const started = { seq: 21, time: 1201, type: "run_started", run_id: "run_2", model: "m" };
  const start = { ...of(0, "stream_start", { model: "m" }), run_id: "run_2" };
  const steps = {
    queued: (timeline) => timeline.fold(queued),
    started: (timeline) => timeline.fold(started),
    event: (timeline) => timeline.apply(start, "21.0"),
  };
  for (const order of [
    ["queued", "event", "started"],
    ["event", "queued", "started"],
    ["queued", "started", "event"],
  ]) {
    const timeline = new Timeline("s");
    for (const step of order) {
      steps[step](timeline);
      const waits = step === "queued" && order[0] === "queued";
      assert.equal(timeline.queued.length, waits ? 1 : 0, `${order} at ${step}`);
    }
    assert.equal(timeline.runs.get("run_2").input, "next", `${order}`);
  }
  const removals = {
    record: (timeline) => timeline.fold({ seq: 22, time: 1202, type: "input_removed", run_id: "run_2" }),
    event: (timeline) => timeline.apply({ ...of(0, "input_removed", { waiting: 0 }), run_id: "run_2" }),
  };
  for (const [name, remove] of Object.entries(removals)) {
    const timeline = new Timeline("s");
    timeline.fold(queued);
    remove(timeline);
    assert.deepEqual([timeline.queued.length, timeline.runs.size], [0, 0], name);
  }
});

test("a run that was interrupted and is reopened goes on, by records and by events", () => {
  const started = { seq: 3, time: 1000, type: "run_started", run_id: "run_1", input: "go", model: "m", execution: "sequential" };
  const ended = { seq: 4, time: 1100, type: "run_ended", run_id: "run_1", end: "interrupted", text: "It", error: null, stats: {} };
  const reopened = { seq: 5, time: 1200, type: "run_reopened", run_id: "run_1" };
  const again = { ...of(0, "stream_start", { model: "m", reopened: true }), run_id: "run_1" };
  const ways = {
    record: (timeline) => timeline.fold(reopened),
    event: (timeline) => timeline.apply(again, "5.0"),
    both: (timeline) => [timeline.apply(again, "5.0"), timeline.fold(reopened)],
  };
  for (const [name, reopen] of Object.entries(ways)) {
    const timeline = new Timeline("s");
    for (const record of [started, ended]) timeline.fold(record);
    assert.equal(timeline.runs.get("run_1").end, "interrupted");
    reopen(timeline);
    assert.equal(timeline.runs.get("run_1").end, undefined, name);
    assert.equal(timeline.run?.id, "run_1", name);
    timeline.fold({ ...ended, seq: 6, end: "answered", text: "It is." });
    assert.deepEqual([timeline.runs.size, timeline.runs.get("run_1").end], [1, "answered"], name);
  }
});
