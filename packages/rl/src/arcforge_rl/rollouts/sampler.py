"""Rolls out for a run: training tasks for its steps, held-out ones for its evaluations.

A `Sampler` is the `Source` of ``collection=sync``: a step's rollouts are played when it is asked for them.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arcforge_core.config.schema import EnvironmentConfig
from arcforge_core.contracts.engine import Engine
from arcforge_core.contracts.environment import Environment
from arcforge_core.episodes.agent import Dialogue, SamplingSetup
from arcforge_core.episodes.asking import EngineUse
from arcforge_core.episodes.rewards import TOTAL
from arcforge_core.plugins.loader import registry
from arcforge_rl.configs.collection import SynchronousConfig
from arcforge_rl.configs.learning import RlConfig
from arcforge_rl.rollouts.clock import Clock
from arcforge_rl.rollouts.collect import (
    Collected,
    RollOut,
    StepTasks,
    TracedRollout,
    collect,
    roll_out_groups,
)
from arcforge_rl.rollouts.curriculum import Curriculum
from arcforge_rl.rollouts.others import Others
from arcforge_rl.rollouts.player import OpenPlayer
from arcforge_rl.rollouts.speed import Speed


def build_environment(config: EnvironmentConfig, split: str | None = None) -> Environment:
    """Builds an environment.

    Args:
        config: the environment's.
        split: instead of the configured one.
    """
    if split is not None:
        config = dataclasses.replace(config, split=split)
    environment: Environment = registry().get("environment", config.name).load()(config)
    return environment


def seed_of(seed: int, step: int) -> str:
    """Returns the seed of the rollouts of a step; with a rollout's number it names the rollout."""
    return f"{seed}/{step}/0"


@dataclass
class Sampler:
    """What rolls out.

    Attributes:
        config: of the run.
        engine: samples.
        dialogue: renders and parses.
        positions: of the model.
        training, heldout: the environment, of each side.
        curriculum: which training tasks.
        drop_equal: groups that are equal in all rewards of these names are replaced.
        roll_out: plays groups.
        open_player: opens a player of single rollouts; None: the policy in this process.
        evaluator: engine of the evaluations; None: that of the rollouts.
        counts: its counts, for the figures of the next step.
        others: the further agents of the rollouts.
        use: the time in which the engine computed for the steps.
        speed: measures the steps of the source.
        worked: whether a rollout has succeeded in this process; then a step of failures does not end the run.
    """

    config: RlConfig
    engine: Engine
    dialogue: Dialogue
    positions: int
    training: Environment
    heldout: Environment
    curriculum: Curriculum
    drop_equal: Sequence[str] = (TOTAL,)
    roll_out: RollOut = roll_out_groups
    open_player: OpenPlayer | None = None
    evaluator: Engine | None = None
    counts: Counter[str] = field(default_factory=Counter)
    others: Others | None = None
    use: EngineUse = field(default_factory=EngineUse)
    worked: bool = False

    def __post_init__(self) -> None:
        self.speed = Speed(self.engine, self.use.so_far)

    def take(self, step: int) -> Collected:
        """Plays the rollouts of a step.

        Raises:
            ArcforgeError: all failed, and none has succeeded before.
        """
        rollout, begun = self.config.rollout, time.monotonic()
        found = collect(
            self.training,
            self.engine,
            self.training_setup,
            seed_of(self.config.seed, step),
            rollout,
            self.curriculum,
            self.drop_equal,
            self.roll_out,
            must_work=not self.worked,
        )
        self.worked = True
        found.counts |= self.take_counts()
        self.use.seconds += found.clock.engine.seconds
        trained = sum(trace.num_sampled for trace in found.traces)
        found.figures |= self.speed.step(trained, time.monotonic() - begun)
        return found

    def take_counts(self) -> dict[str, int]:
        """Returns `counts`, which begin at 0 again."""
        found = dict(self.counts)
        self.counts.subtract(found)
        return {name: count for name, count in found.items() if count}

    def play_greedily(self, environment: Environment, count: int) -> list[list[TracedRollout]]:
        """Returns one greedy try at each of the first tasks of an environment."""
        wanted = StepTasks(environment, f"{self.config.seed}/greedy", range(count), 1)
        with self.speed.aside():
            return self.roll_out(wanted, self.evaluator or self.engine, self._setup(0.0), Clock())

    def evaluate(self) -> list[list[TracedRollout]]:
        """Returns tries at held-out tasks, failed ones too; the same tasks and seeds each time."""
        evaluation = self.config.evaluation
        groups: list[list[TracedRollout]] = []
        setup = self._setup(evaluation.temperature)
        chunk = max(1, evaluation.concurrency // evaluation.samples)  # of a task all
        with self.speed.aside():
            for start in range(0, evaluation.tasks, chunk):
                seed = f"{self.config.seed}/heldout/{start}"
                tasks = range(start, min(start + chunk, evaluation.tasks))
                wanted = StepTasks(self.heldout, seed, tasks, evaluation.samples)
                groups += self.roll_out(wanted, self.evaluator or self.engine, setup, Clock())
        return groups

    @property
    def training_setup(self) -> SamplingSetup:
        """How training rollouts are sampled."""
        temperature = self.config.rollout.temperature
        setup = self._setup(temperature, sampled_logprobs=temperature != 1.0)
        return dataclasses.replace(setup, experts=self.config.trainer.replay_routing == "engine")

    # ---- the source of a synchronous loop ----------------------------------------------------------------------------

    resets_optimizer = False

    def begin(self, step: int, folder: Path, catch_up: Callable[[], None]) -> None:
        """Needs nothing."""

    def publish(self, step: int, push: Callable[[], None]) -> bool:
        """Hands the weights over after every step."""
        push()
        return True

    @property
    def state(self) -> Mapping[str, Any]:
        """Nothing besides the curriculum."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """There is nothing to restore."""

    def alone(self) -> AbstractContextManager[None]:
        """Nothing runs between steps."""
        return nullcontext()

    def stop(self) -> None:
        """Nothing runs between steps."""

    def close(self) -> None:
        """Holds nothing itself."""

    def _setup(self, temperature: float, sampled_logprobs: bool = False) -> SamplingSetup:
        longest = self.config.rollout.max_new_tokens
        others = self.others.makers if self.others else {}
        return SamplingSetup(self.dialogue, longest, temperature, self.positions, sampled_logprobs, others)


def synchronous(config: SynchronousConfig, sampler: Sampler) -> Sampler:
    """Returns the source of ``collection=sync``: the sampler itself."""
    return sampler
