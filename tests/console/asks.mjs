/** An MCP server over stdio: `book` asks for seats while its call runs, `picture` returns an image. */
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
/** A PNG file of one pixel. */
const DOT =
  "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

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
    const tools = [
      { name: "book", description: "Books a train.", inputSchema },
      {
        name: "picture",
        description: "Returns a picture of a train.",
        inputSchema,
        annotations: { readOnlyHint: true },
      },
    ];
    send({ id, result: { tools } });
  } else if (method === "tools/call" && params.name === "picture") {
    send({
      id,
      result: {
        content: [
          { type: "text", text: "A dot." },
          { type: "image", data: DOT, mimeType: "image/png" },
        ],
      },
    });
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
