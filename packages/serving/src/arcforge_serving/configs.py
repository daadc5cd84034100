"""Schemas of this package's commands; torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import MISSING

from arcforge_core.config.schema import EngineConfig, HardwareConfig, check_at_least, check_between


@dataclass
class ServeConfig:
    """The root of ``arcforge-serve``."""

    engine: EngineConfig = MISSING
    hardware: HardwareConfig = MISSING
    checkpoint: str = MISSING
    """Folder of a model with its tokenizer, or of a run, e.g. ``outputs/latest``."""
    host: str = "127.0.0.1"
    """Address to listen on. There is no authentication: other machines should reach it through a proxy only."""
    port: int = 8000
    """0 takes a free one."""
    served_name: str | None = None
    """Name of the model in requests and replies; None takes the checkpoint's folder name."""
    max_batch_size: int = 16
    """Sequences of waiting requests that are handed to the engine together."""
    max_waiting: int = 256
    """Sequences that may wait; more are refused with status 503."""

    def __post_init__(self) -> None:
        check_between("port", self.port, 0, 65535)
        check_at_least("max_batch_size", self.max_batch_size, 1)
        check_at_least("max_waiting", self.max_waiting, 1)
