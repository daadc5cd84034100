"""The hardware contract: a backend is a device, its kernels for each op, and a roofline. The unit is one op."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor

if TYPE_CHECKING:
    from arcforge_core.config.schema import HardwareConfig


@dataclass(frozen=True)
class Probe:
    """Whether the device is usable on this machine, with the reason. Probing is cheap and never raises."""

    ok: bool
    reason: str


@dataclass(frozen=True)
class Verdict:
    """A kernel's answer to an `OpCall`: yes, or no with a reason."""

    ok: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.ok


YES = Verdict(True)


@dataclass(frozen=True)
class OpCall:
    """Properties of an op call, known when a module binds it: once at build, again on a dtype or device change.

    Attributes:
        op: op name, e.g. ``attention_varlen``.
        device_type: e.g. ``cpu``.
        dtype: dtype of the activations.
        needs_grad: whether a backward pass may be requested.
        sizes: fixed sizes of the call, e.g. ``{"heads": 4, "key_dim": 64}``.
    """

    op: str
    device_type: str
    dtype: torch.dtype
    needs_grad: bool = True
    sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Kernel:
    """One implementation of an op, with the signature and semantics of `arcforge_core.ops.reference`.

    Attributes:
        op: op name.
        name: shown in logs, e.g. ``cpu.attention_varlen.tiled``.
        fn: the function.
        supports: pure and cheap; a refusal carries a reason.
        priority: the supporting kernel with the highest priority wins.
        tolerance: relative error allowed against the float64 reference by the conformance suite, by dtype.
        rows: of a fused op, the tokens of a step up to which the kernel is the faster choice, by dtype; a dtype that is
            absent has no bound.
    """

    op: str
    name: str
    fn: Callable[..., Any]
    supports: Callable[[OpCall], Verdict]
    priority: int = 0
    tolerance: Mapping[torch.dtype, float] = field(
        default_factory=lambda: {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float64: 1e-10}
    )
    rows: Mapping[torch.dtype, int] = field(default_factory=dict)


class Binding(Protocol):
    """The circumstances that a module's ops were bound for; a method ``ops_bound(binding)`` of a module receives it."""

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the activations."""

    @property
    def deterministic(self) -> bool:
        """Whether a token's result must not depend on the rest of the batch, nor on a cache."""


@dataclass(frozen=True)
class Roofline:
    """Peak rates of one device, for planning and MFU; None if the rate must be measured.

    Attributes:
        matmul_flops: FLOP/s of dense matrix products, by dtype name.
        memory_bytes_per_s: read bandwidth.
        memory_bytes: capacity.
    """

    matmul_flops: Mapping[str, float] | None = None
    memory_bytes_per_s: float | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Change:
    """A configuration change that the hardware needs; printed, then applied by the caller."""

    field: str
    value: Any
    reason: str


@runtime_checkable
class Recorder(Protocol):
    """An optional ability of a backend: it repeats steps without the interpreter.

    Attributes:
        rows: tokens of a step up to which that pays off in a model without fused ops; with them, their `Kernel.rows`
            decide.
    """

    rows: int

    def record(self, step: Callable[[], Tensor]) -> Callable[[], Tensor] | None:
        """Runs a step once and returns a function that replays it on the current contents of its inputs.

        The step reads inputs and weights at fixed addresses, and computes nothing outside of kernels that depends on
        their values; nothing is differentiated. Each replay overwrites the step's result.

        Returns:
            None if the step cannot be recorded.
        """


class Hardware(Protocol):
    """A hardware backend; its target is called as ``target(config)``.

    Attributes:
        name: component name.
        device_type: the torch device type, e.g. ``cpu``, ``cuda``, ``npu``.
        distributed_backend: name for `torch.distributed`, e.g. ``gloo``.
    """

    name: str
    device_type: str
    distributed_backend: str

    def __init__(self, config: HardwareConfig) -> None: ...

    def probe(self) -> Probe:
        """Checks whether the device can be used; cheap, never raises."""

    def kernels(self) -> Sequence[Kernel]:
        """Returns the kernels for any subset of the ops; the reference covers the rest."""

    def roofline(self) -> Roofline:
        """Returns peak rates."""

    def adjust_config(self, config: Any) -> list[Change]:
        """Returns the changes that this hardware needs in a `TrainConfig`, without modifying it."""
