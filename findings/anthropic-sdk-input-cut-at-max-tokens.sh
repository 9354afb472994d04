#!/usr/bin/env bash
# A tool call that is cut off at max_tokens looks whole in Anthropic's Python client: the parsed input is valid JSON, and
# shorter than what the model was writing. Here the list "keep" has one element of two. Only `stop_reason` tells that the
# call is not complete; a program that runs every tool_use block of the final message deletes what should be kept.
# The stream is what the Messages API sends when max_tokens is reached within a tool call. Callsheet does not run such a call.
source "$(dirname "$0")/common.sh"
expected="stop_reason: max_tokens
input: {'folder': '/srv/old', 'keep': ['a.txt']}"
try anthropic==2.14.0 <<'PYTHON'
import json
from anthropic import Anthropic
from service import serve

events = [
    {"type": "message_start", "message": {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 9, "output_tokens": 1}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "toolu_1", "name": "clean_up", "input": {}}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"folder":"/srv/old","keep":["a.txt","b.t'}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "max_tokens", "stop_sequence": None}, "usage": {"output_tokens": 20}},
    {"type": "message_stop"},
]
body = "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events).encode()
client = Anthropic(base_url=serve(body), api_key="none", max_retries=0)
with client.messages.stream(model="m", max_tokens=20, messages=[{"role": "user", "content": "clean up"}]) as stream:
    message = stream.get_final_message()
print("stop_reason:", message.stop_reason)
print("input:", message.content[0].input)
PYTHON
