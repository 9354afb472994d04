#!/usr/bin/env bash
# The helper `responses.stream({response_id, starting_after})` of OpenAI's JavaScript SDK does not send `starting_after`: it
# fetches the stream of the response from its beginning, and drops by itself what is not above that number. `retrieve` with
# `stream: true` sends it. So a server must give the same numbers both ways, and joining costs the whole stream.
source "$(dirname "$0")/common.sh"
expected="helper: GET /responses/resp_1?stream=true, events above 1: response.completed
retrieve: GET /responses/resp_1?stream=true&starting_after=1, all that was sent: response.created response.in_progress response.completed"
version=7.59.0
command -v node >/dev/null && timeout 300 npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$folder" \
  "openai@$version" >/dev/null || { echo "not tried: the package could not be installed"; exit 2; }
cat > "$folder/program.mjs" <<'JAVASCRIPT'
import { createServer } from "node:http";
import OpenAI from "openai";
const response = { id: "resp_1", object: "response", created_at: 1, status: "completed", model: "m", output: [], error: null, incomplete_details: null };
const names = ["response.created", "response.in_progress", "response.completed"];
const events = names.map((type, at) => ({ type, sequence_number: at, response }));
const paths = [];
const server = createServer((request, answer) => {
  paths.push(`${request.method} ${decodeURIComponent(request.url)}`);
  answer.writeHead(200, { "content-type": "text/event-stream" });
  answer.end(events.map((event) => `event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`).join(""));
});
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
const client = new OpenAI({ baseURL: `http://127.0.0.1:${server.address().port}`, apiKey: "none", maxRetries: 0 });
const types = async (stream) => { const seen = []; for await (const event of stream) seen.push(event.type); return seen.join(" "); };
const helper = await types(client.responses.stream({ response_id: "resp_1", starting_after: 1 }));
console.log(`helper: ${paths.at(-1)}, events above 1: ${helper}`);
const retrieved = await types(await client.responses.retrieve("resp_1", { stream: true, starting_after: 1 }));
console.log(`retrieve: ${paths.at(-1)}, all that was sent: ${retrieved}`);
server.close();
JAVASCRIPT
saw="$(cd "$folder" && timeout 60 node program.mjs)" || true
compare "openai@$version"
