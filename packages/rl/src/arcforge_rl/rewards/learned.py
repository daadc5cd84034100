"""A reward model next to the verifiers of an environment: both judge an episode, and their rewards are mixed.

The reward model renders the conversation with its own tokenizer and chat template, so it may be another model than the
policy. T: tokens.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from arcforge_core.chat.load import build_chat_template
from arcforge_core.checkpoint.pretrained import find_checkpoint
from arcforge_core.checkpoint.scalar import HEAD, load_scalar
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.contracts.chat import ChatTemplate, Message
from arcforge_core.contracts.environment import Environment, Episode, Failure, Outcome, Task
from arcforge_core.errors import ConfigError
from arcforge_core.ops.dispatch import Ops
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_rl.configs.learning import RewardModelConfig
from arcforge_rl.rewards.judged import Judged


class RewardModel:
    """Scores whole conversations.

    Args:
        folder: a model with a scalar head and a tokenizer.
        ops: provides the kernels.

    Raises:
        ConfigError: the folder has no head or no tokenizer, or the tokenizer has more ids than the model.
        CheckpointError: a file is damaged.
    """

    def __init__(self, folder: Path, ops: Ops) -> None:
        for name in (HEAD, "tokenizer.json"):
            if not (folder / name).is_file():
                raise ConfigError("reward_model.checkpoint", str(folder), f"has no {name}: it is no reward model")
        self.tokenizer = Tokenizer.load(folder)
        self.model = load_scalar(folder, ops).requires_grad_(False).eval()
        if ops.hardware is not None:
            self.model = self.model.to(ops.hardware.device_type)
        sizes = self.model.model.config
        if self.tokenizer.vocab_size > sizes.vocab_size:
            accepted = f"its tokenizer has {self.tokenizer.vocab_size} ids, its model {sizes.vocab_size}"
            raise ConfigError("reward_model.checkpoint", str(folder), accepted)
        self.positions = sizes.max_position_embeddings
        self._lock = threading.Lock()
        self._template: ChatTemplate | None = None
        with suppress(ConfigError):  # a tokenizer without a template reads plain text
            self._template = build_chat_template(self.tokenizer)

    def ids(self, messages: Sequence[Message]) -> list[int]:
        """Returns the tokens of a conversation; of a longer one than the model can read, the last ones."""
        if self._template is not None:
            ids = list(self._template.render(messages).ids)
        else:
            text = self.tokenizer.encode("".join(message.content for message in messages))
            ids = [self.tokenizer.bos_id, *text, self.tokenizer.eos_id]
        return ids[-self.positions :]

    @torch.no_grad()
    def score(self, messages: Sequence[Message]) -> float:
        """Returns the scalar after the last token of a conversation."""
        ids = self.ids(messages)
        device = self.model.model.device
        tokens_T = torch.tensor(ids, device=device)
        last_S = torch.tensor([len(ids) - 1], device=device)
        with self._lock:
            return float(self.model(tokens_T, SequenceBatch.build([len(ids)], device=device), last_S))


class Rewarded(Judged):
    """An environment whose reward is (1 - weight) x verified + weight x sigmoid(score); an `Environment`.

    Args:
        environment: plays and verifies.
        model: scores what was played.
        weight: of the model, in [0, 1].
    """

    def __init__(self, environment: Environment, model: RewardModel, weight: float) -> None:
        super().__init__(environment)
        self.model, self.weight = model, weight

    async def score(self, task: Task, episode: Episode) -> Outcome:
        """Returns the verifiers' rewards with ``verified``, ``reward_model`` and their mixture as ``reward``."""
        return await self._mixed(await self.environment.score(task, episode), episode)

    async def _mixed(self, verified: Outcome, episode: Episode) -> Outcome:
        if verified.failure is not None:
            return verified
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


def with_reward_model(environment: Environment, config: RewardModelConfig, ops: Ops) -> Environment:
    """Returns the environment, with the reward model if one is configured.

    Raises:
        ConfigError, CheckpointError: see `RewardModel`.
    """
    if config.checkpoint is None:
        return environment
    folder = find_checkpoint(config.checkpoint, "reward_model.checkpoint")
    kind = RewardedGroups if hasattr(environment, "score_group") else Rewarded
    return kind(environment, RewardModel(folder, ops), config.weight)
