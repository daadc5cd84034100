"""Rewards are decorated methods; a class knows its own, and two of one name are an error when the class is made."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from arcforge_core.contracts.environment import Score
from arcforge_core.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])

TOTAL = "reward"
"""Name of the weighted mean; no reward or metric may have it."""
TIMEOUT = 5.0
LONGEST_REASON = 500
MARK = "__arcforge_verifier__"


@dataclass(frozen=True)
class Verifier:
    """A method that judges.

    Attributes:
        name: of the reward or metric.
        method: of the class.
        weight: in the mean; 0 for a metric.
        timeout: seconds it may take; None for one that is bounded by itself.
        asynchronous: whether it is awaited.
    """

    name: str
    method: str
    weight: float
    timeout: float | None
    asynchronous: bool


def reward(weight: float = 1.0, *, name: str | None = None, timeout: float | None = TIMEOUT) -> Callable[[F], F]:
    """Marks a method ``(self, task, episode)`` as a reward: it returns a number in [0, 1], a bool or a `Score`.

    Args:
        weight: its share of ``reward``, finite and above 0.
        name: of the reward; the method's own when None.
        timeout: seconds. A plain method runs in a process that is killed when they are over (see `killable`), an
            ``async`` one is cancelled. None: it is bounded by itself, and runs here.

    Raises:
        ConfigError: a weight or a timeout that is none.
    """
    if not (math.isfinite(weight) and weight > 0):
        raise ConfigError("reward.weight", weight, "must be finite and above 0; metrics have no weight")
    return _marked(weight, name, timeout)


def metric(*, name: str | None = None, timeout: float | None = TIMEOUT) -> Callable[[F], F]:
    """Marks a method as a metric: as a reward, without weight."""
    return _marked(0.0, name, timeout)


def _marked(weight: float, name: str | None, timeout: float | None) -> Callable[[F], F]:
    if timeout is not None and not 0 < timeout < math.inf:
        raise ConfigError("reward.timeout", timeout, "must be finite and above 0, or None")

    def mark(method: F) -> F:
        asynchronous = inspect.iscoroutinefunction(method)
        known = name or method.__name__
        setattr(method, MARK, Verifier(known, method.__name__, weight, timeout, asynchronous))
        return method

    return mark


class _Names(dict[str, Any]):
    """The body of a class, in which no reward is replaced by what stands further down."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name in self and (hasattr(value, MARK) or hasattr(self[name], MARK)):
            raise ConfigError("reward", name, "the class has two methods of this name; rename one")
        super().__setitem__(name, value)


class Rewarded(type):
    """Type of classes with rewards, which stand in `verifiers` by name.

    Raises:
        ConfigError: two rewards or metrics have one name, also by way of two parents.
    """

    verifiers: Mapping[str, Verifier]

    @classmethod
    def __prepare__(mcs, name: str, bases: tuple[type, ...], /, **options: Any) -> _Names:
        """Returns the namespace that the class body fills."""
        return _Names()

    def __new__(mcs, name: str, bases: tuple[type, ...], body: dict[str, Any], /, **options: Any) -> Rewarded:
        """Makes the class and collects its rewards."""
        made = super().__new__(mcs, name, bases, dict(body), **options)
        made.verifiers = _collect(made)
        return made


def _collect(made: type) -> dict[str, Verifier]:
    found: dict[str, Verifier] = {}
    methods = {
        m: None for parent in reversed(made.__mro__) for m, value in vars(parent).items() if hasattr(value, MARK)
    }
    for method in methods:
        owners = [parent for parent in made.__mro__ if method in vars(parent)]
        if not all(issubclass(owners[0], other) for other in owners):
            names = " and ".join(owner.__name__ for owner in owners)
            raise ConfigError("reward", method, f"{names} both have it; say in {made.__name__} which is meant")
        verifier: Verifier | None = getattr(getattr(made, method), MARK, None)
        if verifier is None:
            raise ConfigError("reward", method, f"{owners[0].__name__} replaces it by a method without @reward")
        if verifier.name == TOTAL:
            raise ConfigError("reward", TOTAL, "is the name of the weighted mean of all rewards; choose another")
        if verifier.name in found:
            other = found[verifier.name].method
            raise ConfigError("reward", verifier.name, f"{other} and {method} of {made.__name__} both have this name")
        found[verifier.name] = verifier
    return found


def as_score(value: object) -> Score:
    """Returns what a verifier has returned as a score; what is no number in [0, 1] is 0, and the reason says so."""
    number, reason = (value.value, value.reason) if isinstance(value, Score) else (value, "")
    try:
        found = float(number)  # type: ignore[arg-type]
    except Exception as error:  # whatever an object does that is asked for its value
        return Score(0.0, f"the verifier returned a {type(number).__name__}: {type(error).__name__}")
    if not 0.0 <= found <= 1.0:
        return Score(0.0, f"the verifier returned {found}, which is not in [0, 1]")
    default = {0.0: "wrong", 1.0: "right"}.get(found, f"scored {found:g}")
    return Score(found, str(reason)[:LONGEST_REASON] or default)


def failed(error: BaseException) -> Score:
    """Returns the score of a verifier that has raised."""
    return Score(0.0, f"the verifier raised {type(error).__name__}: {error}"[:LONGEST_REASON])
