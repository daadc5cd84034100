"""Small policies, and rewards that they can learn, for tests of reinforcement learning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from arcforge_core.checkpoint.pretrained import save_pretrained
from arcforge_core.checkpoint.scalar import save_scalar
from arcforge_core.contracts.chat import Message
from arcforge_core.contracts.environment import Agents, Episode, Outcome, Score, Task
from arcforge_core.model.scalar import ScalarModel
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_model, small_tokenizer
from arcforge_core.tokenizer.tokenizer import Tokenizer


def save_policy(folder: Path, seed: int = 0, **changes: object) -> Path:
    """Writes a model of some ten thousand parameters with its tokenizer, and returns its folder."""
    save_pretrained(small_model(seed, vocab_size=TOKENIZER_SIZE, **changes), folder, small_tokenizer())
    return folder


def save_scorer(folder: Path, seed: int = 1, tokenizer: Tokenizer | None = None, **changes: object) -> Path:
    """Writes a critic or reward model with a random scalar head, and returns its folder."""
    scalar = ScalarModel(small_model(seed, **{"vocab_size": TOKENIZER_SIZE, **changes}))
    torch.nn.init.normal_(scalar.head.weight, generator=torch.Generator().manual_seed(seed))
    save_scalar(scalar, folder, tokenizer or small_tokenizer())
    return folder


def reward_even(environment: Any, task: Task, episode: Episode) -> Score:
    """A verifier in the place of another: half of all first characters are right, so that chance earns something."""
    text = episode.reply.text
    return Score(float(bool(text) and ord(text[0]) % 2 == 0), f"it begins with {text[:1]!r}")


async def play_pair(environment: Any, task: Task, agents: Agents) -> Episode:
    """A program in the place of ``environment=copy``'s: a second agent answers the solver's reply."""
    question = Message("user", task.prompt)
    reply = await agents.solver.reply([question])
    other = await agents.other.reply([Message("user", f"{task.prompt}{reply.text}")])
    return Episode((question, reply.message), reply, reply.finish_reason, {"other": other.text})


async def score_pair(environment: Any, task: Task, episode: Episode) -> Outcome:
    """Each of the two is rewarded for an even number of characters."""
    even = {"reward": episode.reply.text, "reward_other": str(episode.artefacts["other"])}
    return Outcome({name: float(len(text) % 2 == 0) for name, text in even.items()}, dict.fromkeys(even, "length"))


PAIR = {"agents": ("other",), "run": play_pair, "score": score_pair}
"""Attributes of an environment's class that make it one of two agents."""
