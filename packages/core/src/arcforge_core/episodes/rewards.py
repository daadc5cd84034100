"""Rewards are decorated methods, collected when a class is created; duplicate names are an error."""

from __future__ import annotations

import http.client
import inspect
import math
import urllib.error
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from arcforge_core.contracts.environment import Episode, EpisodeFailure, Failure, NoVerdict, Score, Task
from arcforge_core.contracts.sandbox import SandboxFault
from arcforge_core.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])

TOTAL = "reward"
"""Name of the weighted mean, reserved."""
TIMEOUT = 5.0
LONGEST_REASON = 500
Scale = tuple[float, float]
UNIT: Scale = (0.0, 1.0)
"""Scale of a reward that declares none."""
CLIENTS = ("httpx", "requests", "urllib3", "aiohttp", "openai", "anthropic")
"""Packages whose errors are those of a connection to a judge."""
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
        scale: least and greatest number that the method returns; None for any finite number.
    """

    name: str
    method: str
    weight: float
    timeout: float | None
    asynchronous: bool
    scale: Scale | None = UNIT


def reward(
    weight: float = 1.0, *, name: str | None = None, timeout: float | None = TIMEOUT, scale: Scale | None = UNIT
) -> Callable[[F], F]:
    """Marks a method ``(self, task, episode)`` as a reward: it returns a number of its scale, a bool or a `Score`.

    Args:
        weight: weight in ``reward``, finite and above 0.
        name: name of the reward; None takes that of the method.
        timeout: seconds. A plain method runs in a process that is killed after them (see `killable`) and scores 0. An
            ``async`` one is cancelled and called once more, then the rollout is a failure. None: the method bounds its
            own time and runs in this process.
        scale: least and greatest number that it returns; they are used as 0 and 1, and those between in proportion.
            None: any finite number, which is used as it is. Only an ``async`` method may have none: a plain one that
            raises scores 0, which would then be a reward like another.

    Raises:
        ConfigError: the weight, the timeout or the scale is out of bounds.
    """
    if not (math.isfinite(weight) and weight > 0):
        raise ConfigError("reward.weight", weight, "must be finite and above 0; metrics have no weight")
    if scale is not None and not (all(map(math.isfinite, scale)) and scale[0] < scale[1]):
        raise ConfigError("reward.scale", scale, "must be two finite numbers, the first below the second, or None")
    return _marked(weight, name, timeout, scale)


def metric(*, name: str | None = None, timeout: float | None = TIMEOUT) -> Callable[[F], F]:
    """Marks a method as a metric: like a reward, with weight 0 and any finite value."""
    return _marked(0.0, name, timeout, None)


def _marked(weight: float, name: str | None, timeout: float | None, scale: Scale | None) -> Callable[[F], F]:
    if timeout is not None and not 0 < timeout < math.inf:
        raise ConfigError("reward.timeout", timeout, "must be finite and above 0, or None")

    def mark(method: F) -> F:
        asynchronous = inspect.iscoroutinefunction(method)
        known = name or method.__name__
        if weight and scale is None and not asynchronous:
            raise ConfigError("reward.scale", None, f"{known} must be async to have no scale")
        setattr(method, MARK, Verifier(known, method.__name__, weight, timeout, asynchronous, scale))
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


def as_score(value: object, scale: Scale | None = UNIT) -> Score:
    """Converts the return value of a verifier to a score: 0, with the reason, if `read_score` cannot read it."""
    try:
        return read_score(value, scale)
    except ValueError as error:
        return Score(0.0, str(error))


def read_score(value: object, scale: Scale | None) -> Score:
    """Converts the return value of a verifier to a score.

    Args:
        value: a number, a bool or a `Score`.
        scale: least and greatest number; None for any finite number, as of metrics.

    Raises:
        ValueError: it is anything else, or a number out of the scale.
    """
    number, reason = (value.value, value.reason) if isinstance(value, Score) else (value, "")
    try:
        found = float(number)  # type: ignore[arg-type]
    except Exception as error:  # converting an arbitrary object may raise anything
        raise ValueError(f"the verifier returned a {type(number).__name__}: {type(error).__name__}") from error
    if scale is None:
        if not math.isfinite(found):
            raise ValueError(f"the verifier returned {found}, which is not finite")
        return Score(found, str(reason)[:LONGEST_REASON] or f"measured {found:g}")
    low, high = scale
    if not low <= found <= high:
        raise ValueError(f"the verifier returned {found}, which is not in [{low:g}, {high:g}]")
    used = (found - low) / (high - low)
    default = {low: "wrong", high: "right"}.get(found, f"scored {found:g}")
    return Score(used, str(reason)[:LONGEST_REASON] or default, None if scale == UNIT else found)


def judged(method: Callable[..., object], task: Task, episode: Episode) -> Score:
    """Returns the score of a plain method, or 0 if it raises.

    Raises:
        EpisodeFailure: the infrastructure broke.
    """
    try:
        return as_score(method(task, episode), scale_of(method))
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        return score_of(error)


def scale_of(method: Callable[..., object]) -> Scale | None:
    """Returns the scale of what a method returns; [0, 1] for methods without a mark."""
    verifier: Verifier | None = getattr(method, MARK, None)
    return UNIT if verifier is None else verifier.scale


def score_of(error: BaseException) -> Score:
    """Returns score 0 for an error raised by a verifier.

    Raises:
        EpisodeFailure: the error comes from the infrastructure.
    """
    failure = failure_of(error)
    if isinstance(error, NoVerdict):
        raise error
    if failure is not None:
        raise EpisodeFailure(failure.kind, failure.reason) from error
    if of_connection(error):
        raise NoVerdict(f"{type(error).__name__}: {error}"[:LONGEST_REASON]) from error
    return Score(0.0, f"the verifier raised {type(error).__name__}: {error}"[:LONGEST_REASON])


def of_connection(error: BaseException) -> bool:
    """Returns whether an error says that a judge elsewhere did not answer as it should: a connection that broke, a
    status of HTTP that is no success, half an answer, or any error of one of the `CLIENTS`."""
    if isinstance(error, (ConnectionError, urllib.error.URLError, http.client.HTTPException)):
        return True
    return any(kind.__module__.partition(".")[0] in CLIENTS for kind in type(error).__mro__)


def failure_of(error: BaseException) -> Failure | None:
    """Returns the infrastructure failure that an error reports, or None if the verifier's code raised it."""
    if isinstance(error, EpisodeFailure):
        return error.failure
    return Failure("sandbox", str(error)) if isinstance(error, SandboxFault) else None
