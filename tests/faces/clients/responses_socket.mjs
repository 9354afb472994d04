// The WebSocket of Node: the second request goes on from the first, and the third is wrong. A wrong request evicts the
// response that it goes on from, if that is not stored.
// Arguments: the address of the host.
const [address] = process.argv.slice(2);
const socket = new WebSocket(`${address.replace('http', 'ws')}/v1/responses`);
const events = [];
let notify;
socket.onmessage = ({ data }) => { events.push(JSON.parse(data)); notify?.(); };
await new Promise((resolve, reject) => { socket.onopen = resolve; socket.onerror = reject; });

async function respond(body) {
  socket.send(JSON.stringify({ type: 'response.create', ...body }));
  const seen = [];
  for (;;) {
    while (events.length > 0) {
      const event = events.shift();
      seen.push(event);
      if (['response.completed', 'error'].includes(event.type)) return seen;
    }
    await new Promise((resolve) => { notify = resolve; });
  }
}

const first = await respond({ model: 'default', input: 'go', store: false });
const id = first.at(-1).response.id;
const second = await respond({ model: 'default', input: 'on', store: false, previous_response_id: id });
const wrong = await respond({ model: 'default', input: 'on', previous_response_id: 'resp_x' });
const output = [{ type: 'function_call_output', call_id: 'call_missing', output: 'ok' }];
const failed = await respond({ model: 'default', input: output, store: false, previous_response_id: id });
const evicted = await respond({ model: 'default', input: 'on', store: false, previous_response_id: id });
const third = await respond({ model: 'default', input: 'go', store: false });
const texts = [first, second, third].map((seen) => seen.at(-1).response.output[0].content[0].text);
const session = third.at(-1).response.conversation.id.slice('conv_'.length);
socket.close();
console.log(JSON.stringify({ texts, session, events: [...first, ...second, ...third], errors: [wrong[0], failed[0], evicted[0]] }));
