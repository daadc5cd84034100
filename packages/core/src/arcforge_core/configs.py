"""Schemas of core's own components; torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field

from arcforge_core.config.schema import (
    AttentionConfig,
    DataConfig,
    EngineConfig,
    HardwareConfig,
    OptimizerConfig,
    ScheduleConfig,
    check_at_least,
    check_choice,
)


@dataclass
class ReferenceAttentionConfig(AttentionConfig):
    """Naive attention."""

    name: str = "reference"
    form: str = "mla"
    """``mla`` or ``gqa``."""

    def __post_init__(self) -> None:
        check_choice("attention.form", self.form, ("mla", "gqa"))


@dataclass
class TorchAdamWConfig(OptimizerConfig):
    """`torch.optim.AdamW`."""

    name: str = "torch_adamw"
    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8


@dataclass
class ConstantScheduleConfig(ScheduleConfig):
    """Linear warm-up, then the peak rate."""

    name: str = "constant"
    final: float = 1.0


@dataclass
class TorchCpuConfig(HardwareConfig):
    """Torch's own operators on the CPU."""

    name: str = "torch_cpu"


@dataclass
class AutoHardwareConfig(HardwareConfig):
    """Automatic choice; the decision is printed."""

    name: str = "auto"


@dataclass
class SimpleEngineConfig(EngineConfig):
    """Static batches."""

    name: str = "simple"
    max_batch_size: int = 16

    def __post_init__(self) -> None:
        check_at_least("engine.max_batch_size", self.max_batch_size, 1)


@dataclass
class StdlibDataConfig(DataConfig):
    """The standard library of the running Python and its `pydoc_data` text."""

    name: str = "stdlib"
    include_tests: bool = False
    """Also the library's own test suite."""


@dataclass
class FilesDataConfig(DataConfig):
    """Files and folders."""

    name: str = "files"
    paths: list[str] = field(default_factory=list)
    """Files or folders; folders are read recursively."""
    suffixes: list[str] = field(default_factory=list)
    """Only these endings inside folders, e.g. [.py, .md]; empty takes every readable text."""
    text_field: str = "text"
    """Column of jsonl and parquet rows that holds the text."""
    licence: str = "unknown"


@dataclass
class HubDataConfig(DataConfig):
    """A data set of the `datasets` library: a hub name or a local path."""

    name: str = "hub"
    dataset: str = ""
    split: str = "train"
    text_field: str = "text"
    licence: str = "unknown"


@dataclass
class MixtureDataConfig(DataConfig):
    """Several sources."""

    name: str = "mixture"
    sources: dict[str, DataConfig] = field(default_factory=dict)
    """Filled on the command line or in YAML: ``+data@data.sources.code=stdlib``."""
    weights: dict[str, float] = field(default_factory=dict)
    """Share of each source's tokens; absent means 1."""
