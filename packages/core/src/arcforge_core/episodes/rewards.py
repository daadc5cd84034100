"""Rewards are decorated methods, collected when a class is created; duplicate names are an error."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from arcforge_core.contracts.environment import Episode, EpisodeFailure, Failure, Score, Task
from arcforge_core.contracts.sandbox import SandboxFault
from arcforge_core.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])

TOTAL = "reward"
"""Name of the weighted mean, reserved."""
TIMEOUT = 5.0
LONGEST_REASON = 500
MARK = "__arcforge_verifier__"


@dataclass(frozen=True)
class Verifier:
    """A method that scores episodes.

    Attributes:
        name: name of the reward or metric.
        method: name of the method.
        weight: weight in the mean; 0 for a metric.
        timeout: time limit in seconds; None if the method bounds its own time.
        asynchronous: whether the method is awaited.
    """

    name: str
    method: str
    weight: float
    timeout: float | None
    asynchronous: bool


def reward(weight: float = 1.0, *, name: str | None = None, timeout: float | None = TIMEOUT) -> Callable[[F], F]:
    """Marks a method ``(self, task, episode)`` as a reward: it returns a number in [0, 1], a bool or a `Score`.

    Args:
        weight: weight in ``reward``, finite and above 0.
        name: name of the reward; None takes that of the method.
        timeout: seconds. A plain method runs in a process that is killed after them (see `killable`) and scores 0. An
            ``async`` one is cancelled, and the rollout is a failure. None: the method bounds its own time and runs in
            this process.

    Raises:
        ConfigError: the weight or the timeout is out of bounds.
    """
    if not (math.isfinite(weight) and weight > 0):
        raise ConfigError("reward.weight", weight, "must be finite and above 0; metrics have no weight")
    return _marked(weight, name, timeout)


def metric(*, name: str | None = None, timeout: float | None = TIMEOUT) -> Callable[[F], F]:
    """Marks a method as a metric: like a reward, with weight 0 and any finite value."""
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


def verifiers_of(made: type) -> dict[str, Verifier]:
    """Returns the rewards and metrics of a class by name.

    Raises:
        ConfigError: two of them share a name, possibly inherited from two parents, or one is called ``reward``.
    """
    found: dict[str, Verifier] = {}
    methods = {
        m: None for parent in reversed(made.__mro__) for m, value in vars(parent).items() if hasattr(value, MARK)
    }
    for method in methods:
        owners = [parent for parent in made.__mro__ if method in vars(parent)]
        if not all(other in owners[0].__mro__ for other in owners):  # issubclass misleads while an ABC is being made
            names = " and ".join(owner.__name__ for owner in owners)
            raise ConfigError("reward", method, f"{names} both define it; override it in {made.__name__}")
        verifier: Verifier | None = getattr(getattr(made, method), MARK, None)
        if verifier is None:
            raise ConfigError("reward", method, f"{owners[0].__name__} overrides it with a method without @reward")
        if verifier.name == TOTAL:
            raise ConfigError("reward", TOTAL, "is the name of the weighted mean of all rewards; choose another")
        if verifier.name in found:
            other = found[verifier.name].method
            raise ConfigError("reward", verifier.name, f"{other} and {method} of {made.__name__} both have this name")
        found[verifier.name] = verifier
    return found


def as_score(value: object, *, bounded: bool = True) -> Score:
    """Converts the return value of a verifier to a score.

    Args:
        value: a number, a bool or a `Score`. Anything else, or a number out of bounds, scores 0 with the reason.
        bounded: whether it must be in [0, 1], like rewards; metrics may be any finite number.
    """
    number, reason = (value.value, value.reason) if isinstance(value, Score) else (value, "")
    try:
        found = float(number)  # type: ignore[arg-type]
    except Exception as error:  # converting an arbitrary object may raise anything
        return Score(0.0, f"the verifier returned a {type(number).__name__}: {type(error).__name__}")
    if not (0.0 <= found <= 1.0 if bounded else math.isfinite(found)):
        return Score(0.0, f"the verifier returned {found}, which is not {'in [0, 1]' if bounded else 'finite'}")
    default = {0.0: "wrong", 1.0: "right"}.get(found, f"scored {found:g}") if bounded else f"measured {found:g}"
    return Score(found, str(reason)[:LONGEST_REASON] or default)


def judged(method: Callable[..., object], task: Task, episode: Episode) -> Score:
    """Returns the score of a plain method, or 0 if it raises.

    Raises:
        EpisodeFailure: the infrastructure broke.
    """
    try:
        return as_score(method(task, episode), bounded=is_bounded(method))
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        return score_of(error)


def is_bounded(method: Callable[..., object]) -> bool:
    """Returns whether a method must return a number in [0, 1]: all except metrics."""
    verifier: Verifier | None = getattr(method, MARK, None)
    return verifier is None or verifier.weight > 0


def score_of(error: BaseException) -> Score:
    """Returns score 0 for an error raised by a verifier.

    Raises:
        EpisodeFailure: the error comes from the infrastructure.
    """
    failure = failure_of(error)
    if failure is not None:
        raise EpisodeFailure(failure.kind, failure.reason) from error
    return Score(0.0, f"the verifier raised {type(error).__name__}: {error}"[:LONGEST_REASON])


def failure_of(error: BaseException) -> Failure | None:
    """Returns the infrastructure failure that an error reports, or None if the verifier's code raised it."""
    if isinstance(error, EpisodeFailure):
        return error.failure
    return Failure("sandbox", str(error)) if isinstance(error, SandboxFault) else None
