"""An outcome reward model as a component: in this process, or on a server with vLLM's ``/pooling``."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from arcforge_core.chat.openai import message_to_openai
from arcforge_core.checkpoint.pretrained import find_checkpoint
from arcforge_core.checkpoint.reward_model import RewardModel
from arcforge_core.contracts.environment import Episode, EpisodeFailure, Task
from arcforge_core.ops.dispatch import default_ops
from arcforge_rl.configs.rewards import OrmConfig
from arcforge_rl.endpoints import JsonServer, NoAnswer, key_in

MOST_TOGETHER = 16
"""Requests at a server at a time."""


class OutcomeRewardModel:
    """The score of a conversation; any number.

    Raises:
        ConfigError, CheckpointError: the folder is no reward model; or the variable with the key is not set.
    """

    def __init__(self, config: OrmConfig) -> None:
        config.check()
        self.config = config
        self.model: RewardModel | None = None
        self._together: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None
        if config.checkpoint is not None:
            folder = find_checkpoint(config.checkpoint, "options.checkpoint")
            self.model = RewardModel(folder, default_ops(), "options.checkpoint")
        self.server: JsonServer | None = None
        if config.url is not None:
            key = key_in(config.key_variable, "options.key_variable")
            self.server = JsonServer(config.url, key, config.seconds, config.attempts)

    async def measure(self, task: Task, episode: Episode) -> float:
        """Returns the score after the last message.

        Raises:
            EpisodeFailure: the server gives none, or it is not finite.
        """
        if self.server is not None:
            async with self._room():
                score = await self._ask(episode, self.server)
        else:
            assert self.model is not None  # `check` wants one of both
            score = await asyncio.to_thread(self.model.score, episode.messages)
        if not math.isfinite(score):
            raise EpisodeFailure("verifier", f"the reward model's score is {score}")
        return score

    def _room(self) -> asyncio.Semaphore:
        loop = asyncio.get_running_loop()
        if self._together is None or self._together[0] is not loop:
            self._together = loop, asyncio.Semaphore(MOST_TOGETHER)
        return self._together[1]

    async def _ask(self, episode: Episode, server: JsonServer) -> float:
        body: dict[str, Any] = {"messages": [message_to_openai(message) for message in episode.messages]}
        body |= {} if self.config.model is None else {"model": self.config.model}
        try:
            return await server.post("/pooling", body, score_in)
        except NoAnswer as error:
            raise EpisodeFailure("verifier", str(error)) from error


def score_in(answer: Any) -> float:
    """Returns the score in a reply.

    Raises:
        ValueError: there is none.
    """
    try:
        (found,) = answer["data"]
        (score,) = found["data"]
        return float(score)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"no score of one conversation: {str(answer)[:200]}") from error
