"""Tasks in the manner of RULER (Hsieh et al., 2024), of any length in tokens of any tokenizer.

`ExampleMaker.make` returns an example as a function of (seed, task, length, depth, index) and the documents; `score`
scores a completion. A prompt ends with the beginning of its answer, because base models only continue text.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Protocol

from arcforge_core.configs import LONG_CONTEXT_TASKS as TASKS
from arcforge_core.errors import ConfigError, nearest
from arcforge_core.eval.long_context.fitting import largest
from arcforge_core.eval.long_context.plans import PLANS, Setting

TASKS_WITH_DEPTH = ("single", "multi_key", "qa")
"""Tasks whose answer is at one place; the answers of the others are at several places, or in the whole context."""
SLACK_TOKENS = 8
"""Tokens generated beyond those of the answers, for other separators or a few leading words."""


class Encodes(Protocol):
    """The part of a tokenizer that `ExampleMaker` needs."""

    def encode(self, text: str, /) -> Sized:
        """Returns the tokens of `text`, or any object of that length."""


@dataclass(frozen=True)
class Example:
    """One question.

    Attributes:
        task: one of `TASKS`.
        prompt: context and question.
        answers: strings that the completion should contain.
        length: requested tokens; BOS, the prompt and `max_new_tokens` fit in them.
        depth: share of the context before the answer; None for tasks with answers at several places.
        max_new_tokens: limit of the completion in tokens.
        prompt_tokens: length of the prompt in tokens, without BOS.
    """

    task: str
    prompt: str
    answers: tuple[str, ...]
    length: int
    depth: float | None
    max_new_tokens: int
    prompt_tokens: int


class ExampleMaker:
    """Makes examples for one tokenizer, with the text of given documents as filler."""

    def __init__(self, documents: Sequence[str], tokenizer: Encodes) -> None:
        """`documents` are texts; `tokenizer` is anything with an `encode` whose results have a length."""
        self._texts = [text for text in documents if text.strip()]
        self._words = frozenset(word for text in self._texts for word in re.findall(r"[a-z]+", text))
        self._tokenizer = tokenizer

    def make(self, task: str, length: int, *, depth: float | None = None, seed: int = 0, index: int = 0) -> Example:
        """Returns example number `index`; equal arguments give equal examples.

        Args:
            task: one of `TASKS`.
            length: upper limit of the tokens of BOS, prompt and answer together, used as far as possible.
            depth: for `TASKS_WITH_DEPTH`, the share of the context before the answer; None draws one.
            seed, index: select the example.

        Raises:
            ConfigError: an unknown task, an invalid depth, or a length that is too short; the minimum is named.
            DataError: the documents are too few.
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
    """Returns the share of the answers that the completion contains (RULER's string match)."""
    said = completion.lower()
    return sum(answer.lower() in said for answer in example.answers) / len(example.answers)
