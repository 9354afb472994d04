/** An MCP server over stdio with one tool, `book`, which asks for seats while its call runs. */
import { createInterface } from "node:readline";

const send = (/** @type {object} */ message) =>
  process.stdout.write(`${JSON.stringify({ jsonrpc: "2.0", ...message })}\n`);
const form = {
  type: "object",
  properties: {
    seats: { type: "integer", title: "Seats", minimum: 1, maximum: 8 },
    class: { type: "string", enum: ["second", "first"], default: "second" },
    window: { type: "boolean", default: true },
    name: { type: "string", description: "As on the passport." },
  },
  required: ["seats", "class"],
};
/** @type {Map<number | string, number | string>} The calls by the ids of their questions. */
const asked = new Map();

createInterface({ input: process.stdin }).on("line", (line) => {
  const { id, method, params, result } = JSON.parse(line);
  if (method === "initialize") {
    send({
      id,
      result: {
        protocolVersion: params.protocolVersion,
        capabilities: { tools: {} },
        serverInfo: { name: "rail", version: "1" },
      },
    });
  } else if (method === "tools/list") {
    const inputSchema = { type: "object", properties: { train: { type: "string" } }, required: ["train"] };
    send({ id, result: { tools: [{ name: "book", description: "Books a train.", inputSchema }] } });
  } else if (method === "tools/call") {
    asked.set(`q${id}`, id);
    send({
      id: `q${id}`,
      method: "elicitation/create",
      params: { message: "How many seats?", requestedSchema: form },
    });
  } else if (method === undefined && asked.has(id)) {
    const text = `${result.action}: ${JSON.stringify(result.content ?? null)}`;
    send({ id: asked.get(id), result: { content: [{ type: "text", text }] } });
  } else if (id !== undefined) send({ id, result: {} });
});
