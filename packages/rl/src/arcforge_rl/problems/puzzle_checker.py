"""Checker of puzzles from reasoning-gym, some of whose scorers cannot be trusted.

Some scorers give points to junk, raise on it, or have no reference answer. So only a full score counts, an exception
means wrong, and where a scorer accepts junk, the answer must be the reference's text. Some scorers
evaluate the answer as Python: they only get numbers, plain texts, operators, single letters and functions of
mathematics, with bounded powers. What they take long for is judged in a killable process.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from arcforge_core.contracts.environment import Episode, Reply, Score, Task
from arcforge_core.episodes.killable import verifiers
from arcforge_core.errors import ConfigError, DataError
from arcforge_rl.configs.commands import ReasoningGymCheckerConfig
from arcforge_rl.problems.bounded import is_bounded

REFUSED = {
    "game_of_life_halting": "its scorer gives full marks to junk",
    "propositional_logic": "its scorer gives points to junk, and it has no reference answer",
    "puzzle24": "its scorer accepts any four numbers",
    "list_functions": "it generates different puzzles on every call",
    **dict.fromkeys(("boxnet", "graph_color", "rubiks_cube", "rush_hour"), "it has no reference answer"),
}
"""Refused datasets with the reason, found by testing each of them."""
FORMS = {"sokoban": re.compile(r"[LRUDlrud\s]+")}
"""Forms of an answer where the scorer skips everything else in it."""
CANARIES = ("", " ", "zzz", "0.25", "None", "True False", "[]", "I do not know", "0 1 2 3 4 5 6 7 8 9")
"""Answers that are junk for every puzzle."""
NUMBERS = ("0", "1", "-1", "nan", "inf", "1e308")
"""Answers that are junk for every puzzle that they are not the reference of."""
NUMBER = re.compile(r"\d+(?:\.\d+)?")
EVALUATES = re.compile(r"\b(?:eval|exec|parse_expr|sympify)\(")
"""In the source of a scorer: it may run the answer."""
SYMBOLIC = re.compile(r"\b(?:parse_expr|sympify)\(")
"""In the source of a scorer: it compares formulas."""
HARMLESS = re.compile(
    r"""(?:\d++(?:\.\d*+)? | '[\w ,-]*+' | "[\w ,-]*+" | [-+*/%^=,<>|\s\[(] | [])](?!\s*[(\[])
        | (?<!\w)(?:[A-Za-z_]|pi|oo)(?!\w|\s*[(\['"])
        | (?<!\w)(?:exp|log|ln|sqrt|a?(?:sin|cos|tan|sec|csc|cot)h?|Abs|erf)(?=\s*\() )*+""",
    re.VERBOSE | re.ASCII,
)
LONGEST = 2000
"""Maximum characters of an answer; longer ones are wrong."""
SECONDS = 5.0
"""Seconds for a scorer that gets the policy's text."""


class ReasoningGymChecker:
    """Accepts answers that get full marks from the dataset's scorer and are not junk.

    Raises:
        ConfigError: the dataset is unknown or refused, or this version generates another puzzle for this index.
        DataError: reasoning-gym is not installed.
    """

    def __init__(self, config: ReasoningGymCheckerConfig) -> None:
        self.config, self._entry = config, None
        if config.dataset:
            self._dataset, self._entry = puzzle(config.dataset, config.seed, config.index)
            if question_hash(self._entry) != config.question:
                accepted = f"reasoning-gym makes another puzzle of {config.dataset} {config.seed}/{config.index} here"
                raise ConfigError("checker.question", config.question, accepted)

    @classmethod
    def for_verifiers(cls, config: ReasoningGymCheckerConfig) -> Self:
        """Returns the checker in the process that judges."""
        return cls(config)

    def warm_up(self) -> None:
        """Calls the scorer once, which may import."""
        self.right("zzz")

    def check(self, answer: str) -> bool:
        """Returns whether an answer is right; one that is not the reference's text is judged in a killable process.

        Raises:
            EpisodeFailure: the process died.
        """
        answer = answer.strip()
        if self._entry is None or not answer or len(answer) > LONGEST:
            return False
        if answer == str(self._entry["answer"]).strip():
            return self.right(answer)
        episode = Episode((), Reply(answer))
        return verifiers().judge(self, "judge", Task("", "", ""), episode, SECONDS).value == 1.0

    def judge(self, task: Task, episode: Episode) -> Score:
        """Judges a reply in the killable process."""
        return Score(float(self.right(episode.reply.text)))

    def right(self, answer: str) -> bool:
        """Returns whether an answer is right."""
        return self._entry is not None and full_marks(self._dataset, self._entry, answer)


def puzzle(dataset: str, seed: int, index: int, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
    """Returns a dataset of reasoning-gym and its puzzle number `index`.

    Args:
        dataset: name of the dataset.
        seed: seed of the dataset.
        index: index of the puzzle.
        options: fields of the dataset's config.

    Raises:
        ConfigError: the dataset is unknown or refused, or does not accept these options.
    """
    if dataset in REFUSED:
        raise ConfigError("checker.dataset", dataset, f"not used: {REFUSED[dataset]}")
    size = 1000 if index < 1000 else 10 ** len(str(index))  # few sizes, so that few datasets are built
    made = _dataset(dataset, seed, size, json.dumps(dict(options or {}), sort_keys=True))
    entry: dict[str, Any] = made[index]
    if not isinstance(entry["answer"], str) or not full_marks(made, entry, entry["answer"]):
        raise ConfigError("checker.index", index, f"{dataset}: its scorer does not accept its own answer")
    return made, entry


def full_marks(dataset: Any, entry: dict[str, Any], answer: str) -> bool:
    """Returns whether a scorer gives full marks to an answer, and no points to junk."""
    answer, form = answer.strip(), FORMS.get(entry["metadata"].get("source_dataset", ""))
    if not answer or len(answer) > LONGEST or "\0" in answer:
        return False
    if answer == str(entry["answer"]).strip():
        return _score(dataset, entry, answer) >= 1.0
    if form is not None and not form.fullmatch(answer):
        return False
    if answer in CANARIES or any(sign.isdecimal() and not sign.isascii() for sign in answer):  # int() reads any digits
        return False
    if evaluates(type(dataset).score_answer) and not (HARMLESS.fullmatch(answer) and is_bounded(answer)):
        return False
    return _score(dataset, entry, answer) >= 1.0 and not _pays_for_junk(dataset, entry)


def _pays_for_junk(dataset: Any, entry: dict[str, Any]) -> bool:
    """Returns whether a scorer gives full marks to junk, e.g. because no distance from "nan" exceeds its tolerance."""
    right = str(entry["answer"])
    # numbers are compared exactly where formulas are, and simplifying them takes long
    spoilt = (
        () if SYMBOLIC.search(inspect.getsource(type(dataset).score_answer)) else (*NUMBERS, *spoilt_numbers(right))
    )
    junk = (*CANARIES, entry["question"], *spoilt)
    return any(_score(dataset, entry, text) >= 1.0 for text in junk if text.strip() != right.strip())


def spoilt_numbers(right: str) -> Sequence[str]:
    """Returns the right answer with "NaN" for each number, and, if it has several, with each slightly off."""
    none, off = (NUMBER.sub(change, right) for change in (lambda _: "NaN", lambda found: str(float(found[0]) + 0.4)))
    several = len(NUMBER.findall(right)) > 1
    return none, none.lower(), *([off] if several else [])


def _score(dataset: Any, entry: dict[str, Any], answer: str) -> float:
    try:
        return float(dataset.score_answer(answer, entry))
    except Exception:  # scorers parse and evaluate answers; an unreadable answer is wrong
        return 0.0


@functools.cache
def evaluates(scorer: Callable[..., Any]) -> bool:
    """Returns whether a dataset's scorer may run the answer as Python."""
    return bool(EVALUATES.search(inspect.getsource(scorer)))


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
    except (ValueError, TypeError, AssertionError) as error:  # unknown name, unknown option, or invalid value
        refused = f"not a dataset of reasoning-gym, or not with {options}: {error}"
        raise ConfigError("checker.dataset", name, refused) from error
