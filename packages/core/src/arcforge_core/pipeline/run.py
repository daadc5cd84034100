"""Runs a pipeline's stages, and resumes a run that was stopped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from rich.console import Console

from arcforge_core.config.sweep import aligned
from arcforge_core.configs import PipelineConfig
from arcforge_core.console.result import Result
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.files.lock import locked
from arcforge_core.files.rundir import check_writable, create_run_dir, point_latest, point_name
from arcforge_core.pipeline.check import check_data, check_stages
from arcforge_core.pipeline.inputs import check_inputs, record_inputs
from arcforge_core.pipeline.page import write_page
from arcforge_core.pipeline.plan import CommandLine, Stage, follow_links, links_in, named, plan_stages
from arcforge_core.pipeline.recipe import filled
from arcforge_core.pipeline.state import PipelineState, take_up
from arcforge_core.report.html import count
from arcforge_core.train.resume import resume_command
from arcforge_core.train.state import checkpoints


def run_pipeline(config: PipelineConfig, line: CommandLine | None = None) -> Result | None:
    """Runs all stages, or the remaining ones of an earlier run, after checking everything.

    Args:
        config: the recipe.
        line: overrides of the command line.

    Returns:
        The folder, with the figures of every stage as ``STAGE.FIGURE``; None with ``config.check``, which runs nothing.

    Raises:
        ArcforgeError: a stage cannot be composed, does not fit the one it starts from, or failed; it is named.
        KeyboardInterrupt: a stage was interrupted and has saved itself.
    """
    console = Console(markup=False, highlight=False, soft_wrap=True)
    root = Path(config.output_dir)
    state: PipelineState | None = None
    if config.resume is not None:
        folder = (root / "latest" if config.resume == "latest" else Path(config.resume)).resolve()
        state = PipelineState.read(folder)
        check_writable("resume", folder)
    else:
        check_writable("output_dir", root)
    stages = plan_stages(config, line or CommandLine())
    links = state.links if state else links_in(stages)
    follow_links(stages, links)
    starts = check_stages(stages)
    console.print(plan_text(stages))
    for stage, start in zip(stages, starts, strict=True):
        if start:
            console.print(f"{stage.name}: {start}")
    if config.check:
        for stage in stages:
            console.print(stage.command())
        return None
    world = int(os.environ.get("WORLD_SIZE", 1))
    if world > 1:
        accepted = "a pipeline is one process; check=true prints the commands of its stages, for torchrun one by one"
        raise ConfigError("WORLD_SIZE", world, accepted)
    with ExitStack() as held:
        if state is not None:
            held.enter_context(locked(folder))
            state = PipelineState.read(folder)  # it may have changed until it was locked
            for change in take_up(state, config.name, stages, folder):
                console.print(f"changed for a later stage: {change}")
            for change in check_inputs(stages, state, folder):
                console.print(change)
        else:
            offer_resume(root, config.name, console)
            state = PipelineState.planned(config.name, stages, links)
        done = {record.name: record.place(folder) for record in state.finished}
        check_data([stage for stage in stages if stage.name not in done], done)
        if config.resume is None:
            folder = open_folder(root, config.name, state, held)
        point_latest(root, folder)
        console.print(f"pipeline {os.path.relpath(folder)}")
        run_stages(stages, state, folder, console)
        if (folder / "latest").exists():  # a stage trained a model
            point_name(root, config.name, folder / "latest")
    console.print(figures_text(state))
    console.print(f"finished: {os.path.relpath(write_page(folder, state))}")
    figures = {f"{record.name}.{name}": value for record in state.stages for name, value in record.figures.items()}
    return Result(folder, {**figures, "status": state.status})


def open_folder(root: Path, name: str, state: PipelineState, held: ExitStack) -> Path:
    """Creates and locks a new run's folder, with its state; leaves none if that cannot be written."""
    folder = create_run_dir(root, name).absolute()
    try:
        held.enter_context(locked(folder))
        state.write(folder)
    except OSError as error:
        shutil.rmtree(folder)
        name_folder(error, folder)
        raise
    return folder


def name_folder(error: BaseException, folder: Path) -> None:
    """Adds the folder to an error of the system that names no file, e.g. of a write to an open one."""
    if isinstance(error, OSError) and error.filename is None:
        error.filename = os.path.relpath(folder)


