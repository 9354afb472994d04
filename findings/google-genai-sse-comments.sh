#!/usr/bin/env bash
# Google's Python client does not accept comments in an event stream. A comment (a line that begins with a colon) is the
# ordinary sign of life of a server or proxy during a long thought (LiteLLM can send ": ping", xAI sends ": keepalive"), and
# the standard of event streams tells clients to ignore it. The client takes the line for JSON, and the whole answer is lost.
source "$(dirname "$0")/common.sh"
expected="without a comment: hi
with a comment: UnknownApiResponseError"
try google-genai==3.6.1 <<'PYTHON'
import json
from google import genai
from service import serve

answer = {"candidates": [{"content": {"role": "model", "parts": [{"text": "hi"}]}, "finishReason": "STOP"}]}
event = b"data: " + json.dumps(answer).encode() + b"\n\n"

def ask(body):
    client = genai.Client(api_key="none", http_options={"base_url": serve(body)})
    try:
        return "".join(chunk.text for chunk in client.models.generate_content_stream(model="m", contents="say hi"))
    except Exception as error:
        return type(error).__name__

print("without a comment:", ask(event))
print("with a comment:", ask(b": keepalive\n\n" + event))
PYTHON
