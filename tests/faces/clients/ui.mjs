// Drives a chat as useChat does: the Chat of @ai-sdk/react and the transport of ai, whose schema checks each chunk.
// ui.mjs HOST SCENARIO CHAT [ARGUMENT]. Prints one JSON line.
import { Chat } from "@ai-sdk/react";
import {
  DefaultChatTransport,
  lastAssistantMessageIsCompleteWithApprovalResponses,
  lastAssistantMessageIsCompleteWithToolCalls,
  validateUIMessages,
} from "ai";

const [host, scenario, id, argument] = process.argv.slice(2);
const api = `${host}/v1/ui/default`;
const image = "data:image/png;base64,iVBORw0KGgo=";
const clientTools = [
  { name: "where", description: "Where the user is.", input_schema: { type: "object" } },
];

const log = { requests: [], errors: [], data: [], finishes: [] };

/** A fetch that notes requests. With `cut` it breaks the first answer after this number of chunks. */
function watchedFetch(cut) {
  let left = cut;
  return async (url, init) => {
    const response = await fetch(url, init);
    log.requests.push(`${init.method} ${response.status}`);
    if (left === undefined || !response.body) return response;
    let chunks = left;
    left = undefined;
    const decoder = new TextDecoder();
    let text = "";
    const cutter = new TransformStream({
      transform(bytes, controller) {
        text += decoder.decode(bytes, { stream: true });
        for (let at; chunks > 0 && (at = text.indexOf("\n\n")) >= 0; chunks--) {
          controller.enqueue(new TextEncoder().encode(text.slice(0, at + 2)));
          text = text.slice(at + 2);
        }
        if (chunks === 0) controller.error(new TypeError("network error"));
      },
    });
    return new Response(response.body.pipeThrough(cutter), response);
  };
}

/** The host needs only the last message. */
const sendLast = ({ id, messages, trigger, messageId, body }) => ({
  body: { ...body, id, messages: messages.slice(-1), trigger, messageId },
});

/** Returns the messages of a session's history, as docs/clients.md has it. */
function messagesOf({ history, current_run }) {
  // The run in progress comes by its stream.
  const end = current_run ? history.findLastIndex(({ role }) => role === "user") + 1 : history.length;
  const messages = [], calls = new Map();
  history.slice(0, end).forEach(({ role, content, tool_calls = [], tool_call_id, metadata = {} }, at) => {
    const text = Array.isArray(content) ? content.map((part) => part.text ?? "").join("") : content;
    if (role === "tool") {
      const denied = { state: "output-denied", approval: { id: `${tool_call_id}.denied`, approved: false } };
      const failed = metadata.error && { state: "output-error", errorText: text };
      const ended = failed || { state: "output-available", output: content };
      return Object.assign(calls.get(tool_call_id), ["rejected", "approval_expired"].includes(metadata.kind) ? denied : ended);
    }
    const parts = text ? [{ type: "text", text }] : [];
    for (const { id, function: { name, arguments: input } } of tool_calls) {
      calls.set(id, { type: `tool-${name}`, toolCallId: id, state: "input-available", input: JSON.parse(input), providerExecuted: true });
      parts.push(calls.get(id));
    }
    if (role === "assistant") parts.unshift({ type: "step-start" });
    const last = messages.at(-1);
    if (role === "assistant" && last?.role === role) last.parts.push(...parts);
    else messages.push({ id: `h${at}`, role, parts });
  });
  return messages;
}

function chat(options = {}, cut) {
  return new Chat({
    id,
    transport: new DefaultChatTransport({
      api,
      fetch: watchedFetch(cut),
      body: options.body,
      prepareSendMessagesRequest: options.sendsLast && sendLast,
    }),
    messages: options.messages,
    sendAutomaticallyWhen: (of) =>
      lastAssistantMessageIsCompleteWithApprovalResponses(of) ||
      lastAssistantMessageIsCompleteWithToolCalls(of),
    onError: (error) => log.errors.push(error.message),
    onData: (part) => log.data.push(part),
    onFinish: ({ finishReason }) => log.finishes.push(finishReason),
    onToolCall: options.onToolCall,
  });
}

