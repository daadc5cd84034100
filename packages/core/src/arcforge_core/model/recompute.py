"""Activation checkpointing: the backward pass recomputes a layer's intermediate results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from arcforge_core.model.outputs import BlockOutput


def recomputed(layer: Callable[..., BlockOutput], *args: Any, **kwargs: Any) -> BlockOutput:
    """Runs a layer so that the backward pass recomputes it from its inputs."""
    out: BlockOutput = checkpoint(layer, *args, use_reentrant=False, context_fn=keeping_selections, **kwargs)
    return out


def keeping_selections() -> Any:
    """Makes checkpointing store the keys that an indexer selected, because selecting them again needs all scores."""

    def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        selects = isinstance(op, torch._ops.OpOverload) and op.name().split("::")[1].startswith("indexer_topk")
        return CheckpointPolicy.MUST_SAVE if selects else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
