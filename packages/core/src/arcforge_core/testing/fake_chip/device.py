"""A PrivateUse1 device in pure Python: tensors of their own device type, computed by the host.

torch has one such device per process, so a test starts a process for each. Storage is the host's. The device refuses
everything that a strict chip refuses (`Limits`), so code that passes here needs neither float64 nor host tensors in a
kernel. FSDP2 cannot resize its storage.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._library.custom_ops import OPDEFS
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

from arcforge_core.testing.fake_chip import autocast as casts
from arcforge_core.testing.fake_chip import streams
from arcforge_core.testing.fake_chip.streams import STREAMS, ChipEvent, ChipStream, current, launch

COPIES = frozenset({torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default})
"""Operators that move values between the host and the chip."""


@dataclass(frozen=True)
class Limits:
    """Restrictions of the chip.

    Attributes:
        float64: whether float64 tensors exist on the chip.
        int64: whether int64 tensors exist on the chip.
        host_tensors: whether an operator accepts a host tensor with more than one value among the chip's.
    """

    float64: bool = False
    int64: bool = True
    host_tensors: bool = False

    def refuse(self, chip: str, op: Any, tensors: list[Tensor]) -> None:
        """Raises `RuntimeError` if a tensor of `op` on the chip has a dtype that the chip lacks."""
        for dtype, has in ((torch.float64, self.float64), (torch.int64, self.int64)):
            if not has and any(x.dtype == dtype for x in tensors):
                raise RuntimeError(f"{chip} has no {str(dtype).removeprefix('torch.')}: {op}")


@dataclass
class Chip:
    """The installed chip.

    Attributes:
        name: torch device type.
        limits: its restrictions.
        kernels: kernels of the chip's own library, by torch operator; the host's kernel runs for the others.
        calls: how often each operator ran on the chip.
    """

    name: str
    limits: Limits
    kernels: dict[Any, Callable[..., Any]]
    calls: dict[str, int]


_CHIP: list[Chip] = []


def chip() -> Chip:
    """Returns the chip of this process."""
    return _CHIP[0]


class ChipTensor(torch.Tensor):
    """A tensor on the chip; `raw` holds its values on the host."""

    raw: Tensor

    @staticmethod
    def __new__(cls, raw: Tensor, requires_grad: bool = False) -> ChipTensor:
        return torch.Tensor._make_wrapper_subclass(
            cls, raw.size(), strides=raw.stride(), storage_offset=raw.storage_offset(), dtype=raw.dtype,
            layout=raw.layout, device=torch.device(chip().name, 0), requires_grad=requires_grad,
        )  # fmt: skip

    def __init__(self, raw: Tensor, requires_grad: bool = False) -> None:
        self.raw = raw

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["raw"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], meta: None, size: Any, stride: Any) -> ChipTensor:
        return ChipTensor(inner["raw"])

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def tolist(self) -> Any:
        """Returns the values; torch has this for its own tensors only."""
        return self.cpu().tolist()

    def __repr__(self) -> str:  # type: ignore[override]
        return f"{self.cpu()!r} on {self.device}"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, op: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return run(op, args, kwargs or {})


def run(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs an operator of the chip on the host's values.

    Raises:
        RuntimeError: an argument or result that the chip refuses.
    """
    one = chip()
    if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd"):
        return op.decompose(*args, **kwargs)  # inference mode leaves such operators whole
    if op is torch.ops.aten._to_copy.default:
        return _moved(args[0], dict(kwargs))
    if op not in one.kernels and (written := OPDEFS.get(op.name())) is not None:
        with torch.no_grad():
            return written._init_fn(
                *args, **kwargs
            )  # Python that calls the chip's operators, and may read host tensors
    given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    one.limits.refuse(one.name, op, _on(given))
    if op not in COPIES and not one.limits.host_tensors:
        for x in given:
            if not isinstance(x, ChipTensor) and x.ndim > 0:
                raise RuntimeError(f"{op} on {one.name} got a tensor of shape {tuple(x.shape)} on {x.device}")
    one.calls[str(op)] = one.calls.get(str(op), 0) + 1
    raw_args, raw_kwargs = tree_map(_raw, args), tree_map(_raw, kwargs)
    if "device" in raw_kwargs:
        raw_kwargs["device"] = torch.device("cpu")
    # a copy from or to the host needs its memory now, and the host waits for an exchange
    now = op.namespace == "c10d" or (op is torch.ops.aten.copy_.default and len(_on(given)) < 2)
    # a view of an ordinary tensor is an ordinary tensor in inference mode too
    ours = _on(given)
    with torch.inference_mode(any(x.is_inference() for x in ours) if ours else torch.is_inference_mode_enabled()):
        out = launch(one.kernels.get(op, op), op, raw_args, raw_kwargs, now)
        result = tree_map(_on_chip, out)
    for x in given:
        if isinstance(x, ChipTensor) and x.shape != x.raw.shape:
            raise RuntimeError(f"{op} on {one.name} resized its output, which tensors of this chip cannot")
    one.limits.refuse(one.name, op, [x for x in tree_leaves(out) if isinstance(x, Tensor)])
    if op is torch.ops.aten.copy_.default and not isinstance(args[0], ChipTensor):
        return args[0]
    return return_and_correct_aliasing(op, args, kwargs, result)


