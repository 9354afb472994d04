// The tools of the servers of the TypeScript SDK.
import { writeFileSync } from "node:fs";
import { setTimeout } from "node:timers/promises";
import { z } from "zod";

// Ends the waits of the calls of `meet`, of which two must run at the same time.
let met;
const meeting = new Promise((resolve) => { met = resolve; });
let waiting = 0;

export function register(server) {
  const sum = z.object({ sum: z.number() });
  server.registerTool(
    "add",
    { description: "Adds.", inputSchema: z.object({ a: z.number(), b: z.number() }), outputSchema: sum },
    async ({ a, b }) => ({ content: [{ type: "text", text: "added" }], structuredContent: { sum: a + b } }),
  );
  server.registerTool("fail", { description: "Fails.", inputSchema: z.object({}) }, async () => {
    throw new Error("no such row");
  });
  server.registerTool("meet", { description: "Meets.", inputSchema: z.object({ name: z.string() }) }, async ({ name }) => {
    waiting += 1;
    if (waiting === 2) met();
    await meeting;
    return { content: [{ type: "text", text: `met ${name}` }] };
  });
  server.registerTool("wait", { description: "Waits.", inputSchema: z.object({}) }, async (_, context) => {
    writeFileSync(`${process.env.TEST_FOLDER}/waiting`, "");
    const signal = context.signal ?? context.mcpReq.signal;
    await setTimeout(600_000, undefined, { signal }).catch(() => {});
    writeFileSync(`${process.env.TEST_FOLDER}/cancelled`, "");
    return { content: [{ type: "text", text: "waited" }] };
  });
}
