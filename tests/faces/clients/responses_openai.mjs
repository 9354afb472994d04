// The client of OpenAI for JavaScript: a run with three calls, of which a person approves one.
// Arguments: the address of the host; plain, raw, helper, join or helper_join.
import OpenAI from 'openai';

const [address, mode] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${address}/v1`, apiKey: 'none' });

// Reads a stream up to its end, and joins it after each cut.
async function joined(body) {
  let id, last, final, text = '';
  let stream = await client.responses.create({ ...body, stream: true });
  for (let cut = 3; !final; cut += 3) {
    let seen = 0;
    for await (const event of stream) {
      id ??= event.response?.id;
      last = event.sequence_number;
      if (event.type === 'response.output_text.delta') text += event.delta;
      if (event.type === 'response.completed') final = event.response;
      if (++seen === cut) break;
    }
    if (!final) stream = await client.responses.retrieve(id, { stream: true, starting_after: last });
  }
  final.output_text = text;
  return final;
}

async function respond(body) {
  if (mode === 'plain') return client.responses.create(body);
  if (mode === 'helper') return client.responses.stream(body).finalResponse();
  if (mode === 'join') return joined(body);
  if (mode === 'helper_join') {
    const { id } = await client.responses.create(body);
    return client.responses.stream({ response_id: id, starting_after: 1 }).finalResponse();
  }
  let final, text = '';
  for await (const event of await client.responses.create({ ...body, stream: true })) {
    if (event.type === 'response.output_text.delta') text += event.delta;
    if (event.type === 'response.completed') final = event.response;
  }
  return { ...final, output_text: text };
}

const first = await respond({ model: 'default', input: 'go' });
const request = first.output.find((item) => item.type === 'mcp_approval_request');
const second = await respond({
  model: 'default',
  previous_response_id: first.id,
  input: [{ type: 'mcp_approval_response', approval_request_id: request.id, approve: true }],
});
const kinds = (response) => response.output.map((item) => item.type);
let refused;
try {
  await client.responses.create({ model: 'default', input: 'go', prompt: { id: 'p' } });
} catch (error) {
  refused = [error.constructor.name, error.param];
}
console.log(JSON.stringify({
  first: kinds(first), second: kinds(second), text: second.output_text, refused,
}));
