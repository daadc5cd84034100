"""Routing replay: a token keeps its experts through all updates on its rollouts: those it had when the step began, or
those that the engine chose when it sampled (R3, arXiv 2510.11370).

Updates change router weights and thereby the choice of experts, and rounding does; the ratio to the old policy, or to
the engine, would then compare two networks. Gates are recomputed, so that the router still learns.

T: tokens that are read, of a branch or a micro-batch; R: the same of all branches one by one; K: experts per token;
E: experts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from arcforge_core.contracts.algorithm import Array, Branch
from arcforge_core.errors import ArcforgeError, ConfigError
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.model.moe import Router
from arcforge_rl.trainer.tokens import PolicyMicro

Routed = tuple[Tensor, Tensor, Tensor]
"""The result of a router: experts [T, K], gates [T, K], scores [T, E]."""


class RoutingReplay:
    """Stores the experts of branches by branch id.

    Args:
        model: the policy.
        of_engine: whether the experts are those that the branches record.

    Raises:
        ConfigError: the model has no router.
    """

    def __init__(self, model: CausalLM, of_engine: bool = False) -> None:
        self._routers = [module for module in model.model.modules() if isinstance(module, Router)]
        if not self._routers:
            named = "engine" if of_engine else "trainer"
            raise ConfigError("trainer.replay_routing", named, "this model has no experts to choose")
        self.of_engine = of_engine
        self._experts: dict[str, list[Tensor]] = {}

    def forget(self) -> None:
        """Discards the stored experts: a new step has other rollouts."""
        self._experts = {}

    def first(self, micro: PolicyMicro) -> AbstractContextManager[None]:
        """Reads a micro-batch inside the block before the first update on it."""
        return self.replaying(micro) if self.of_engine else self.recording(micro)

    @contextmanager
    def recording(self, micro: PolicyMicro) -> Iterator[None]:
        """Stores the experts chosen for a micro-batch inside the block."""
        chosen: list[list[Tensor]] = [[] for _ in self._routers]

        def listen(layer: int) -> Any:
            def hook(router: nn.Module, inputs: Any, routed: Routed) -> None:
                chosen[layer].append(routed[0].detach())

            return hook

        with self._hooked(listen):
            yield
        by_layer = [torch.cat(parts).cpu() for parts in chosen]
        for branch, rows in zip(micro.branches(), micro.rows, strict=True):
            self._experts[branch.branch_id] = [of_layer[rows] for of_layer in by_layer]

    @contextmanager
    def replaying(self, micro: PolicyMicro) -> Iterator[None]:
        """Replays the experts of a micro-batch inside the block.

        Raises:
            ArcforgeError: the engine recorded no experts of a branch, or those of another model.
        """
        branches = [self._known(branch, len(rows)) for branch, rows in zip(micro.branches(), micro.rows, strict=True)]
        rows_R = torch.cat([*micro.rows])

        def force(layer: int) -> Any:
            expert_RK = torch.cat([of_branch[layer] for of_branch in branches])
            expert_TK = expert_RK.new_empty(micro.batch.num_tokens, expert_RK.shape[1])
            expert_TK[rows_R] = expert_RK  # shared rows have the same experts in all branches, see `alike`
            expert_TK = expert_TK.to(micro.tokens_T.device)

            def hook(router: nn.Module, inputs: Any, routed: Routed) -> Routed:
                assert isinstance(router, Router)
                gate_TK = routed[2].gather(1, expert_TK)
                return expert_TK, gate_TK / (gate_TK.sum(-1, keepdim=True) + 1e-20) * router.scale, routed[2]

            return hook

        with self._hooked(force):
            yield

    def alike(self, branch: Branch, length: int) -> Array:
        """Returns ids and replayed experts: branches can share tokens with both (`arcforge_rl.trainer.prefixes`)."""
        experts = [of_layer.numpy() for of_layer in self._known(branch, length)]
        return np.column_stack([branch.ids[:length], *experts])

    def _known(self, branch: Branch, length: int) -> list[Tensor]:
        return self._recorded(branch, length) if self.of_engine else self._experts[branch.branch_id]

    def _recorded(self, branch: Branch, length: int) -> list[Tensor]:
        """Returns the engine's experts of the first `length` tokens by layer, int64 [T, K]."""
        shape = len(self._routers), self._routers[0].top_k
        if branch.experts is None or len(branch.experts) < length or branch.experts.shape[1:] != shape:
            known = "none" if branch.experts is None else f"experts of shape {branch.experts.shape}"
            raise ArcforgeError(
                f"branch {branch.branch_id}: the engine recorded {known} for {length} tokens, {shape[0]} layers and "
                f"{shape[1]} experts each; trainer.replay_routing=engine needs engine.record_experts=true where it "
                "was sampled"
            )
        return list(torch.from_numpy(branch.experts[:length].astype(np.int64)).unbind(1))

    @contextmanager
    def _hooked(self, make: Any) -> Iterator[None]:
        handles = [router.register_forward_hook(make(layer)) for layer, router in enumerate(self._routers)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
