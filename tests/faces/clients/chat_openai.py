"""The official client for Python: raw streams, the helper `.stream()`, and plain answers."""

import json
import sys

import openai

host, mode, *texts = sys.argv[1:]
client = openai.OpenAI(base_url=f"{host}/v1", api_key="none", max_retries=2 if mode == "retry" else 0)
TOOLS = [{"type": "function", "function": {"name": "open_file", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}}]


def complete(messages, **rest):
    body = {"model": "default", "messages": messages, **rest}
    if mode in ("plain", "retry"):
        choice = client.chat.completions.create(**body).choices[0]
        return choice.message.model_dump(), choice.finish_reason
    if mode == "helper":
        with client.chat.completions.stream(**body) as stream:
            for _ in stream:
                pass
            choice = stream.get_final_completion().choices[0]
        message = choice.message.model_dump(exclude={"parsed"})
        for call in message["tool_calls"] or []:
            call["function"].pop("parsed_arguments", None)
            call.pop("index", None)
        return message, choice.finish_reason
    message, finish = {"role": "assistant", "content": ""}, None
    for chunk in client.chat.completions.create(**body, stream=True):
        choice = chunk.choices[0]
        message["content"] += choice.delta.content or ""
        for call in choice.delta.tool_calls or []:
            calls = message.setdefault("tool_calls", [])
            if call.index == len(calls):
                calls.append({"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": ""}})
            calls[call.index]["function"]["arguments"] += call.function.arguments
        finish = choice.finish_reason or finish
    return message, finish


messages, answers = [{"role": "system", "content": "Be brief."}], []
for text in texts:
    messages.append({"role": "user", "content": text})
    while True:
        message, finish = complete(messages, **({"tools": TOOLS} if "file" in text else {}))
        messages.append(message)
        calls = message.get("tool_calls") or []
        answers.append({"content": message["content"], "finish_reason": finish, "calls": len(calls)})
        if finish != "tool_calls":
            break
        for call in calls:
            path = json.loads(call["function"]["arguments"])["path"]
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": f"opened {path}"})
models = [model.id for model in client.models.list()]
try:
    client.models.retrieve("nobody")
except openai.NotFoundError as error:
    missing = [error.status_code, error.code]
print(json.dumps({"answers": answers, "models": models, "missing": missing}))
