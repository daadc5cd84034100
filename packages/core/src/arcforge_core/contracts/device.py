"""Which chip a backend drives and what the chip can do: plain data, without torch."""

from __future__ import annotations

from dataclasses import dataclass, field

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "uneven_all_to_all", "barrier")
"""Exchanges between processes, by name; the uneven one has splits of different sizes, some of them empty."""


@dataclass(frozen=True)
class Identity:
    """Names of a chip; none follows from another. Three vendors present their tensors as ``cuda``.

    Attributes:
        vendor: e.g. ``nvidia``; ``hardware=auto`` accepts exactly one vendor of accelerators.
        device: torch device type of its tensors, e.g. ``cuda``, ``npu``.
        dispatch_key: torch's, e.g. ``CUDA``, ``PrivateUse1``.
        collectives: the backend of `torch.distributed`, e.g. ``nccl``, ``hccl``.
        triton: Triton's name of the target; None without Triton.
    """

    vendor: str
    device: str
    dispatch_key: str
    collectives: str
    triton: str | None = None

    def __post_init__(self) -> None:
        for name in ("vendor", "device", "dispatch_key", "collectives"):
            value = getattr(self, name)
            if not value or value != value.strip():
                raise ValueError(f"Identity.{name}={value!r}: must be a name")


@dataclass(frozen=True)
class Capabilities:
    """The abilities of a chip. The defaults are those of a chip about which nothing is known.

    ``arcforge-conformance`` tests all but the limits, both ways.

    Attributes:
        float64, int64, bf16, fp8: whether tensors of these dtypes exist and compute; fp8 is ``float8_e4m3fn``.
        fast_bf16: whether bfloat16 products are faster than float32 ones; None: measured.
        fused_adamw: whether torch's fused AdamW runs.
        autocast: whether `torch.autocast` computes products in bfloat16 and losses in float32.
        streams: whether streams run beside each other, ordered by events; the device's module in torch has those names
            of `torch.cuda`.
        pinned_memory: whether torch allocates host memory that the chip's runtime pins, as its data-parallel training
            needs. Without it, gradients are exchanged after the backward pass.
        compiler: backend of `torch.compile` whose code runs on the chip, e.g. ``inductor``; None: none is known.
        tokens: rows of an op's first tensor up to which the chip's kernels are called, e.g. because grids are small;
            the reference computes larger calls. None: no bound.
        collectives: those of `COLLECTIVES` that its backend has; several processes need ``all_reduce``, ``all_gather``
            and ``broadcast``.
    """

    float64: bool = False
    int64: bool = False
    bf16: bool = False
    fp8: bool = False
    fast_bf16: bool | None = False
    fused_adamw: bool = False
    autocast: bool = False
    streams: bool = False
    pinned_memory: bool = False
    compiler: str | None = None
    tokens: int | None = None
    collectives: frozenset[str] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.collectives) - set(COLLECTIVES)):
            raise ValueError(f"Capabilities.collectives={unknown}: must be of {', '.join(COLLECTIVES)}")
        if self.tokens is not None and self.tokens < 1:
            raise ValueError(f"Capabilities.tokens={self.tokens}: must be at least 1, or None")


TRAINING = frozenset({"all_reduce", "all_gather", "broadcast"})
"""Collectives that training with several processes needs."""

GENERAL = Capabilities(
    float64=True, int64=True, bf16=True, fused_adamw=True, autocast=True, collectives=frozenset(COLLECTIVES)
)
"""A device on which all of torch runs, such as a CPU; a base for `dataclasses.replace`."""
