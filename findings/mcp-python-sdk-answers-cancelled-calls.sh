#!/usr/bin/env bash
# The protocol lets a server leave a cancelled request without an answer, but the Python SDK 1.x always answers one: an
# async tool with an error of the code 0, which JSON-RPC does not know, and a tool that is a plain `def` with its normal
# result, as if nothing had been cancelled. Such a tool runs on the event loop (not on a thread, as FastAPI's do), so the
# cancellation is read too late, and `ping` waits as well: a client that takes a silent server for dead would kill it. The
# SDK 2.x runs `def` on threads and does not answer; the tool itself runs to its end all the same.
source "$(dirname "$0")/common.sh"
expected="async: error 0 Request cancelled, ping answered during the call
def: result done, ping answered after the call"
try mcp==1.30.0 <<'PYTHON'
import json, subprocess, sys, time

server = """
import asyncio, time
from mcp.server.fastmcp import FastMCP
server = FastMCP("s")
@server.tool(name="async")
async def wait() -> str:
    await asyncio.sleep(3)
    return "done"
@server.tool(name="def")
def block() -> str:
    time.sleep(3)
    return "done"
server.run()
"""
process = subprocess.Popen([sys.executable, "-c", server], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1)

def send(**message):
    process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")

def read():
    return json.loads(process.stdout.readline())

send(id=0, method="initialize", params={"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}})
read()
send(method="notifications/initialized")
for number, tool in enumerate(["async", "def"]):
    call, ping = f"call {number}", f"ping {number}"
    send(id=call, method="tools/call", params={"name": tool, "arguments": {}})
    # The call runs.
    time.sleep(0.5)
    send(id=ping, method="ping")
    answers = []
    if tool == "async":
        answers.append(read()["id"])
    send(method="notifications/cancelled", params={"requestId": call, "reason": "the user stopped"})
    while call not in answers or ping not in answers:
        message = read()
        answers.append(message["id"])
        if message["id"] == call:
            error = message.get("error")
            text = f"error {error['code']} {error['message']}" if error else "result " + message["result"]["content"][0]["text"]
    print(f"{tool}: {text}, ping answered {'during' if answers[0] == ping else 'after'} the call")
process.stdin.close()
process.wait()
PYTHON
