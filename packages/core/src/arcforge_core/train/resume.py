"""Resuming a run: finds the run and the checkpoint, and checks the changes since then."""

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
from arcforge_core.config.renamed import renamed
from arcforge_core.config.schema import RunConfig
from arcforge_core.errors import CheckpointError
from arcforge_core.files.rundir import launch, versions
from arcforge_core.script import is_console_script
from arcforge_core.train.snapshot import TrainingState
from arcforge_core.train.state import checkpoints, last_checkpoint, read_checkpoint


def restarts() -> int:
    """Returns how many times torchrun has restarted this process."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))


def run_of_this_launch(config: RunConfig) -> Path | None:
    """Returns the unfinished run that a process restarted by torchrun had begun or resumed; None if it has none."""
    if not restarts():
        return None
    root = Path(config.output_dir)
    folders = [Path(config.folder)] if config.folder else sorted(root.glob(f"*/*-{config.name}*"), reverse=True)
    for folder in folders:
        if _recorded(folder / "versions.json", "launch") == launch() and _status(folder) != "finished":
            return folder.resolve()
    return None


def find_run(config: RunConfig) -> Path:
    """Returns the folder of the run that ``config.resume`` names, or of whose checkpoint.

    Raises:
        CheckpointError: there is none.
    """
    path = _named(config)
    return path.parent.parent if path.parent.name == "checkpoints" else path


def find_state(config: RunConfig, console: Console) -> TrainingState:
    """Returns the state to resume from.

    ``latest`` falls back to the last undamaged checkpoint of the last run and prints a message; an explicitly named run
    or checkpoint must be undamaged.

    Raises:
        CheckpointError: the checkpoint is missing or damaged.
    """
    path = _named(config)
    if path.parent.name != "checkpoints":
        return last_checkpoint(path, console.print if config.resume == "latest" else None)
    state = read_checkpoint(path)
    later = [p.name for p in checkpoints(path.parent.parent) if p.name > path.name]
    if later:
        console.print(f"going back to step {state.step}: the next save removes {', '.join(later)}")
    return state


def _named(config: RunConfig) -> Path:
    """Returns the run or checkpoint that ``config.resume`` names, without symbolic links."""
    path = Path(config.output_dir) / "latest" if config.resume == "latest" else Path(str(config.resume))
    if not path.is_dir():
        raise CheckpointError(f"resume={config.resume}: no run at {path}")
    return path.resolve()


def check_same_run(
    config: RunConfig,
    run_dir: Path,
    state: TrainingState,
    console: Console,
    fixed: tuple[str, ...],
    free: tuple[str, ...],
) -> None:
    """Prints the changes of configuration and software since the run stopped.

    Args:
        config, run_dir, state: the run to resume.
        console: prints the changes.
        fixed: prefixes of fields that must not change because the saved state depends on them.
        free: exceptions to `fixed`.

    Raises:
        CheckpointError: the state would not fit, or the data order would change; the fields are named.
    """
    try:
        before = flatten(OmegaConf.to_container(OmegaConf.load(run_dir / "config.yaml")))
        software = json.loads((run_dir / "versions.json").read_text())
    except Exception as error:  # the errors of YAML and JSON have no common base
        raise CheckpointError(f"cannot read how {os.path.relpath(run_dir)} was configured: {error}") from error
    changes = differences(before, flatten(dataclasses.asdict(config)), skip=("resume", "output_dir", "folder"))
    software = differences(software, versions(), skip=("command", "launch"))
    if changes or software:
        console.print(f"resuming after step {state.step} with changes")
        table = Table()
        for column in ("field", "was", "now"):
            table.add_column(column, overflow="fold")
        for name, was, new in [*changes, *software]:
            table.add_row(name, was, new)
        console.print(table)
    refused = [
        f"{name} was {was}, now {new}"
        for name, was, new in changes
        if name.startswith(fixed) and name not in free and name in before and not renamed(name)
    ]
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    if world_size != state.world_size:
        refused.append(f"WORLD_SIZE (processes) was {state.world_size}, now {world_size}")
    if refused:
        raise CheckpointError(f"cannot resume {os.path.relpath(run_dir)}: {'; '.join(refused)}")


def check_same_corpus(manifest: dict[str, Any], run_dir: Path) -> None:
    """Compares the hashes of the training tokens with those of the run.

    Raises:
        CheckpointError: the text or the tokenizer differs, which makes the data position meaningless.
    """
    before = json.loads((run_dir / "corpus.json").read_text())
    if before["tokenizer"]["sha256"] != manifest["tokenizer"]["sha256"]:
        raise CheckpointError(f"cannot resume {os.path.relpath(run_dir)}: the tokenizer has changed")
    if _train_shards(before) != _train_shards(manifest):
        raise CheckpointError(f"cannot resume {os.path.relpath(run_dir)}: the training text has changed")


def offer_resume(config: RunConfig) -> None:
    """Asks on a terminal whether to set ``config.resume`` if the last run of this name is unfinished."""
    if config.resume is not None or restarts():
        return
    console = Console(markup=False, highlight=False, soft_wrap=True)
    latest = Path(config.output_dir) / "latest"
    status = _status(latest)
    if status == "finished" or not latest.resolve().name.endswith(f"-{config.name}") or not checkpoints(latest):
        return
    where = f"the last run, {os.path.relpath(latest.resolve())}, is {status}"
    if sys.stdin.isatty() and console.is_terminal:
        answer = Prompt.ask(f"{where}: resume it or start fresh?", choices=["resume", "fresh"], default="resume")
        config.resume = "latest" if answer == "resume" else None
    else:
        console.print(f"{where}; starting fresh (resume=latest continues it)")


def _status(run_dir: Path) -> str:
    return _recorded(run_dir / "summary.json", "status") or "cut off"  # a killed run writes no summary


def _recorded(path: Path, name: str) -> str:
    """Returns a text in a JSON file; empty if it is not there."""
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))[name])
    except (OSError, KeyError, ValueError):
        return ""


def resume_command() -> str:
    """Returns the command line that resumes this run; of a program or notebook that called us, the option."""
    if not is_console_script(sys.argv[0]):
        return "resume=latest"
    arguments = [a for a in sys.argv[1:] if not a.startswith("resume=")]
    return shlex.join([Path(sys.argv[0]).name, *arguments, "resume=latest"])


def _train_shards(manifest: dict[str, Any]) -> list[tuple[str, str]]:
    return [(shard["source"], shard["sha256"]) for shard in manifest["shards"] if shard["split"] == "train"]
