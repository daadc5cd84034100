"""A rubric as a file: criteria with weights, and judged examples.

instructions = "You judge answers to questions about cooking."
reference = true                            # the judge sees the task's reference answer

[[criterion]]
name = "helpful"
description = "Does it answer the question?"
weight = 2.0
choices = ["no", "partly", "yes"]           # from worst to best

[[anchor]]
prompt = "How long do eggs boil?"
reply = "Ten minutes for hard ones."
verdict = { helpful = "yes" }
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arcforge_core.errors import ConfigError, DataError, nearest

ABSTAIN = "cannot tell"
"""A choice of every criterion: the judge has no verdict."""
INSTRUCTIONS = "You are an impartial judge of replies."


@dataclass(frozen=True)
class Criterion:
    """One question to the judge.

    Attributes:
        name: of the criterion, an identifier.
        description: the question.
        weight: in the mean of all criteria.
        choices: verdicts, from worst to best.
        values: of the choices; empty spaces them evenly from 0 to 1.
    """

    name: str
    description: str = ""
    weight: float = 1.0
    choices: tuple[str, ...] = ("no", "partly", "yes")
    values: tuple[float, ...] = ()

    def value_of(self, choice: str) -> float:
        """Returns the number of a choice."""
        place = self.choices.index(choice)
        return self.values[place] if self.values else place / (len(self.choices) - 1)


@dataclass(frozen=True)
class JudgedExample:
    """A reply that was judged by a person.

    Attributes:
        prompt, reply: the judged texts.
        verdict: choice by criterion.
        reason: why.
    """

    prompt: str
    reply: str
    verdict: Mapping[str, str]
    reason: str = ""


@dataclass(frozen=True)
class Rubric:
    """The rules of a judge.

    Attributes:
        criteria: at least one.
        instructions: who the judge is.
        reference: whether it sees the task's reference answer.
        anchors: judged examples.
    """

    criteria: tuple[Criterion, ...]
    instructions: str = INSTRUCTIONS
    reference: bool = False
    anchors: tuple[JudgedExample, ...] = field(default=())

    @property
    def fingerprint(self) -> str:
        """Identifies the content."""
        return hashlib.sha256(json.dumps(dataclasses.asdict(self), sort_keys=True).encode()).hexdigest()[:16]

    def value(self, verdict: Mapping[str, str]) -> float:
        """Returns the weighted mean of the chosen values.

        Args:
            verdict: choice by criterion, none of them `ABSTAIN`.
        """
        total = sum(one.weight for one in self.criteria)
        return sum(one.weight * one.value_of(verdict[one.name]) for one in self.criteria) / total


def read_rubric(path: Path, field_name: str = "options.rubric") -> Rubric:
    """Returns the rubric of a file.

    Raises:
        DataError: it cannot be read, or is not TOML.
        ConfigError: it is no rubric; the table and the field are named.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"{field_name}={path}: cannot be read: {error}") from error
    return rubric_of(content)


def rubric_of(content: Mapping[str, Any]) -> Rubric:
    """Returns the rubric of a file's content; see `read_rubric`."""
    _check_names("rubric", content, ("instructions", "reference", "criterion", "anchor"))
    instructions, reference = content.get("instructions", INSTRUCTIONS), content.get("reference", False)
    if not isinstance(instructions, str) or not instructions.strip():
        raise ConfigError("rubric.instructions", instructions, "must be a text")
    if not isinstance(reference, bool):
        raise ConfigError("rubric.reference", reference, "must be true or false")
    criteria = tuple(_criterion(given) for given in _tables(content, "criterion"))
    if not criteria:
        raise ConfigError("rubric.criterion", [], "must have at least one [[criterion]]")
    names = [one.name for one in criteria]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError("criterion.name", name, "is declared twice")
    if not sum(one.weight for one in criteria) > 0:
        raise ConfigError("criterion.weight", [one.weight for one in criteria], "must not sum to 0")
    anchors = tuple(_anchor(given, criteria) for given in _tables(content, "anchor"))
    return Rubric(criteria, instructions, reference, anchors)


def _tables(content: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    found = content.get(name, [])
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise ConfigError(f"rubric.{name}", found, f"must be [[{name}]] tables")
    return found


def _check_names(where: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            accepted = f"is unknown: there are {', '.join(known)}{nearest(name, list(known))}"
            raise ConfigError(f"{where}.{name}", given[name], accepted)


def _criterion(given: Mapping[str, Any]) -> Criterion:
    _check_names("criterion", given, [one.name for one in dataclasses.fields(Criterion)])
    name = given.get("name")
    if not isinstance(name, str) or not name.isidentifier() or name in ("candidate", "reason", "better"):
        raise ConfigError("criterion.name", name, "must be an identifier other than candidate, reason and better")
    where = f"criterion[{name}]"
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    made = Criterion(**fields)
    if not isinstance(made.description, str):
        raise ConfigError(f"{where}.description", made.description, "must be a text")
    if not _is_number(made.weight) or made.weight < 0:
        raise ConfigError(f"{where}.weight", made.weight, "must be a finite number, at least 0")
    choices: Any = made.choices
    if not isinstance(choices, tuple) or len(choices) < 2 or not all(isinstance(one, str) and one for one in choices):
        raise ConfigError(f"{where}.choices", choices, "must be at least two texts")
    if len(set(choices)) < len(choices) or ABSTAIN in choices:
        raise ConfigError(f"{where}.choices", list(choices), f"must differ, and {ABSTAIN!r} is one of every criterion")
    values: Any = made.values
    if not isinstance(values, tuple) or (values and (len(values) != len(choices) or not all(map(_is_number, values)))):
        raise ConfigError(f"{where}.values", values, f"must be {len(choices)} finite numbers, one for each choice")
    return made


def _anchor(given: Mapping[str, Any], criteria: Sequence[Criterion]) -> JudgedExample:
    _check_names("anchor", given, [one.name for one in dataclasses.fields(JudgedExample)])
    for name in ("prompt", "reply"):
        if not isinstance(given.get(name), str):
            raise ConfigError(f"anchor.{name}", given.get(name), "must be a text")
    verdict: Any = given.get("verdict")
    for one in criteria:
        if not isinstance(verdict, dict) or verdict.get(one.name) not in (*one.choices, ABSTAIN):
            raise ConfigError("anchor.verdict", verdict, f"must have a choice of {one.name}: {', '.join(one.choices)}")
    return JudgedExample(given["prompt"], given["reply"], verdict, str(given.get("reason", "")))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