/** Joins after a cut, as docs/clients.md has it. */
async function rejoin(of) {
  await of.resumeStream();
  const session = await (await fetch(`${host}/v1/sessions/${id}`)).json();
  if (!session.current_run) {
    of.messages = messagesOf(session);
    of.clearError();
  }
}

const pending = (of) =>
  of.messages.flatMap((message) => message.parts.filter((part) => part.state === "approval-requested"));

/** Waits until nothing is in progress. */
async function ready(of) {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, 5));
    if (["ready", "error"].includes(of.status)) {
      await new Promise((resolve) => setTimeout(resolve, 20));
      if (["ready", "error"].includes(of.status)) return;
    }
  }
}

/** Answers what waits, until nothing waits. */
async function answerAll(of, answer = () => ({ approved: true })) {
  await ready(of);
  while (pending(of).length > 0 && of.status !== "error") {
    for (const part of pending(of)) {
      await of.addToolApprovalResponse({ id: part.approval.id, ...answer(part.approval) });
    }
    await ready(of);
  }
}

async function print(of, more = {}) {
  const messages = JSON.parse(JSON.stringify(of.messages));
  if (messages.length > 0) await validateUIMessages({ messages });
  console.log(JSON.stringify({ messages, status: of.status, ...log, ...more }));
}

const scenarios = {
  /** Sends a message, and approves what waits. */
  async approve() {
    const of = chat();
    await of.sendMessage({ text: argument ?? "go" });
    const asked = pending(of).map((part) => part.approval);
    await answerAll(of);
    await print(of, { asked });
  },
  async reject() {
    const of = chat();
    await of.sendMessage({ text: "go" });
    await answerAll(of, () => ({ approved: false, reason: "too dear" }));
    await print(of);
  },
  /** Answers the questions of a tool: the answer to a form is the reason. */
  async answer() {
    const of = chat();
    await of.sendMessage({ text: "go" });
    await answerAll(of, ({ descriptor }) =>
      descriptor.question.form
        ? { approved: true, reason: JSON.stringify({ seats: 2 }) }
        : { approved: true });
    await print(of);
  },
  /** Sends a message and leaves, after this number of chunks. */
  async leave() {
    const of = chat({}, Number(argument));
    await of.sendMessage({ text: "go" });
    await print(of);
  },
  /** Is cut off, joins, and approves. */
  async cut() {
    const of = chat({}, Number(argument));
    await of.sendMessage({ text: "go" });
    await ready(of);
    const cutOff = JSON.parse(JSON.stringify(of.messages.at(-1)));
    while (of.status === "error") await of.resumeStream();
    await answerAll(of);
    await print(of, { cutOff });
  },
  /** Is cut off, and joins when the run has ended. */
  async ended() {
    const of = chat({}, Number(argument));
    await of.sendMessage({ text: "go" });
    await ready(of);
    const read = async () => (await fetch(`${host}/v1/sessions/${id}`)).json();
    while ((await read()).current_run) await new Promise((resolve) => setTimeout(resolve, 5));
    await rejoin(of);
    await print(of);
  },
  /** A page that is opened again. */
  async reload() {
    const snapshot = await (await fetch(`${host}/v1/sessions/${id}`)).json();
    const of = chat({ messages: messagesOf(snapshot), sendsLast: true });
    await of.resumeStream();
    await answerAll(of);
    await print(of);
  },
  /** Runs a tool of the page itself. */
  async page() {
    const of = chat({
      body: { client_tools: clientTools },
      onToolCall({ toolCall }) {
        log.data.push(toolCall.toolName);
        void of.addToolOutput({ tool: toolCall.toolName, toolCallId: toolCall.toolCallId, output: { city: "Rome" } });
      },
    });
    await of.sendMessage({ text: "go", files: [{ type: "file", mediaType: "image/png", url: image }] });
    await answerAll(of);
    await print(of);
  },
  /** Sends a message, and again. */
  async twice() {
    const of = chat();
    await of.sendMessage({ text: "first" });
    await ready(of);
    await of.sendMessage({ text: "second" });
    await ready(of);
    await of.regenerate();
    await ready(of);
    await print(of);
  },
};

await scenarios[scenario]();
