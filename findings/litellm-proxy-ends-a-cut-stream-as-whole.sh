#!/usr/bin/env bash
# Behind LiteLLM's proxy a stream that ended too early looks whole: if the upstream's body ends without a finish reason
# (a server that stopped, a load balancer that closed properly), the proxy adds `finish_reason: "stop"` and `[DONE]`, also
# within the arguments of a tool call. Nothing behind the proxy can tell such an answer from a whole one, except by
# arguments that are not JSON. A transfer that breaks off (within a chunk, or by a reset) is reported as an error event.
source "$(dirname "$0")/common.sh"
expected="body ends in a sentence: half a sen | stop | [DONE]
body ends in a call: {\"folder\":\"/tm | stop | [DONE]"
try 'litellm[proxy]==1.100.0' <<'PYTHON'
import json, os, socket, subprocess, time, urllib.request
from service import serve

def chunk(delta):
    return b"data: " + json.dumps({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}).encode() + b"\n\n"

call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "clean_up", "arguments": '{"folder":"/tm'}}
bodies = {
    "sentence": chunk({"role": "assistant", "content": "half"}) + chunk({"content": " a sen"}),
    "call": chunk({"role": "assistant", "content": None}) + chunk({"tool_calls": [call]}),
}
models = [{"model_name": name, "litellm_params": {"model": "openai/m", "api_base": serve(body) + "/v1", "api_key": "none"}} for name, body in bodies.items()]
with open("config.yaml", "w") as file:
    json.dump({"model_list": models}, file)
free = socket.socket()
free.bind(("127.0.0.1", 0))
port = free.getsockname()[1]
free.close()
environment = dict(os.environ, LITELLM_LOCAL_MODEL_COST_MAP="True")
proxy = subprocess.Popen(["env/bin/litellm", "--config", "config.yaml", "--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"],
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
try:
    for _ in range(45):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health/liveliness", timeout=2).read()
            break
        except OSError:
            time.sleep(1)
    for name in bodies:
        question = json.dumps({"model": name, "stream": True, "messages": [{"role": "user", "content": "go"}]}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", question, {"content-type": "application/json"})
        said, finish, done = "", None, ""
        for line in urllib.request.urlopen(request, timeout=30).read().decode().splitlines():
            if line == "data: [DONE]":
                done = "[DONE]"
            elif line.startswith("data: "):
                choice = json.loads(line[6:])["choices"][0]
                said += choice["delta"].get("content") or ""
                for piece in choice["delta"].get("tool_calls") or []:
                    said += piece["function"].get("arguments") or ""
                finish = choice.get("finish_reason") or finish
        print(f"body ends in a {name}: {said} | {finish} | {done}")
finally:
    proxy.kill()
PYTHON
