"""Reads the files of a run. A file that is not there, or cannot be read, is named in `Run.problems`.

Shapes: E experts, R rows of ``experts.csv`` in time.
"""

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

from arcforge_core.eval.python_functions import FunctionReport, FunctionSample

T = TypeVar("T")
Columns = dict[str, NDArray[np.float64]]
"""A CSV file by column; what is no number is NaN."""

FILES = {
    "config.yaml": "resolved configuration",
    "versions.json": "versions of what the run depends on",
    "corpus.json": "what the corpus holds",
    "metrics.csv": "training, a row every few steps",
    "eval.csv": "held-out text",
    "experts.csv": "share of each expert's tokens",
    "samples.json": "continuations before and after",
    "functions.json": "sampled Python functions before and after",
    "generation.json": "held-out conversations that were played",
    "summary.json": "final figures",
}


@dataclass(frozen=True)
class TextSample:
    """A continuation."""

    prompt: str
    text: str


@dataclass(frozen=True)
class Figure:
    """A number or word, and the file it was read from."""

    value: float | str
    source: str


@dataclass(frozen=True)
class Run:
    """What a run's files say; empty where they say nothing.

    Attributes:
        dir: the run's folder.
        problems: file name -> ``missing`` or why it cannot be read.
        config: text of ``config.yaml``.
        versions, corpus, summary: the JSON files.
        metrics, evaluation, experts: the CSV files.
        samples, functions: by ``before`` and ``after``.
        generation: evaluations by generation, in the order of their steps.
    """

    dir: Path
    problems: dict[str, str]
    config: str
    versions: dict[str, Any]
    corpus: dict[str, Any]
    summary: dict[str, Any]
    metrics: Columns
    evaluation: Columns
    experts: Columns
    samples: dict[str, list[TextSample]]
    functions: dict[str, FunctionReport]
    generation: list[dict[str, Any]]

    def table(self, file: str) -> Columns:
        """Returns a CSV file's columns."""
        return {"metrics.csv": self.metrics, "eval.csv": self.evaluation, "experts.csv": self.experts}[file]

    def has(self, file: str, column: str) -> bool:
        """Says whether a column holds at least one finite number."""
        return bool(np.isfinite(self.table(file).get(column, np.empty(0))).any())

    def figure(self, name: str) -> Figure | None:
        """Returns a headline figure from the summary, else from the last row that has it."""
        value = self.summary.get(name)
        if isinstance(value, int | float | str):
            return Figure(value, "summary.json")
        for file in ("eval.csv", "metrics.csv"):
            column = self.table(file).get(name, np.empty(0))
            if (finite := column[np.isfinite(column)]).size:
                return Figure(float(finite[-1]), f"last row of {file}")
        return None

    def number(self, name: str) -> float | None:
        """Returns a headline figure when it is a finite number."""
        figure = self.figure(name)
        if figure is None or isinstance(figure.value, str) or not math.isfinite(figure.value):
            return None
        return figure.value

    def expert_loads(self) -> tuple[NDArray[np.float64], dict[int, NDArray[np.float64]]]:
        """Returns the steps [R] and, by layer, loads [E, R] in units of the fair share 1 / E; NaN where absent."""
        columns = [self.experts.get(name, np.empty(0)) for name in ("step", "layer", "expert", "share")]
        rows = np.stack(columns, axis=1) if len({c.size for c in columns}) == 1 else np.empty((0, 4))
        rows = rows[np.isfinite(rows[:, :3]).all(axis=1)]
        steps = np.unique(rows[:, 0])
        loads = {}
        for layer in np.unique(rows[:, 1]).astype(int).tolist():
            of_layer = rows[rows[:, 1] == layer]
            load_ER = np.full((int(of_layer[:, 2].max()) + 1, steps.size), np.nan)
            load_ER[of_layer[:, 2].astype(int), np.searchsorted(steps, of_layer[:, 0])] = of_layer[:, 3]
            loads[layer] = load_ER * load_ER.shape[0]
        return steps, loads


def read_run(run_dir: Path) -> Run:
    """Reads a run's folder, in whatever state it was left."""
    problems: dict[str, str] = {}

    def read(name: str, parse: Callable[[str], T], empty: T) -> T:
        return read_or_note(run_dir / name, parse, empty, problems)

    return Run(
        dir=run_dir,
        config=read("config.yaml", str, ""),
        versions=read("versions.json", read_object, {}),
        corpus=read("corpus.json", read_object, {}),
        metrics=read("metrics.csv", read_columns, {}),
        evaluation=read("eval.csv", read_columns, {}),
        experts=read("experts.csv", read_columns, {}),
        samples=read("samples.json", _samples, {}),
        functions=read("functions.json", _functions, {}),
        generation=read("generation.json", _generation, []),
        summary=read("summary.json", read_object, {}),
        problems=problems,
    )


def read_or_note(path: Path, parse: Callable[[str], T], empty: T, problems: dict[str, str]) -> T:
    """Returns what a file says; `empty`, with a note in `problems`, where it says nothing."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        problems[path.name] = "missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problems[path.name] = f"unreadable: {type(error).__name__}: {error}"
    return empty


def read_object(text: str) -> dict[str, Any]:
    """Parses a JSON object."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise TypeError(f"holds a {type(value).__name__}, not an object")
    return value


def _samples(text: str) -> dict[str, list[TextSample]]:
    return {
        when: [TextSample(str(s["prompt"]), str(s["text"])) for s in entries]
        for when, entries in read_object(text).items()
    }


def _functions(text: str) -> dict[str, FunctionReport]:
    return {
        when: FunctionReport(
            float(report["rate"]),
            [
                FunctionSample(str(s["prompt"]), str(s["text"]), str(s["cut"]), bool(s["ok"]), str(s["error"]))
                for s in report["samples"]
            ],
        )
        for when, report in read_object(text).items()
    }


def _generation(text: str) -> list[dict[str, Any]]:
    """Reads evaluations as far as the page needs them."""
    evaluations = list(read_object(text)["evaluations"])
    for one in evaluations:
        int(one["step"]), int(one["rejected"])
        for figures in one["figures"].values():
            {name: float(value) for name, value in figures.items()}
        for row in one["samples"]:
            [message["content"] for message in row["messages"]], [answer["expected"] for answer in row["answers"]]
    return evaluations


def read_columns(text: str) -> Columns:
    """Parses a CSV file."""
    return columns_of(list(csv.DictReader(text.splitlines())))


def columns_of(rows: Sequence[Mapping[str, Any]]) -> Columns:
    """Returns rows by column, without those that a resumed run has trained again."""
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
