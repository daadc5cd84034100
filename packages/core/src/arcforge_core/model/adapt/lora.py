"""Low-rank adapters (LoRA, arXiv:2106.09685): ``W x`` becomes ``W x + s B A x``, and only A and B are trained.

An adapted layer keeps its frozen weight under the ordinary name. It has its own class, so fused kernels, which read
only that weight, do not match it (`ops.Fused`).

Shapes: T tokens, D inputs, N outputs, R rank, K experts of a token; experts have a leading axis.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from arcforge_core.config.schema import AdapterConfig
from arcforge_core.contracts.checkpoint import Link
from arcforge_core.contracts.optimizer import ParameterRole
from arcforge_core.errors import ConfigError
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.model.moe import Experts
from arcforge_core.model.norm import Linear
from arcforge_core.ops import op, reference

USED_AS_MATRIX = "kv_b_proj"
"""The projection that absorbed MLA multiplies with directly instead of calling it (`Linear.full_weight`)."""


@dataclass(frozen=True)
class Adapter:
    """The origin of an adapted model.

    Attributes:
        config: rank, scale, targets.
        base: directory of the checkpoint with the frozen weights.
        sha256: hash of its weight files.
        links: names and layout of each adapted tensor in its files; tensors not listed are stored as in the model.
    """

    config: AdapterConfig
    base: str
    sha256: str
    links: Mapping[str, Link]


def scale_of(rank: int, alpha: float, rslora: bool) -> float:
    """Returns the factor on ``B A``: alpha / rank, or alpha / sqrt(rank) (rsLoRA, arXiv:2312.03732)."""
    return alpha / (rank**0.5 if rslora else rank)


def merged(weight: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """Returns ``W + s B A`` in fp32 or wider, for matrices or stacks of matrices."""
    wide = torch.promote_types(weight.dtype, torch.float32)
    return weight.to(wide) + scale * (b.to(wide) @ a.to(wide))


class LowRank(nn.Module):
    """A [..., R, D] and B [..., N, R] for one weight [..., N, D], in fp32 or wider; B starts at zero."""

    def __init__(self, weight: Tensor, config: AdapterConfig) -> None:
        super().__init__()
        *stack, outputs, inputs = weight.shape
        wide = torch.promote_types(weight.dtype, torch.float32)
        bound = inputs**-0.5  # the bound of kaiming_uniform_(a=sqrt(5)), as in PEFT
        self.A = nn.Parameter(weight.new_empty(*stack, config.rank, inputs, dtype=wide).uniform_(-bound, bound))
        self.B = nn.Parameter(weight.new_zeros(*stack, outputs, config.rank, dtype=wide))
        self.scale = scale_of(config.rank, config.alpha, config.rslora)

    def parameter_roles(self) -> dict[str, ParameterRole]:
        """Labels both as matrices, or as experts' matrices."""
        role = ParameterRole("matrix" if self.A.ndim == 2 else "expert")
        return {"A": role, "B": role}

    def merged(self, weight: Tensor) -> Tensor:
        """Returns the weight with the adapter merged into it, in fp32 or wider."""
        return merged(weight, self.A, self.B, self.scale)


class LoraLinear(Linear):
    """A `Linear` with an adapter."""

    def __init__(self, source: Linear, config: AdapterConfig) -> None:
        nn.Module.__init__(self)  # takes the source's weight instead of making one
        self.in_features, self.out_features = source.in_features, source.out_features
        self.weight = source.weight
        self.register_parameter("bias", source.bias)
        self.lora, self.dropout = LowRank(source.weight, config), config.dropout
        self.linear = op(reference.linear, inputs=self.in_features, outputs=self.out_features)
        self.down = op(reference.linear, inputs=self.in_features, outputs=config.rank)
        self.up = op(reference.linear, inputs=config.rank, outputs=self.out_features)

    def forward(self, x: Tensor) -> Tensor:
        """Returns x W^T (+ b) + s x A^T B^T in x's dtype; in training, dropout applies to the adapter's x."""
        dropped = F.dropout(x, self.dropout, self.training) if self.dropout else x
        low = self.down(dropped, self.lora.A.to(x.dtype)) * self.lora.scale
        return super().forward(x) + self.up(low, self.lora.B.to(x.dtype))

    def full_weight(self, dtype: torch.dtype) -> Tensor:
        """Returns the weight with the adapter merged into it."""
        return self.lora.merged(self.weight).to(dtype)


