"""Weights in a chip's own layout, which everything but that chip's kernels sees as ordinary tensors."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from arcforge_core.contracts.hardware import Kernel, Prepared, PreparesWeights, Weight
from arcforge_core.ops.specs import SPECS

log = logging.getLogger("arcforge.ops")
aten = torch.ops.aten


class PreparedWeight(torch.Tensor):
    """A weight that a backend keeps in its layout; shape, dtype and device are those of the ordinary tensor.

    Operators of torch work on the restored value. A change in place is prepared again, into the same memory;
    a view of it is a copy.

    Attributes:
        weight: which weight it is.
        backend: prepares and restores it.
        prepared: its value in the layout.
    """

    weight: Weight
    backend: PreparesWeights
    prepared: Prepared

    @staticmethod
    def __new__(
        cls, weight: Weight, backend: PreparesWeights, prepared: Prepared, device: torch.device
    ) -> PreparedWeight:
        return torch.Tensor._make_wrapper_subclass(cls, weight.shape, dtype=weight.dtype, device=device)

    def __init__(self, weight: Weight, backend: PreparesWeights, prepared: Prepared, device: torch.device) -> None:
        self.weight, self.backend, self.prepared = weight, backend, prepared

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @torch.no_grad()
    def restored(self) -> Tensor:
        """Returns the ordinary tensor, a copy."""
        return self.backend.restore_weight(self.weight, self.prepared)

    @torch.no_grad()
    def replace(self, value: Tensor) -> None:
        """Takes an ordinary tensor's value, without a change of addresses."""
        value = value.to(self.device, self.dtype).expand(self.shape).contiguous()
        new = self.backend.prepare_weight(self.weight, value)
        for old_part, part in zip(tree_leaves(self.prepared), tree_leaves(new), strict=True):
            old_part.copy_(part)

    def like(self, prepared: Prepared) -> PreparedWeight:
        """Returns the same weight with this value."""
        return PreparedWeight(self.weight, self.backend, prepared, self.device)

    def tolist(self) -> Any:
        """Returns the values; torch has this for its own tensors only."""
        return self.restored().tolist()

    def __repr__(self) -> str:  # type: ignore[override]
        return f"{self.weight.name} in layout {self.weight.layout}: {tuple(self.shape)} {self.dtype} on {self.device}"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.restored().__reduce_ex__(protocol)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, op: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd"):
            return op.decompose(*args, **kwargs)  # inference mode leaves such operators whole
        if op in (aten.detach.default, aten.alias.default):
            return args[0].like(args[0].prepared)
        if op is aten.clone.default:
            return args[0].like(tree_map(torch.clone, args[0].prepared))
        if op is aten.copy_.default and isinstance(args[0], PreparedWeight):
            args[0].replace(ordinary(args[1]))
            return args[0]
        made = [(x, x.restored()) for x in tree_leaves((args, kwargs)) if isinstance(x, PreparedWeight)]
        values = {id(weight): value for weight, value in made}

        def value_of(x: Any) -> Any:
            return values[id(x)] if isinstance(x, PreparedWeight) else x

        out = op(*tree_map(value_of, args), **tree_map(value_of, kwargs))
        names = [argument.name for argument in op._schema.arguments]
        given = dict(zip(names, args, strict=False)) | kwargs
        for argument in op._schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                for changed in tree_leaves(given.get(argument.name)):
                    if isinstance(changed, PreparedWeight):
                        changed.replace(values[id(changed)])
        back = {id(value): weight for weight, value in made}
        return tree_map(lambda x: back.get(id(x), x), out)


def ordinary(x: Tensor) -> Tensor:
    """Returns a tensor itself, or the restored value of a prepared weight."""
    return x.restored() if isinstance(x, PreparedWeight) else x


def restoring(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that gets ordinary tensors for prepared weights."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return function(*map(ordinary, args), **{name: ordinary(x) for name, x in kwargs.items()})

    return run


def preferring(
    kernel: Kernel, function: Callable[..., Any], plain: Callable[..., Any], tokens: int | None, safe: bool
) -> Callable[..., Any]:
    """Returns a function that calls a kernel where its weights are in its layouts, and `plain` elsewhere.

    Args:
        kernel: has layouts.
        function: its function, which takes weights in them, and differentiates nothing.
        plain: takes prepared weights as ordinary tensors.
        tokens: rows of the first argument up to which the chip's kernels are called; None: any number.
        safe: call `plain` where the kernel raises, and say so each time.
    """
    names = list(inspect.signature(SPECS[kernel.op].reference).parameters)
    places = {names.index(argument): layout for argument, layout in kernel.layouts.items()}

    @functools.wraps(plain)
    def run(*args: Any, **kwargs: Any) -> Any:
        if tokens is not None and len(args[0]) > tokens:
            return plain(*args, **kwargs)
        if kernel.limits is not None and not kernel.limits(*args, **kwargs).ok:
            return plain(*args, **kwargs)
        tracked = torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in args)
        given = list(args)
        for place, layout in places.items():
            weight = args[place]
            if tracked or not isinstance(weight, PreparedWeight) or weight.weight.layout != layout:
                return plain(*args, **kwargs)
            given[place] = weight.prepared
        given = [ordinary(x) if isinstance(x, Tensor) else x for x in given]
        try:
            return function(*given, **kwargs)
        except Exception as error:  # whatever a vendor's library raises
            if not safe:
                raise
            kind = type(error).__name__
            log.warning("kernel %s of %s raised %s: %s; another runs", kernel.name, kernel.op, kind, error)
            return plain(*args, **kwargs)

    run.layouts = kernel.layouts  # type: ignore[attr-defined]
    return run
