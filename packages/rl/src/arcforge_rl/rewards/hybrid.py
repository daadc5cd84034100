"""An environment whose reward is made of components, as a `RewardSpec` says."""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from arcforge_core.contracts.environment import Agent, Environment, Episode, Failure, NoVerdict, Outcome, Task
from arcforge_core.episodes.rewards import failure_of
from arcforge_core.errors import ConfigError
from arcforge_core.plugins.loader import registry
from arcforge_rl.configs.entries import entry_of
from arcforge_rl.rewards.compose import Comparable, compose
from arcforge_rl.rewards.judged import Judged
from arcforge_rl.rewards.learned import Rewarded
from arcforge_rl.rewards.spec import ROOT, Measured, RewardSpec
from arcforge_rl.rewards.toml import read_rewards

ATTEMPTS = 2
"""At a component that gives no verdict."""
AgentOf = Callable[[str, str, Mapping[str, Any] | None], Agent]
"""Makes an agent of the run from its name, the seed of its replies and the JSON schema that they follow."""
VERIFIED = "verified"
"""Name of the environment's own reward among the outcomes of a hybrid one."""


class EpisodeMeasure(Protocol):
    """A component of kind ``reward`` that measures episodes; its target is called as ``target(config)``.

    One that compares the episodes of a task has ``compares = True`` and `measure_group`. One that asks agents of the
    run names them in ``agents``; then ``connect(agent_of, identity_of)`` is called before the first episode.
    ``take_figures()``, if it has it, is called after every step and returns its figures since the last call.
    """

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
        together = any(getattr(measure, "compares", False) for measure in self.measures.values())
        self.compares = self.compares or spec.compares or together
        self.asked = sorted({name for measure in self.measures.values() for name in getattr(measure, "agents", ())})
        self.agents = tuple(dict.fromkeys([*self.agents, *self.asked]))
        self._comparable = Comparable(spec)
        self._counts: defaultdict[str, float] = defaultdict(float)

    def connect(self, agent_of: AgentOf, identity_of: Callable[[str], str]) -> None:
        """Gives the components the agents of the run.

        Args:
            agent_of: makes agents.
            identity_of: identifies the model of an agent and its sampling.
        """
        for measure in self.measures.values():
            if hasattr(measure, "connect"):
                measure.connect(agent_of, identity_of)

    def take_figures(self) -> dict[str, float]:
        """Returns the failures and the seconds of the measured components since the last call, and their own figures:
        ``reward_NAME_failures``, ``reward_NAME_seconds`` per episode."""
        counts, found = self._counts, dict[str, float]()
        self._counts = defaultdict(float)
        for name, measure in self.measures.items():
            own = measure.take_figures() if hasattr(measure, "take_figures") else {}
            found |= {f"reward_{name}_{figure}": value for figure, value in own.items()}
            episodes = counts[f"{name}/episodes"]
            if episodes:
                found[f"reward_{name}_failures"] = counts[f"{name}/failures"]
                found[f"reward_{name}_seconds"] = counts[f"{name}/seconds"] / episodes
        return found

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
        measured = await self._raw(task, episodes, own)
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

    async def _raw(
        self, task: Task, episodes: Sequence[Episode], own: Sequence[Outcome]
    ) -> list[dict[str, float] | Outcome]:
        """Returns the raw values of each episode's components, or the outcome of an episode that failed."""
        left = [n for n, outcome in enumerate(own) if outcome.failure is None]
        of_measures = dict(
            zip(
                self.measures,
                await asyncio.gather(
                    *[self._measured(name, task, [episodes[n] for n in left]) for name in self.measures]
                ),
                strict=True,
            )
        )
        found: list[dict[str, float] | Outcome] = list(own)
        for place, n in enumerate(left):
            values = {name: of[place] for name, of in of_measures.items()}
            failed = next((value for value in values.values() if isinstance(value, Failure)), None)
            if failed is not None:
                found[n] = Outcome.failed(failed)
                continue
            raw = {name: value for name, value in values.items() if not isinstance(value, Failure)}
            for name, component in self.spec.components.items():
                if name not in raw:
                    raw[name] = self._of_environment(component, own[n])
            found[n] = raw
        return found

    def _of_environment(self, component: Measured, outcome: Outcome) -> float:
        of = component.of or component.name
        found = next((name for name in (of, component.otherwise) if name in outcome.rewards), None)
        if found is None:
            accepted = f"the environment gives {', '.join(sorted(outcome.rewards))}"
            raise ConfigError(component.where, " or ".join(filter(None, (of, component.otherwise))), accepted)
        return outcome.rewards[found]

    async def _measured(self, name: str, task: Task, episodes: Sequence[Episode]) -> Sequence[float | Failure]:
        """Returns what a component measures of each episode, or why it does not."""
        measure: Any = self.measures[name]
        begun = time.monotonic()
        values: Sequence[float | Failure]
        if getattr(measure, "compares", False) and episodes:
            together = await _tried(name, lambda: measure.measure_group(task, episodes))
            values = [together] * len(episodes) if isinstance(together, Failure) else together
        else:
            values = await asyncio.gather(
                *[_tried(name, lambda one=one: measure.measure(task, one)) for one in episodes]  # type: ignore[misc]
            )
        values = [
            Failure("verifier", f"{name} is {value}")
            if not isinstance(value, Failure) and not math.isfinite(value)
            else value
            for value in values
        ]
        failures = sum(isinstance(value, Failure) for value in values)
        for figure, value in (
            ("episodes", len(episodes)),
            ("failures", failures),
            ("seconds", time.monotonic() - begun),
        ):
            self._counts[f"{name}/{figure}"] += value
        return values

    def _outcome(self, own: Outcome, raw: Mapping[str, float], values: Mapping[str, float]) -> Outcome:
        changed = {name: value for name, value in raw.items() if value != values[name]}
        parts = self.spec.combinations[ROOT].weights
        said = "; ".join(f"{name} {values[name]:.3g}" for name in parts)
        return Outcome(
            {**own.rewards, VERIFIED: own.rewards.get(VERIFIED, own.reward), **values},
            {**own.reasons, VERIFIED: own.reasons.get(ROOT, ""), ROOT: said},
            raw={**own.raw, **changed},
        )


async def _tried(name: str, measure: Callable[[], Any]) -> Any:
    """Returns what a component measures, or its failure; one that gave no verdict is asked once more."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return await measure()
        except ConfigError:
            raise
        except NoVerdict as error:
            if attempt == ATTEMPTS:
                return error.failure
        except Exception as error:
            return failure_of(error) or Failure("verifier", f"{name}: {type(error).__name__}: {error}")
    raise AssertionError("unreachable")


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


def opponents_of(environment: Environment) -> dict[str, Sequence[str]]:
    """Returns the prompts of expert-written replies by the component whose judge compares with them."""
    measures: Mapping[str, Any] = environment.measures if isinstance(environment, Hybrid) else {}
    found = {name: tuple(getattr(measure, "opponents", ())) for name, measure in measures.items()}
    return {name: prompts for name, prompts in found.items() if prompts}


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
