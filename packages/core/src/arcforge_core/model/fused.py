"""Kernels that take the weights of several modules at once, while few tokens are decoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from arcforge_core.ops.dispatch import Binder

FEW_ROWS = 16
"""Tokens of a step up to which calls, and reading the weights, are the work."""
MANY_ROWS = {torch.bfloat16: 64}
"""The same where nothing but plain matrices is multiplied, in dtypes that kernels for few rows multiply faster."""


class Fused:
    """A fused op of a module, called with its weights.

    Args:
        kernel: the op.
        parts: the modules that it stands for.
        rows: tokens of a step that it serves at most.
    """

    def __init__(self, kernel: Callable[..., Any], parts: Sequence[nn.Module], rows: int = FEW_ROWS) -> None:
        self.kernel, self.rows = kernel, rows
        self.hooks = [hooks for part in parts for hooks in (part._forward_hooks, part._forward_pre_hooks)]

    def serves(self, tokens: int) -> bool:
        """Says whether a step of so many tokens may take it: nothing is differentiated, nobody listens to a part."""
        return tokens <= self.rows and not torch.is_grad_enabled() and not any(self.hooks)

    def __call__(self, *args: Any) -> Any:
        """Runs the op."""
        return self.kernel(*args)


def fuse(
    bind: Binder,
    op: str,
    kinds: tuple[type, ...],
    parts: Sequence[nn.Module],
    rows: int = FEW_ROWS,
    **sizes: int,
) -> Fused | None:
    """Returns a fused op for `parts` and steps of up to `rows` tokens, or None where they have to be called one by one.

    That is where there is no kernel, weights are kept in another dtype than is computed in, or a part is not exactly of
    one of these `kinds`: a quantised or adapted layer does something else with its weights.
    """
    plain = all(type(part) in kinds and all(p.dtype == bind.dtype for p in part.parameters()) for part in parts)
    kernel = bind.fused(op, **sizes) if plain else None
    return None if kernel is None else Fused(kernel, parts, rows)
