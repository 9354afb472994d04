#!/usr/bin/env bash
# `generateText` of the AI SDK 5 with `@ai-sdk/openai` 2 refuses a whole answer of the Responses API as invalid if one of its
# items is an `mcp_call`, which OpenAI's API has had since May 2025; `streamText` reads the same answer as a stream. The
# provider's version 3 (AI SDK 6) reads both.
source "$(dirname "$0")/common.sh"
expected="2.0.131 plain: Invalid JSON response
2.0.131 stream: done
3.0.141 plain: done
3.0.141 stream: done"
command -v node >/dev/null || { echo "not tried: there is no node"; exit 2; }
for pair in "5.0.277 2.0.131" "6.0.326 3.0.141"; do
  read -r ai openai <<<"$pair"
  timeout 300 npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$folder/$openai" "ai@$ai" "@ai-sdk/openai@$openai" \
    >/dev/null || { echo "not tried: the packages could not be installed"; exit 2; }
  cat > "$folder/$openai/program.mjs" <<'JAVASCRIPT'
import { createServer } from "node:http";
import { generateText, streamText } from "ai";
import { createOpenAI } from "@ai-sdk/openai";
const call = { type: "mcp_call", id: "mcp_1", server_label: "s", name: "t", arguments: "{}", output: "ok", error: null, status: "completed", approval_request_id: null };
const part = { type: "output_text", text: "done", annotations: [], logprobs: [] };
const message = { type: "message", id: "msg_1", status: "completed", role: "assistant", content: [part] };
const usage = { input_tokens: 1, input_tokens_details: { cached_tokens: 0 }, output_tokens: 1, output_tokens_details: { reasoning_tokens: 0 }, total_tokens: 2 };
const response = { id: "resp_1", object: "response", created_at: 1, status: "completed", model: "m", output: [call, message], error: null, incomplete_details: null, usage, service_tier: "default" };
const events = [
  { type: "response.created", response: { ...response, output: [] } },
  { type: "response.output_item.added", output_index: 0, item: call },
  { type: "response.output_item.done", output_index: 0, item: call },
  { type: "response.output_item.added", output_index: 1, item: { ...message, content: [] } },
  { type: "response.output_text.delta", item_id: "msg_1", output_index: 1, content_index: 0, delta: "done", logprobs: [] },
  { type: "response.output_item.done", output_index: 1, item: message },
  { type: "response.completed", response },
];
const stream = events.map((event, at) => `data: ${JSON.stringify({ ...event, sequence_number: at })}\n\n`).join("");
const server = createServer(async (request, answer) => {
  let body = "";
  for await (const piece of request) body += piece;
  const streams = JSON.parse(body).stream === true;
  answer.writeHead(200, { "content-type": streams ? "text/event-stream" : "application/json" });
  answer.end(streams ? stream : JSON.stringify(response));
});
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
const provider = createOpenAI({ baseURL: `http://127.0.0.1:${server.address().port}`, apiKey: "none" });
const version = process.argv[2];
const model = provider.responses("m");
const plain = await generateText({ model, prompt: "go", maxRetries: 0 }).then((it) => it.text, (error) => error.message);
console.log(`${version} plain: ${plain}`);
let text = "";
const errors = [];
for await (const piece of streamText({ model, prompt: "go", maxRetries: 0, onError: ({ error }) => errors.push(error.message) }).textStream) text += piece;
console.log(`${version} stream: ${errors[0] ?? text}`);
server.close();
JAVASCRIPT
done
saw="$(for openai in 2.0.131 3.0.141; do (cd "$folder/$openai" && timeout 60 node program.mjs "$openai"); done)" || true
compare ai@5.0.277 @ai-sdk/openai@2.0.131 ai@6.0.326 @ai-sdk/openai@3.0.141
