"""Going on with a run: which one, from which checkpoint, and what has changed since."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rich.console import Console
from rich.prompt import Prompt
from rich.table import Table

from arcforge_core.config.compare import differences, flatten
from arcforge_core.config.schema import RunConfig
from arcforge_core.errors import CheckpointError
from arcforge_core.train.rundir import drop_rows_after, versions
from arcforge_core.train.snapshot import TrainingState
from arcforge_core.train.state import checkpoints, last_checkpoint, read_checkpoint

LAYOUT = ("trainer.sequence_length", "trainer.micro_batch_tokens", "seed")
FIXED = ("model.", "attention.", "adapter.", "data.", "optimizer.name", *LAYOUT)
"""Prefixes of fields that the saved state depends on: shapes of tensors, or the order and position of the data."""

FREE = (
    "model.mtp.fraction",
    "model.mtp.weight",
    "model.balance_loss_weight",
    "model.router_bias_rate",
    "adapter.dropout",
    "data.cache_dir",
    "data.paths",  # the content of the corpus and of the tokenizer is compared, wherever they lie
    "data.tokenizer.path",
)
"""Exceptions to `FIXED`."""


def find_state(config: RunConfig, console: Console) -> tuple[Path, TrainingState]:
    """Returns the run that ``config.resume`` names, and the state to go on from.

    ``latest`` goes back to the last whole checkpoint of the last run and says so; a run or a checkpoint that is named
    must be whole.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    assert config.resume is not None
    latest = config.resume == "latest"
    path = Path(config.output_dir) / "latest" if latest else Path(config.resume)
    if not path.is_dir():
        raise CheckpointError(f"resume={config.resume}: no run at {path}")
    path = path.resolve()
    if path.parent.name != "checkpoints":
        return path, last_checkpoint(path, console.print if latest else None)
    run_dir, state = path.parent.parent, read_checkpoint(path)
    later = [p.name for p in checkpoints(run_dir) if p.name > path.name]
    if later:
        console.print(f"going back to step {state.step}: the next save removes {', '.join(later)}")
    return run_dir, state


def check_same_run(
    config: RunConfig,
    run_dir: Path,
    state: TrainingState,
    console: Console,
    fixed: tuple[str, ...] = FIXED,
    free: tuple[str, ...] = FREE,
) -> None:
    """Prints what has changed since the run was last worked on.

    Args:
        config, run_dir, state: the run, as it is to go on.
        console: where to print.
        fixed: prefixes of fields that the saved state depends on.
        free: exceptions.

    Raises:
        CheckpointError: the state would not fit, or the data would come in another order; the fields are named.
    """
    try:
        before = flatten(OmegaConf.to_container(OmegaConf.load(run_dir / "config.yaml")))
        software = json.loads((run_dir / "versions.json").read_text())
    except Exception as error:  # YAML's and JSON's own errors have no base in common
        raise CheckpointError(f"cannot read how {os.path.relpath(run_dir)} was configured: {error}") from error
    changes = differences(before, flatten(dataclasses.asdict(config)), skip=("resume", "output_dir"))
    software = differences(software, versions(), skip=("command",))
    if changes or software:
        console.print(f"going on after step {state.step} with changes")
        table = Table()
        for column in ("field", "was", "now"):
            table.add_column(column, overflow="fold")
        for name, was, new in [*changes, *software]:
            table.add_row(name, was, new)
        console.print(table)
    refused = [
        f"{name} was {was}, now {new}"
        for name, was, new in changes
        if name.startswith(fixed) and name not in free and name in before
    ]
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    if world_size != state.world_size:
        refused.append(f"WORLD_SIZE (processes) was {state.world_size}, now {world_size}")
    if refused:
        raise CheckpointError(f"cannot resume {os.path.relpath(run_dir)}: {'; '.join(refused)}")


def check_same_corpus(manifest: dict[str, Any], run_dir: Path) -> None:
    """Compares the training text with that of the run, token by token through its hashes.

    Raises:
        CheckpointError: it is another text or another tokenizer, so that the data position means nothing.
    """
    before = json.loads((run_dir / "corpus.json").read_text())
    if before["tokenizer"]["sha256"] != manifest["tokenizer"]["sha256"]:
        raise CheckpointError(f"cannot resume {os.path.relpath(run_dir)}: the tokenizer has changed")
    if _train_shards(before) != _train_shards(manifest):
        raise CheckpointError(f"cannot resume {os.path.relpath(run_dir)}: the training text has changed")


def rewind(run_dir: Path, step: int) -> None:
    """Drops what the run wrote about the steps that are taken again."""
    for name in ("metrics.csv", "eval.csv", "experts.csv", "generation.csv"):
        drop_rows_after(run_dir / name, step)


def offer_resume(config: RunConfig) -> None:
    """When the last run of this name was left unfinished: asks on a terminal whether to set ``config.resume``."""
    if config.resume is not None:
        return
    console = Console(markup=False, highlight=False, soft_wrap=True)
    latest = Path(config.output_dir) / "latest"
    try:
        status = json.loads((latest / "summary.json").read_text())["status"]
    except (OSError, KeyError, ValueError):
        status = "cut off"  # a killed run writes no summary
    if status == "finished" or not latest.resolve().name.endswith(f"-{config.name}") or not checkpoints(latest):
        return
    where = f"the last run, {os.path.relpath(latest.resolve())}, is {status}"
    if sys.stdin.isatty() and console.is_terminal:
        answer = Prompt.ask(f"{where}: resume it or start fresh?", choices=["resume", "fresh"], default="resume")
        config.resume = "latest" if answer == "resume" else None
    else:
        console.print(f"{where}; starting fresh (resume=latest goes on with it)")


def resume_command() -> str:
    """Returns the command line that goes on with this run."""
    arguments = [a for a in sys.argv[1:] if not a.startswith("resume=")]
    return shlex.join([Path(sys.argv[0]).name, *arguments, "resume=latest"])


def _train_shards(manifest: dict[str, Any]) -> list[tuple[str, str]]:
    return [(shard["source"], shard["sha256"]) for shard in manifest["shards"] if shard["split"] == "train"]
