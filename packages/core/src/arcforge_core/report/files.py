"""Reads the files of a run; `RunFiles.problems` lists missing and unreadable ones."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
Columns = dict[str, NDArray[np.float64]]
"""A CSV file by column; a cell that is not a number is NaN."""
METRICS = "metrics.csv"


@dataclass(frozen=True)
class Figure:
    """A number or word, and the file it was read from."""

    value: float | str
    source: str


@dataclass(frozen=True)
class RunFiles:
    """The files of every run; a missing file gives an empty value.

    Attributes:
        dir: the run's folder.
        problems: file name -> ``missing`` or the reason why it cannot be read.
        config: text of ``config.yaml``.
        versions, summary: the JSON files.
        metrics: ``metrics.csv``.
    """

    dir: Path
    problems: dict[str, str]
    config: str
    versions: dict[str, Any]
    summary: dict[str, Any]
    metrics: Columns

    @property
    def tables(self) -> dict[str, Columns]:
        """The CSV files by name; `figure` searches them in this order."""
        return {METRICS: self.metrics}

    def has(self, *columns: str, file: str = METRICS) -> bool:
        """Whether each column of a CSV file contains a finite number."""
        return has_numbers(self.tables[file], *columns)

    def last(self, name: str, file: str = METRICS) -> float | None:
        """Returns the last finite number of a column."""
        column = self.tables[file].get(name, np.empty(0))
        finite = column[np.isfinite(column)]
        return float(finite[-1]) if finite.size else None

    def total(self, name: str) -> float | None:
        """Returns the sum of a column of the metrics."""
        return float(np.nansum(self.metrics[name])) if self.has(name) else None

    def figure(self, name: str) -> Figure | None:
        """Returns a headline figure from the summary, otherwise from the last row that has it."""
        value = self.summary.get(name)
        if isinstance(value, int | float | str):
            return Figure(value, "summary.json")
        for file in self.tables:
            if (last := self.last(name, file)) is not None:
                return Figure(last, f"last row of {file}")
        return None

    def number(self, name: str) -> float | None:
        """Returns a headline figure if it is a finite number."""
        figure = self.figure(name)
        if figure is None or isinstance(figure.value, str) or not math.isfinite(figure.value):
            return None
        return float(figure.value)


class FileReader:
    """Reads the files of a folder and records problems.

    Args:
        folder: the run's folder.
        optional: files that may be missing.
    """

    def __init__(self, folder: Path, optional: Sequence[str] = ()) -> None:
        self.folder, self.optional = folder, optional
        self.problems: dict[str, str] = {}

    def read(self, name: str, parse: Callable[[str], T], empty: T) -> T:
        """Returns the content of a file, or `empty` with an entry in `problems` if it cannot be read."""
        try:
            return parse((self.folder / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            if name not in self.optional:
                self.problems[name] = "missing"
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            self.problems[name] = f"unreadable: {type(error).__name__}: {error}"
        return empty

    def common(self) -> dict[str, Any]:
        """Returns the fields of `RunFiles`."""
        return {
            "dir": self.folder,
            "problems": self.problems,
            "config": self.read("config.yaml", str, ""),
            "versions": self.read("versions.json", read_object, dict[str, Any]()),
            "summary": self.read("summary.json", read_object, dict[str, Any]()),
            "metrics": self.read(METRICS, read_columns, Columns()),
        }


def read_object(text: str) -> dict[str, Any]:
    """Parses a JSON object."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise TypeError(f"must be an object, not {type(value).__name__}")
    return value


def read_columns(text: str) -> Columns:
    """Parses a CSV file."""
    return columns_of(list(csv.DictReader(text.splitlines())))


def has_numbers(table: Columns, *columns: str) -> bool:
    """Whether each of the columns contains a finite number."""
    return all(np.isfinite(table.get(name, np.empty(0))).any() for name in columns)


def columns_of(rows: Sequence[Mapping[str, Any]]) -> Columns:
    """Returns rows by column, without the rows of steps that a resumed run has repeated."""
    kept: list[dict[str, float]] = []
    first_step = math.inf
    for row in reversed(rows):
        values = {name: _number(cell) for name, cell in row.items() if name is not None}
        if values.get("step", math.nan) > first_step:
            continue
        first_step = min(first_step, values.get("step", math.inf))
        kept.append(values)
    names = dict.fromkeys(name for row in kept for name in row)
    return {name: np.array([row.get(name, math.nan) for row in reversed(kept)]) for name in names}


def _number(cell: Any) -> float:
    try:
        return float(cell)
    except (TypeError, ValueError):
        return math.nan
