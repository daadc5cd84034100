"""A hybrid reward as data: a tree of components and combinations, with gates, vetoes and caps; torch-free."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from arcforge_core.config.schema import check_choice
from arcforge_core.errors import ConfigError, nearest

KINDS = ("rule", "orm", "grm")
"""A rule (precise, narrow); an outcome reward model (cheap, steady, can be exploited); a generative judge (robust, of
high variance). GLM-5 paper, 3.4."""
AGGREGATIONS = ("weighted-mean", "weighted-sum", "all-pass", "any-pass", "threshold", "required-pass")
NORMALISATIONS = ("none", "quantile", "group")
ROOT = "reward"
PASSED = 1.0


@dataclass(frozen=True)
class RewardPart:
    """The common part of components and combinations.

    Attributes:
        name: of the value.
        gates: no credit where the value of this name is below this number.
        vetoes: no credit where the value of this name is at least this number.
        cap: the value is at most this; None for no bound.
    """

    name: str
    gates: Mapping[str, float] = field(default_factory=dict)
    vetoes: Mapping[str, float] = field(default_factory=dict)
    cap: float | None = None

    @property
    def reads(self) -> list[str]:
        """The values that must be known before this one."""
        return [*self.gates, *self.vetoes]

    @property
    def where(self) -> str:
        """The table of the file."""
        return f"component.{self.name}"

    def check(self) -> None:
        """Checks the numbers.

        Raises:
            ConfigError: one of them is not finite.
        """
        numbers = {f"gates.{name}": bound for name, bound in self.gates.items()}
        numbers |= {f"vetoes.{name}": bound for name, bound in self.vetoes.items()}
        numbers |= {} if self.cap is None else {"cap": self.cap}
        for name, number in numbers.items():
            if not math.isfinite(number):
                raise ConfigError(f"{self.where}.{name}", number, "must be finite")


@dataclass(frozen=True)
class Measured(RewardPart):
    """A value that something measures.

    Attributes:
        kind: one of `KINDS`.
        of: the environment's reward or metric of this name; empty takes that of the component's own name.
        otherwise: the reward or metric of tasks that have none of that name, as in a mixture; empty refuses such tasks.
        reward: a registered component of kind ``reward`` that measures it, in place of the environment.
        options: fields of that component's config.
        scale: the numbers used as 0 and 1, those between in proportion, others at the nearer end; None uses them as
            they are.
        normalise: how values become comparable, after the scale: ``none``; ``quantile`` among the last values of the
            run; ``group``: rank among the rollouts of the task.
    """

    kind: str = "rule"
    of: str = ""
    otherwise: str = ""
    reward: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    scale: tuple[float, float] | None = None
    normalise: str = "none"

    def check(self) -> None:
        """Checks the fields; see `RewardPart`."""
        super().check()
        check_choice(f"{self.where}.kind", self.kind, KINDS)
        check_choice(f"{self.where}.normalise", self.normalise, NORMALISATIONS)
        if self.of and self.reward:
            raise ConfigError(f"{self.where}.of", self.of, "is of the environment: leave reward out, or this")
        if self.otherwise and self.reward:
            raise ConfigError(
                f"{self.where}.otherwise", self.otherwise, "is of the environment, not of a registered reward"
            )
        if self.options and not self.reward:
            raise ConfigError(f"{self.where}.options", dict(self.options), "are of a registered reward: name reward")
        scale = self.scale
        if scale is not None and not (len(scale) == 2 and all(map(math.isfinite, scale)) and scale[0] < scale[1]):
            raise ConfigError(f"{self.where}.scale", scale, "must be two finite numbers, the first below the second")


@dataclass(frozen=True)
class Combination(RewardPart):
    """A value that is made from further ones, in Harbor's words.

    Attributes:
        weights: of the values it is made of.
        aggregation: one of `AGGREGATIONS`.
        threshold: for ``threshold``: 1 where the weighted mean is at least this.
        optional: for ``required-pass``: values that need not pass.
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    aggregation: str = "weighted-mean"
    threshold: float = 0.5
    optional: Sequence[str] = ()

    @property
    def reads(self) -> list[str]:
        """The values that must be known before this one."""
        return [*self.weights, *super().reads]

    @property
    def where(self) -> str:
        """The table of the file."""
        return f"reward[{self.name}]"

    def check(self) -> None:
        """Checks the fields; see `RewardPart`."""
        super().check()
        check_choice(f"{self.where}.aggregation", self.aggregation, AGGREGATIONS)
        if not self.weights:
            raise ConfigError(f"{self.where}.weights", {}, "must name at least one component")
        for name, weight in self.weights.items():
            if not math.isfinite(weight) or (weight < 0 and self.aggregation != "weighted-sum"):
                accepted = "must be finite, and not negative except in a weighted-sum"
                raise ConfigError(f"{self.where}.weights.{name}", weight, accepted)
        if self.aggregation in ("weighted-mean", "threshold") and not sum(self.weights.values()) > 0:
            raise ConfigError(f"{self.where}.weights", dict(self.weights), "must not sum to 0")
        if not math.isfinite(self.threshold):
            raise ConfigError(f"{self.where}.threshold", self.threshold, "must be finite")
        for name in self.optional:
            check_choice(f"{self.where}.optional", name, tuple(self.weights))
        if self.optional and self.aggregation != "required-pass":
            raise ConfigError(f"{self.where}.optional", list(self.optional), "is of aggregation=required-pass")
        if self.aggregation == "required-pass" and set(self.optional) == set(self.weights):
            raise ConfigError(f"{self.where}.optional", list(self.optional), "must leave a component that is required")


