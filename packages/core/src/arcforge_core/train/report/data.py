"""Reads the files of a training run.

Shapes: E experts, R rows of ``experts.csv`` in time.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from arcforge_core.eval.python_functions import FunctionReport, FunctionSample
from arcforge_core.report.files import METRICS, Columns, FileReader, RunFiles, read_columns, read_object

EVALUATIONS = "eval.csv"
SAMPLES, FUNCTIONS, CONVERSATIONS = "samples.json", "functions.json", "generation.json"
FILES = {
    "config.yaml": "resolved configuration",
    "versions.json": "versions of the run's dependencies",
    "corpus.json": "counts and licences of the corpus",
    "metrics.csv": "training, one row every few steps",
    "eval.csv": "held-out text",
    "experts.csv": "share of each expert's tokens",
    SAMPLES: "continuations before and after",
    FUNCTIONS: "sampled Python functions before and after",
    CONVERSATIONS: "held-out conversations, played by generation",
    "summary.json": "final figures",
}
ASKED = {SAMPLES: "trainer.samples", FUNCTIONS: "trainer.python_functions", CONVERSATIONS: "generation.files"}
"""File -> the field without which no run writes it."""


@dataclass(frozen=True)
class TextSample:
    """A prompt with its sampled continuation."""

    prompt: str
    text: str


@dataclass(frozen=True)
class Run(RunFiles):
    """The files of a training run; fields of absent files are empty.

    Attributes:
        corpus: ``corpus.json``.
        evaluation, experts: the CSV files.
        samples, functions: by ``before`` and ``after``.
        generation: evaluations by generation, in the order of their steps.
    """

    corpus: dict[str, Any]
    evaluation: Columns
    experts: Columns
    samples: dict[str, list[TextSample]]
    functions: dict[str, FunctionReport]
    generation: list[dict[str, Any]]

    @property
    def left_out(self) -> set[str]:
        """The files that are absent because the configuration asked for none."""
        try:
            config = OmegaConf.create(self.config)
        except (yaml.YAMLError, OmegaConfBaseException):
            return set()  # unreadable: every file is expected
        absent = {name: OmegaConf.select(config, field) for name, field in ASKED.items() if name in self.problems}
        return {name for name, value in absent.items() if self.problems[name] == "missing" and value in (0, [])}

    @property
    def tables(self) -> dict[str, Columns]:
        """The CSV files by name, held-out figures first."""
        return {EVALUATIONS: self.evaluation, METRICS: self.metrics}

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
    """Reads a run folder, which may be incomplete."""
    reader = FileReader(run_dir)
    return Run(
        **reader.common(),
        corpus=reader.read("corpus.json", read_object, {}),
        evaluation=reader.read(EVALUATIONS, read_columns, {}),
        experts=reader.read("experts.csv", read_columns, {}),
        samples=reader.read(SAMPLES, _samples, {}),
        functions=reader.read(FUNCTIONS, _functions, {}),
        generation=reader.read(CONVERSATIONS, _generation, []),
    )


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
    """Reads evaluations and checks the fields that the page needs."""
    evaluations = list(read_object(text)["evaluations"])
    for one in evaluations:
        int(one["step"]), int(one["rejected"])
        for figures in one["figures"].values():
            {name: float(value) for name, value in figures.items()}
        for row in one["samples"]:
            [message["content"] for message in row["messages"]], [answer["expected"] for answer in row["answers"]]
    return evaluations
