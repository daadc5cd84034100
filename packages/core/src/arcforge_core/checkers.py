"""Core's plain checkers, and how the one that a record names is built."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from arcforge_core.configs import ExactCheckerConfig, NumberCheckerConfig
from arcforge_core.console.progress import say
from arcforge_core.contracts.conversation import Checker
from arcforge_core.errors import ConfigError, UnknownComponentError
from arcforge_core.plugins.loader import registry
from arcforge_core.plugins.registry import RETIRED_KINDS, Component

NUMBER = re.compile(r"(?<![\w.,])-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?!\w|[.,]\d)", re.ASCII)
LONGEST = 1000
"""Characters of an answer that a number is looked for in, from its end; no answer in words is longer."""


def build_checker(name: str, arguments: Mapping[str, Any]) -> Checker:
    """Returns the checker that a record names.

    Raises:
        ConfigError: there is no such checker, or it does not take these arguments.
        PluginError: two distributions claim its name.
    """
    component = _component(name)
    schema = component.load_schema()
    known = {field.name for field in dataclasses.fields(schema)} - {"name"}
    for argument in arguments:
        if argument not in known:
            raise ConfigError(f"checker.arguments.{argument}", arguments[argument], f"{name} takes {', '.join(known)}")
    checker: Checker = component.load()(schema(**arguments))
    return checker


@functools.cache
def _component(name: str) -> Component:
    try:
        if name in registry().names("checker"):
            component = registry().get("checker", name)
            say(f"checker {name!r} of {component.distribution}: {RETIRED_KINDS['checker']}")
            return component
        return registry().get("reward", name)
    except UnknownComponentError as error:
        raise ConfigError("checker.name", name, str(error)) from error


class ExactChecker:
    """The answer is one text, white space around it aside."""

    def __init__(self, config: ExactCheckerConfig) -> None:
        self._answer = config.answer.strip()

    def check(self, answer: str) -> bool:
        """Returns whether it is that text; nothing is never right."""
        return bool(self._answer) and answer.strip() == self._answer


class NumberChecker:
    """The answer may have words and must name the number last; other digits, signs and forms are other numbers."""

    def __init__(self, config: NumberCheckerConfig) -> None:
        self._value = _value(config.answer)

    def check(self, answer: str) -> bool:
        """Returns whether the last number in the answer is the right one."""
        found = NUMBER.findall(answer[-LONGEST:])
        return bool(found) and self._value is not None and _value(found[-1]) == self._value


def _value(text: str) -> Decimal | None:
    """Returns the number that a text is, or None."""
    return Decimal(text.strip().replace(",", "")) if NUMBER.fullmatch(text.strip()) else None
