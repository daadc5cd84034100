"""How far a quantised model is from its original on held-out text.

Shapes: T tokens, D hidden, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from arcforge_core.contracts.data import TrainBatch
from arcforge_core.eval.bits_per_byte import CHUNK_TOKENS
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.model.outputs import BlockOutput


@dataclass(frozen=True)
class Distance:
    """Figures of a model on a text.

    Attributes:
        bits_per_byte, loss: of the text, the loss in nats per token.
        kl: mean divergence of the model's distribution from the original's, in nats per token.
        agreement: share of tokens for which both models' most likely token is the same.
        layers: error of the hidden states after each layer, relative to their size.
    """

    bits_per_byte: float
    loss: float
    kl: float
    agreement: float
    layers: tuple[float, ...]


@torch.no_grad()
def distance(original: CausalLM, model: CausalLM, batches: Sequence[TrainBatch], turn_DD: Tensor | None) -> Distance:
    """Compares two models, both on the device of `original` and in eval mode.

    Args:
        original, model: the model that was quantised, and the result.
        batches: held-out text, loss weights 0 or 1, at least one 1.
        turn_DD: rotation of the result's residual stream; None without.
    """
    sums = torch.zeros(3, dtype=torch.float64)
    tokens, num_bytes = 0, 0
    wrong = torch.zeros(2, len(original.model.layers), dtype=torch.float64)
    for batch in batches:
        batch = batch.to(original.device)
        with _streams(original) as wanted, _streams(model) as found:
            pair = [m.hidden(batch.tokens_T, batch.batch).hidden_TD for m in (original, model)]
        for layer, (x_TD, y_TD) in enumerate(zip(wanted, found, strict=True)):
            x_TD = x_TD if turn_DD is None else x_TD.double() @ turn_DD.to(x_TD.device)
            wrong[0, layer] += float((y_TD.double() - x_TD.double()).square().sum())
            wrong[1, layer] += float(x_TD.double().square().sum())
        for start in range(0, len(batch.tokens_T), CHUNK_TOKENS):
            part = slice(start, start + CHUNK_TOKENS)
            sums += _sums(original, model, [x_TD[part] for x_TD in pair], batch.targets_T[part], batch.weights_T[part])
        tokens += int(batch.weights_T.count_nonzero())
        num_bytes += batch.num_bytes
    nll, kl, same = sums.tolist()
    layers = (wrong[0] / wrong[1]).sqrt().tolist()
    return Distance(nll / math.log(2) / num_bytes, nll / tokens, kl / tokens, same / tokens, tuple(layers))


def _sums(
    original: CausalLM, model: CausalLM, pair: list[Tensor], targets_T: Tensor, weights_T: Tensor
) -> Tensor:  # fmt: skip
    """Returns the model's loss, the divergence and the agreements, summed over the tokens with a weight."""
    wanted_TV, found_TV = (m.logits(x).float().log_softmax(-1) for m, x in zip((original, model), pair, strict=True))
    nll_T = -found_TV.gather(1, targets_T[:, None])[:, 0]
    kl_T = (wanted_TV.exp() * (wanted_TV - found_TV)).sum(-1)
    same_T = (wanted_TV.argmax(-1) == found_TV.argmax(-1)).float()
    return torch.stack([(x.double() * weights_T).sum() for x in (nll_T, kl_T, same_T)]).cpu()


@contextmanager
def _streams(model: CausalLM) -> Iterator[list[Tensor]]:
    """Collects the hidden states after each layer [T, D] while it is open."""
    found: list[Tensor] = []

    def keep(_: torch.nn.Module, __: tuple[Tensor, ...], out: BlockOutput) -> None:
        found.append(out.x_TD)

    hooks = [layer.register_forward_hook(keep) for layer in model.model.layers]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
