// The AI SDK with its providers: a run with three calls, of which a person approves one.
// Arguments: the address of the host; openai or open-responses; plain or stream.
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenResponses } from '@ai-sdk/open-responses';
import { generateText, streamText } from 'ai';

const [address, provider, mode] = process.argv.slice(2);
const model = provider === 'openai'
  ? createOpenAI({ baseURL: `${address}/v1`, apiKey: 'none' }).responses('default')
  : createOpenResponses({ name: 'host', url: `${address}/v1/responses`, apiKey: 'none' })('default');

async function respond(messages) {
  if (mode === 'plain') return generateText({ model, messages });
  const result = streamText({ model, messages, onError: ({ error }) => { throw error; } });
  await result.consumeStream();
  return {
    content: await result.content,
    text: await result.text,
    finishReason: await result.finishReason,
    response: await result.response,
  };
}

const messages = [{ role: 'user', content: 'go' }];
let result = await respond(messages);
const asked = result.content.filter((part) => part.type === 'tool-approval-request');
const tools = result.content.filter((part) => part.type === 'tool-result').length;
if (asked.length > 0) {
  const content = asked.map(({ approvalId }) => (
    { type: 'tool-approval-response', approvalId, approved: true, providerExecuted: true }));
  result = await respond([...messages, ...result.response.messages, { role: 'tool', content }]);
}
console.log(JSON.stringify({
  asked: asked.length, tools, text: result.text, finish: result.finishReason,
}));
