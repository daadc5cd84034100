"""``pipeline.json``: the stages of a pipeline's run, how each was configured and what came of it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from arcforge_core.config.compare import differences, flatten
from arcforge_core.errors import CheckpointError
from arcforge_core.pipeline.plan import Stage
from arcforge_core.train.rundir import write_json

FILE = "pipeline.json"
FREE = ("resume", "output_dir", "data.cache_dir", "data.paths", "data.tokenizer.path")
"""Fields that may change: where things are. What is there is compared when a run resumes."""
OPEN = ("trainer.extra.", "data.sources.", "data.weights.", "attention.kinds.")
"""Sections whose keys users choose; elsewhere a field that a run did not have came with a newer version."""


@dataclass
class StageRecord:
    """One stage.

    Attributes:
        name: the stage.
        folder: of its run, inside the pipeline's; it is there once the stage has begun.
        overrides: as typed for ``arcforge-train``.
        config: what they amounted to.
        status: ``planned``, ``running``, ``interrupted``, ``finished``, or why it failed.
        figures: the run's final figures.
    """

    name: str
    folder: str
    overrides: list[str]
    config: dict[str, Any]
    status: str = "planned"
    figures: dict[str, float | str] = field(default_factory=dict)


@dataclass
class PipelineState:
    """A pipeline's run.

    Attributes:
        name: of the recipe.
        stages: in order.
    """

    name: str
    stages: list[StageRecord]

    @staticmethod
    def planned(name: str, stages: Sequence[Stage]) -> PipelineState:
        """Returns the state before anything has begun."""
        return PipelineState(name, [record_of(stage) for stage in stages])

    @staticmethod
    def read(folder: Path) -> PipelineState:
        """Reads a run's state.

        Raises:
            CheckpointError: there is none, or it cannot be read.
        """
        path = folder / FILE
        if not path.is_file():
            raise CheckpointError(f"resume: no run of a pipeline at {folder} ({FILE} is not there)")
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return PipelineState(content["name"], [StageRecord(**record) for record in content["stages"]])
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error

    def write(self, folder: Path) -> None:
        """Writes the state, whole or not at all."""
        write_json(folder / FILE, {"name": self.name, "status": self.status, "stages": [vars(s) for s in self.stages]})

    @property
    def status(self) -> str:
        """Status of the first stage that is not finished, or ``finished``."""
        return next((stage.status for stage in self.stages if stage.status != "finished"), "finished")


def record_of(stage: Stage) -> StageRecord:
    """Returns the record of a stage that has not begun."""
    config = json.loads(json.dumps(asdict(stage.config)))
    return StageRecord(stage.name, stage.folder, list(stage.overrides), config)


def take_up(state: PipelineState, name: str, stages: Sequence[Stage], folder: Path) -> list[str]:
    """Compares a run with what would be run now, and takes over changes of stages that have not begun.

    Returns:
        Those changes, in words.

    Raises:
        CheckpointError: another pipeline, or another configuration of stages that have begun; the fields are named.
    """
    where = os.path.relpath(folder)
    if state.name != name:
        raise CheckpointError(f"cannot resume {where}: it is a run of pipeline={state.name}, not {name}")
    there = [(folder / record.folder).is_dir() for record in state.stages]
    begun = state.stages[: there.index(False)] if False in there else state.stages
    orphans = [record.folder for record, is_there in zip(state.stages, there, strict=True) if is_there][len(begun) :]
    if orphans:
        gone = state.stages[len(begun)].folder
        raise CheckpointError(f"cannot resume {where}: {gone} is not there, from which {', '.join(orphans)} came")
    names = [stage.name for stage in stages]
    if names[: len(begun)] != [record.name for record in begun]:
        known_names = ", ".join(record.name for record in state.stages)
        raise CheckpointError(f"cannot resume {where}: stages were {known_names}, now {', '.join(names)}")
    known = {record.name: record for record in state.stages}
    told: list[str] = []
    records: list[StageRecord] = []
    for number, stage in enumerate(stages):
        record = known.get(stage.name, planned := record_of(stage))
        before, now = flatten(record.config), flatten(planned.config)
        added = {key for key in now.keys() - before.keys() if not key.startswith(OPEN)}  # by a newer version
        rows = differences(before, now, skip={*FREE, *added})
        changes = [f"stages.{stage.name}.{name} was {was}, now {new}" for name, was, new in rows]
        if number < len(begun) and changes:
            remedy = f"to begin the stage anew with that, remove {os.path.relpath(folder / record.folder)}"
            raise CheckpointError(f"cannot resume {where}: {'; '.join(changes)} ({remedy} and what came from it)")
        records.append(record if number < len(begun) else planned)
        told += changes if stage.name in known else [f"stages.{stage.name} is new"]
    told += [f"stages.{name} is gone" for name in known if name not in names]
    state.stages = records
    return told
