#!/usr/bin/env bash
# A stream that ends before its end mark (no finish reason, no [DONE], no response.completed, no message_stop, no "done")
# is no error in any of the official Python clients: the loop ends as after a whole answer, with half a sentence. This is
# what a proxy leaves whose upstream connection broke. Callsheet takes such a response for broken and asks again.
source "$(dirname "$0")/common.sh"
expected="openai chat: half a sen
openai responses: half a sen
anthropic: half a sen, stop_reason None
google-genai: half a sen
ollama: half a sen"
try openai==3.57.0 anthropic==2.14.0 google-genai==3.6.1 ollama==0.6.3 <<'PYTHON'
import json
from service import serve

def events(*payloads):
    return "".join((f"event: {p['type']}\n" if "type" in p else "") + f"data: {json.dumps(p)}\n\n" for p in payloads).encode()

question = [{"role": "user", "content": "say something"}]

from openai import OpenAI
body = events({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [{"index": 0, "delta": {"role": "assistant", "content": "half a sen"}, "finish_reason": None}]})
client = OpenAI(base_url=serve(body), api_key="none", max_retries=0)
print("openai chat:", "".join(c.choices[0].delta.content for c in client.chat.completions.create(model="m", stream=True, messages=question)))

body = events({"type": "response.output_text.delta", "item_id": "msg_1", "output_index": 0, "content_index": 0, "delta": "half a sen", "logprobs": [], "sequence_number": 1})
client = OpenAI(base_url=serve(body), api_key="none", max_retries=0)
print("openai responses:", "".join(e.delta for e in client.responses.create(model="m", stream=True, input="say something")))

from anthropic import Anthropic
body = events(
    {"type": "message_start", "message": {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 9, "output_tokens": 1}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "half a sen"}})
client = Anthropic(base_url=serve(body), api_key="none", max_retries=0)
with client.messages.stream(model="m", max_tokens=20, messages=question) as stream:
    message = stream.get_final_message()
print(f"anthropic: {message.content[0].text}, stop_reason {message.stop_reason}")

from google import genai
body = events({"candidates": [{"content": {"role": "model", "parts": [{"text": "half a sen"}]}}]})
client = genai.Client(api_key="none", http_options={"base_url": serve(body)})
print("google-genai:", "".join(c.text for c in client.models.generate_content_stream(model="m", contents="say something")))

from ollama import Client
body = json.dumps({"model": "m", "message": {"role": "assistant", "content": "half a sen"}, "done": False}).encode() + b"\n"
client = Client(host=serve(body, "application/x-ndjson"))
print("ollama:", "".join(c.message.content for c in client.chat(model="m", messages=question, stream=True)))
PYTHON
