"""Bytes that pass memory between a layer's products: norms, sums, gates, rotations, routing and rounding.

Every op reads its inputs and writes its result once. In attention, whose ops are its own, the output of a product is
read, written and read again: by a norm or a rotation, and by attention itself. The output projection reads attention's
result.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from torch import nn

from arcforge_core.config.schema import ModelConfig
from arcforge_core.model.block import Block
from arcforge_core.model.moe import DenseMLP, MoE

FLOAT, INDEX = 4, 8
"""Bytes of a router's score, and of an expert's number."""


@dataclass(frozen=True)
class Between:
    """Bytes of one token in a layer.

    Attributes:
        whole: ops on the hidden state and on the router's scores, which tensor parallelism repeats.
        attention, mlp: ops on the parts that it divides; `mlp` of the dense or the shared part.
        expert: of one chosen expert: the token's row there and back, and the expert's gate.
    """

    whole: int
    attention: int
    mlp: int
    expert: int


def between_products(layer: Block, config: ModelConfig, width: int, rounded: Collection[str]) -> Between:
    """Counts a layer.

    Args:
        layer: on any device.
        config: of its model.
        width: bytes of an activation.
        rounded: weights, by name in the layer, whose inputs are rounded to int8.
    """
    hidden, mlp = config.hidden_size, layer.mlp
    whole = width * (2 * 2 * hidden + 2 * 3 * hidden)  # two norms, two sums with the residual stream
    expert, dense = 0, mlp if isinstance(mlp, DenseMLP) else None
    if isinstance(mlp, MoE):
        experts, chosen, dense = config.n_routed_experts, config.num_experts_per_tok, mlp.shared_experts
        whole += FLOAT * 2 * experts + (2 * FLOAT + INDEX) * experts  # the bias is added, the sum is sorted
        whole += chosen * (INDEX + 2 * FLOAT + FLOAT + 2 * FLOAT + 2 * FLOAT) + 4 * FLOAT  # chosen, summed, divided
        whole += width * hidden  # the sum over experts
        expert = width * (3 * hidden + 3 * mlp.experts.width)
        if dense is not None:
            whole += width * 3 * hidden
    inside = 0 if dense is None else width * 3 * dense.gate_proj.out_features
    rounds = {"self_attn.": 0, "mlp.experts.": 0, "mlp.": 0}
    shapes = {name: tensor.shape for name, tensor in layer.state_dict(keep_vars=True).items()}
    for name in rounded:
        part = next(prefix for prefix in rounds if name.startswith(prefix))
        rounds[part] += shapes[name][-1] * (width + 1)
    attention = width * _inside_attention(layer.self_attn) + rounds["self_attn."]
    return Between(whole, attention, inside + rounds["mlp."], expert + rounds["mlp.experts."])


def _inside_attention(layer: nn.Module) -> int:
    """Returns the values of one token that pass memory between attention's products."""
    values = 0
    for name, tensor in layer.state_dict(keep_vars=True).items():
        if tensor.ndim == 2:
            values += tensor.shape[1] if name.startswith("o_proj.") else 3 * tensor.shape[0]
    return values
