"""A reward model from its folder: conversations to scores. S: conversations."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import torch

from arcforge_core.chat.load import build_chat_template
from arcforge_core.checkpoint.scalar import HEAD, load_scalar
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.contracts.chat import ChatTemplate, Message
from arcforge_core.errors import ConfigError
from arcforge_core.ops.dispatch import Ops
from arcforge_core.tokenizer.tokenizer import Tokenizer

TOGETHER = 8192
"""Tokens of one pass at most, longer conversations excepted."""


def conversation_encoder(tokenizer: Tokenizer) -> Callable[[Sequence[Message]], list[int]]:
    """Returns how a reward model reads conversations: in the tokenizer's chat template, without one as plain text."""
    template: ChatTemplate | None = None
    with suppress(ConfigError):  # a tokenizer without a template reads plain text
        template = build_chat_template(tokenizer)

    def encode(messages: Sequence[Message]) -> list[int]:
        if template is not None:
            return list(template.render(messages).ids)
        text = tokenizer.encode("".join(message.content for message in messages))
        return [tokenizer.bos_id, *text, tokenizer.eos_id]

    return encode


class RewardModel:
    """Scores whole conversations.

    Args:
        folder: a model with a scalar head and a tokenizer.
        ops: provides the kernels.
        field: option that named the folder, for errors.

    Raises:
        ConfigError: the folder has no head or no tokenizer, or the tokenizer has more ids than the model.
        CheckpointError: a file is damaged.
    """

    def __init__(self, folder: Path, ops: Ops, field: str = "reward_model.checkpoint") -> None:
        for name in (HEAD, "tokenizer.json"):
            if not (folder / name).is_file():
                raise ConfigError(field, str(folder), f"has no {name}: it is no reward model")
        self.tokenizer = Tokenizer.load(folder)
        self.model = load_scalar(folder, ops).requires_grad_(False).eval()
        if ops.hardware is not None:
            self.model = self.model.to(ops.hardware.identity.device)
        sizes = self.model.model.config
        if self.tokenizer.vocab_size > sizes.vocab_size:
            accepted = f"its tokenizer has {self.tokenizer.vocab_size} ids, its model {sizes.vocab_size}"
            raise ConfigError(field, str(folder), accepted)
        self.positions = sizes.max_position_embeddings
        self._lock = threading.Lock()
        self._encode = conversation_encoder(self.tokenizer)

    def ids(self, messages: Sequence[Message]) -> list[int]:
        """Returns the tokens of a conversation; of a longer one than the model can read, the last ones."""
        return self._encode(messages)[-self.positions :]

    def score(self, messages: Sequence[Message]) -> float:
        """Returns the scalar after the last token of a conversation."""
        return self.score_all([messages])[0]

    @torch.no_grad()
    def score_all(self, conversations: Sequence[Sequence[Message]]) -> list[float]:
        """Returns the scalars of conversations, several in a pass."""
        found: list[float] = []
        waiting: list[list[int]] = []
        for conversation in [*map(self.ids, conversations), None]:
            if waiting and (conversation is None or sum(map(len, waiting)) + len(conversation) > TOGETHER):
                found += self._pass(waiting)
                waiting = []
            if conversation is not None:
                waiting.append(conversation)
        return found

    def _pass(self, texts: Sequence[Sequence[int]]) -> list[float]:
        device, lengths = self.model.model.device, [len(ids) for ids in texts]
        tokens_T = torch.tensor([token for ids in texts for token in ids], device=device)
        last_S = torch.tensor(lengths, device=device).cumsum(0) - 1
        with self._lock:
            scores: list[float] = self.model(tokens_T, SequenceBatch.build(lengths, device=device), last_S).tolist()
        return scores