def _moved(x: Tensor, kwargs: dict[str, Any]) -> Tensor:
    one = chip()
    target = torch.device(kwargs.pop("device", None) or x.device)
    here = isinstance(x, ChipTensor)
    if here and target.type != one.name and kwargs.get("dtype") is not None:  # the chip converts before it sends
        one.limits.refuse(one.name, "_to_copy", [torch.empty(0, dtype=kwargs["dtype"])])
    copy, moves = torch.ops.aten._to_copy.default, not here or target.type != one.name
    out: Tensor = launch(one.kernels.get(copy, copy), copy, (_raw(x),), kwargs, moves)
    if target.type != one.name:
        return out
    one.limits.refuse(one.name, "_to_copy", [out])
    return ChipTensor(out)


def _on(tensors: list[Tensor]) -> list[Tensor]:
    return [x for x in tensors if isinstance(x, ChipTensor)]


def _raw(value: Any) -> Any:
    return value.raw if isinstance(value, ChipTensor) else value


def _on_chip(value: Any) -> Any:
    return ChipTensor(value) if isinstance(value, Tensor) and not isinstance(value, ChipTensor) else value


class DeviceModule:
    """The module ``torch.NAME``: functions that torch calls."""

    Stream, Event = ChipStream, ChipEvent

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def _lazy_init(self) -> None:
        return None

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        """One for each process of this machine."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", 1))

    def set_device(self, device: Any) -> None:
        """Refuses numbers that no process has; each process simulates its own, and calls it the first."""
        index = device if isinstance(device, int) else torch.device(device).index
        if (index or 0) >= (count := self.device_count()):
            raise RuntimeError(f"{chip().name} has {count} devices, not number {index}")

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        self.set_device(device)
        yield

    def synchronize(self, device: Any = None) -> None:
        for stream in STREAMS:
            stream.synchronize()

    def current_stream(self, device: Any = None) -> ChipStream:
        return current()

    def default_stream(self, device: Any = None) -> ChipStream:
        return STREAMS[0]

    def stream(self, stream: ChipStream) -> AbstractContextManager[None]:
        return streams.entered(stream)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def manual_seed_all(self, seed: int) -> None:
        """The chip draws from the host's generator, which `torch.manual_seed` seeds itself."""

    def get_rng_state(self, device: Any = None) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)


FACTORIES = (
    "arange", "arange.start", "arange.start_step", "eye", "eye.m", "linspace", "randperm", "randperm.generator",
)  # fmt: skip
"""Operators without tensors that torch would otherwise call with an empty output to resize."""


def _factory(overload: str, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
    name, _, variant = overload.partition(".")
    op = getattr(getattr(torch.ops.aten, name), variant or "default")
    return _made(op(*args, device=torch.device("cpu"), **kwargs))


_LIBRARIES: list[torch.library.Library] = []


def install(name: str = "npu", limits: Limits | None = None) -> Chip:
    """Makes torch know the device type `name` in this process and returns its chip; one of that name stays.

    Raises:
        RuntimeError: the process already has a device of another name, or torch has no hooks for a Python backend.
    """
    if _CHIP and chip().name == name and (limits is None or limits == chip().limits):
        return chip()
    try:
        from torch.utils.backend_registration import _setup_privateuseone_for_python_backend as setup
    except ImportError as error:
        raise RuntimeError(f"torch {torch.__version__} has no devices in Python: the fake chip needs 2.12") from error
    setup(name, backend_module=DeviceModule())
    _CHIP[:] = [Chip(name, limits or Limits(), {}, {})]
    torch.__future__.set_swap_module_params_on_conversion(True)
    aten, anything = torch.library.Library("aten", "IMPL"), torch.library.Library("_", "IMPL")
    autocast = torch.library.Library("_", "IMPL")

    def strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> Tensor:
        return _made(torch.empty_strided(size, stride, dtype=dtype))

    def contiguous(size: Any, *, dtype: Any = None, memory_format: Any = None, **_: Any) -> Tensor:
        return _made(torch.empty(size, dtype=dtype, memory_format=memory_format or torch.contiguous_format))

    aten.impl("empty_strided", strided, "PrivateUse1")
    aten.impl("empty.memory_format", contiguous, "PrivateUse1")
    for overload in FACTORIES:
        aten.impl(overload, functools.partial(_factory, overload), "PrivateUse1")
    copy = torch.ops.aten.copy_.default
    aten.impl("copy_", lambda *args, **kwargs: run(copy, args, kwargs), "PrivateUse1")  # of torch.tensor
    anything.fallback(lambda op, *args, **kwargs: run(op, args, kwargs), "PrivateUse1")
    autocast.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    casts.impl(aten, name)
    _LIBRARIES.extend((aten, anything, autocast))
    return chip()


def _made(raw: Tensor) -> ChipTensor:
    chip().limits.refuse(chip().name, "empty", [raw])
    return ChipTensor(raw)
