"""The client of OpenAI for Python: a run with three calls, of which a person approves one.

Arguments: the address of the host; plain, raw, helper or join.
"""

import json
import sys

import openai

address, mode = sys.argv[1:3]
client = openai.OpenAI(base_url=f"{address}/v1", api_key="none")


def joined(body):
    """Reads a stream up to its end, and joins it after each cut."""
    stream, final, text, cut, identity = client.responses.create(**body, stream=True), None, "", 3, None
    while final is None:
        for seen, event in enumerate(stream, 1):
            if event.type == "response.created":
                identity = event.response.id
            last = event.sequence_number
            if event.type == "response.output_text.delta":
                text += event.delta
            if event.type == "response.completed":
                final = event.response
            if seen == cut:
                break
        stream.close()
        cut += 3
        if final is None:
            stream = client.responses.retrieve(identity, stream=True, starting_after=last)
    return final, text


def respond(**body):
    if mode == "plain":
        response = client.responses.create(**body)
        return response, response.output_text
    if mode == "helper":
        with client.responses.stream(**body) as stream:
            for _ in stream:
                pass
            response = stream.get_final_response()
        return response, response.output_text
    if mode == "join":
        return joined(body)
    final, text = None, ""
    for event in client.responses.create(**body, stream=True):
        if event.type == "response.output_text.delta":
            text += event.delta
        if event.type == "response.completed":
            final = event.response
    return final, text


first, _ = respond(model="default", input="go")
request = next(item for item in first.output if item.type == "mcp_approval_request")
decision = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
second, text = respond(model="default", previous_response_id=first.id, input=[decision])
try:
    client.responses.create(model="default", input="go", extra_body={"prompt": {"id": "p"}})
    refused = None
except openai.BadRequestError as error:
    refused = ["BadRequestError", error.param]
kinds = lambda response: [item.type for item in response.output]
print(json.dumps({"first": kinds(first), "second": kinds(second), "text": text, "refused": refused}))
