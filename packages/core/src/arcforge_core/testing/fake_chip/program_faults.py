"""Faults of the fake chip's autocast and compiler by name, for `arcforge_core.testing.fake_chip.faults.injected`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from arcforge_core.testing.fake_chip import autocast, compiler

_CASTS: dict[int, tuple[Tensor, Tensor]] = {}


def _kept(x: Tensor, dtype: torch.dtype) -> Tensor:
    if id(x) not in _CASTS or _CASTS[id(x)][1].dtype != dtype:
        _CASTS[id(x)] = x, x.to(dtype)
    return _CASTS[id(x)][1]


def _detached(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.detach().to(dtype)


def _first_values(graph: torch.fx.GraphModule, examples: list[Any]) -> Any:
    """Keeps the values that a weight, an argument whose first axis is 8, had in the first call."""
    folded: dict[int, Any] = {}

    def run(*args: Any) -> Any:
        for place, value in enumerate(args):
            if isinstance(value, Tensor) and value.shape[:1] == (8,):
                folded.setdefault(place, value.detach().clone())
        return graph.forward(*[folded.get(place, value) for place, value in enumerate(args)])

    return run


def _copies(graph: torch.fx.GraphModule, examples: list[Any]) -> Any:
    """Works on copies of its arguments, so that changes in place are lost."""
    return lambda *args: graph.forward(*[x.clone() if isinstance(x, Tensor) else x for x in args])


def _no_gradient(graph: torch.fx.GraphModule, examples: list[Any]) -> Any:
    """Differentiates by its first argument only."""

    def run(*args: Any) -> Any:
        tensors = [place for place, value in enumerate(args) if isinstance(value, Tensor)]
        return graph.forward(*[x.detach() if n in tensors[1:] else x for n, x in enumerate(args)])

    return run


def _as_compiled(graph: torch.fx.GraphModule, examples: list[Any]) -> Any:
    """Computes as many rows as the graph was compiled for, or repeats."""
    rows = next((len(x) for x in examples if isinstance(x, Tensor) and x.ndim > 1), 0)

    def run(*args: Any) -> Any:
        outs = graph.forward(*args)
        return tuple(x[:rows] if isinstance(x, Tensor) and x.ndim > 1 else x for x in outs)

    return run


def _twice(graph: torch.fx.GraphModule, examples: list[Any]) -> Any:
    """Runs a first call twice, as a compiler does that measures variants on the caller's tensors."""
    calls: list[None] = []

    def run(*args: Any) -> Any:
        if not calls:
            calls.append(None)
            graph.forward(*args)
        return graph.forward(*args)

    return run


PROGRAM_FAULTS: Mapping[str, tuple[Any, str, Callable[..., Any]]] = {
    "autocast casts nothing": (autocast, "narrow_dtype", lambda _: torch.float32),
    "autocast knows float16 only": (autocast, "narrow_dtype", lambda _: torch.float16),
    "losses stay narrow": (autocast, "wide_dtype", lambda: torch.bfloat16),
    "casts are kept for ever": (autocast, "cast", _kept),
    "casts have no gradient": (autocast, "cast", _detached),
    "weights are compiled as constants": (compiler, "compiled", _first_values),
    "compiled code works on copies": (compiler, "compiled", _copies),
    "compiled code has half of its gradients": (compiler, "compiled", _no_gradient),
    "compiled code keeps its number of rows": (compiler, "compiled", _as_compiled),
    "compiling runs the code": (compiler, "compiled", _twice),
}
"""Name to an attribute and its replacement."""
