// The WebSocket of Node: the second request goes on from the first, and the third is wrong. A wrong request evicts the
// response that it goes on from, if that is not stored; another connection does not find one that is not stored.
// Arguments: the address of the host.
const [address] = process.argv.slice(2);

async function connect() {
  const socket = new WebSocket(`${address.replace('http', 'ws')}/v1/responses`);
  const events = [];
  let notify;
  socket.onmessage = ({ data }) => { events.push(JSON.parse(data)); notify?.(); };
  await new Promise((resolve, reject) => { socket.onopen = resolve; socket.onerror = reject; });
  const respond = async (body) => {
    socket.send(JSON.stringify({ type: 'response.create', model: 'default', ...body }));
    const seen = [];
    for (;;) {
      while (events.length > 0) {
        const event = events.shift();
        seen.push(event);
        if (['response.completed', 'response.failed', 'error'].includes(event.type)) return seen;
      }
      await new Promise((resolve) => { notify = resolve; });
    }
  };
  return { socket, respond };
}

const { socket, respond } = await connect();
const unstored = (input, id) => respond({ input, store: false, previous_response_id: id });
const first = await unstored('go');
const id = first.at(-1).response.id;
const second = await unstored('on', id);
const wrong = await respond({ input: 'on', previous_response_id: 'resp_x' });
const output = [{ type: 'function_call_output', call_id: 'call_missing', output: 'ok' }];
const failed = await unstored(output, id);
const evicted = await unstored('on', id);
const broken = await respond({ input: 'fail' });
const third = await unstored('go');
const other = await connect();
const elsewhere = await other.respond({ input: 'on', previous_response_id: third.at(-1).response.id });
const seen = [first, second, third];
const texts = seen.map((events) => events.at(-1).response.output[0].content[0].text);
const session = third.at(-1).response.conversation.id.slice('conv_'.length);
for (const { socket: open } of [{ socket }, other]) open.close();
const errors = [wrong, failed, evicted, elsewhere].map(([error]) => error);
console.log(JSON.stringify({ broken: broken.at(-1).type, texts, session, events: seen.flat(), errors }));
