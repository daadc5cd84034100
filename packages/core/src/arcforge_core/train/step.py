"""One optimizer step as plain functions: accumulate, guard, clip, update, balance."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from arcforge_core.contracts.data import TrainBatch
from arcforge_core.errors import ArcforgeError
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.model.moe import MoE
from arcforge_core.train.losses import Normalizers, Reduce, micro_loss, plan_mtp


class NonFiniteError(ArcforgeError):
    """A loss or gradient is not finite; the weights are unchanged."""


@dataclass(frozen=True)
class StepBatch:
    """The micro-batches of one optimizer step; `to` lets Lightning move them to the device."""

    micros: list[TrainBatch]

    def to(self, device: torch.device | str, non_blocking: bool = False) -> StepBatch:
        return StepBatch([m.to(device, non_blocking) for m in self.micros])

    @property
    def cursor(self) -> int:
        """Data position after this step."""
        return self.micros[-1].cursor

    @property
    def num_tokens(self) -> int:
        """Input tokens of the step."""
        return sum(m.batch.num_tokens for m in self.micros)


@dataclass
class StepResult:
    """Sums over the micro-batches.

    Attributes:
        losses: mean losses by name.
        expert_loads: tokens per expert by layer.
        mtp_tokens: tokens that carried the MTP loss.
    """

    losses: dict[str, Tensor]
    expert_loads: dict[int, Tensor]
    mtp_tokens: int = 0


def accumulate_gradients(
    model: CausalLM,
    step: StepBatch,
    backward: Callable[[Tensor], None],
    reduce: Reduce,
) -> StepResult:
    """Runs forward and backward on every micro-batch; the gradient equals that of one batch with all their tokens.

    Args:
        model: gradients are added to its parameters.
        step: the micro-batches.
        backward: differentiates a scalar.
        reduce: sums numbers over all processes.

    Raises:
        NonFiniteError: a loss is NaN or infinite; raised before its backward pass, with its name.
    """
    mtp = model.config.mtp
    plans = [plan_mtp(m, mtp.depths, mtp.fraction) for m in step.micros]
    norm = Normalizers.of(step.micros, plans, mtp.depths, reduce)
    result = StepResult({}, {}, sum(plan.batch.num_tokens for plan in plans if plan))
    for micro, plan in zip(step.micros, plans, strict=True):
        out = micro_loss(model, micro, plan, norm)
        for name, value in out.parts.items():
            if not torch.isfinite(value):
                raise NonFiniteError(f"{name} is {float(value)}")
            result.losses[name] = result.losses.get(name, torch.zeros_like(value)) + value
        for layer, load_E in out.expert_loads.items():
            result.expert_loads[layer] = result.expert_loads.get(layer, torch.zeros_like(load_E)) + load_E
        backward(out.total)
    return result


def clip_gradients(parameters: Iterable[tuple[str, nn.Parameter]], limit: float) -> float:
    """Scales gradients to a total norm of at most `limit` (0: only measures) and returns the previous norm.

    Raises:
        NonFiniteError: a gradient is NaN or infinite; the parameter is named.
    """
    named = [(name, p) for name, p in parameters if p.grad is not None]
    norm = nn.utils.get_total_norm([p.grad for _, p in named if p.grad is not None])
    if not torch.isfinite(norm):
        bad = [name for name, p in named if p.grad is not None and not torch.isfinite(p.grad).all()]
        # squares of finite gradients can overflow the dtype
        raise NonFiniteError(f"the gradient of {bad[0]} is not finite" if bad else "the gradient norm overflows")
    if limit > 0:
        nn.utils.clip_grads_with_norm_([p for _, p in named], limit, norm)
    return float(norm)


def balance_routers(model: CausalLM, expert_loads: dict[int, Tensor], rate: float) -> None:
    """Applies the auxiliary-loss-free balance update to every router that received tokens (spec 1.5)."""
    for layer, load_E in expert_loads.items():
        block = model.mtp if layer == model.config.num_hidden_layers else model.model.layers[layer]
        mlp = getattr(block, "mlp", None)
        if isinstance(mlp, MoE) and mlp.gate.weight.requires_grad:  # a frozen router keeps its choices
            mlp.gate.balance(load_E, rate)
