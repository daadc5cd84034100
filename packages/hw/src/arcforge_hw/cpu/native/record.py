"""Records the C calls of a step, to replay them in one call.

A step of few tokens makes about fifty C calls of about 30 us each; the interpreter and torch take as long again between
them. The calls depend on shapes only, so after the first step of a shape they are a list of functions and addresses.
"""

from __future__ import annotations

import ctypes
import logging
import struct
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from arcforge_hw.cpu import native

log = logging.getLogger("arcforge.ops")
aten = torch.ops.aten

NEW = (aten.empty, aten.empty_like, aten.new_empty, aten.empty_strided, aten.new_empty_strided, aten.promote_types)
"""Operators that compute nothing."""


class _UnrecordableError(Exception):
    """A torch operator without a C function."""


def _add(x: Tensor, y: Any, alpha: float = 1) -> Tensor:
    if not isinstance(y, Tensor) or alpha != 1:
        raise _UnrecordableError(f"aten.add of {y} times {alpha}")
    if x.shape != y.shape or x.dtype != y.dtype or x.dtype not in (torch.float32, torch.bfloat16, torch.float64):
        raise _UnrecordableError(f"aten.add of {x.dtype} {list(x.shape)} and {y.dtype} {list(y.shape)}")
    out = torch.empty_like(x)
    add = native.function(f"arcforge_add_{native.suffix(x.dtype)}", "3p i")
    add(*native.pointers(x, y, out), x.numel())
    return out


def _store(store: Tensor, dim: int, slots_T: Tensor, rows: Tensor) -> Tensor:
    native.check_shape("rows", rows, len(slots_T), *store.shape[1:])
    if dim != 0 or store.dtype != rows.dtype or slots_T.dtype != torch.int64:
        raise _UnrecordableError(f"aten.index_copy_ along {dim} of {store.dtype} and {rows.dtype} at {slots_T.dtype}")
    bytes_of_row = store[0].numel() * store.element_size()
    run = native.function("arcforge_store_rows", "3p 2i")
    run(*native.pointers(store, slots_T, rows), len(slots_T), bytes_of_row)
    return store


def _cat(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
    first = parts[0]
    alike = all(x.shape == first.shape and x.dtype == first.dtype and x.is_contiguous() for x in parts)
    if not alike or first.ndim != 2 or dim not in (1, -1):
        raise _UnrecordableError(f"aten.cat along {dim} of {[list(x.shape) for x in parts]}")
    rows, width = first.shape
    out = torch.empty(rows, len(parts) * width, dtype=first.dtype)
    pieces, kept = out.view(-1, width), []
    for number, x in enumerate(parts):
        kept.append(torch.arange(rows) * len(parts) + number)
        _store(pieces, 0, kept[-1], x)
    out.__dict__["kept"] = kept  # lives as long as the result, which lives as long as the recording
    return out


def _narrow(x: Tensor, dtype: torch.dtype | None = None, *_: Any, **__: Any) -> Tensor:
    if x.dtype == dtype:
        return x
    if x.dtype != torch.float32 or dtype != torch.bfloat16 or not x.is_contiguous():
        raise _UnrecordableError(f"aten.to from {x.dtype} to {dtype}")
    out = torch.empty_like(x, dtype=dtype)
    native.function("arcforge_narrow_rows", "2p i")(*native.pointers(x, out), x.numel())
    return out


INSTEAD: dict[Any, Callable[..., Tensor]] = {
    aten.add: _add,
    aten.cat: _cat,
    aten.index_copy_: _store,
    aten._to_copy: _narrow,
    aten.to: _narrow,
}
"""The C functions of torch operators between kernels."""


def _same_memory(out: Tensor | Sequence[Tensor], x: Tensor) -> bool:
    parts = [out] if isinstance(out, Tensor) else out
    return all(part.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for part in parts)


class _Watch(TorchDispatchMode):
    """Keeps the tensors that torch creates, and rejects operators that the replay would miss."""

    def __init__(self, kept: list[Any]) -> None:
        super().__init__()
        self.kept = kept

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch imports its compiler, which takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = func.overloadpacket
        if packet not in INSTEAD and packet not in NEW and not func.is_view:
            raise _UnrecordableError(str(func))
        out = INSTEAD.get(packet, func)(*args, **(kwargs or {}))
        if packet not in INSTEAD and func.is_view and not _same_memory(out, args[0]):
            raise _UnrecordableError(f"{func}, which copies {list(args[0].shape)}")  # reshape and the like
        self.kept.append(out)
        return out


class _Call(ctypes.Structure):
    _fields_ = (("function", ctypes.c_void_p), ("words", ctypes.c_void_p))


def _word(kind: type, value: Any) -> int:
    if kind is native.REAL:
        word: int = struct.unpack("q", struct.pack("d", value))[0]
        return word
    return int(value or 0)


def record(step: Callable[[], Tensor]) -> Callable[[], Tensor] | None:
    """Runs a step and returns a function that replays it; see `arcforge_core.contracts.hardware.Recorder`."""
    functions = native.library().functions
    if functions is None:
        return None
    made: list[tuple[str, list[int]]] = []
    kept: list[Any] = []

    def note(name: str, kinds: Sequence[type], args: tuple[Any, ...]) -> None:
        if not hasattr(functions, f"{name}_recorded"):
            raise _UnrecordableError(name)
        made.append((name, [_word(kind, value) for kind, value in zip(kinds, args, strict=True)]))

    try:
        with torch.inference_mode(), _Watch(kept), native.listening(note):
            out = step()
    except _UnrecordableError as reason:
        log.info("steps are not recorded: %s", reason)
        return None
    calls = (_Call * len(made))()
    for call, (name, words) in zip(calls, made, strict=True):
        kept.append((ctypes.c_int64 * len(words))(*words))
        call.function = ctypes.cast(getattr(functions, f"{name}_recorded"), ctypes.c_void_p).value
        call.words = ctypes.addressof(kept[-1])
    replay = native.function("arcforge_replay", "p i")

    def again() -> Tensor:
        replay(ctypes.addressof(calls), len(calls))
        return out

    again.__dict__["kept"] = kept  # keeps the tensors of the calls alive as long as the function
    return again
