"""Gated DeltaNet (arXiv 2412.06464) as in Qwen3-Next: linear attention with a short convolution and gates.

`num_attention_heads` value heads and `num_key_value_heads` key heads, all of size `head_dim`; a key head serves
consecutive value heads. There is no rotary embedding: the recurrence encodes the order.

Shapes: T new tokens, N segments of a group, D hidden, H value heads, G key heads, K head size, C channels of the
convolution, X rows of a group's tokens with their preceding tails, W width of the convolution less 1.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from arcforge_attention.configs import GdnConfig
from arcforge_attention.delta_rule import DeltaRule, States, l2_normed
from arcforge_attention.entries import join
from arcforge_attention.hybrid import Hybrid
from arcforge_core.config.schema import ModelConfig
from arcforge_core.contracts.attention import AttentionOutput, CacheSpec, LayerCache, Rope, StateEntry
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.contracts.optimizer import ParameterRole
from arcforge_core.model.norm import Linear, RMSNorm
from arcforge_core.ops import op, reference

WIDTH = 4
"""Width of the convolution in tokens, including the current one."""
LARGEST_DECAY, STEPS, LEAST_STEP = 16.0, (1e-3, 1e-1), 1e-4
"""Initial decays: ``e^A_log`` uniform up to the first value, softplus of `dt_bias` log-uniform, at least the last."""


class ShortConvolution(nn.Module):
    """Causal depthwise convolution of the last `WIDTH` tokens of a sequence, without bias."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, WIDTH))

    def init_own_weights(self) -> None:
        """Initialises as torch does: uniform in 1 / sqrt(WIDTH)."""
        self.weight.uniform_(-(WIDTH**-0.5), WIDTH**-0.5)

    def parameter_roles(self) -> dict[str, ParameterRole]:
        """Labels the taps: a channel's taps are not a matrix."""
        return {"weight": ParameterRole("scalar")}

    def forward(self, x_TC: Tensor, tail_NWC: Tensor, cu_query: Tensor) -> tuple[Tensor, Tensor]:
        """Returns [T, C] and the last W tokens of each segment; `tail_NWC` are the W tokens before the segment."""
        tail = WIDTH - 1
        parts = zip(tail_NWC.unbind(), x_TC.split(cu_query.diff().tolist()), strict=True)
        x_XC = torch.cat([part for pair in parts for part in pair])
        wide_XC = x_XC.to(torch.promote_types(x_TC.dtype, torch.float32))
        taps_WC = self.weight[:, 0].mT.to(wide_XC.dtype)
        # one product per tap, in one order; windows across two segments are dropped below
        out_XC = wide_XC[: len(x_TC) + tail * (len(tail_NWC) - 1)] * taps_WC[0]
        for shift in range(1, WIDTH):
            out_XC = out_XC + wide_XC[shift : shift + len(out_XC)] * taps_WC[shift]
        lengths_N = cu_query.diff().long()
        skipped_N = tail * torch.arange(len(lengths_N))
        rows_T = torch.arange(len(x_TC)) + torch.repeat_interleave(skipped_N, lengths_N)
        ends_N = cu_query[1:].long() + skipped_N
        tails = (ends_N[:, None] + torch.arange(tail)).flatten().to(x_TC.device)
        out_TC = out_XC.index_select(0, rows_T.to(x_TC.device)).to(x_TC.dtype)
        return out_TC, x_XC.index_select(0, tails).view_as(tail_NWC)


