"""Streams computed before scoring: log-probabilities of other models, and values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from arcforge_core.contracts.algorithm import Trace
from arcforge_core.errors import ConfigError
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_rl.trainer.prefixes import Alike
from arcforge_rl.trainer.tokens import PolicyMicro, pack, read, write_stream


@torch.no_grad()
def add_stream(
    traces: Sequence[Trace],
    name: str,
    max_tokens: int,
    device: torch.device,
    value_of: Callable[[PolicyMicro], Tensor],
    alike: Alike | None = None,
) -> None:
    """Writes a stream of numbers for sampled tokens.

    Args:
        traces: receive the stream.
        name: name of the stream.
        max_tokens: maximum tokens of a micro-batch.
        device: device of the computation.
        value_of: returns the numbers of a micro-batch, [S].
        alike: which tokens are shared, see `pack`.
    """
    for micro in pack(traces, max_tokens, split=True, alike=alike):
        write_stream(micro, name, value_of(micro.to(device)))


def add_logprobs(
    traces: Sequence[Trace],
    name: str,
    model: CausalLM,
    max_tokens: int,
    temperature: float,
    alike: Alike | None = None,
) -> None:
    """Writes a model's log-probabilities of the sampled tokens at the temperature of the rollouts.

    A reference and a teacher are scaled as the policy is, so that a model equal to the policy has equal log-probs.
    Branches share tokens (`alike`) if the model can.
    """
    shared = alike if model.shares_prefixes else None
    add_stream(traces, name, max_tokens, model.device, lambda micro: read(model, micro, temperature).logprobs_S, shared)


def check_tokenizer(field: str, folder: Path, tokenizer: Tokenizer) -> None:
    """Checks that a model has the policy's tokenizer.

    Raises:
        ConfigError: the tokenizers differ, or the model has none.
    """
    if not (folder / "tokenizer.json").is_file():
        raise ConfigError(field, str(folder), "has no tokenizer.json to compare with the policy's")
    if Tokenizer.load(folder).sha256 != tokenizer.sha256:
        raise ConfigError(
            field, str(folder), "has another tokenizer than the policy: log-probabilities cannot be compared"
        )
