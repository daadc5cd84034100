"""Schemas of this package's components and commands; torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import MISSING

from arcforge_core.config.schema import EngineConfig, HardwareConfig, check_at_least, check_between, check_weights
from arcforge_core.errors import ConfigError


@dataclass
class PagedEngineConfig(EngineConfig):
    """Continuous batching over a paged cache."""

    name: str = "paged"
    cache_mb: int = 512
    """Memory of the cache in MiB; no more than `max_running` of the model's longest sequences are given room."""
    cache_tokens: int | None = None
    """Tokens that the cache holds, instead of what fits into `cache_mb`."""
    page_size: int = 16
    """Tokens of a page: what is allocated, shared between requests and evicted at once."""
    max_running: int = 64
    """Sequences that are generated at the same time."""
    max_waiting: int = 1024
    """Sequences that may wait; more are refused."""
    max_batch_tokens: int = 1024
    """Tokens of a step: one for each decoded sequence, the rest are parts of prompts."""
    prefix_cache: bool = True
    """Keep the pages of finished and running requests for others that begin alike."""
    tier_mb: int = 0
    """Size in MiB of a memory-mapped file that takes evicted pages; 0 has none."""
    tier_dir: str | None = None
    """Folder of that file; None is the system's for temporary files."""
    priority_tokens: int = 65536
    """A request goes ahead of so many tokens of other work for each level of its priority."""
    weights: str = "none"
    """Number format of the weights: ``none``, the checkpoint's; ``w8a8``, ``w4a8`` or ``int4``. The model that
    the engine is given is changed in place."""
    overlap: bool | None = None
    """Prepare the next step while the present one is computed; null does where that has a processor core to itself."""

    def __post_init__(self) -> None:
        check_weights("engine.weights", self.weights)
        for name in ("cache_mb", "page_size", "max_running", "max_waiting", "max_batch_tokens"):
            check_at_least(f"engine.{name}", getattr(self, name), 1)
        check_at_least("engine.cache_tokens", self.cache_tokens, self.page_size)
        check_at_least("engine.tier_mb", self.tier_mb, 0)
        check_at_least("engine.priority_tokens", self.priority_tokens, 0)
        if self.max_batch_tokens < self.max_running:
            accepted = f"must be at least engine.max_running={self.max_running}: each decoded sequence takes one"
            raise ConfigError("engine.max_batch_tokens", self.max_batch_tokens, accepted)
        if self.tier_mb and not self.prefix_cache:
            raise ConfigError("engine.tier_mb", self.tier_mb, "must be 0 with engine.prefix_cache=false")
        if self.tier_dir is not None and not self.tier_mb:
            raise ConfigError("engine.tier_dir", self.tier_dir, "needs engine.tier_mb above 0")


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
