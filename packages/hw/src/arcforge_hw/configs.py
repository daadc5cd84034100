"""Schemas of this package's components; torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from arcforge_core.config.schema import HardwareConfig


@dataclass
class CpuConfig(HardwareConfig):
    """A CPU."""

    name: str = "cpu"


@dataclass
class CudaConfig(HardwareConfig):
    """An NVIDIA GPU."""

    name: str = "cuda"


@dataclass
class AscendConfig(HardwareConfig):
    """A Huawei Ascend NPU."""

    name: str = "ascend"
    quant_indexer: bool = False
    """Select keys from an int8 cache (attention.index_cache=int8) by npu_quant_lightning_indexer, which rounds queries,
    head weights and scales too."""


@dataclass
class MooreThreadsConfig(HardwareConfig):
    """A Moore Threads GPU."""

    name: str = "moore_threads"


@dataclass
class CambriconConfig(HardwareConfig):
    """A Cambricon MLU."""

    name: str = "cambricon"


@dataclass
class EnflameConfig(HardwareConfig):
    """An Enflame GCU."""

    name: str = "enflame"


@dataclass
class HygonConfig(HardwareConfig):
    """A Hygon DCU."""

    name: str = "hygon"


@dataclass
class MetaxConfig(HardwareConfig):
    """A MetaX GPU."""

    name: str = "metax"


@dataclass
class KunlunxinConfig(HardwareConfig):
    """A Kunlunxin XPU."""

    name: str = "kunlunxin"
