"""Checker of puzzles from reasoning-gym, whose own scorers are not all to be trusted.

Some of them give points to junk, raise on it, or have no reference answer. So a score counts only when it is the full
one, an exception is a no, and a puzzle whose scorer pays for one of a few canaries is refused as a whole.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from arcforge_core.errors import ConfigError, DataError
from arcforge_rl.configs import ReasoningGymCheckerConfig

REFUSED = {
    "game_of_life_halting": "its scorer gives full marks to junk",
    "propositional_logic": "its scorer pays for junk, and it has no reference answer",
    "list_functions": "it gives other puzzles on every call",
    **dict.fromkeys(("boxnet", "graph_color", "rubiks_cube", "rush_hour"), "it has no reference answer"),
}
"""Data sets that are not used, and why (found by trying each of them)."""
CANARIES = ("", " ", "zzz", "0.25", "None", "True False", "[]", "I do not know", "0 1 2 3 4 5 6 7 8 9")
LONGEST = 2000
"""Characters of an answer; longer ones are wrong."""


class ReasoningGymChecker:
    """The answer gets full marks from the data set's scorer, and is no junk.

    Raises:
        ConfigError: there is no such data set, it is refused, or this version makes another puzzle of the same number.
        DataError: reasoning-gym is not installed.
    """

    def __init__(self, config: ReasoningGymCheckerConfig) -> None:
        self._entry = None
        if config.dataset:
            self._dataset, self._entry = puzzle(config.dataset, config.seed, config.index)
            if question_hash(self._entry) != config.question:
                accepted = f"reasoning-gym makes another puzzle of {config.dataset} {config.seed}/{config.index} here"
                raise ConfigError("checker.question", config.question, accepted)

    def check(self, answer: str) -> bool:
        """Returns whether the answer is right."""
        return self._entry is not None and full_marks(self._dataset, self._entry, answer)


def puzzle(dataset: str, seed: int, index: int, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
    """Returns a data set of reasoning-gym and the puzzle of that number.

    Args:
        dataset: its name.
        seed: of the data set.
        index: the puzzle's number.
        options: fields of the data set's own config.

    Raises:
        ConfigError: there is no such data set, it is refused, or it does not take these options.
    """
    if dataset in REFUSED:
        raise ConfigError("checker.dataset", dataset, f"not used: {REFUSED[dataset]}")
    size = 1000 if index < 1000 else 10 ** len(str(index))  # few sizes, so that few are made
    made = _dataset(dataset, seed, size, json.dumps(dict(options or {}), sort_keys=True))
    entry: dict[str, Any] = made[index]
    if not isinstance(entry["answer"], str) or not full_marks(made, entry, entry["answer"]):
        raise ConfigError("checker.index", index, f"{dataset}: its scorer does not accept its own answer")
    return made, entry


def full_marks(dataset: Any, entry: dict[str, Any], answer: str) -> bool:
    """Whether a scorer gives full marks to an answer, and to nothing that is none."""
    answer = answer.strip()
    if not answer or len(answer) > LONGEST or "\0" in answer:
        return False
    if answer != str(entry["answer"]).strip() and (answer in CANARIES or _pays_for_junk(dataset, entry)):
        return False
    return _score(dataset, entry, answer) >= 1.0


def _pays_for_junk(dataset: Any, entry: dict[str, Any]) -> bool:
    """Whether a scorer pays for a canary, or for the question said again."""
    right = str(entry["answer"]).strip()
    return any(_score(dataset, entry, junk) >= 1.0 for junk in (*CANARIES, entry["question"]) if junk.strip() != right)


def _score(dataset: Any, entry: dict[str, Any], answer: str) -> float:
    try:
        return float(dataset.score_answer(answer, entry))
    except Exception:  # scorers parse and evaluate; what they cannot read is wrong
        return 0.0


def question_hash(entry: dict[str, Any]) -> str:
    """Returns a short hash of a puzzle's question."""
    return hashlib.sha256(str(entry["question"]).encode()).hexdigest()[:16]


@functools.lru_cache(maxsize=64)
def _dataset(name: str, seed: int, size: int, options: str) -> Any:
    try:
        import reasoning_gym
    except ImportError as error:
        raise DataError("puzzles need reasoning-gym: pip install 'arcforge-rl[puzzles]'") from error
    try:
        return reasoning_gym.create_dataset(name, seed=seed, size=size, **json.loads(options))
    except (ValueError, TypeError, AssertionError) as error:  # an unknown name, an unknown option, a bad value
        refused = f"not a data set of reasoning-gym, or not with {options}: {error}"
        raise ConfigError("checker.dataset", name, refused) from error
