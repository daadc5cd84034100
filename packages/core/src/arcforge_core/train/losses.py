"""The training losses as plain functions. Shapes: T tokens, D hidden, N segments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from arcforge_core.config.schema import ModelConfig
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.contracts.data import TrainBatch
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.model.mtp import shift_left


@dataclass(frozen=True)
class MtpDepth:
    """Inputs and targets of one MTP depth for the leading tokens of the batch.

    Attributes:
        next_tokens_T: the token `depth` positions ahead, which is embedded.
        targets_T: the token after it, which is predicted.
        weights_T: loss weights; 0 where the document ends earlier.
    """

    next_tokens_T: Tensor
    targets_T: Tensor
    weights_T: Tensor


@dataclass(frozen=True)
class MtpPlan:
    """The part of a micro-batch that carries the MTP loss: its leading whole segments."""

    batch: SequenceBatch
    depths: tuple[MtpDepth, ...]


def plan_mtp(micro: TrainBatch, depths: int, fraction: float) -> MtpPlan | None:
    """Selects leading segments with at least `fraction` of the tokens, and shifts their targets depth by depth.

    Returns:
        None if no token carries the loss.
    """
    if depths == 0 or fraction == 0.0:
        return None
    ends_N = micro.batch.cu_query[1:]
    count = int(torch.searchsorted(ends_N, fraction * micro.batch.num_tokens)) + 1
    lengths = micro.batch.query_lengths()[:count]
    batch = SequenceBatch.build(lengths, device=micro.tokens_T.device)
    ahead_T, weights_T = micro.targets_T[: batch.num_tokens], micro.weights_T[: batch.num_tokens]
    steps = []
    for _ in range(depths):
        next_tokens_T = ahead_T
        ahead_T, valid_T = shift_left(ahead_T, batch)
        weights_T = shift_left(weights_T, batch)[0] * valid_T
        steps.append(MtpDepth(next_tokens_T, ahead_T, weights_T))
    return MtpPlan(batch, tuple(steps))


Reduce = Callable[[list[float]], tuple[list[float], float]]
"""Returns the sums of numbers over all processes, and the number of processes that average their gradients."""


@dataclass(frozen=True)
class Normalizers:
    """Divisors of the losses: sums over all micro-batches of an optimizer step, per process.

    Attributes:
        inputs: input tokens, for means over tokens (balance loss).
        mtp_inputs: input tokens of one MTP depth.
        weights: loss weights of the next-token loss.
        mtp_weights: loss weights of each MTP depth.
    """

    inputs: float
    mtp_inputs: float
    weights: float
    mtp_weights: tuple[float, ...]

    @staticmethod
    def of(micros: list[TrainBatch], plans: list[MtpPlan | None], depths: int, reduce: Reduce) -> Normalizers:
        """Sums over micro-batches and processes; a sum of 0 becomes 1, so that the loss stays 0."""
        active = [plan for plan in plans if plan is not None]
        local = [
            float(sum(micro.batch.num_tokens for micro in micros)),
            float(sum(plan.batch.num_tokens for plan in active)),
            sum(float(micro.weights_T.sum()) for micro in micros),
            *(sum(float(plan.depths[d].weights_T.sum()) for plan in active) for d in range(depths)),
        ]
        sums, world = reduce(local)
        inputs, mtp_inputs, weights, *mtp_weights = [s / world or 1.0 for s in sums]
        return Normalizers(inputs, mtp_inputs, weights, tuple(mtp_weights))


@dataclass
class MicroLoss:
    """Losses of one micro-batch, divided by the step's normalisers, so that sums over micro-batches are means.

    Attributes:
        total: the differentiable loss.
        parts: detached scalars by name: ``loss``, ``balance_loss``, ``mtp_loss_1``, ..., and the layers' figures.
        expert_loads: tokens per expert by layer number.
    """

    total: Tensor
    parts: dict[str, Tensor]
    expert_loads: dict[int, Tensor]


def micro_loss(model: CausalLM, micro: TrainBatch, plan: MtpPlan | None, norm: Normalizers) -> MicroLoss:
    """Next-token loss + MTP loss (mean over depths, spec 1.6) + balance loss (spec 1.5) + auxiliary losses."""
    config = model.config
    out = model.hidden(micro.tokens_T, micro.batch)
    loss = cross_entropy(model, out.hidden_TD, micro.targets_T, micro.weights_T) / norm.weights
    share = micro.batch.num_tokens / norm.inputs
    parts = {"loss": loss} | {f"{name}_loss": value * share for name, value in out.aux_losses.items()}
    parts |= {name: value * share for name, value in out.figures.items()}
    total = loss + share * weighted(out.aux_losses, config)
    loads = dict(out.expert_loads)
    if plan is not None:
        mtp_losses = []
        share = plan.batch.num_tokens / norm.mtp_inputs / len(plan.depths)
        hidden_TD, rope = out.hidden_TD[: plan.batch.num_tokens], model.rope(plan.batch)
        for depth, step in enumerate(plan.depths):
            mtp = model.mtp_step(step.next_tokens_T, hidden_TD, plan.batch, rope)
            hidden_TD = mtp.x_TD
            mtp_losses.append(cross_entropy(model, hidden_TD, step.targets_T, step.weights_T) / norm.mtp_weights[depth])
            parts[f"mtp_loss_{depth + 1}"] = mtp_losses[-1]
            if mtp.load_E is not None:
                loads[config.num_hidden_layers] = loads.get(config.num_hidden_layers, 0) + mtp.load_E
            total = total + share * weighted(mtp.aux_losses, config)
        total = total + config.mtp.weight * torch.stack(mtp_losses).mean()
    return MicroLoss(total, {name: value.detach() for name, value in parts.items()}, loads)


def weighted(aux_losses: Mapping[str, Tensor], config: ModelConfig) -> Tensor | float:
    """Returns the weighted sum of the layers' losses; attention weights its own, the balance loss is weighted here."""
    weights = {"balance": config.balance_loss_weight}
    return sum(weights.get(name, 1.0) * loss for name, loss in aux_losses.items())


def cross_entropy(model: CausalLM, hidden_TD: Tensor, targets_T: Tensor, weights_T: Tensor) -> Tensor:
    """Returns the weighted sum of negative log-likelihoods under the model's head, without full logits."""
    loss: Tensor = model.linear_cross_entropy(hidden_TD, model.lm_head.weight.to(hidden_TD.dtype), targets_T, weights_T)
    return loss
