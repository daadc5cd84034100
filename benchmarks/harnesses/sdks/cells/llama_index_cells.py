"""LlamaIndex's `OpenAILike`."""

import pydantic
from _common import ASK, KEY, TEXT, WEATHER_OF, get_weather, main
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike


class Weather(pydantic.BaseModel):
    """The weather of a city."""

    city: str
    degrees: int


WANTED = Weather(city="Paris", degrees=21)
ASKED = [ChatMessage(role="user", content=ASK)]
TOOL = FunctionTool.from_defaults(get_weather)


def model(url, **options):
    return OpenAILike(
        model="small", api_base=f"{url}/v1", api_key=KEY, is_chat_model=True, is_function_calling_model=True,
        max_retries=0, context_window=8192, **options,
    )  # fmt: skip


def chat(url):
    assert model(url).chat(ASKED).message.content == TEXT


def stream(url):
    *_, last = model(url).stream_chat(ASKED)
    assert last.message.content == TEXT


def tools(url):
    llm = model(url)
    reply = llm.chat_with_tools([TOOL], chat_history=ASKED)
    (call,) = llm.get_tool_calls_from_response(reply)
    assert (call.tool_name, call.tool_kwargs) == ("get_weather", {"city": "Paris"})
    result = ChatMessage(role="tool", content=WEATHER_OF, additional_kwargs={"tool_call_id": call.tool_id})
    assert llm.chat_with_tools([TOOL], chat_history=[*ASKED, reply.message, result]).message.content == TEXT


def structured(url):
    assert model(url).as_structured_llm(Weather).chat(ASKED).raw == WANTED


def tools_structured(url):
    llm = model(url, should_use_structured_outputs=True)
    schema = {"type": "json_schema", "json_schema": {"name": "w", "schema": Weather.model_json_schema()}}
    reply = llm.chat_with_tools([TOOL], chat_history=ASKED, response_format=schema)
    (call,) = llm.get_tool_calls_from_response(reply)
    assert call.tool_kwargs == {"city": "Paris"}
    result = ChatMessage(role="tool", content=WEATHER_OF, additional_kwargs={"tool_call_id": call.tool_id})
    again = llm.chat_with_tools([TOOL], chat_history=[*ASKED, reply.message, result], response_format=schema)
    assert Weather.model_validate_json(again.message.content) == WANTED


main({cell.__name__: cell for cell in (chat, stream, tools, structured, tools_structured)})
