"""The results of an evaluation: cells of (task, length, depth), written to ``long_context.json`` one by one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from arcforge_core.errors import DataError

FILE = "long_context.json"
SCHEMA = 1


@dataclass(frozen=True)
class Cell:
    """The examples of one task, length and depth.

    Attributes:
        task: name of the task.
        length: tokens of context and answer.
        depth: share of the context before the answer; None for tasks with answers at several places.
        scores: one per example, by index; every subject gets the same examples.
        prompt_tokens: mean length of the prompts in tokens.
    """

    task: str
    length: int
    depth: float | None
    scores: tuple[float, ...]
    prompt_tokens: float

    @property
    def place(self) -> tuple[str, int, float | None]:
        """Task, length and depth, which identify the cell."""
        return self.task, self.length, self.depth

    @property
    def score(self) -> float:
        """Mean of the scores."""
        return mean(self.scores)


@dataclass
class LongContextReport:
    """The finished cells of an evaluation.

    Attributes:
        settings: the subject and the examples; cells with other settings are not comparable.
        cells: in the order of measurement.
    """

    settings: dict[str, Any]
    cells: list[Cell] = field(default_factory=list)

    def add(self, cell: Cell) -> None:
        """Adds a cell, replacing one with another number of examples."""
        self.cells = [c for c in self.cells if c.place != cell.place] + [cell]

    @property
    def tasks(self) -> list[str]:
        """The measured tasks, in the order of the cells."""
        return list(dict.fromkeys(cell.task for cell in self.cells))

    @property
    def lengths(self) -> list[int]:
        """The measured lengths, ascending."""
        return sorted({cell.length for cell in self.cells})

    def score(self, task: str, length: int) -> float | None:
        """Returns the mean over depths, or None if nothing was measured."""
        scores = [cell.score for cell in self.cells if (cell.task, cell.length) == (task, length)]
        return mean(scores) if scores else None

    def by_length(self) -> dict[int, float]:
        """Returns the mean over tasks for each length."""
        return {length: mean(_there(self.score(task, length) for task in self.tasks)) for length in self.lengths}

    def overall(self) -> float:
        """Returns the mean over lengths."""
        return mean(self.by_length().values())

    def only(self, places: Iterable[tuple[str, int, float | None]]) -> LongContextReport:
        """Returns a report of the cells at `places`, in that order, without those not yet measured."""
        found = {cell.place: cell for cell in self.cells}
        return LongContextReport(self.settings, [found[place] for place in places if place in found])

    def write(self, folder: Path) -> None:
        """Writes ``long_context.json`` atomically."""
        content = {
            "schema": SCHEMA,
            "settings": self.settings,
            "by_length": {str(length): score for length, score in self.by_length().items()},
            "cells": [{**asdict(cell), "score": cell.score} for cell in self.cells],
        }
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f".{FILE}.partial"
        partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        os.replace(partial, folder / FILE)


def read_report(folder: Path) -> LongContextReport | None:
    """Returns the report in a folder, or None if there is none.

    Raises:
        DataError: the file is damaged.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        cells = [
            Cell(c["task"], int(c["length"]), c["depth"], tuple(map(float, c["scores"])), float(c["prompt_tokens"]))
            for c in content["cells"]
        ]
        return LongContextReport(dict(content["settings"]), cells)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: damaged, delete it to start over: {type(error).__name__}: {error}") from error


def resume(folder: Path, settings: dict[str, Any]) -> LongContextReport:
    """Returns the report to continue from a folder, or an empty one.

    Raises:
        DataError: the folder holds cells with other settings, or a damaged file.
    """
    found = read_report(folder)
    if found is None:
        return LongContextReport(settings)
    differing = [name for name in settings if found.settings.get(name) != settings[name]]
    if differing:
        was = ", ".join(f"{name}={found.settings.get(name)!r} (now {settings[name]!r})" for name in differing)
        raise DataError(f"{folder / FILE} holds another evaluation: {was}; choose another output")
    return found


def _there(scores: Iterable[float | None]) -> Sequence[float]:
    return [score for score in scores if score is not None]