def run_stages(stages: Sequence[Stage], state: PipelineState, folder: Path, console: Console) -> None:
    """Runs the unfinished stages; writes state and page after every change.

    Raises:
        KeyboardInterrupt: after a stage that was interrupted.
    """
    for stage, record in zip(stages, state.stages, strict=True):
        title = f"stage {stage.number} of {len(stages)}, {stage.name}"
        if record.status == "finished":
            console.print(f"{title}: finished before")
            continue
        places = {one.name: one.place(folder) for one in state.stages}
        config = placed(stage, places, folder)
        resuming = prepare(stage, config, folder)
        console.print(f"{title}{': resuming' if resuming else ''}")
        record.status = "running"
        _save(state, folder)
        try:
            with named(stage.name):
                if not resuming:
                    record.inputs = record_inputs(config)
                    _save(state, folder)
                result = stage.job.load()(config)
        except BaseException as error:
            interrupted = isinstance(error, KeyboardInterrupt | SystemExit)
            record.status = "interrupted" if interrupted else f"failed: {' '.join(str(error).split())}"
            name_folder(error, folder / stage.folder)
            with suppress(OSError):  # the error itself says that the disk is full; the state before remains
                _save(state, folder)
            if interrupted:
                console.print(f"{title} was interrupted; to resume: {resume_command()}")
            raise
        result = result or Result(folder)  # of a job that leaves nothing
        place = result.dir.absolute()
        record.dir = str(place.relative_to(folder) if place.is_relative_to(folder) else place)
        record.figures, record.status = dict(result.figures), result.status
        _save(state, folder)
        if record.status == "interrupted":
            console.print(f"{title} has saved itself; remaining stages after it: {len(stages) - stage.number}")
            raise KeyboardInterrupt


def placed(stage: Stage, places: Mapping[str, str], folder: Path) -> Any:
    """Returns a stage's configuration with the folders of earlier stages, and its own inside the pipeline's."""
    own = str(folder / stage.folder)
    config = filled(stage.config, {**places, stage.name: own})
    if stage.is_run:
        config.folder, config.output_dir = own, str(folder)
    return config


def prepare(stage: Stage, config: Any, folder: Path) -> bool:
    """Prepares a training stage to resume from its last checkpoint; returns whether it has one."""
    run_dir = folder / stage.folder
    if not (stage.is_run and checkpoints(run_dir)):
        shutil.rmtree(run_dir, ignore_errors=True)  # stopped before its first one, or starts over
        return False
    point_latest(folder, run_dir)
    config.resume = "latest"
    return True


def _save(state: PipelineState, folder: Path) -> None:
    state.write(folder)
    write_page(folder, state)


def offer_resume(root: Path, name: str, console: Console) -> None:
    """Prints a note if the last run of this pipeline is not finished."""
    try:
        state = PipelineState.read((root / "latest").resolve())
    except CheckpointError:
        return
    if state.name == name and state.status != "finished":
        where = os.path.relpath((root / "latest").resolve())
        console.print(f"the last run, {where}, is {state.status}; starting a new one (resume=latest resumes it)")


def plan_text(stages: Sequence[Stage]) -> str:
    """Returns one line about each stage."""
    lines = [["stage", "attention", "steps", "tokens", "context", "positions", "rope theta", "rate", "packing"]]
    for stage in stages:
        config = stage.config
        if stage.job.name != "train":
            lines.append([stage.name, f"job {stage.job.name}", *[""] * 7])
            continue
        trainer, model, rate = config.trainer, config.model, config.optimizer.lr
        lines.append([
            stage.name, config.attention.name,
            f"{trainer.max_steps:,}" if trainer.max_steps else f"{trainer.minutes:g} min" if trainer.minutes else "-",
            count(stage.tokens) if stage.tokens else "-",
            f"{trainer.sequence_length:,}", f"{model.max_position_embeddings:,}", f"{model.rope_theta:,.0f}",
            " to ".join(dict.fromkeys((f"{rate:.3g}", f"{rate * config.schedule.final:.3g}"))), config.data.packing,
        ])  # fmt: skip
    return aligned(lines)


def figures_text(state: PipelineState) -> str:
    """Returns one line with the figures of each stage."""
    return aligned([[record.name, f"job {record.job}", record.figures_text()] for record in state.stages])
