"""Operators of a vendor's library on the fake chip, declared by their public schemas.

torch checks names, order and kinds of a call's arguments against the schema; `VendorOp.run` checks what the vendor's
documents demand beyond that. A vendor's library is there without the vendor: nothing here runs on silicon.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from arcforge_core.testing.fake_chip.device import Chip, chip


class VendorError(RuntimeError):
    """A call that the vendor's documents do not allow."""


Backward = Callable[[dict[str, Any], tuple[Tensor, ...], tuple[Tensor, ...]], dict[str, Tensor]]
"""From the arguments by name, the outputs and their gradients to the gradients of arguments by name."""


@dataclass(frozen=True)
class VendorOp:
    """One operator.

    Attributes:
        schema: torch's schema without a namespace, as the vendor publishes it.
        run: computes the results from the chip's values, which are tensors on the host; raises `VendorError` for what
            the documents do not allow.
        backward: the gradients that the vendor's library gives autograd, computed from the chip's tensors; None without
            any.
    """

    schema: str
    run: Callable[..., Any]
    backward: Backward | None = None

    @property
    def name(self) -> str:
        """The operator's name."""
        return self.schema.partition("(")[0]


_LIBRARIES: list[torch.library.Library] = []


def declare(namespace: str, ops: Sequence[VendorOp]) -> Chip:
    """Defines operators ``torch.ops.NAMESPACE.NAME`` that run on the installed chip, and only there."""
    library, one = torch.library.Library(namespace, "DEF"), chip()
    for op in ops:
        library.define(op.schema)
        overload = getattr(getattr(torch.ops, namespace), op.name).default
        one.kernels[overload] = op.run
        if op.backward is not None:
            library.impl(op.name, _differentiable(overload, op.backward), "AutogradPrivateUse1")
    _LIBRARIES.append(library)
    return one


def _differentiable(op: Any, backward: Backward) -> Callable[..., Any]:
    """Returns the operator with gradients; torch's own helper takes no operator with tensors given by name."""
    arguments = op._schema.arguments
    names = [a.name for a in arguments]
    by_place = sum(not a.kwarg_only for a in arguments)

    class Differentiable(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *values: Any) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                out = op(*values[:by_place], **dict(zip(names[by_place:], values[by_place:], strict=True)))
            outs = [x for x in (out if isinstance(out, tuple) else (out,)) if isinstance(x, Tensor)]
            ctx.mark_non_differentiable(*(x for x in outs if not x.is_floating_point()))
            ctx.tensors = [n for n, x in zip(names, values, strict=True) if isinstance(x, Tensor)]
            ctx.rest = {n: x for n, x in zip(names, values, strict=True) if not isinstance(x, Tensor)}
            ctx.save_for_backward(*(x for x in values if isinstance(x, Tensor)), *outs)
            return out

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
            saved, count = ctx.saved_tensors, len(ctx.tensors)
            given = ctx.rest | dict(zip(ctx.tensors, saved[:count], strict=True))
            found = backward(given, saved[count:], grads)
            return tuple(found.get(name) for name in names)

    def function(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | kwargs
        return Differentiable.apply(*(given.get(a.name, a.default_value) for a in arguments))

    return function


def extension(name: str) -> None:
    """Lets ``import NAME`` of the vendor's extension of torch succeed; the module is empty."""
    sys.modules.setdefault(name, ModuleType(name))


def need(true: object, op: str, demand: str) -> None:
    """Raises `VendorError` with the document's demand unless it is met."""
    if not true:
        raise VendorError(f"{op}: {demand}")