class LoraExperts(Experts):
    """`Experts` with an adapter for each of an expert's two weights, merged in every step."""

    def __init__(self, source: Experts, config: AdapterConfig) -> None:
        nn.Module.__init__(self)
        self.gate_up_proj, self.down_proj, self.width = source.gate_up_proj, source.down_proj, source.width
        self.gate_up_lora, self.down_lora = LowRank(self.gate_up_proj, config), LowRank(self.down_proj, config)
        experts, hidden, width = self.down_proj.shape
        self.moe_experts = op(reference.moe_experts, experts=experts, hidden=hidden, width=width)

    def forward(self, x_TD: Tensor, expert_TK: Tensor, gate_TK: Tensor) -> Tensor:
        """Returns the gated sum over each token's experts, [T, D]."""
        gate_up = self.gate_up_lora.merged(self.gate_up_proj).to(x_TD.dtype)
        down = self.down_lora.merged(self.down_proj).to(x_TD.dtype)
        return self.moe_experts(x_TD, gate_up, down, expert_TK, gate_TK)


def find_targets(model: CausalLM, config: AdapterConfig) -> dict[str, Linear | Experts]:
    """Returns the layers to adapt, by path; the model may be on the meta device.

    Excludes the head, whose weight the loss reads directly, and DSA's indexer, which gets no gradient from the loss.

    Raises:
        ConfigError: an expression matches no layer, or dropout is set for weights without an input of their own.
    """
    candidates = {
        path: module
        for path, module in model.named_modules()
        if type(module) in (Linear, Experts) and ".indexer." not in path
    }
    for index, pattern in enumerate(config.targets):
        if not any(re.search(pattern, path) for path in candidates):
            leaves = ", ".join(sorted({path.rpartition(".")[2] for path in candidates}))
            accepted = f"must match the name of an adaptable layer: model.layers.0.* with {leaves}"
            raise ConfigError(f"adapter.targets[{index}]", pattern, accepted)
    found = {path: m for path, m in candidates.items() if any(re.search(p, path) for p in config.targets)}
    whole = [path for path, m in found.items() if isinstance(m, Experts) or path.endswith(USED_AS_MATRIX)]
    if config.dropout and whole:
        accepted = f"must be 0 with {whole[0]} among adapter.targets: their adapters change the weight, not the input"
        raise ConfigError("adapter.dropout", config.dropout, accepted)
    return found


def attach(model: CausalLM, adapter: Adapter) -> None:
    """Freezes a model and adapts its layers, in place; its outputs do not change until the adapters are trained.

    Raises:
        ConfigError: see `find_targets`.
    """
    found = find_targets(model, adapter.config)
    model.requires_grad_(False)
    for path, module in found.items():
        parent, _, name = path.rpartition(".")
        make = LoraLinear if isinstance(module, Linear) else LoraExperts
        made = make(module, adapter.config).train(module.training)  # type: ignore[arg-type]
        setattr(model.get_submodule(parent), name, made)
    model.__dict__[_ADAPTER] = adapter
    model.rebind()


_ADAPTER = "adapter"
"""The attribute that marks an adapted model; the model code does not know about it."""


def adapter_of(model: nn.Module) -> Adapter | None:
    """Returns the adapter that `attach` set on a model; None if it has none."""
    adapter: Adapter | None = vars(model).get(_ADAPTER)
    return adapter


def named_adapters(model: nn.Module) -> Iterator[tuple[str, LowRank]]:
    """Yields every adapted weight's ordinary name and its adapter."""
    for path, module in model.named_modules():
        if isinstance(module, LoraLinear):
            yield f"{path}.weight", module.lora
        elif isinstance(module, LoraExperts):
            yield f"{path}.gate_up_proj", module.gate_up_lora
            yield f"{path}.down_proj", module.down_lora


@torch.no_grad()
def merged_state(model: CausalLM) -> dict[str, Tensor]:
    """Returns the model's state dict without adapters: adapted weights are merged, in the weight's dtype."""
    adapters = dict(named_adapters(model))
    own = {id(parameter) for low in adapters.values() for parameter in low.parameters()}
    state = {name: value for name, value in model.state_dict(keep_vars=True).items() if id(value) not in own}
    return {
        name: (adapters[name].merged(value).to(value.dtype) if name in adapters else value).detach()
        for name, value in state.items()
    }
