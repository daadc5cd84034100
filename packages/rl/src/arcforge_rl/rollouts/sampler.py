"""Rolls out for a run: training tasks for its steps, held-out ones for its evaluations."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from arcforge_core.config.schema import EnvironmentConfig
from arcforge_core.contracts.engine import Engine
from arcforge_core.contracts.environment import Environment
from arcforge_core.registry import registry
from arcforge_rl.configs_learning import RlConfig
from arcforge_rl.rollouts.collect import Collected, Rollout, collect, roll_out
from arcforge_rl.rollouts.curriculum import Curriculum
from arcforge_rl.rollouts.solver import Manner, Speaker
from arcforge_rl.rollouts.unstable import UnstableSelection

AT_ONCE = 256
"""Held-out rollouts that are sampled at a time, of all processes together; of a task all."""


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


@dataclass
class Sampler:
    """What rolls out.

    Attributes:
        config: of the run.
        engine: samples.
        speaker: words and tokens.
        positions: of the model.
        training, heldout: the environment, of each side.
        curriculum: which training tasks.
        unstable: the engine's selection, where it is made to differ from call to call.
    """

    config: RlConfig
    engine: Engine
    speaker: Speaker
    positions: int
    training: Environment
    heldout: Environment
    curriculum: Curriculum
    unstable: UnstableSelection | None = None

    def collect(self, step: int) -> Collected:
        """Returns the rollouts of a step."""
        rollout = self.config.rollout
        if self.unstable is not None:
            self.unstable.reseed(f"{self.config.seed}/{step}")
        return collect(
            self.training,
            self.engine,
            lambda filling: self._manner(f"{self.config.seed}/{step}/{filling}", rollout.temperature),
            rollout,
            self.curriculum,
        )

    def evaluate(self) -> list[list[Rollout]]:
        """Returns tries at held-out tasks; the same tasks and seeds each time."""
        evaluation = self.config.evaluation
        if self.unstable is not None:
            self.unstable.reseed(f"{self.config.seed}/heldout")
        groups: list[list[Rollout]] = []
        chunk = max(1, AT_ONCE // evaluation.samples)
        for start in range(0, evaluation.tasks, chunk):
            manner = self._manner(f"{self.config.seed}/heldout/{start}", evaluation.temperature)
            tasks = range(start, min(start + chunk, evaluation.tasks))
            groups += roll_out(self.heldout, self.engine, manner, tasks, evaluation.samples)
        return groups

    def _manner(self, seed: str, temperature: float) -> Manner:
        rollout = self.config.rollout
        noise = rollout.engine_logprob_noise
        return Manner(self.speaker, rollout.max_new_tokens, temperature, self.positions, seed, noise)
