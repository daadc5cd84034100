"""Feed-forward layers: dense SwiGLU, and the mixture of experts of spec 1.5.

Shapes: T tokens, D hidden, E experts, K experts per token, G groups of X experts, N segments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from arcforge_core.config.schema import ModelConfig
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.contracts.optimizer import ParameterRole
from arcforge_core.model.norm import Linear
from arcforge_core.ops import Fused, op, reference


class DenseMLP(nn.Module):
    """``down(silu(gate x) * up x)``."""

    projections = ("gate_proj", "up_proj", "down_proj")

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = Linear(hidden_size, intermediate_size)
        self.up_proj = Linear(hidden_size, intermediate_size)
        self.down_proj = Linear(intermediate_size, hidden_size)
        self.swiglu = op(reference.swiglu, width=intermediate_size)
        self.fused = Fused("mlp", self.projections, (Linear,), hidden=hidden_size, width=intermediate_size)

    def forward(self, x_TD: Tensor) -> Tensor:
        """Returns [T, D]."""
        out_TD: Tensor
        if self.fused.serves(len(x_TD)):
            out_TD = self.fused(x_TD, self.gate_proj.weight, self.up_proj.weight, self.down_proj.weight)
            return out_TD
        out_TD = self.down_proj(self.swiglu(self.gate_proj(x_TD), self.up_proj(x_TD)))
        return out_TD


class Router(nn.Module):
    """Sigmoid router in fp32; the bias changes the choice, never the gates (noaux_tc, spec 1.5)."""

    e_score_correction_bias: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.n_routed_experts, config.hidden_size))
        self.register_buffer("e_score_correction_bias", torch.zeros(config.n_routed_experts))
        self.top_k, self.scale = config.num_experts_per_tok, config.routed_scaling_factor
        self.n_group, self.topk_group = config.n_group, config.topk_group
        self.router_scores = op(reference.router_scores, width=config.hidden_size, experts=config.n_routed_experts)

    def parameter_roles(self) -> dict[str, ParameterRole]:
        return {"weight": ParameterRole("router")}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Router:
        """Moves the bias but never casts it: steps of 1e-3 would vanish in bfloat16."""
        bits_E = self.e_score_correction_bias.view(torch.int32)  # casts do not change integers
        super()._apply(fn, recurse)
        self.e_score_correction_bias = fn(bits_E).view(torch.float32)
        return self

    def forward(self, x_TD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns (expert_TK int64, gate_TK whose rows sum to the scale, score_TE), both at least fp32."""
        score_TE = self.router_scores(x_TD, self.weight)
        # A stable sort, because ties must go to the lower expert on every machine; topk guarantees no order.
        choice_TE = self._within_groups(score_TE.detach() + self.e_score_correction_bias)
        expert_TK = choice_TE.sort(dim=-1, descending=True, stable=True).indices[:, : self.top_k]
        gate_TK = score_TE.gather(1, expert_TK)
        gate_TK = gate_TK / (gate_TK.sum(-1, keepdim=True) + 1e-20) * self.scale
        return expert_TK, gate_TK, score_TE

    def _within_groups(self, choice_TE: Tensor) -> Tensor:
        """Keeps the experts of each token's best groups; a group's score is the sum of its two best experts.

        This is DeepSeek-V3's limit on the nodes a token is sent to (spec 1.8); with one group nothing is excluded.
        """
        if self.topk_group == self.n_group:
            return choice_TE
        choice_TGX: Tensor = choice_TE.unflatten(-1, (self.n_group, -1))
        worth_TG = choice_TGX.topk(2, dim=-1).values.sum(-1)
        group_TK = worth_TG.sort(dim=-1, descending=True, stable=True).indices[:, : self.topk_group]
        kept_TG = torch.zeros_like(worth_TG, dtype=torch.bool).scatter_(1, group_TK, True)
        return choice_TGX.masked_fill(~kept_TG[..., None], -torch.inf).flatten(-2)

    @torch.no_grad()
    def balance(self, load_E: Tensor, rate: float) -> None:
        """Loss-free load balancing: raises the bias of experts below the mean load and lowers the others'."""
        self.e_score_correction_bias += rate * torch.sign(load_E.mean() - load_E)


class Experts(nn.Module):
    """Routed experts as two stacked weights: gate_up_proj [E, 2f, D] (gate rows first), down_proj [E, D, f]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        experts, width, hidden = config.n_routed_experts, config.moe_intermediate_size, config.hidden_size
        self.gate_up_proj = nn.Parameter(torch.empty(experts, 2 * width, hidden))
        self.down_proj = nn.Parameter(torch.empty(experts, hidden, width))
        self.width = width
        weights = {"gate_up_EFD": "gate_up_proj", "down_EDF": "down_proj"}
        self.moe_experts = op(reference.moe_experts, weights, experts=experts, hidden=hidden, width=width)

    def parameter_roles(self) -> dict[str, ParameterRole]:
        """Labels both weights; gate_up_proj is two matrices."""
        fused = ParameterRole("expert", parts=(self.width, self.width))
        return {"gate_up_proj": fused, "down_proj": ParameterRole("expert")}

    def forward(self, x_TD: Tensor, expert_TK: Tensor, gate_TK: Tensor) -> Tensor:
        """Returns the gated sum over each token's experts, [T, D]."""
        gate_up, down = self.gate_up_proj.to(x_TD.dtype), self.down_proj.to(x_TD.dtype)
        return self.moe_experts(x_TD, gate_up, down, expert_TK, gate_TK)


