#!/usr/bin/env bash
# agno's `OpenAIChat` sends the result of a tool call back under another id than the service gave the call, unless that id
# begins with `call_` and has at most 40 characters: the whole history gets the new ids. Services beside OpenAI give ids of
# many forms (vLLM: `chatcmpl-tool-..`), and one that pairs results with what it keeps of its calls does not find them.
source "$(dirname "$0")/common.sh"
expected="call_1 comes back as call_1
chatcmpl-tool-1 comes back as call_00000000000000000000000000000000000
call_0123456789012345678901234567890123456 comes back as call_00000000000000000000000000000000000"
try agno==3.1.10 openai==2.54.0 <<'PYTHON'
import http.server, json, os, threading
os.environ["AGNO_TELEMETRY"] = "false"
from agno.agent import Agent
from agno.models.openai import OpenAIChat

def run(identifier):
    seen = []
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            results = [message["tool_call_id"] for message in body["messages"] if message["role"] == "tool"]
            seen.extend(results)
            function = {"name": "noon", "arguments": "{}"}
            calls = [{"id": identifier, "type": "function", "function": function}]
            message = {"role": "assistant", "content": "It is noon."} if results else {"role": "assistant", "content": None, "tool_calls": calls}
            choice = {"index": 0, "message": message, "finish_reason": "stop" if results else "tool_calls"}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            answer = json.dumps({"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)
        def log_message(self, *_):
            pass
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    def noon() -> str:
        """Tells the time."""
        return "12:00"
    model = OpenAIChat(id="m", base_url=f"http://127.0.0.1:{server.server_address[1]}/v1", api_key="none")
    Agent(model=model, tools=[noon], telemetry=False).run("go")
    server.shutdown()
    print(f"{identifier} comes back as {seen[0]}")

for identifier in ["call_1", "chatcmpl-tool-1", "call_" + "0123456789" * 3 + "0123456"]:
    run(identifier)
PYTHON
