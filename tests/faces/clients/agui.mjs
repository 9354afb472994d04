// Drives a thread by @ag-ui/client, whose pipeline verifies the order of events; each event is also checked by the schemas
// of @ag-ui/core. agui.mjs HOST SCENARIO THREAD [ARGUMENT]. Prints one JSON line.
import { HttpAgent, buildResumeArray } from "@ag-ui/client";
import { EventSchemas } from "@ag-ui/core/schemas";

const [host, scenario, threadId, argument] = process.argv.slice(2);
const url = `${host}/v1/agui/default`;
const tools = [
  { name: "where", description: "Where the user is.", parameters: { type: "object", properties: {} } },
];

// HttpAgent rejects when its stream breaks, and once more where nothing can catch it.
process.on("unhandledRejection", (error) => {
  if (error.message !== "terminated") throw error;
});

const log = { events: [], errors: [], ids: [], outcomes: [] };

/** A fetch whose first answer breaks after this number of events. */
function cuttingFetch(cut) {
  return async (address, init) => {
    const response = await fetch(address, init);
    if (cut === undefined || !response.ok) return response;
    let events = cut;
    cut = undefined;
    const decoder = new TextDecoder();
    let text = "";
    const cutter = new TransformStream({
      transform(bytes, controller) {
        text += decoder.decode(bytes, { stream: true });
        for (let at; events > 0 && (at = text.indexOf("\n\n")) >= 0; events--) {
          controller.enqueue(new TextEncoder().encode(text.slice(0, at + 2)));
          text = text.slice(at + 2);
        }
        if (events === 0) controller.error(new TypeError("terminated"));
      },
    });
    return new Response(response.body.pipeThrough(cutter), response);
  };
}

/** Joins the run of its thread. */
class JoiningAgent extends HttpAgent {
  requestInit() {
    return { method: "GET", headers: this.headers, signal: this.abortController.signal };
  }
}

/** Joins the run of an agent that was cut off, as docs/clients.md has it. */
async function rejoin(agent) {
  const { threadId, messages, state } = agent;
  const joining = new JoiningAgent({ url: `${url}/${threadId}/stream`, threadId, initialMessages: messages, initialState: state });
  await run(joining);
  agent.setMessages(joining.messages);
  agent.setState(joining.state);
  agent.pendingInterrupts = joining.pendingInterrupts;
}

const subscriber = {
  onEvent({ event }) {
    EventSchemas.parse(event);
    log.events.push(event);
  },
  onRunFinishedEvent: ({ event }) => void log.outcomes.push(event.outcome),
  onRunErrorEvent: ({ event }) => void log.errors.push(event.message),
};

let number = 0;
const user = (content) => ({ id: `mine-${++number}`, role: "user", content });

async function run(agent, parameters = {}) {
  try {
    await agent.runAgent({ tools: [], ...parameters }, subscriber);
  } catch (error) {
    log.errors.push(error.message);
  }
}

/** Answers the interrupts of runs until there are none. */
async function approveAll(agent, answer = () => ({ status: "resolved", payload: { approved: true } })) {
  while (agent.pendingInterrupts.length > 0 && log.errors.length < 3) {
    const open = agent.pendingInterrupts;
    const answers = Object.fromEntries(open.map((one) => [one.id, answer(one)]));
    await run(agent, { resume: buildResumeArray(open, answers) });
  }
}

const agentOf = (options = {}) => new HttpAgent({ url, threadId, ...options });

function print(agent, more = {}) {
  const kinds = log.events.map((event) => event.type);
  console.log(JSON.stringify({ messages: agent.messages, state: agent.state, kinds, ...log, ...more }));
}

const scenarios = {
  async approve() {
    const agent = agentOf();
    agent.addMessage(user(argument ?? "go"));
    await run(agent);
    const asked = structuredClone(agent.pendingInterrupts);
    await approveAll(agent);
    print(agent, { asked });
  },
  async reject() {
    const agent = agentOf();
    agent.addMessage(user("go"));
    await run(agent);
    await approveAll(agent, () => ({ status: "cancelled" }));
    print(agent);
  },
  /** Answers the questions of a tool. */
  async answer() {
    const agent = agentOf();
    agent.addMessage(user("go"));
    await run(agent);
    await approveAll(agent, ({ responseSchema }) => {
      const payload = responseSchema.properties.seats ? { seats: 2 } : { approved: true };
      return { status: "resolved", payload };
    });
    print(agent);
  },
  /** Is cut off after this number of events, joins, and approves. */
  async cut() {
    const broken = agentOf({ fetch: cuttingFetch(Number(argument)) });
    broken.addMessage(user("go"));
    await run(broken);
    const cutOff = log.errors.splice(0);
    await rejoin(broken);
    const joined = broken.messages.map((message) => message.id);
    await approveAll(broken);
    print(broken, { cutOff, joined });
  },
  /** A page that is opened again. */
  async reload() {
    const agent = agentOf();
    await rejoin(agent);
    await approveAll(agent);
    print(agent);
  },
  /** Runs a tool of the page itself. */
  async page() {
    const agent = agentOf();
    agent.addMessage(user([{ type: "text", text: "go" }]));
    await run(agent, { tools, context: [{ description: "Language", value: "Italian" }] });
    for (const id of log.outcomes.at(-1)?.pendingToolCallIds ?? []) {
      agent.addMessage({ id: `result-${id}`, role: "tool", toolCallId: id, content: '{"city":"Rome"}' });
    }
    await run(agent, { tools });
    print(agent);
  },
  async twice() {
    const agent = agentOf();
    agent.addMessage(user("first"));
    await run(agent);
    agent.addMessage(user("second"));
    await run(agent);
    print(agent);
  },
};

await scenarios[scenario]();
