// The official client for JavaScript: raw streams, the helper `.stream()`, and plain answers.
import OpenAI from "openai";

const [host, mode, ...texts] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${host}/v1`, apiKey: "none", maxRetries: 0 });
const tools = [{ type: "function", function: { name: "open_file", parameters: { type: "object", properties: { path: { type: "string" } } } } }];

async function complete(messages, rest = {}) {
  const body = { model: "default", messages, ...rest };
  if (mode === "plain") return (await client.chat.completions.create(body)).choices[0];
  if (mode === "helper") {
    const stream = client.chat.completions.stream(body);
    return (await stream.finalChatCompletion()).choices[0];
  }
  const stream = await client.chat.completions.create({ ...body, stream: true });
  const message = { role: "assistant", content: "" };
  let finish_reason = null;
  for await (const chunk of stream) {
    const { delta, finish_reason: reason } = chunk.choices[0];
    message.content += delta.content ?? "";
    for (const { index, id, function: { name, arguments: text } } of delta.tool_calls ?? []) {
      message.tool_calls ??= [];
      message.tool_calls[index] ??= { id, type: "function", function: { name, arguments: "" } };
      message.tool_calls[index].function.arguments += text;
    }
    finish_reason = reason ?? finish_reason;
  }
  return { message, finish_reason };
}

const messages = [{ role: "system", content: "Be brief." }];
const answers = [];
for (const text of texts) {
  messages.push({ role: "user", content: text });
  for (;;) {
    const { message, finish_reason } = await complete(messages, text.includes("file") ? { tools } : {});
    messages.push(message);
    answers.push({ content: message.content, finish_reason, calls: message.tool_calls?.length ?? 0 });
    if (finish_reason !== "tool_calls") break;
    for (const { id, function: { arguments: json } } of message.tool_calls) {
      messages.push({ role: "tool", tool_call_id: id, content: `opened ${JSON.parse(json).path}` });
    }
  }
}
const models = [];
for await (const model of client.models.list()) models.push(model.id);
const missing = await client.models.retrieve("nobody").catch((error) => [error.status, error.code]);
console.log(JSON.stringify({ answers, models, missing }));
