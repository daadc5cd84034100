"""Judges that are programs: with known taste, biases and faults."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from arcforge_core.contracts.chat import Message
from arcforge_core.contracts.environment import EpisodeFailure, Reply
from support.listening import JsonHandler, listening

RUBRIC = """
instructions = "You judge numbers."
[[criterion]]
name = "great"
weight = 3.0
choices = ["small", "middling", "great"]
[[criterion]]
name = "plain"
choices = ["no", "yes"]
"""
"""Of `Scripted`: how great the number in a reply is."""

Answer = Callable[[Sequence[Message], Mapping[str, Any], str], str]


def write_rubric(folder: Path, text: str = RUBRIC) -> str:
    """Writes a rubric and returns its path."""
    (folder / "rubric.toml").write_text(text)
    return str(folder / "rubric.toml")


def quotations(messages: Sequence[Message]) -> list[str]:
    """Returns the quotations of the question: the prompt, then the candidates."""
    lines = messages[-1].content.splitlines()
    return [json.loads(line.removeprefix("QUOTED ")) for line in lines if line.startswith("QUOTED ")]


def numbers(text: str) -> float:
    """Returns the first number of a text; 0 without one."""
    found = re.search(r"\d+", text)
    return float(found.group()) if found else 0.0


def honest(messages: Sequence[Message], schema: Mapping[str, Any], seed: str) -> str:
    """Prefers greater numbers; above 9 they are great, above 4 middling."""
    texts = quotations(messages)[1:]
    properties = schema["properties"]
    if "better" in properties:
        one, other = properties["better"]["enum"][:2]
        better = "tie" if numbers(texts[0]) == numbers(texts[1]) else one
        better = other if numbers(texts[0]) < numbers(texts[1]) else better
        return json.dumps({"reason": "by number", "better": better})
    value = numbers(texts[0])
    great = "great" if value > 9 else "middling" if value > 4 else "small"
    (candidate,) = properties["candidate"]["enum"]
    return json.dumps({"candidate": candidate, "reason": f"it is {value}", "great": great, "plain": "yes"})


def first_wins(messages: Sequence[Message], schema: Mapping[str, Any], seed: str) -> str:
    """Prefers whatever comes first."""
    return json.dumps({"reason": "", "better": schema["properties"]["better"]["enum"][0]})


class Scripted:
    """Agents that answer by a function; ``agent_of`` of a judge.

    Attributes:
        seeds: of all requests.
    """

    def __init__(self, answer: Answer = honest) -> None:
        self.answer = answer
        self.seeds: list[str] = []

    def __call__(self, name: str, seed: str, schema: Mapping[str, Any] | None) -> Any:
        judges = self

        class One:
            async def reply(self, messages: Sequence[Message], tools: Any = (), options: Any = None) -> Reply:
                judges.seeds.append(seed)
                assert schema is not None
                return Reply(judges.answer(messages, schema, seed))

        return One()


@contextmanager
def judge_server(answer: Answer) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server of chat completions whose replies an `Answer` gives; one that raises is a status of HTTP, its argument,
    or half an answer."""
    asked: list[dict[str, Any]] = []

    def post(request: JsonHandler) -> None:
        body = request.body()
        asked.append(body)
        messages = [Message(one["role"], one["content"]) for one in body["messages"]]
        try:
            said = answer(messages, body["response_format"]["json_schema"]["schema"], str(body["seed"]))
        except RuntimeError as error:
            status = int(str(error))
            request.answer(status, {}, part=0.5 if status == 206 else 1.0)
        else:
            choice = {"message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
            request.answer(200, {"choices": [choice]})

    with listening(post) as url:
        yield url, asked


def never(messages: Sequence[Message], schema: Mapping[str, Any], seed: str) -> str:
    """Does not answer."""
    raise EpisodeFailure("engine", "HTTP 500")
