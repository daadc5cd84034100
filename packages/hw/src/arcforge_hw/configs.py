"""Schemas of this package's components; torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from arcforge_core.config.schema import HardwareConfig, check_choice


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
    mla_prologue: str = "off"
    """Decode MLA through npu_mla_prolog_v3 for the sizes of its ``early`` documents (query latent 1,536), or of the
    ``late`` ones, which have GLM-5's too; ``off``: its parts run."""

    def __post_init__(self) -> None:
        check_choice("hardware.mla_prologue", self.mla_prologue, ("off", "early", "late"))


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
