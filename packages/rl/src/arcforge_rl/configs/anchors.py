"""Schema of anchors, expert-written replies that hold a policy to them; torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field

from arcforge_core.config.schema import check_minimums
from arcforge_core.errors import ConfigError


@dataclass
class AnchorConfig:
    """A supervised term: every update adds `weight` times the mean negative log-likelihood of some expert replies."""

    weight: float = 0.0
    """Of the term, next to a policy loss of order 1; 0: there is none."""
    files: list[str] = field(default_factory=list)
    """jsonl, json or parquet files or folders of records: ``prompt`` and ``reply``, or a whole conversation, as for
    ``data=conversations``."""
    batch: int = 8
    """Conversations of an update, of all processes together; all come once before one comes again."""
    max_tokens: int | None = None
    """Longer conversations are cut after the last reply that fits, or left out; null: the model's positions."""

    def __post_init__(self) -> None:
        check_minimums(self, "anchor", batch=1, max_tokens=2)
        if not 0.0 <= self.weight < float("inf"):
            raise ConfigError("anchor.weight", self.weight, "must be finite and at least 0")
        if self.weight and not self.files:
            raise ConfigError(
                "anchor.files", [], "must name files of expert-written replies with anchor.weight above 0"
            )
        if self.files and not self.weight:
            raise ConfigError("anchor.weight", self.weight, "must be above 0 with anchor.files: nothing would use them")
