"""OpenAI Agents, through chat completions and through responses."""

import asyncio

import agents
import openai
import pydantic
from _common import ASK, CALLED, KEY, TEXT, get_weather, main

agents.set_tracing_disabled(True)
TOOL = agents.function_tool(get_weather)


class Weather(pydantic.BaseModel):
    """The weather of a city."""

    city: str
    degrees: int


WANTED = Weather(city="Paris", degrees=21)


def both(url, **options):
    """Yields an agent for each dialect."""
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
    for kind in (agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel):
        yield agents.Agent(
            name="a", instructions="Be brief.", model=kind(model="small", openai_client=client), **options
        )


async def answers(url, **options):
    return [(await agents.Runner.run(agent, ASK)).final_output for agent in both(url, **options)]


def chat(url):
    assert asyncio.run(answers(url)) == [TEXT, TEXT]


def stream(url):
    async def read():
        for agent in both(url):
            result = agents.Runner.run_streamed(agent, ASK)
            events = [event async for event in result.stream_events()]
            assert len(events) > 3
            assert result.final_output == TEXT

    asyncio.run(read())


def tools(url):
    assert asyncio.run(answers(url, tools=[TOOL])) == [TEXT, TEXT]
    assert CALLED == ["Paris", "Paris"]


def structured(url):
    assert asyncio.run(answers(url, output_type=Weather)) == [WANTED, WANTED]


def tools_structured(url):
    assert asyncio.run(answers(url, tools=[TOOL], output_type=Weather)) == [WANTED, WANTED]
    assert CALLED == ["Paris", "Paris"]


main({cell.__name__: cell for cell in (chat, stream, tools, structured, tools_structured)})
