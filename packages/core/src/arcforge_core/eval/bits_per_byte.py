"""Bits per byte of held-out text: a figure that does not depend on the tokenizer.

Shapes: T tokens, D hidden.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from arcforge_core.contracts.data import TrainBatch
from arcforge_core.errors import DataError
from arcforge_core.model.causal_lm import CausalLM

CHUNK_TOKENS = 1024
"""Rows of logits in memory at a time."""


@dataclass(frozen=True)
class BitsPerByte:
    """Cross-entropy of a text under a model.

    Attributes:
        bits_per_byte: negative log2-likelihood of the text over its UTF-8 bytes.
        loss: negative log-likelihood in nats per predicted token.
        tokens: predicted tokens.
        num_bytes: bytes of text in these tokens.
    """

    bits_per_byte: float
    loss: float
    tokens: int
    num_bytes: int


@torch.no_grad()
def bits_per_byte(model: CausalLM, batches: Iterable[TrainBatch]) -> BitsPerByte:
    """Measures `model` on `batches`, whose loss weights are 0 or 1; the model's mode is restored.

    Raises:
        DataError: no batch holds a predicted token.
    """
    was_training = model.training
    model.eval()
    try:
        nll, tokens, num_bytes = 0.0, 0, 0
        for batch in batches:
            batch = batch.to(model.device)
            nll += negative_log_likelihood(model, batch)
            tokens += int(batch.weights_T.count_nonzero())
            num_bytes += batch.num_bytes
    finally:
        model.train(was_training)
    if not tokens or not num_bytes:
        raise DataError("no held-out text to measure: the corpus is too small for its held-out share (data.heldout)")
    return BitsPerByte(nll / math.log(2) / num_bytes, nll / tokens, tokens, num_bytes)


def negative_log_likelihood(model: CausalLM, batch: TrainBatch) -> float:
    """Returns the weighted sum in nats, with at most `CHUNK_TOKENS` rows of logits at a time."""
    hidden_TD = model.hidden(batch.tokens_T, batch.batch).hidden_TD
    weight_VD = model.lm_head.full_weight(hidden_TD.dtype)
    parts = (part.split(CHUNK_TOKENS) for part in (hidden_TD, batch.targets_T, batch.weights_T))
    return sum(
        float(model.linear_cross_entropy(hidden, weight_VD, targets, weights))
        for hidden, targets, weights in zip(*parts, strict=True)
    )
