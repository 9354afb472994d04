/**
 * A service with the Chat Completions API whose answers are programmed by the tests. The last message of
 * the user selects the answer.
 */
import { createServer } from "node:http";

/**
 * @typedef {{name: string, arguments: unknown}} Call
 * @typedef {{text?: string | string[], thinking?: string, calls?: Call[], pause?: number, batch?: number, gate?: Promise<unknown>, after?: string, breaks?: boolean, status?: number}} Answer
 * `gate` is waited for before `after`, the last piece of the text. `pause` is the time in milliseconds after
 * every `batch` pieces. With `breaks` the connection breaks at the end.
 */

const sleep = (/** @type {number} */ ms) => new Promise((done) => setTimeout(done, ms));

/** Starts the service. `answer` gets the request and the number of results since the last input. */
export async function startModel(
  /** @type {(prompt: string, results: string[], request: any) => Answer} */ answer,
) {
  const requests = [];
  const server = createServer(async (request, response) => {
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    const url = new URL(request.url ?? "/", "http://localhost");
    if (url.pathname.startsWith("/tool/")) {
      await answerTool(url, response);
      return;
    }
    const body = JSON.parse(Buffer.concat(chunks).toString() || "{}");
    requests.push(body);
    const messages = body.messages ?? [];
    const last = messages.map((message) => message.role).lastIndexOf("user");
    const results = messages.slice(last + 1).filter((message) => message.role === "tool");
    const content = messages[last]?.content ?? "";
    const prompt = typeof content === "string" ? content : content.map((part) => part.text ?? "").join("");
    const programmed = answer(
      prompt,
      results.map((result) => String(result.content)),
      body,
    );
    if (programmed.status) {
      response.writeHead(programmed.status, { "content-type": "application/json" });
      response.end(JSON.stringify({ error: { message: "the service is overloaded", type: "overloaded" } }));
      return;
    }
    await stream(response, programmed);
  });
  await new Promise((done) => server.listen(0, "127.0.0.1", () => done(undefined)));
  const { port } = /** @type {import("node:net").AddressInfo} */ (server.address());
  return {
    port,
    requests,
    close: () =>
      new Promise((done) => {
        server.closeAllConnections();
        server.close(done);
      }),
  };
}

async function stream(
  response,
  { text = [], thinking, calls = [], pause = 0, batch = 1, gate, after = "", breaks = false },
) {
  response.writeHead(200, { "content-type": "text/event-stream" });
  const send = (delta, finish = null, more = {}) => {
    const choices = [{ index: 0, delta, finish_reason: finish }];
    const chunk = {
      id: "c1",
      object: "chat.completion.chunk",
      created: 1,
      model: "scripted",
      choices,
      ...more,
    };
    response.write(`data: ${JSON.stringify(chunk)}\n\n`);
  };
  send({ role: "assistant", content: "" });
  if (thinking) {
    send({ reasoning_content: thinking });
    if (pause) await sleep(pause);
  }
  const pieces = typeof text === "string" ? (text.match(/[^]{1,12}/gu) ?? []) : text;
  for (const [index, piece] of pieces.entries()) {
    send({ content: piece });
    if (pause && index % batch === batch - 1) await sleep(pause);
    if (response.destroyed) return;
  }
  for (const [index, { name, arguments: input }] of calls.entries()) {
    const json = typeof input === "string" ? input : JSON.stringify(input);
    send({
      tool_calls: [{ index, id: `call_${index}`, type: "function", function: { name, arguments: "" } }],
    });
    for (const piece of json.match(/[^]{1,40}/gu) ?? []) {
      send({ tool_calls: [{ index, function: { arguments: piece } }] });
      if (pause) await sleep(pause / 3);
    }
  }
  if (gate) await gate;
  if (after) send({ content: after });
  if (breaks) {
    response.destroy();
    return;
  }
  send({}, calls.length ? "tool_calls" : "stop", {
    usage: { prompt_tokens: 812, completion_tokens: 64, total_tokens: 876 },
  });
  response.end("data: [DONE]\n\n");
}

/** `/tool/echo?text=..&wait=..`: what an HTTP tool calls. */
async function answerTool(url, response) {
  await sleep(Number(url.searchParams.get("wait") ?? 0));
  const status = Number(url.searchParams.get("status") ?? 200);
  response.writeHead(status, { "content-type": "text/plain; charset=utf-8" });
  response.end(url.searchParams.get("text") ?? "");
}
