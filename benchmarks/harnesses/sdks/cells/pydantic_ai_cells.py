"""Pydantic AI: structured output by the server's schema (`NativeOutput`) and by a tool, alone and beside tools."""

import asyncio

import pydantic
from _common import ASK, CALLED, KEY, TEXT, get_weather, main
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class Weather(pydantic.BaseModel):
    """The weather of a city."""

    city: str
    degrees: int


WANTED = Weather(city="Paris", degrees=21)


def agent(url, **options):
    model = OpenAIChatModel("small", provider=OpenAIProvider(base_url=f"{url}/v1", api_key=KEY))
    return Agent(model, **options)


def chat(url):
    assert agent(url).run_sync(ASK).output == TEXT


def stream(url):
    async def read():
        async with agent(url).run_stream(ASK) as result:
            return await result.get_output()

    assert asyncio.run(read()) == TEXT


def tools(url):
    assert agent(url, tools=[get_weather]).run_sync(ASK).output == TEXT
    assert CALLED == ["Paris"]


def structured(url):
    for output in (Weather, NativeOutput(Weather)):
        assert agent(url, output_type=output).run_sync(ASK).output == WANTED


def tools_structured(url):
    for output in (Weather, NativeOutput(Weather)):
        assert agent(url, output_type=output, tools=[get_weather]).run_sync(ASK).output == WANTED
    assert CALLED == ["Paris", "Paris"]


main({cell.__name__: cell for cell in (chat, stream, tools, structured, tools_structured)})
