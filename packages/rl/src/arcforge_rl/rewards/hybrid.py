"""An environment whose reward is made of components, as a `RewardSpec` says."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from arcforge_core.contracts.environment import Environment, Episode, Failure, Outcome, Task
from arcforge_core.episodes.rewards import failure_of
from arcforge_core.errors import ConfigError
from arcforge_core.plugins.loader import registry
from arcforge_rl.configs.entries import entry_of
from arcforge_rl.rewards.compose import Comparable, compose
from arcforge_rl.rewards.judged import Judged
from arcforge_rl.rewards.learned import Rewarded
from arcforge_rl.rewards.spec import ROOT, Measured, RewardSpec
from arcforge_rl.rewards.toml import read_rewards

VERIFIED = "verified"
"""Name of the environment's own reward among the outcomes of a hybrid one."""


class EpisodeMeasure(Protocol):
    """A component of kind ``reward`` that measures episodes; its target is called as ``target(config)``."""

    async def measure(self, task: Task, episode: Episode) -> float:
        """Returns any finite number.

        Raises:
            EpisodeFailure: there is none, `NoVerdict` for a judge that gave no verdict.
        """


class Hybrid(Judged):
    """Judges the episodes of another environment by components; implements `Environment`.

    A component that fails makes its rollout a failure; the others of the group are compared without it.

    Args:
        environment: plays, and gives rewards and metrics to read.
        spec: the reward.
        measures: of the components that name a registered reward, by their names.
    """

    def __init__(self, environment: Environment, spec: RewardSpec, measures: Mapping[str, EpisodeMeasure]) -> None:
        super().__init__(environment)
        self.spec, self.measures = spec, dict(measures)
        self.compares = self.compares or spec.compares
        self._comparable = Comparable(spec)

    async def score(self, task: Task, episode: Episode) -> Outcome:
        """Returns the outcome of an episode alone."""
        (outcome,) = await self.score_group(task, [episode])
        return outcome

    async def score_group(self, task: Task, episodes: Sequence[Episode]) -> Sequence[Outcome]:
        """Returns the outcomes of a task's episodes: values of all parts, ``reward`` among them, and raw values."""
        together: Any = getattr(self.environment, "score_group", None)
        if together is not None:
            own: Sequence[Outcome] = await together(task, episodes)
        else:
            own = [await self.environment.score(task, episode) for episode in episodes]
        pairs = zip(own, episodes, strict=True)
        measured = await asyncio.gather(*[self._raw(task, episode, outcome) for outcome, episode in pairs])
        valid = [raw for raw in measured if not isinstance(raw, Outcome)]
        values = iter(self._comparable(valid))
        return [
            raw if isinstance(raw, Outcome) else self._outcome(outcome, raw, compose(self.spec, next(values)))
            for raw, outcome in zip(measured, own, strict=True)
        ]

    @property
    def reward_state(self) -> dict[str, list[float]]:
        """Values among which quantiles are taken, for a checkpoint."""
        return self._comparable.state

    @reward_state.setter
    def reward_state(self, state: Mapping[str, Sequence[float]]) -> None:
        self._comparable.state = state

    async def _raw(self, task: Task, episode: Episode, outcome: Outcome) -> dict[str, float] | Outcome:
        """Returns the raw values of an episode's components, or the outcome of one that failed."""
        if outcome.failure is not None:
            return outcome
        raw = {}
        for name, component in self.spec.components.items():
            if component.reward:
                try:
                    raw[name] = await self.measures[name].measure(task, episode)
                except Exception as error:
                    said = f"{name}: {type(error).__name__}: {error}"
                    failure = failure_of(error) or Failure("verifier", said)
                    return Outcome.failed(failure)
                if not math.isfinite(raw[name]):
                    return Outcome.failed(Failure("verifier", f"{name} is {raw[name]}"))
                continue
            of = component.of or name
            if of not in outcome.rewards:
                accepted = f"the environment gives {', '.join(sorted(outcome.rewards))}"
                raise ConfigError(component.where, of, accepted)
            raw[name] = outcome.rewards[of]
        return raw

    def _outcome(self, own: Outcome, raw: Mapping[str, float], values: Mapping[str, float]) -> Outcome:
        changed = {name: value for name, value in raw.items() if value != values[name]}
        parts = self.spec.combinations[ROOT].weights
        said = "; ".join(f"{name} {values[name]:.3g}" for name in parts)
        return Outcome(
            {**own.rewards, VERIFIED: own.rewards.get(VERIFIED, own.reward), **values},
            {**own.reasons, VERIFIED: own.reasons.get(ROOT, ""), ROOT: said},
            raw={**own.raw, **changed},
        )


def with_rewards(environment: Environment, path: str | None, collection: str) -> Environment:
    """Returns the environment with the hybrid reward of a file, if one is named.

    Args:
        environment: of the training tasks, with its reward model if it has one.
        path: of the file.
        collection: how rollouts are collected.

    Raises:
        DataError: the file cannot be read.
        ConfigError: it says what no reward can be, or values that need rollouts in order come in any.
    """
    if path is None:
        return environment
    spec = read_rewards(Path(path), known_names(environment))
    running = [name for name, component in spec.components.items() if component.normalise == "quantile"]
    if running and collection != "sync":
        accepted = "needs collection=sync: the values before it would be others in every run"
        raise ConfigError(f"component.{running[0]}.normalise", "quantile", accepted)
    measures = {name: measure_of(component) for name, component in spec.components.items() if component.reward}
    return Hybrid(environment, spec, measures)


def known_names(environment: Environment) -> list[str] | None:
    """Returns the names of an environment's rewards and metrics; None where they are unknown before it plays."""
    learned = isinstance(environment, Rewarded)
    verifiers = getattr(environment.environment if learned else environment, "verifiers", None)  # type: ignore[attr-defined]
    if verifiers is None:
        return None
    return [*verifiers, ROOT, *((VERIFIED, "reward_model") if learned else ())]


def measure_of(component: Measured) -> EpisodeMeasure:
    """Builds the registered reward of a component.

    Raises:
        ConfigError: there is none of that name, it has no such option, or it judges answers and not episodes.
    """
    found = registry().get("reward", component.reward)
    options = entry_of(found.load_schema(), component.options, f"{component.where}.options", component.reward)
    made: Any = found.load()(options)
    if not hasattr(made, "measure"):
        raise ConfigError(f"{component.where}.reward", component.reward, "checks answers of records, not episodes")
    measure: EpisodeMeasure = made
    return measure
