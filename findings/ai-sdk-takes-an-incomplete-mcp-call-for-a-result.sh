#!/usr/bin/env bash
# `@ai-sdk/openai` takes each `mcp_call` of the Responses API whose item is done for a tool call with a result, whatever the
# item's status: one that ends as `incomplete`, without output and without error, and which the completed response does not
# have, is a result for `streamText`, so that a page shows a call that never ran as done.
source "$(dirname "$0")/common.sh"
expected="tool-call mcp.t
tool-result mcp.t {\"type\":\"call\",\"serverLabel\":\"s\",\"name\":\"t\",\"arguments\":\"{}\"}
text done"
command -v node >/dev/null || { echo "not tried: there is no node"; exit 2; }
timeout 300 npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$folder" ai@7.0.173 @ai-sdk/openai@4.0.118 \
  >/dev/null || { echo "not tried: the packages could not be installed"; exit 2; }
cat > "$folder/program.mjs" <<'JAVASCRIPT'
import { createServer } from "node:http";
import { streamText } from "ai";
import { createOpenAI } from "@ai-sdk/openai";
const call = { type: "mcp_call", id: "mcp_1", server_label: "s", name: "t", arguments: "{}", output: null, error: null, status: "in_progress", approval_request_id: null };
const part = { type: "output_text", text: "done", annotations: [], logprobs: [] };
const message = { type: "message", id: "msg_1", status: "completed", role: "assistant", content: [part] };
const usage = { input_tokens: 1, input_tokens_details: { cached_tokens: 0 }, output_tokens: 1, output_tokens_details: { reasoning_tokens: 0 }, total_tokens: 2 };
const response = { id: "resp_1", object: "response", created_at: 1, status: "completed", model: "m", output: [message], error: null, incomplete_details: null, usage, service_tier: "default" };
const events = [
  { type: "response.created", response: { ...response, status: "in_progress", output: [] } },
  { type: "response.output_item.added", output_index: 0, item: call },
  { type: "response.output_item.done", output_index: 0, item: { ...call, status: "incomplete" } },
  { type: "response.output_item.added", output_index: 1, item: { ...message, content: [] } },
  { type: "response.output_text.delta", item_id: "msg_1", output_index: 1, content_index: 0, delta: "done", logprobs: [] },
  { type: "response.output_item.done", output_index: 1, item: message },
  { type: "response.completed", response },
];
const stream = events.map((event, at) => `data: ${JSON.stringify({ ...event, sequence_number: at })}\n\n`).join("");
const server = createServer(async (request, answer) => {
  for await (const _ of request);
  answer.writeHead(200, { "content-type": "text/event-stream" });
  answer.end(stream);
});
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
const provider = createOpenAI({ baseURL: `http://127.0.0.1:${server.address().port}`, apiKey: "none" });
for await (const piece of streamText({ model: provider.responses("m"), prompt: "go", maxRetries: 0 }).fullStream) {
  if (piece.type === "tool-call") console.log("tool-call", piece.toolName);
  if (piece.type === "tool-result") console.log("tool-result", piece.toolName, JSON.stringify(piece.output));
  if (piece.type === "text-delta") console.log("text", piece.text);
  if (piece.type === "error") console.log("error", piece.error.message);
}
server.close();
JAVASCRIPT
saw="$(cd "$folder" && timeout 60 node program.mjs)" || true
compare ai@7.0.173 @ai-sdk/openai@4.0.118
