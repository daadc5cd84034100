"""Low-rank adapters (LoRA, arXiv:2106.09685): ``W x`` becomes ``W x + s B A x``, and only A and B are trained.

An adapted layer keeps its frozen weight under its ordinary name. It is a class of its own, so that no fused kernel,
which would read that weight alone, takes it for a plain one (`fused.fuse`).

Shapes: T tokens, D inputs, N outputs, R rank, K experts of a token; experts have a leading axis.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from arcforge_core.config.schema import AdapterConfig
from arcforge_core.contracts.optimizer import ParameterRole
from arcforge_core.errors import ConfigError
from arcforge_core.model.moe import Experts
from arcforge_core.model.norm import Linear
from arcforge_core.ops import reference
from arcforge_core.ops.dispatch import Binder

if TYPE_CHECKING:
    from arcforge_core.checkpoint.hf.links import Link
    from arcforge_core.model.causal_lm import CausalLM

USED_AS_MATRIX = "kv_b_proj"
"""The projection that MLA's absorbed form multiplies with otherwise than by calling it (`Linear.full_weight`)."""


@dataclass(frozen=True)
class Adapter:
    """What an adapted model was made of.

    Attributes:
        config: rank, scale, targets.
        base: folder of the checkpoint whose weights are frozen.
        sha256: of its files of weights.
        links: how its files name and order each adapted tensor; those that are not there are stored as here.
    """

    config: AdapterConfig
    base: str
    sha256: str
    links: Mapping[str, Link]


def scale_of(rank: int, alpha: float, rslora: bool) -> float:
    """Returns the factor on ``B A``: alpha / rank, or alpha / sqrt(rank) (rsLoRA, arXiv:2312.03732)."""
    return alpha / (rank**0.5 if rslora else rank)


