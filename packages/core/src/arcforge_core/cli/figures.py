"""What a command that measures returns and prints: a folder and figures by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Figures:
    """A `JobResult`: the folder that the figures belong to, and the figures by name."""

    dir: Path
    metrics: dict[str, float]

    def show(self, title: str, labels: Mapping[str, str] | None = None) -> None:
        """Prints a table; `labels` are names for people."""
        table = Table("figure", "value", title=title)
        for name, value in self.metrics.items():
            table.add_row((labels or {}).get(name, name), f"{value:,.4g}" if value % 1 else f"{value:,.0f}")
        Console(markup=False, highlight=False).print(table)