class GatedDeltaNet(nn.Module):
    """The Gated DeltaNet layer; see the module's docstring."""

    def __init__(self, config: GdnConfig, model: ModelConfig, layer_index: int) -> None:
        super().__init__()
        self.heads, self.groups, self.head_dim = model.num_attention_heads, model.num_key_value_heads, model.head_dim
        hidden, keys, values = model.hidden_size, self.groups * self.head_dim, self.heads * self.head_dim
        self.q_proj, self.k_proj, self.v_proj = (Linear(hidden, size) for size in (keys, keys, values))
        self.z_proj, self.a_proj, self.b_proj = (Linear(hidden, size) for size in (values, self.heads, self.heads))
        self.conv1d = ShortConvolution(2 * keys + values)
        self.A_log, self.dt_bias = (nn.Parameter(torch.empty(self.heads)) for _ in range(2))
        self.delta_rule = DeltaRule(self.heads, self.head_dim, self.head_dim, self.head_dim**-0.5)
        self.o_norm = RMSNorm(self.head_dim, model.rms_norm_eps)
        self.o_proj = Linear(values, hidden)
        self.tail = StateEntry("conv", (WIDTH - 1, 2 * keys + values))
        self.convolved = op(reference.swiglu, width=2 * keys + values)
        self.gated = op(reference.swiglu, width=self.head_dim)

    def init_own_weights(self) -> None:
        """Initialises the decays as fla does: mostly slow, from a thousandth of the state per token to all of it."""
        rates_H = LARGEST_DECAY * (1 - torch.rand_like(self.A_log))  # never 0
        self.A_log.copy_(rates_H.log())
        low, high = (math.log(step) for step in STEPS)
        steps_H = (low + (high - low) * torch.rand_like(self.dt_bias)).exp().clamp(min=LEAST_STEP)
        self.dt_bias.copy_(steps_H + torch.log(-torch.expm1(-steps_H)))  # the inverse of softplus

    def parameter_roles(self) -> dict[str, ParameterRole]:
        """Labels the decay parameters, which get no weight decay."""
        return {"A_log": ParameterRole("scalar"), "dt_bias": ParameterRole("scalar")}

    def forward(
        self, x_TD: Tensor, batch: SequenceBatch, cache: LayerCache | None = None, *, rope: Rope
    ) -> AttentionOutput:
        """Runs the recurrence; see the contract."""
        mixed_TC = torch.cat((self.q_proj(x_TD), self.k_proj(x_TD), self.v_proj(x_TD)), dim=-1)
        g_TH, beta_TH = self.gates(x_TD)
        states, outs = States(batch, cache), []
        for group in batch.plan.groups():
            tail_NWC = states.read(self.tail, group, mixed_TC)
            conv_TC, tail_NWC = self.conv1d(group.take(mixed_TC), tail_NWC, group.cu_query)
            states.write(self.tail, group, tail_NWC)
            q_THK, k_THK, v_THK = self.split(self.convolved(conv_TC, torch.ones_like(conv_TC)))
            outs.append(self.delta_rule(q_THK, k_THK, v_THK, group.take(g_TH), group.take(beta_TH), states, group))
        z_THK = self.z_proj(x_TD).unflatten(-1, (self.heads, -1))
        out_THK = self.gated(z_THK, self.o_norm(join(batch, outs)))
        return AttentionOutput(self.o_proj(out_THK.flatten(1)))

    def gates(self, x_TD: Tensor) -> tuple[Tensor, Tensor]:
        """Returns g [T, H] and beta [T, H], fp32 or wider."""
        wide = torch.promote_types(x_TD.dtype, torch.float32)
        step_TH = softplus(self.a_proj(x_TD).to(wide) + self.dt_bias.to(wide))
        return -self.A_log.to(wide).exp() * step_TH, sigmoid(self.b_proj(x_TD).to(wide))

    def split(self, x_TC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns q, k and v of all heads; q and k have norm 1."""
        x_TXK = x_TC.unflatten(-1, (-1, self.head_dim))
        q_TGK, k_TGK, v_THK = x_TXK.split((self.groups, self.groups, self.heads), dim=1)
        q_THK, k_THK = (l2_normed(x).repeat_interleave(self.heads // self.groups, dim=1) for x in (q_TGK, k_TGK))
        return q_THK, k_THK, v_THK

    def cache_spec(self) -> CacheSpec:
        """Returns the state and the last tokens before the convolution."""
        return self.delta_rule.entry, self.tail

    def training_flops(self, keys_T: Tensor) -> Tensor:
        """Returns the FLOPs of the recurrence, the same for every token."""
        return self.delta_rule.training_flops(keys_T)


def sigmoid(x: Tensor) -> Tensor:
    """Uses only the exponential: torch's sigmoid rounds differently at the end of a vector loop (docs/numerics.md)."""
    return 1 / (1 + torch.exp(-x.clamp(min=-80)))  # below -80 the exponential's gradient overflows


def softplus(x: Tensor) -> Tensor:
    """Uses only the exponential and the logarithm, as `sigmoid`; above 20 it returns `x`, as torch does."""
    return torch.where(x > 20, x, torch.log1p(torch.exp(x.clamp(max=20))))


class Gdn(Hybrid):
    """Target of ``attention=gdn``; conversion keeps the projections and initialises the convolution and gates."""

    starts_from: ClassVar[tuple[str, ...]] = ("gqa", "swa", "swa_pattern", "simple_gdn")
    replacement = GatedDeltaNet
