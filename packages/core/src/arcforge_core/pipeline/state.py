"""``pipeline.json``: the stages of a pipeline's run, their configurations and their figures."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from arcforge_core.config.compare import differences, flatten
from arcforge_core.errors import CheckpointError
from arcforge_core.files.rundir import write_json
from arcforge_core.pipeline.plan import Stage

FILE = "pipeline.json"
FREE = ("resume", "output_dir", "folder", "data.cache_dir", "data.paths", "data.tokenizer.path")
"""Fields that may change: locations. The content is compared when a run resumes."""
OPEN = ("trainer.extra.", "data.sources.", "data.weights.", "attention.kinds.")
"""Sections whose keys users choose; elsewhere, a field that a run lacks was added by a newer version."""
Inputs = dict[str, dict[str, str]]
"""Field -> its stamp and, of a checkpoint, its hash."""


@dataclass
class StageRecord:
    """One stage.

    Attributes:
        name: the stage.
        folder: of its run, inside the pipeline's; it is there once the stage has begun.
        overrides: as typed for its job's command.
        config: their composition.
        status: ``planned``, ``running``, ``interrupted``, ``finished``, or why it failed.
        figures: final figures of its job.
        job: the job that it ran.
        dir: folder of the job's result, relative to the pipeline's where it is inside; empty where it is `folder`.
        inputs: stamps and hashes of its texts and checkpoints when it began, see `record_inputs`.
    """

    name: str
    folder: str
    overrides: list[str]
    config: dict[str, Any]
    status: str = "planned"
    figures: dict[str, float | str] = field(default_factory=dict)
    job: str = "train"
    dir: str = ""
    inputs: Inputs = field(default_factory=dict)

    @property
    def elsewhere(self) -> bool:
        """Whether it is finished without a result in its own folder, e.g. an evaluation."""
        return self.status == "finished" and self.dir not in ("", self.folder)

    def place(self, folder: Path) -> str:
        """Returns what ``${stage:NAME}`` refers to: the folder of its result, or its own in the pipeline's `folder`."""
        return str(folder / (self.dir or self.folder))

    def figures_text(self, most: int = 6) -> str:
        """Returns the first figures in one line."""
        numbers = [(name, value) for name, value in self.figures.items() if not isinstance(value, str)]
        return ", ".join(f"{name} {value:,.4g}" for name, value in numbers[:most])


@dataclass
class PipelineState:
    """A pipeline's run.

    Attributes:
        name: of the recipe.
        stages: in order.
        links: checkpoints that were named through a symbolic link, and where it led when the run began.
    """

    name: str
    stages: list[StageRecord]
    links: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def planned(name: str, stages: Sequence[Stage], links: dict[str, str]) -> PipelineState:
        """Returns the state before the first stage."""
        return PipelineState(name, [record_of(stage) for stage in stages], links)

    @staticmethod
    def read(folder: Path) -> PipelineState:
        """Reads a run's state.

        Raises:
            CheckpointError: there is none, or it cannot be read.
        """
        path = folder / FILE
        if not path.is_file():
            raise CheckpointError(f"resume: no run of a pipeline at {folder} (it has no {FILE})")
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return PipelineState(content["name"], _records(content["stages"]), content.get("links", {}))
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error

    def write(self, folder: Path) -> None:
        """Writes the state atomically."""
        stages = [vars(stage) for stage in self.stages]
        write_json(folder / FILE, {"name": self.name, "status": self.status, "links": self.links, "stages": stages})

    @property
    def finished(self) -> list[StageRecord]:
        """The stages that are finished."""
        return [record for record in self.stages if record.status == "finished"]

    @property
    def status(self) -> str:
        """Status of the first stage that is not finished, or ``finished``."""
        return next((stage.status for stage in self.stages if stage.status != "finished"), "finished")


def _records(rows: list[dict[str, Any]]) -> list[StageRecord]:
    """Returns the records in a file; those of 0.1 are training runs, each starting from the previous one."""
    for row, before in zip(rows, [None, *rows], strict=False):
        if "job" not in row:
            row["config"].pop("procedure", None)
            if before and row["config"]["init"] is None:
                row["config"]["init"] = f"RUN_OF_{before['name']}"
    return [StageRecord(**row) for row in rows]


def record_of(stage: Stage) -> StageRecord:
    """Returns the record of a stage that has not begun."""
    config = json.loads(json.dumps(asdict(stage.config)))
    return StageRecord(stage.name, stage.folder, list(stage.overrides), config, job=stage.job.name)


def take_up(state: PipelineState, name: str, stages: Sequence[Stage], folder: Path) -> list[str]:
    """Compares a run with the plan, and accepts changes of stages that have not begun or have no folder.

    Returns:
        Those changes, in words.

    Raises:
        CheckpointError: another pipeline, or another configuration of stages that have begun; the fields are named.
    """
    where = os.path.relpath(folder)
    if state.name != name:
        raise CheckpointError(f"cannot resume {where}: it is a run of pipeline={state.name}, not {name}")
    there = [record.elsewhere or (folder / record.folder).is_dir() for record in state.stages]
    begun = state.stages[: there.index(False)] if False in there else state.stages
    orphans = [record.folder for record, is_there in zip(state.stages, there, strict=True) if is_there][len(begun) :]
    if orphans:
        gone = state.stages[len(begun)].folder
        raise CheckpointError(f"cannot resume {where}: {gone} is missing, and {', '.join(orphans)} came from it")
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
        rows = differences({"job": record.job, **before}, {"job": planned.job, **now}, skip={*FREE, *added})
        changes = [f"stages.{stage.name}.{name} was {was}, now {new}" for name, was, new in rows]
        begun_here = number < len(begun) and not (record.elsewhere and changes)
        if begun_here and changes:
            remedy = f"to run the stage again with these, remove {os.path.relpath(folder / record.folder)}"
            raise CheckpointError(f"cannot resume {where}: {'; '.join(changes)} ({remedy} and its successors)")
        records.append(record if begun_here else planned)
        told += changes if stage.name in known else [f"stages.{stage.name} is new"]
    told += [f"stages.{name} is removed" for name in known if name not in names]
    state.stages = records
    return told
