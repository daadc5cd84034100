"""The result of a job: a folder and figures by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Result:
    """What every job returns: a command prints it, a sweep compares it, a later stage of a pipeline refers to it.

    Attributes:
        dir: the folder of the job's output.
        figures: final figures by name; ``status`` is a text, the others are numbers.
        page: writes a page of a sweep's own beside the comparison, from the sweep's folder and its jobs.
    """

    dir: Path
    figures: Mapping[str, float | str] = field(default_factory=dict)
    page: Callable[..., Path] | None = None

    @property
    def status(self) -> str:
        """``finished`` unless the figures have another one, e.g. ``interrupted``."""
        return str(self.figures.get("status", "finished"))

    def show(self, title: str, labels: Mapping[str, str] | None = None) -> None:
        """Prints a table of the numbers; `labels` are names for people."""
        table = Table("figure", "value", title=title)
        for name, value in self.figures.items():
            if not isinstance(value, str):
                table.add_row((labels or {}).get(name, name), f"{value:,.4g}" if value % 1 else f"{value:,.0f}")
        Console(markup=False, highlight=False).print(table)
