"""Tasks in the manner of RULER (Hsieh et al., 2024), of any length in tokens of any tokenizer.

`ExampleMaker.make` gives an example as a function of (seed, task, length, depth, index) and the documents; `score`
judges a completion. A prompt ends with the beginning of its answer, for models that only continue text.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Protocol

from arcforge_core.errors import ConfigError, nearest
from arcforge_core.eval.long_context.fitting import largest
from arcforge_core.eval.long_context.plans import PLANS, Setting

TASKS = tuple(PLANS)
TASKS_WITH_DEPTH = ("single", "multi_key", "qa")
"""Tasks that ask for what stands at one place; the others ask for all of several places, or for the whole."""
SLACK_TOKENS = 8
"""Generated beyond the tokens of the answers: other signs between them, a few words before."""


class Encodes(Protocol):
    """A tokenizer, as far as it is needed here."""

    def encode(self, text: str, /) -> Sized:
        """Returns the tokens of `text`, or anything that is as long."""


@dataclass(frozen=True)
class Example:
    """One question.

    Attributes:
        task: one of `TASKS`.
        prompt: context and question.
        answers: all that the completion should hold.
        length: tokens that were asked for. A token that begins the text, the prompt and `max_new_tokens` fit in it.
        depth: share of the context before what is asked for; None for tasks that ask for several places.
        max_new_tokens: how much to generate.
        prompt_tokens: what the prompt takes, without a token that begins the text.
    """

    task: str
    prompt: str
    answers: tuple[str, ...]
    length: int
    depth: float | None
    max_new_tokens: int
    prompt_tokens: int


class ExampleMaker:
    """Makes examples of one tokenizer whose filler is the text of given documents."""

    def __init__(self, documents: Sequence[str], tokenizer: Encodes) -> None:
        """`documents` are texts; `tokenizer` is anything with an `encode` whose results have a length."""
        self._texts = [text for text in documents if text.strip()]
        self._words = frozenset(word for text in self._texts for word in re.findall(r"[a-z]+", text))
        self._tokenizer = tokenizer

    def make(self, task: str, length: int, *, depth: float | None = None, seed: int = 0, index: int = 0) -> Example:
        """Returns example number `index`; the same arguments give the same one.

        Args:
            task: one of `TASKS`.
            length: tokens of a beginning token, the prompt and the answer together, at most and as near as can be.
            depth: for tasks of `TASKS_WITH_DEPTH` the share of the context before what is asked for; None draws one.
            seed, index: which example.

        Raises:
            ConfigError: an unknown task, a depth that is none, or a length that is too short; the least is named.
            DataError: the documents do not suffice.
        """
        if task not in PLANS:
            raise ConfigError("tasks", task, f"must be one of {', '.join(TASKS)}{nearest(task, TASKS)}")
        if depth is not None and (task not in TASKS_WITH_DEPTH or not 0 <= depth <= 1):
            raise ConfigError("depth", depth, f"must be between 0 and 1, for {', '.join(TASKS_WITH_DEPTH)} only")
        name = f"{seed}/{task}/{length}/{depth}/{index}"
        plan = PLANS[task](Setting(name, random.Random(name), self._texts, self._words, depth))
        max_new_tokens = self._count(f" {', '.join(plan.answers)}") + SLACK_TOKENS
        room = length - 1 - max_new_tokens
        size = largest(lambda n: self._count(plan.build(n)), room, plan.least)
        if size is None:
            needed = length - room + self._count(plan.build(plan.least))
            raise ConfigError("length", length, f"the task {task} needs at least {needed} tokens of this tokenizer")
        prompt = plan.build(size)
        return Example(task, prompt, plan.answers, length, plan.depth, max_new_tokens, self._count(prompt))

    def _count(self, text: str) -> int:
        return len(self._tokenizer.encode(text))


def score(example: Example, completion: str) -> float:
    """Returns the share of the answers that the completion contains, RULER's string match."""
    said = completion.lower()
    return sum(answer.lower() in said for answer in example.answers) / len(example.answers)
