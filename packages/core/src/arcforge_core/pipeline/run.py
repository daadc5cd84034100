"""Runs a pipeline's stages, and goes on with a run that was stopped."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from rich.console import Console

from arcforge_core.config.sweep import aligned
from arcforge_core.configs import PipelineConfig
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.pipeline.check import check_data, check_stages
from arcforge_core.pipeline.page import write_page
from arcforge_core.pipeline.plan import CommandLine, Stage, named, plan_stages
from arcforge_core.pipeline.state import PipelineState, take_up
from arcforge_core.train.report_html import count
from arcforge_core.train.resume import resume_command
from arcforge_core.train.run import train
from arcforge_core.train.rundir import dated_folder, point_latest
from arcforge_core.train.state import checkpoints


def run_pipeline(config: PipelineConfig, line: CommandLine) -> Path | None:
    """Trains all stages, or goes on with them; everything is checked before.

    Returns:
        The folder; None with ``config.check``, which trains nothing.

    Raises:
        ArcforgeError: a stage cannot be what is asked for, or failed; it is named.
        KeyboardInterrupt: a stage was interrupted and has saved itself.
    """
    console = Console(markup=False, highlight=False, soft_wrap=True)
    stages = plan_stages(config, line)
    starts = check_stages(stages)
    console.print(plan_text(stages))
    for stage, start in zip(stages, starts, strict=True):
        if start:
            console.print(f"{stage.name}: {start}")
    if config.check:
        for before, stage in zip([None, *stages[:-1]], stages, strict=True):
            console.print(stage.command(f"RUN_OF_{before.name}" if before else None))
        return None
    world = int(os.environ.get("WORLD_SIZE", 1))
    if world > 1:
        accepted = "a pipeline is one process; check=true prints the commands of its stages, for torchrun one by one"
        raise ConfigError("WORLD_SIZE", world, accepted)
    root = Path(config.output_dir)
    if config.resume is not None:
        folder = (root / "latest" if config.resume == "latest" else Path(config.resume)).resolve()
        state = PipelineState.read(folder)
        for change in take_up(state, config.name, stages, folder):
            console.print(f"changed for a stage to come: {change}")
    else:
        offer_resume(root, config.name, console)
        state = PipelineState.planned(config.name, stages)
        folder = dated_folder(root, config.name)
    check_data(with_places(stages, folder)[len(finished(state)) :])
    folder.mkdir(parents=True, exist_ok=True)
    point_latest(root, folder)
    console.print(f"pipeline {os.path.relpath(folder)}")
    run_stages(with_places(stages, folder), state, folder, console)
    console.print(f"finished: {os.path.relpath(write_page(folder, state))}")
    return folder


def with_places(stages: Sequence[Stage], folder: Path) -> list[Stage]:
    """Returns the stages with what depends on the folder: where each run goes, and what it starts from."""
    placed, init = [], stages[0].config.init
    for stage in stages:
        config = dataclasses.replace(stage.config, output_dir=str(folder), init=init)
        placed.append(dataclasses.replace(stage, config=config))
        init = str(folder / stage.folder)
    return placed


def finished(state: PipelineState) -> list[str]:
    """Returns the leading stages that are finished."""
    return [record.name for record in takewhile(lambda record: record.status == "finished", state.stages)]


def run_stages(stages: Sequence[Stage], state: PipelineState, folder: Path, console: Console) -> None:
    """Trains the stages that are not finished; state and page are written whenever something changes.

    Raises:
        KeyboardInterrupt: after a stage that was interrupted.
    """
    skipped = finished(state)
    for stage, record in zip(stages, state.stages, strict=True):
        title = f"stage {stage.number} of {len(stages)}, {stage.name}"
        if stage.name in skipped:
            console.print(f"{title}: finished before")
            continue
        console.print(f"{title}{': going on' if prepare(stage, folder) else ''}")
        record.status = "running"
        _save(state, folder)
        try:
            with named(stage.name):
                result = train(stage.config, folder / stage.folder)
        except BaseException as error:
            interrupted = isinstance(error, KeyboardInterrupt | SystemExit)
            record.status = "interrupted" if interrupted else f"failed: {' '.join(str(error).split())}"
            _save(state, folder)
            if interrupted:
                console.print(f"{title} was interrupted; go on with: {resume_command()}")
            raise
        record.figures, record.status = dict(result.metrics), str(result.metrics["status"])
        _save(state, folder)
        if record.status == "interrupted":
            console.print(f"{title} has saved itself; {len(stages) - stage.number} more to come after it")
            raise KeyboardInterrupt


def prepare(stage: Stage, folder: Path) -> bool:
    """Has a stage that was stopped go on from its last checkpoint; returns whether there is one."""
    run_dir = folder / stage.folder
    if not checkpoints(run_dir):
        shutil.rmtree(run_dir, ignore_errors=True)  # stopped before its first one
        return False
    point_latest(folder, run_dir)
    stage.config.resume = "latest"
    return True


def _save(state: PipelineState, folder: Path) -> None:
    state.write(folder)
    write_page(folder, state)


def offer_resume(root: Path, name: str, console: Console) -> None:
    """Says so when the last run of this pipeline was left unfinished."""
    try:
        state = PipelineState.read((root / "latest").resolve())
    except CheckpointError:
        return
    if state.name == name and state.status != "finished":
        where = os.path.relpath((root / "latest").resolve())
        console.print(f"the last run, {where}, is {state.status}; starting fresh (resume=latest goes on with it)")


def plan_text(stages: Sequence[Stage]) -> str:
    """Returns what the stages are, one a line."""
    lines = [["stage", "attention", "steps", "tokens", "context", "positions", "rope theta", "rate", "packing"]]
    for stage in stages:
        config = stage.config
        trainer, model, rate = config.trainer, config.model, config.optimizer.lr
        lines.append([
            stage.name, config.attention.name,
            f"{trainer.max_steps:,}" if trainer.max_steps else f"{trainer.minutes:g} min",
            count(stage.tokens) if stage.tokens else "-",
            f"{trainer.sequence_length:,}", f"{model.max_position_embeddings:,}", f"{model.rope_theta:,.0f}",
            " to ".join(dict.fromkeys((f"{rate:.3g}", f"{rate * config.schedule.final:.3g}"))), config.data.packing,
        ])  # fmt: skip
    return aligned(lines)
