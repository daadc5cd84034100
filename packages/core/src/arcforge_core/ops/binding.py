"""Ops as attributes of modules: declared in one line, bound by one walk over the model.

    self.rope = op(reference.rope, dim=64)  # in the constructor
    self.rope(x_THR, cos_TF, sin_TF)        # in forward

Until `bind_ops` runs the attribute is the reference. Afterwards it is the kernel's function itself, so a call has no
overhead. `bind_ops` runs when a model is built and after a change of dtype or device.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import nn

from arcforge_core.ops.dispatch import Binder

F = TypeVar("F", bound=Callable[..., Any])


class Op:
    """An op that a module declares: the reference, until a kernel replaces it."""

    def __init__(self, reference: Callable[..., Any], sizes: dict[str, int], weights: Mapping[str, str]) -> None:
        self.reference, self.sizes, self.weights = reference, sizes, weights

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the reference."""
        return self.reference(*args, **kwargs)


def op(reference: F, weights: Mapping[str, str] | None = None, /, **sizes: int) -> F:
    """Declares an op as an attribute of a module.

    Args:
        reference: the op's function in `arcforge_core.ops.reference`.
        weights: the module's parameter or buffer by argument of the op, for those that a backend may keep in a layout
            of its own: the module passes them unchanged.
        sizes: fixed sizes of the call, passed to the kernels' `supports`.
    """
    return cast(F, Op(reference, sizes, weights or {}))


def declared_ops(module: nn.Module) -> dict[str, Op]:
    """Returns the ops that a module declares, by attribute."""
    found: dict[str, Op] = vars(module).get("_declared_ops", {})
    return found


class Fused:
    """A fused op of a module: one kernel that reads the weights of several submodules while few tokens are decoded.

    Args:
        op: name of the op.
        parts: paths of the submodules that it replaces, ``""`` for the module itself; without parts it never runs.
        kinds: the exact classes that the parts may have. Quantised and adapted layers have other classes, because they
            use their weights differently.
        weights: paths of parameters or buffers by argument of the op, as in `op`.
        sizes: fixed sizes of the call.
    """

    def __init__(
        self,
        op: str,
        parts: Sequence[str],
        kinds: tuple[type, ...],
        weights: Mapping[str, str] | None = None,
        /,
        **sizes: int,
    ) -> None:
        self.op, self.parts, self.kinds, self.weights, self.sizes = op, tuple(parts), kinds, weights or {}, sizes
        self.kernel: Callable[..., Any] | None = None
        self.rows = 0
        self.hooks: list[Any] = []

    def bind(self, module: nn.Module, bind: Binder) -> None:
        """Selects a kernel, if one supports the sizes and the parts' weights have the compute dtype."""
        parts = [module.get_submodule(path) for path in self.parts]
        plain = all(type(p) in self.kinds and all(w.dtype == bind.dtype for w in p.parameters()) for p in parts)
        kernel = bind.fused(self.op, **self.sizes) if parts and plain else None
        self.kernel, self.rows = None, 0
        if kernel is not None:
            self.kernel, self.rows = kernel.function, kernel.rows.get(bind.dtype, sys.maxsize)
        self.hooks = [hooks for part in parts for hooks in (part._forward_hooks, part._forward_pre_hooks)]

    def serves(self, tokens: int) -> bool:
        """Returns whether a step of this many tokens may use it: no gradients, and no hook on any part."""
        return 0 < tokens <= self.rows and not torch.is_grad_enabled() and not any(self.hooks)

    def __call__(self, *args: Any) -> Any:
        """Runs the kernel; only valid when `serves` returned True."""
        assert self.kernel is not None
        return self.kernel(*args)


def declared_weights(module: nn.Module) -> Iterator[tuple[str, Callable[..., Any], Mapping[str, str]]]:
    """Yields for each op that a module declares its name, what it is bound to, and its weights' paths by argument."""
    for attribute, declared in declared_ops(module).items():
        yield declared.reference.__name__, getattr(module, attribute), declared.weights
    for value in vars(module).values():
        if isinstance(value, Fused) and value.kernel is not None:
            yield value.op, value.kernel, value.weights


def bind_ops(root: nn.Module, bind: Binder) -> None:
    """Binds the ops that `root` and its submodules declare.

    A module with a method ``ops_bound(binding)`` is called afterwards; see `arcforge_core.contracts.hardware.Binding`.
    """
    for module in root.modules():
        attributes = vars(module)
        declared = {name: value for name, value in attributes.items() if isinstance(value, Op)}
        if declared:
            attributes.setdefault("_declared_ops", {}).update(declared)
        for name, declaration in attributes.get("_declared_ops", {}).items():
            attributes[name] = bind(declaration.reference.__name__, **declaration.sizes)
        for value in attributes.values():
            if isinstance(value, Fused):
                value.bind(module, bind)
        if hasattr(module, "bind_ops"):
            _bind_the_old_way(module, bind)
        ops_bound: Any = getattr(module, "ops_bound", None)
        if ops_bound is not None:
            ops_bound(bind)


def _bind_the_old_way(module: Any, bind: Binder) -> None:
    """Runs a ``bind_ops`` method of plugin API 1, which remains supported for one version."""
    instead = "declare `self.rope = op(reference.rope, dim=64)` (arcforge_core.ops.op) in the constructor"
    warnings.warn(f"{type(module).__qualname__}.bind_ops is deprecated: {instead}", FutureWarning, stacklevel=3)
    module.bind_ops(bind)
