"""Tasks for inspect-ai that need nothing from a hub: sums, sums with a tool, and sums as JSON.

Run by `run.py` in the harnesses' own environment; nothing of arcforge is imported.
"""

from __future__ import annotations

import json
import random

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig, ResponseSchema
from inspect_ai.scorer import Score, Scorer, Target, accuracy, includes, scorer
from inspect_ai.solver import TaskState, generate, use_tools
from inspect_ai.tool import Tool, tool
from inspect_ai.util import json_schema
from pydantic import BaseModel

PLAIN = {"chat_template_kwargs": {"enable_thinking": False}}
"""Small models answer sums without thinking or not at all; every dialect of the server has this field."""


def sums_of(count: int, seed: int = 7) -> list[Sample]:
    """Returns sums of two numbers below a thousand."""
    draw = random.Random(seed)
    pairs = [(draw.randrange(1000), draw.randrange(1000)) for _ in range(count)]
    return [Sample(input=f"{a} + {b}=", target=str(a + b)) for a, b in pairs]


@task
def sums(count: int = 10) -> Task:
    """Sums, answered in a text."""
    return Task(dataset=sums_of(count), solver=generate(), scorer=includes(), config=GenerateConfig(extra_body=PLAIN))


@tool
def calculator() -> Tool:
    """A calculator."""

    async def execute(expression: str) -> str:
        """Computes an expression of numbers.

        Args:
            expression: The expression.
        """
        terms = [part.strip() for part in expression.rstrip("=").split("+")]
        return str(sum(int(term) for term in terms)) if all(map(str.isdigit, terms)) else "this is no sum"

    return execute


@scorer(metrics=[accuracy()])
def called() -> Scorer:
    """Whether the tool was called and its result came back to the model, which then ended."""

    async def score(state: TaskState, target: Target) -> Score:
        results = [message for message in state.messages if message.role == "tool"]
        return Score(value=bool(results) and state.messages[-1].role == "assistant", explanation=str(len(results)))

    return score


@task
def calls(count: int = 10) -> Task:
    """Sums, for which there is a calculator."""
    return Task(
        dataset=sums_of(count),
        solver=[use_tools(calculator()), generate()],
        scorer=[called(), includes()],
        message_limit=12,
    )


class Answer(BaseModel):
    """What the JSON must hold."""

    answer: int


@scorer(metrics=[accuracy()])
def follows() -> Scorer:
    """Whether the text is such an object."""

    async def score(state: TaskState, target: Target) -> Score:
        try:
            found = set(json.loads(state.output.completion))
        except ValueError:
            found = set()
        return Score(value=found == {"answer"}, answer=state.output.completion)

    return score


@task
def objects(count: int = 10) -> Task:
    """Sums, answered as JSON of a schema."""
    schema = ResponseSchema(name="answer", json_schema=json_schema(Answer), strict=True)
    config = GenerateConfig(response_schema=schema, extra_body=PLAIN)
    return Task(dataset=sums_of(count), solver=generate(), scorer=follows(), config=config)
