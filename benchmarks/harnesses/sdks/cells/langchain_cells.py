"""LangChain's `ChatOpenAI` and `ChatAnthropic`."""

import pydantic
from _common import ASK, KEY, TEXT, WEATHER_OF, get_weather, main
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

TOOL = tool(get_weather)


class Weather(pydantic.BaseModel):
    """The weather of a city."""

    city: str
    degrees: int


WANTED = Weather(city="Paris", degrees=21)


def models(url):
    yield ChatOpenAI(model="small", base_url=f"{url}/v1", api_key=KEY, max_retries=0)
    yield ChatOpenAI(model="small", base_url=f"{url}/v1", api_key=KEY, max_retries=0, use_responses_api=True)
    yield ChatAnthropic(model="small", base_url=url, api_key=KEY, max_retries=0, max_tokens=500)


def chat(url):
    for model in models(url):
        assert TEXT in str(model.invoke(ASK).content)


def stream(url):
    for model in models(url):
        parts = list(model.stream(ASK))
        whole = parts[0]
        for part in parts[1:]:
            whole += part
        assert TEXT in str(whole.text if isinstance(whole.text, str) else whole.text())


def tools(url):
    for model in models(url):
        bound = model.bind_tools([TOOL])
        message = bound.invoke(ASK)
        (call,) = message.tool_calls
        assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
        result = ToolMessage(WEATHER_OF, tool_call_id=call["id"])
        assert TEXT in str(bound.invoke([HumanMessage(ASK), message, result]).content)


def structured(url):
    model = next(models(url))
    for method in ("json_schema", "function_calling"):
        assert model.with_structured_output(Weather, method=method).invoke(ASK) == WANTED


def tools_structured(url):
    model = next(models(url)).bind_tools([TOOL], response_format=Weather, strict=True)
    message = model.invoke(ASK)
    (call,) = message.tool_calls
    again = model.invoke([HumanMessage(ASK), message, ToolMessage(WEATHER_OF, tool_call_id=call["id"])])
    assert again.additional_kwargs["parsed"] == WANTED


main({cell.__name__: cell for cell in (chat, stream, tools, structured, tools_structured)})
