"""Autocast of the fake chip: operators that compute in the asked dtype, and those that compute in float32."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

NARROW = ("mm", "bmm", "addmm", "baddbmm", "linear", "matmul")
WIDE = ("mse_loss", "nll_loss", "prod", "log_softmax.int", "softmax.int", "sum", "sum.dim_IntList")


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns `x` in `dtype`."""
    return x.to(dtype)


def narrow_dtype(device: str) -> torch.dtype:
    """Returns the dtype that the caller of autocast asked for."""
    return torch.get_autocast_dtype(device)


def wide_dtype() -> torch.dtype:
    """Returns the dtype of losses and sums."""
    return torch.float32


def impl(library: torch.library.Library, device: str) -> None:
    """Registers the operators for the key ``AutocastPrivateUse1`` of namespace aten."""
    for names, wide in ((NARROW, False), (WIDE, True)):
        for name in names:
            library.impl(name, functools.partial(_run, name, device, wide), "AutocastPrivateUse1")


def _run(name: str, device: str, wide: bool, *args: Any, **kwargs: Any) -> Any:
    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, packet), overload or "default")
    dtype = wide_dtype() if wide else narrow_dtype(device)

    def moved(x: Any) -> Any:
        ours = isinstance(x, Tensor) and x.is_floating_point() and x.device.type == device
        return cast(x, dtype) if ours and x.dtype != dtype else x

    key = torch._C._parse_dispatch_key("AutocastPrivateUse1")
    assert key is not None
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
        return op(*tree_map(moved, args), **tree_map(moved, kwargs))