class RewardSpec:
    """A checked hybrid reward.

    A name that is read and not declared is a component: the environment's reward or metric of that name.

    Args:
        parts: components and combinations.
        known: names that the environment has, where they are known before it plays.

    Attributes:
        components: all of them by name, undeclared ones included.
        combinations: by name.
        order: combinations and components, each after all that it reads.

    Raises:
        ConfigError: names that occur twice, a circle, no root, an unknown component or a bad number.
    """

    def __init__(self, parts: Sequence[RewardPart], known: Sequence[str] | None = None) -> None:
        by_name: dict[str, RewardPart] = {}
        for part in parts:
            part.check()
            if part.name in by_name:
                raise ConfigError(part.where, part.name, "is declared twice")
            by_name[part.name] = part
        if not isinstance(by_name.get(ROOT), Combination):
            raise ConfigError("reward", sorted(by_name), f"must have one [[reward]] named {ROOT!r}, which is maximised")
        for part in parts:
            for name in part.reads:
                if name not in by_name and known is not None and name not in known:
                    raise _unknown(part.where, name, [*by_name, *known])
                by_name.setdefault(name, Measured(name))
        for part in by_name.values():
            if not isinstance(part, Measured) or part.reward or known is None:
                continue
            for of in filter(None, (part.of or part.name, part.otherwise)):
                if of not in known:
                    raise _unknown(part.where, of, known)
        self.order = list(_sorted(by_name))
        used = set(_reached(by_name, ROOT))
        for name in by_name:
            if name not in used:
                raise ConfigError(by_name[name].where, name, f"counts nowhere: {ROOT!r} does not read it")
        self.components = {part.name: part for part in self.order if isinstance(part, Measured)}
        self.combinations = {part.name: part for part in self.order if isinstance(part, Combination)}

    @property
    def compares(self) -> bool:
        """Whether a value depends on the other rollouts of the task."""
        return any(component.normalise == "group" for component in self.components.values())


def _unknown(where: str, name: str, known: Sequence[str]) -> ConfigError:
    accepted = f"is no component, reward or metric; there are {', '.join(sorted(set(known)))}"
    return ConfigError(where, name, accepted + nearest(name, list(known)))


def _sorted(by_name: Mapping[str, RewardPart]) -> Iterator[RewardPart]:
    """Yields every part after those that it reads.

    Raises:
        ConfigError: they read each other in a circle.
    """
    done: set[str] = set()
    for first in by_name:
        path: list[tuple[str, Iterator[str]]] = [(first, iter(by_name[first].reads))] if first not in done else []
        while path:
            name, rest = path[-1]
            following = next((other for other in rest if other not in done), None)
            if following is None:
                path.pop()
                done.add(name)
                yield by_name[name]
                continue
            names = [one for one, _ in path]
            if following in names:
                circle = " -> ".join([*names[names.index(following) :], following])
                raise ConfigError(by_name[following].where, following, f"depends on itself: {circle}")
            path.append((following, iter(by_name[following].reads)))


def _reached(by_name: Mapping[str, RewardPart], root: str) -> Iterator[str]:
    waiting, seen = [root], {root}
    while waiting:
        name = waiting.pop()
        yield name
        new = [other for other in by_name[name].reads if other not in seen]
        seen.update(new)
        waiting += new