class MoE(nn.Module):
    """Routed experts plus an always-on shared expert."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = Router(config)
        self.experts = Experts(config)
        shared = config.n_shared_experts * config.moe_intermediate_size
        self.shared_experts = DenseMLP(config.hidden_size, shared) if shared else None
        weights = {"gate_up_EFD": "experts.gate_up_proj", "down_EDF": "experts.down_proj"}
        self.fused = self.fusion("moe", (MoE, Router, Experts, DenseMLP, Linear), weights)

    def fusion(self, op: str, kinds: tuple[type, ...], weights: Mapping[str, str], **more: int) -> Fused:
        """Declares a fused op over the whole layer; it needs a shared expert and no group limit."""
        (experts, hidden), width = self.gate.weight.shape, self.experts.width
        if self.shared_experts is None or self.gate.topk_group != self.gate.n_group:
            return Fused(op, (), kinds)
        shared = self.shared_experts.gate_proj.out_features
        parts = ("", "gate", "experts", "shared_experts", *(f"shared_experts.{p}" for p in DenseMLP.projections))
        return Fused(op, parts, kinds, weights, experts=experts, hidden=hidden, width=width, shared=shared, **more)

    def forward(self, x_TD: Tensor, batch: SequenceBatch | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Returns (out_TD, balance loss, load_E: tokens per expert); the last two are None without `batch`."""
        heard = bool(self.gate._forward_hooks)  # a fused layer would not call the router
        if batch is None and not heard and self.fused.serves(len(x_TD)):
            return self._fused(x_TD), None, None
        expert_TK, gate_TK, score_TE = self.gate(x_TD)
        out_TD = self.experts(x_TD, expert_TK, gate_TK)
        if self.shared_experts is not None:
            out_TD = out_TD + self.shared_experts(x_TD)
        if batch is None:
            return out_TD, None, None
        load_E = expert_loads(expert_TK, score_TE.shape[1], batch)
        return out_TD, sequence_balance_loss(score_TE, expert_TK, batch), load_E

    def _fused(self, x_TD: Tensor) -> Tensor:
        gate, experts, shared = self.gate, self.experts, self.shared_experts
        assert shared is not None  # a condition of `fusion`
        out_TD: Tensor = self.fused(
            x_TD, gate.weight, gate.e_score_correction_bias, experts.gate_up_proj, experts.down_proj,
            shared.gate_proj.weight, shared.up_proj.weight, shared.down_proj.weight, gate.top_k, gate.scale,
        )  # fmt: skip
        return out_TD


def expert_loads(expert_TK: Tensor, experts: int, batch: SequenceBatch) -> Tensor:
    """Returns the tokens of each expert, fp32 [E]; a token counts as often as sequences contain it."""
    if batch.paths is None:  # bincount would wait for a device
        load_E = torch.zeros(experts, dtype=torch.int64, device=expert_TK.device)
        return load_E.index_add_(0, expert_TK.flatten(), torch.ones_like(expert_TK).flatten()).to(torch.float32)
    times_T = batch.contains_LN.sum(0).repeat_interleave(batch.cu_query.diff().long()).to(expert_TK.device)
    chosen_TK = times_T[:, None].expand_as(expert_TK)
    return torch.zeros(experts, device=expert_TK.device).index_add_(0, expert_TK.flatten(), chosen_TK.flatten())


def sequence_balance_loss(score_TE: Tensor, expert_TK: Tensor, batch: SequenceBatch) -> Tensor:
    """Sequence-level balance loss of DeepSeek-V3, averaged over tokens: 1 when every sequence is balanced.

    Per sequence ``sum_e f_e P_e`` with ``f_e = E / (K t) * |tokens that chose e|`` and P_e the mean share of e.
    """
    lengths_N = (batch.cu_query[1:] - batch.cu_query[:-1]).to(torch.int64).to(score_TE.device)
    segments_N = torch.arange(len(lengths_N), device=score_TE.device)
    segment_T = segments_N.repeat_interleave(lengths_N, output_size=len(score_TE))  # spares a wait for the device
    num_experts, top_k = score_TE.shape[1], expert_TK.shape[1]
    share_TE = score_TE / (score_TE.sum(-1, keepdim=True) + 1e-20)
    chosen_TE = torch.zeros_like(score_TE).scatter_(1, expert_TK, 1.0)
    zeros_NE = score_TE.new_zeros(len(lengths_N), num_experts)
    share_NE = zeros_NE.index_add(0, segment_T, share_TE)
    chosen_NE = zeros_NE.index_add(0, segment_T, chosen_TE)
    tokens: int | Tensor = score_TE.shape[0]
    if batch.paths is not None:  # sums over a sequence are those over its segments
        contains_LN = batch.contains_LN.to(share_NE)
        share_NE, chosen_NE = contains_LN @ share_NE, contains_LN @ chosen_NE
        lengths_N = contains_LN @ lengths_N.to(contains_LN)
        tokens = lengths_N.sum()
    loss_N = (chosen_NE * share_NE).sum(-1) * num_experts / (top_k * lengths_N)
    return loss_N.sum() / tokens
