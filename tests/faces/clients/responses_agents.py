"""The Agents SDK for Python: a run with three calls, of which a person approves one.

Arguments: the address of the host; plain or stream.
"""

import asyncio
import json
import sys

import agents
import openai

address, mode = sys.argv[1:3]
agents.set_default_openai_client(openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none"))
agents.set_tracing_disabled(True)
host = agents.HostedMCPTool(
    tool_config={
        "type": "mcp",
        "server_label": "callsheet",
        "server_url": address,
        "require_approval": "always",
    }
)
agent = agents.Agent(name="host", model="default", tools=[host])


async def run(start):
    if mode == "plain":
        return await agents.Runner.run(agent, start)
    result = agents.Runner.run_streamed(agent, start)
    async for _ in result.stream_events():
        pass
    return result


async def main():
    first = await run("go")
    asked = first.interruptions
    state = first.to_state()
    for interruption in asked:
        state.approve(interruption)
    second = await run(state)
    print(json.dumps({"asked": len(asked), "text": second.final_output}))


asyncio.run(main())
