"""LiteLLM, whose messages are sent back as it returns them."""

import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks GitHub at import

import litellm
from _common import ASK, KEY, SCHEMA, TEXT, TOOL, WEATHER_OF, main

ASKED = [{"role": "user", "content": ASK}]
FORMAT = {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA, "strict": True}}


def ask(url, messages=ASKED, **fields):
    return litellm.completion(
        model="openai/small", api_base=f"{url}/v1", api_key=KEY, messages=messages, max_retries=0, **fields
    )


def chat(url):
    assert ask(url).choices[0].message.content == TEXT


def stream(url):
    parts = list(ask(url, stream=True))
    assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == TEXT


def tools(url, **more):
    message = ask(url, tools=[{"type": "function", "function": TOOL}], **more).choices[0].message
    (call,) = message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    result = {"role": "tool", "tool_call_id": call.id, "content": WEATHER_OF}
    turn = {**message.model_dump(), "provider_specific_fields": {"refusal": None}}
    text = ask(url, [*ASKED, turn, result], tools=[{"type": "function", "function": TOOL}], **more)
    found = text.choices[0].message.content
    assert json.loads(found) == {"city": "Paris", "degrees": 21} if more else found == TEXT


def structured(url):
    found = ask(url, response_format=FORMAT).choices[0].message.content
    assert json.loads(found) == {"city": "Paris", "degrees": 21}


def tools_structured(url):
    tools(url, response_format=FORMAT)


main({cell.__name__: cell for cell in (chat, stream, tools, structured, tools_structured)})
