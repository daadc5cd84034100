"""The `anthropic` client."""

import json

import anthropic
from _common import ASK, KEY, SCHEMA, TEXT, TOOL, WEATHER_OF, main

FIELDS = {"model": "small", "max_tokens": 500}
ASKED = [{"role": "user", "content": ASK}]
CLAUDE_TOOL = {"name": TOOL["name"], "description": TOOL["description"], "input_schema": TOOL["parameters"]}
FORMAT = {"format": {"type": "json_schema", "schema": SCHEMA}}


def client(url):
    return anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0)


def chat(url):
    assert [card.id for card in client(url).models.list()] == ["small"]
    message = client(url).messages.create(messages=ASKED, thinking={"type": "adaptive"}, **FIELDS)
    assert message.content[-1].text == TEXT
    assert client(url).messages.count_tokens(messages=ASKED, model="small").input_tokens > 3


def stream(url):
    with client(url).messages.stream(messages=ASKED, **FIELDS) as events:
        assert events.get_final_message().content[-1].text == TEXT


def tools(url, **more):
    tool = {**CLAUDE_TOOL, "eager_input_streaming": True, "input_examples": [{"city": "Rome"}]}
    message = client(url).messages.create(messages=ASKED, tools=[tool], **FIELDS, **more)
    call = message.content[-1]
    assert (call.name, call.input, message.stop_reason) == ("get_weather", {"city": "Paris"}, "tool_use")
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": WEATHER_OF}]}
    turn = {"role": "assistant", "content": message.content}
    text = client(url).messages.create(messages=[*ASKED, turn, result], tools=[tool], **FIELDS, **more).content[-1].text
    assert json.loads(text) == {"city": "Paris", "degrees": 21} if more else text == TEXT


def structured(url):
    message = client(url).messages.create(messages=ASKED, output_config=FORMAT, **FIELDS)
    assert json.loads(message.content[-1].text) == {"city": "Paris", "degrees": 21}


def tools_structured(url):
    tools(url, output_config=FORMAT)


main({cell.__name__: cell for cell in (chat, stream, tools, structured, tools_structured)})
