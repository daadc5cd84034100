"""The hardware contract: a backend is a device, its kernels for each op, and a roofline. The unit is one op."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from arcforge_core.contracts.device import Capabilities, Identity

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
        fn: the function, or an import string ``package.module:attribute`` that is imported when a call is bound to it.
        supports: answers by the sizes that a module fixes when it binds an op; cheap; a refusal carries a reason.
        priority: the supporting kernel with the highest priority wins.
        tolerance: relative error against the float64 reference that its author promises, by dtype; without a promise
            that of the op's specification holds.
        tolerance_reason: why a tolerance is larger than the op's; the conformance suite shows it, and fails without it.
        rows: of a fused op, the tokens of a step up to which the kernel is the faster choice, by dtype; a dtype that is
            absent has no bound.
        limits: answers by what a call brings (tokens, keys, pages): it gets the op's arguments and reads shapes and
            lengths only, no values on the device. A call that it refuses runs the next kernel, or the reference.
        layouts: names of the chip's layouts in which it takes weights, by argument (`PreparesWeights`). It gets calls
            without gradients, after a model's weights were prepared; all others run the next kernel.
    """

    op: str
    name: str
    fn: Callable[..., Any] | str
    supports: Callable[[OpCall], Verdict]
    priority: int = 0
    tolerance: Mapping[torch.dtype, float] = field(default_factory=dict)
    tolerance_reason: str = ""
    rows: Mapping[torch.dtype, int] = field(default_factory=dict)
    limits: Callable[..., Verdict] | None = None
    layouts: Mapping[str, str] = field(default_factory=dict)

    @property
    def function(self) -> Callable[..., Any]:
        """The function of `fn`.

        Raises:
            ImportError, AttributeError: the import string names nothing; errors of its module pass through.
        """
        return imported(self.fn) if isinstance(self.fn, str) else self.fn


@functools.cache
def imported(path: str) -> Callable[..., Any]:
    """Returns the function that ``package.module:attribute`` names."""
    module, _, attribute = path.partition(":")
    function: Callable[..., Any] = getattr(import_module(module), attribute)
    return function


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
        rows: tokens of a step up to which that pays off; fewer where a fused op of the model has fewer `Kernel.rows`.
    """

    rows: int

    def record(self, step: Callable[[], Tensor]) -> Callable[[], Tensor] | None:
        """Runs a step once and returns a function that replays it on the current contents of its inputs.

        The step reads inputs and weights at fixed addresses, and computes nothing outside of kernels that depends on
        their values; nothing is differentiated. Each replay overwrites the step's result.

        Returns:
            None if the step cannot be recorded.
        """


@dataclass(frozen=True)
class Weight:
    """A weight of a module that a backend may keep in a layout of its own.

    Attributes:
        name: as in the state dict, e.g. ``model.layers.0.mlp.experts.down_proj``.
        layout: the name in `Kernel.layouts`.
        op: the op that reads it, e.g. ``moe_experts``.
        argument: its name there, e.g. ``down_EDF``.
        shape, dtype: of the ordinary tensor.
    """

    name: str
    layout: str
    op: str
    argument: str
    shape: tuple[int, ...]
    dtype: torch.dtype


Prepared = Tensor | tuple[Tensor, ...]
"""A weight in a chip's layout; several tensors where, say, a sum over its rows belongs to it."""


@runtime_checkable
class PreparesWeights(Protocol):
    """An optional ability of a backend: it turns weights into layouts of its own when a model begins to serve.

    Kernels with `Kernel.layouts` get the result of `prepare_weight`. Everything else (state dicts, checkpoints,
    exports, weight updates, other kernels) sees the ordinary tensor, so both directions must keep every bit.
    """

    def prepare_weight(self, weight: Weight, value: Tensor) -> Prepared | None:
        """Returns the value in the layout, in memory of its own; None leaves this weight as it is.

        Shapes and dtypes of the result depend on `weight` alone: an update copies into the same memory.
        """

    def restore_weight(self, weight: Weight, prepared: Prepared) -> Tensor:
        """Returns the ordinary tensor, in memory of its own."""


class Hardware(Protocol):
    """A hardware backend, version 2; its target is called as ``target(config)``.

    Version 1 had ``device_type`` and ``distributed_backend`` instead of `identity`, and neither `capabilities` nor
    `confirm`; it works for one more version, with a warning.

    Attributes:
        name: component name.
        identity: the chip's names.
        capabilities: the chip's abilities.
    """

    name: str
    identity: Identity
    capabilities: Capabilities

    def __init__(self, config: HardwareConfig) -> None: ...

    def probe(self) -> Probe:
        """Checks whether the device is there: files, metadata. Imports nothing of the vendor, never raises."""

    def confirm(self) -> Probe:
        """Checks that a device found by `probe` can be used; may import the vendor's modules, never raises."""

    def kernels(self) -> Sequence[Kernel]:
        """Returns the kernels for any subset of the ops; the reference covers the rest."""

    def roofline(self) -> Roofline:
        """Returns peak rates."""

    def adjust_config(self, config: Any) -> list[Change]:
        """Returns the changes that this hardware needs in a `TrainConfig`, without modifying it."""
