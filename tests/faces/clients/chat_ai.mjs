// The AI SDK with `@ai-sdk/openai-compatible`: streamed and plain, with a tool of the client.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";

const [host, mode, ...texts] = process.argv.slice(2);
const provider = createOpenAICompatible({ name: "callsheet", baseURL: `${host}/v1`, includeUsage: true });
const ran = [];
const tools = {
  open_file: tool({
    inputSchema: jsonSchema({ type: "object", properties: { path: { type: "string" } } }),
    execute: async ({ path }) => { ran.push(path); return `opened ${path}`; },
  }),
};
const messages = [];
const answers = [];
for (const text of texts) {
  messages.push({ role: "user", content: text });
  const options = { model: provider("default"), system: "Be brief.", messages, stopWhen: stepCountIs(5), maxRetries: 0 };
  if (text.includes("file")) options.tools = tools;
  let result;
  if (mode === "plain") {
    result = await generateText(options);
  } else {
    result = streamText(options);
    await result.consumeStream();
  }
  const [steps, response] = [await result.steps, await result.response];
  const added = mode === "plain" ? result.response.messages : response.messages;
  messages.push(...added);
  for (const step of steps) {
    answers.push({ content: step.text, finish_reason: step.finishReason, calls: step.toolCalls.length });
  }
}
console.log(JSON.stringify({ answers, ran }));