def merged(weight: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """Returns ``W + s B A``, computed in fp32 or wider, of matrices or of stacks of them."""
    wide = torch.promote_types(weight.dtype, torch.float32)
    return weight.to(wide) + scale * (b.to(wide) @ a.to(wide))


class LowRank(nn.Module):
    """A [..., R, D] and B [..., N, R] for one weight [..., N, D], in fp32 or wider; B begins at zero."""

    def __init__(self, weight: Tensor, config: AdapterConfig) -> None:
        super().__init__()
        *stack, outputs, inputs = weight.shape
        wide = torch.promote_types(weight.dtype, torch.float32)
        bound = inputs**-0.5  # what kaiming_uniform_(a=sqrt(5)) amounts to, PEFT's choice
        self.A = nn.Parameter(weight.new_empty(*stack, config.rank, inputs, dtype=wide).uniform_(-bound, bound))
        self.B = nn.Parameter(weight.new_zeros(*stack, outputs, config.rank, dtype=wide))
        self.scale = scale_of(config.rank, config.alpha, config.rslora)

    def parameter_roles(self) -> dict[str, ParameterRole]:
        """Labels both as matrices, or as experts' matrices."""
        role = ParameterRole("matrix" if self.A.ndim == 2 else "expert")
        return {"A": role, "B": role}

    def merged(self, weight: Tensor) -> Tensor:
        """Returns the weight with the adapter in it, fp32 or wider."""
        return merged(weight, self.A, self.B, self.scale)


class LoraLinear(Linear):
    """A `Linear` with an adapter."""

    def __init__(self, source: Linear, config: AdapterConfig) -> None:
        nn.Module.__init__(self)  # takes the source's weight instead of making one
        self.in_features, self.out_features = source.in_features, source.out_features
        self.weight = source.weight
        self.register_parameter("bias", source.bias)
        self.lora, self.dropout = LowRank(source.weight, config), config.dropout
        self.linear = self.down = self.up = reference.linear

    def bind_ops(self, bind: Binder) -> None:
        """Resolves the ops of the three products."""
        super().bind_ops(bind)
        rank = self.lora.A.shape[0]
        self.down = bind("linear", inputs=self.in_features, outputs=rank)
        self.up = bind("linear", inputs=rank, outputs=self.out_features)

    def forward(self, x: Tensor) -> Tensor:
        """Returns x W^T (+ b) + s x A^T B^T in x's dtype; dropout thins the adapter's x in training."""
        dropped = F.dropout(x, self.dropout, self.training) if self.dropout else x
        low: Tensor = self.down(dropped, self.lora.A.to(x.dtype)) * self.lora.scale
        return super().forward(x) + self.up(low, self.lora.B.to(x.dtype))

    def full_weight(self, dtype: torch.dtype) -> Tensor:
        """Returns the weight with the adapter in it."""
        return self.lora.merged(self.weight).to(dtype)


class LoraExperts(Experts):
    """`Experts` with an adapter for each expert's two weights; they are merged anew in every step."""

    def __init__(self, source: Experts, config: AdapterConfig) -> None:
        nn.Module.__init__(self)
        self.gate_up_proj, self.down_proj, self.width = source.gate_up_proj, source.down_proj, source.width
        self.gate_up_lora, self.down_lora = LowRank(self.gate_up_proj, config), LowRank(self.down_proj, config)
        self.moe_experts = reference.moe_experts

    def forward(self, x_TD: Tensor, expert_TK: Tensor, gate_TK: Tensor) -> Tensor:
        """Returns the gated sum over each token's experts, [T, D]."""
        gate_up = self.gate_up_lora.merged(self.gate_up_proj).to(x_TD.dtype)
        down = self.down_lora.merged(self.down_proj).to(x_TD.dtype)
        return self.moe_experts(x_TD, gate_up, down, expert_TK, gate_TK)


def find_targets(model: CausalLM, config: AdapterConfig) -> dict[str, Linear | Experts]:
    """Returns what is to be adapted, by path; the model may be on the meta device.

    The head, which the loss multiplies with by itself, and DSA's indexer, which the loss does not reach, have none.

    Raises:
        ConfigError: an expression fits nothing, or there is dropout on weights that have no input of their own.
    """
    candidates = {
        path: module
        for path, module in model.named_modules()
        if type(module) in (Linear, Experts) and ".indexer." not in path
    }
    for index, pattern in enumerate(config.targets):
        if not any(re.search(pattern, path) for path in candidates):
            leaves = ", ".join(sorted({path.rpartition(".")[2] for path in candidates}))
            accepted = f"no layer that can be adapted has it in its name; there are model.layers.0.* with {leaves}"
            raise ConfigError(f"adapter.targets[{index}]", pattern, accepted)
    found = {path: m for path, m in candidates.items() if any(re.search(p, path) for p in config.targets)}
    whole = [path for path, m in found.items() if isinstance(m, Experts) or path.endswith(USED_AS_MATRIX)]
    if config.dropout and whole:
        accepted = f"must be 0 with {whole[0]} among adapter.targets: its adapter is added to the weight, not the input"
        raise ConfigError("adapter.dropout", config.dropout, accepted)
    return found


def attach(model: CausalLM, adapter: Adapter) -> None:
    """Freezes a model and adapts its layers, in place; the first result is the same as before.

    Raises:
        ConfigError: as `find_targets`.
    """
    found = find_targets(model, adapter.config)
    model.requires_grad_(False)
    for path, module in found.items():
        parent, _, name = path.rpartition(".")
        make = LoraLinear if isinstance(module, Linear) else LoraExperts
        made = make(module, adapter.config).train(module.training)  # type: ignore[arg-type]
        setattr(model.get_submodule(parent), name, made)
    model.adapter = adapter
    model.bind_ops()


def named_adapters(model: nn.Module) -> Iterator[tuple[str, LowRank]]:
    """Yields the ordinary name of every adapted weight with its adapter."""
    for path, module in model.named_modules():
        if isinstance(module, LoraLinear):
            yield f"{path}.weight", module.lora
        elif isinstance(module, LoraExperts):
            yield f"{path}.gate_up_proj", module.gate_up_lora
            yield f"{path}.down_proj", module.down_lora


@torch.no_grad()
def merged_state(model: CausalLM) -> dict[str, Tensor]:
    """Returns the state dict of the same model without adapters: what was adapted is merged, in the weight's dtype."""
    adapters = dict(named_adapters(model))
    own = {id(parameter) for low in adapters.values() for parameter in low.parameters()}
    state = {name: value for name, value in model.state_dict(keep_vars=True).items() if id(value) not in own}
    return {
        name: (adapters[name].merged(value).to(value.dtype) if name in adapters else value).detach()
        for name, value in state.items()
    }
