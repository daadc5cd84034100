"""Routing replay: a token keeps the experts it had when the step began, through all updates on its rollouts.

Updates change router weights and thereby the choice of experts; the ratio to the old policy would then compare two
networks. Gates are recomputed, so that the router still learns. (arXiv 2510.11370 replays the engine's choice.)

T: tokens of a branch that are read; K: experts per token; E: experts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from arcforge_core.errors import ConfigError
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.model.moe import Router
from arcforge_rl.trainer.tokens import PolicyMicro

Routed = tuple[Tensor, Tensor, Tensor]
"""The result of a router: experts [T, K], gates [T, K], scores [T, E]."""


class RoutingReplay:
    """Stores the experts of branches by branch id.

    Args:
        model: the policy.

    Raises:
        ConfigError: the model has no router.
    """

    def __init__(self, model: CausalLM) -> None:
        self._routers = [module for module in model.model.modules() if isinstance(module, Router)]
        if not self._routers:
            raise ConfigError("trainer.replay_routing", True, "this model has no experts to choose")
        self._experts: dict[str, list[Tensor]] = {}

    def forget(self) -> None:
        """Discards the stored experts: a new step has other rollouts."""
        self._experts = {}

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
        lengths = micro.batch.query_lengths()
        by_layer = [torch.cat(parts).split(lengths) for parts in chosen]
        for number, branch in enumerate(micro.branches()):
            self._experts[branch.branch_id] = [of_layer[number].cpu() for of_layer in by_layer]

    @contextmanager
    def replaying(self, micro: PolicyMicro) -> Iterator[None]:
        """Replays the stored experts for a micro-batch inside the block."""
        branches = [self._experts[branch.branch_id] for branch in micro.branches()]

        def force(layer: int) -> Any:
            expert_TK = torch.cat([of_branch[layer] for of_branch in branches]).to(micro.tokens_T.device)

            def hook(router: nn.Module, inputs: Any, routed: Routed) -> Routed:
                assert isinstance(router, Router)
                gate_TK = routed[2].gather(1, expert_TK)
                return expert_TK, gate_TK / (gate_TK.sum(-1, keepdim=True) + 1e-20) * router.scale, routed[2]

            return hook

        with self._hooked(force):
            yield

    @contextmanager
    def _hooked(self, make: Any) -> Iterator[None]:
        handles = [router.register_forward_hook(make(layer)) for layer, router in enumerate(self._routers)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
