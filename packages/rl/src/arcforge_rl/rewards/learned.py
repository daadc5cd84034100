"""A reward model next to the verifiers of an environment: both judge an episode, and their rewards are mixed.

The reward model renders the conversation with its own tokenizer and chat template, so it may be another model than the
policy.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from arcforge_core.checkpoint.pretrained import find_checkpoint
from arcforge_core.checkpoint.reward_model import RewardModel
from arcforge_core.contracts.environment import Environment, Episode, Failure, Outcome, Task
from arcforge_core.ops.dispatch import Ops
from arcforge_rl.configs.learning import RewardModelConfig
from arcforge_rl.rewards.judged import Judged


class Rewarded(Judged):
    """An environment whose reward is (1 - weight) x verified + weight x sigmoid(score); an `Environment`.

    Args:
        environment: plays and verifies.
        model: scores what was played; None where nothing is scored.
        weight: of the model, in [0, 1].
    """

    def __init__(self, environment: Environment, model: RewardModel | None, weight: float) -> None:
        super().__init__(environment)
        self.model, self.weight = model, weight

    async def score(self, task: Task, episode: Episode) -> Outcome:
        """Returns the verifiers' rewards with ``verified``, ``reward_model`` and their mixture as ``reward``."""
        return await self._mixed(await self.environment.score(task, episode), episode)

    async def _mixed(self, verified: Outcome, episode: Episode) -> Outcome:
        if verified.failure is not None:
            return verified
        assert self.model is not None, "verdicts are given where the model is"
        score = await asyncio.to_thread(self.model.score, episode.messages)
        if not math.isfinite(score):
            return Outcome.failed(Failure("verifier", f"the reward model's score is {score}"))
        learned = 1.0 / (1.0 + math.exp(-max(-30.0, min(30.0, score))))
        mixed = (1.0 - self.weight) * verified.reward + self.weight * learned
        rewards = {**verified.rewards, "reward": mixed, "verified": verified.reward, "reward_model": learned}
        said = {"verified": verified.reasons.get("reward", ""), "reward_model": f"scored {score:.3f}"}
        return replace(verified, rewards=rewards, reasons={**verified.reasons, **said})


class RewardedGroups(Rewarded):
    """The same of an environment that scores the episodes of a task together."""

    async def score_group(self, task: Task, episodes: Sequence[Episode]) -> Sequence[Outcome]:
        """Returns the outcomes of a task's episodes, each with the model's reward."""
        together: Any = self.environment
        verified = await together.score_group(task, episodes)
        return [await self._mixed(*each) for each in zip(verified, episodes, strict=True)]


def with_reward_model(environment: Environment, config: RewardModelConfig, ops: Ops | None) -> Environment:
    """Returns the environment, with the reward model if one is configured.

    Args:
        environment: plays and verifies.
        config: of the reward model.
        ops: provides its kernels; None reads no weights, for an environment that gives no verdicts.

    Raises:
        ConfigError, CheckpointError: see `RewardModel`.
    """
    if config.checkpoint is None:
        return environment
    folder = find_checkpoint(config.checkpoint, "reward_model.checkpoint")
    kind = RewardedGroups if hasattr(environment, "score_group") else Rewarded
    return kind(environment, None if ops is None else RewardModel(folder, ops), config.weight)
