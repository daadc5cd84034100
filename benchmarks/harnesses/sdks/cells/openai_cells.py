"""The `openai` client: chat completions and responses."""

import json

import openai
import pydantic
from _common import ASK, KEY, TEXT, TOOL, WEATHER_OF, main

ASKED = [{"role": "user", "content": ASK}]
CHAT_TOOL = {"type": "function", "function": {**TOOL, "strict": True}}


class Weather(pydantic.BaseModel):
    """The weather of a city."""

    city: str
    degrees: int


def client(url):
    return openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)


def chat(url):
    answer = client(url).chat.completions.create(model="small", messages=ASKED, reasoning_effort="low", verbosity="low")
    assert answer.choices[0].message.content == TEXT
    assert client(url).responses.create(model="small", input=ASK, truncation="auto").output_text == TEXT


def stream(url):
    with client(url).chat.completions.stream(model="small", messages=ASKED) as events:
        assert events.get_final_completion().choices[0].message.content == TEXT
    with client(url).responses.stream(model="small", input=ASK) as events:
        assert events.get_final_response().output_text == TEXT


def tools(url, **more):
    fields = {"model": "small", "tools": [CHAT_TOOL], **more}
    message = client(url).chat.completions.parse(messages=ASKED, **fields).choices[0].message
    (call,) = message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
    result = {"role": "tool", "tool_call_id": call.id, "content": WEATHER_OF}
    again = client(url).chat.completions.parse(messages=[*ASKED, message, result], **fields).choices[0].message
    assert again.parsed == Weather(city="Paris", degrees=21) if more else again.content == TEXT
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_weather"}]}
    tool = {"type": "function", **TOOL, "strict": True}
    reply = client(url).responses.create(model="small", input=ASK, tools=[tool], tool_choice=allowed)
    assert reply.output[-1].name == "get_weather"


def structured(url):
    answer = client(url).chat.completions.parse(model="small", messages=ASKED, response_format=Weather)
    assert answer.choices[0].message.parsed == Weather(city="Paris", degrees=21)
    reply = client(url).responses.parse(model="small", input=ASK, text_format=Weather)
    assert reply.output_parsed == Weather(city="Paris", degrees=21)


def tools_structured(url):
    tools(url, response_format=Weather)


main({cell.__name__: cell for cell in (chat, stream, tools, structured, tools_structured)})
