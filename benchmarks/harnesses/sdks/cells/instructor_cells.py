"""Instructor, in each of its modes for servers of OpenAI's dialect."""

import instructor
import openai
import pydantic
from _common import ASK, KEY, main

ASKED = [{"role": "user", "content": ASK}]


class Weather(pydantic.BaseModel):
    """The weather of a city."""

    city: str
    degrees: int


WANTED = {"city": "Paris", "degrees": 21}


def client(url, mode):
    return instructor.from_openai(openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0), mode=mode)


def structured(url):
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON, instructor.Mode.JSON_SCHEMA):
        asked = client(url, mode).chat.completions
        found = asked.create(model="small", messages=ASKED, response_model=Weather, max_retries=0)
        assert found.model_dump() == WANTED  # of a class that it derives


def chat(url):
    asked = client(url, instructor.Mode.TOOLS).chat.completions
    assert asked.create(model="small", messages=ASKED, response_model=None).choices[0].message.content


def stream(url):
    asked = client(url, instructor.Mode.TOOLS).chat.completions
    *_, last = asked.create_partial(model="small", messages=ASKED, response_model=Weather)
    assert (last.city, last.degrees) == ("Paris", 21)


main({cell.__name__: cell for cell in (chat, stream, structured)})
