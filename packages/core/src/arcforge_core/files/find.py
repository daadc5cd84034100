"""Finds checkpoints by path or by name; imports no torch, so that a wrong one is refused before it is loaded."""

from __future__ import annotations

from pathlib import Path

from arcforge_core.errors import CheckpointError
from arcforge_core.files.rundir import BY_NAME
from arcforge_core.version import PACKAGE

CONFIG, ADAPTER_CONFIG = "config.json", "adapter_config.json"
RUNS = Path("outputs")
NAMED = (RUNS / BY_NAME, RUNS / "pipelines" / BY_NAME)
"""Links to the last run of each name, and to the last model of each pipeline."""
DEMO = "demo"
"""Names the fine-tuned model of this wheel."""
DEMO_FOLDER = PACKAGE / "demo_model"


def is_adapter(folder: Path) -> bool:
    """Whether a directory contains an adapter."""
    return (folder / ADAPTER_CONFIG).is_file()


def find_checkpoint(path: str | Path, field: str = "checkpoint") -> Path:
    """Returns `path` if it contains a model, else the last checkpoint of the run at `path` (``outputs/latest``).

    Where no path is, ``NAME`` is the last run of that name (``outputs/by-name/NAME``) or the model of the last pipeline
    of that name, whichever is newer, and ``demo`` the model of this wheel.

    Args:
        path: of a model's or a run's folder, or a name.
        field: the option that has it, for the error.

    Raises:
        CheckpointError: it is neither a model nor a run with checkpoints; names the last usable run.
    """
    place = named(Path(path))
    if (place / CONFIG).is_file() or is_adapter(place):
        return place
    found = sorted((place / "checkpoints").glob("step-*"))
    if not found:
        usable = max((step.parents[1] for step in RUNS.glob("*-*-*/*/checkpoints/step-*")), default=None)
        hint = "" if usable is None else f"; the last run with checkpoints is {usable}"
        raise CheckpointError(f"{field}={path}: neither a model ({CONFIG}) nor a run with checkpoints{hint}")
    return found[-1]


def named(path: Path) -> Path:
    """Returns the folder that a single name means, or the path itself.

    A folder without a model or checkpoints hides no run and no model of its name: ``demo`` is a usual name for one.
    """
    if len(path.parts) != 1 or _usable(path):
        return path
    links = [folder / path for folder in NAMED if (folder / path).exists()]
    newest = max(links, key=lambda link: link.lstat().st_mtime, default=None)
    return newest or (DEMO_FOLDER if str(path) == DEMO else path)


def _usable(folder: Path) -> bool:
    return (folder / CONFIG).is_file() or is_adapter(folder) or any((folder / "checkpoints").glob("step-*"))


def tokenizer_of(checkpoint: str, field: str = "checkpoint") -> str | None:
    """Returns the directory of a checkpoint's tokenizer; None if it has none.

    Raises:
        CheckpointError: the checkpoint does not exist.
    """
    folder = find_checkpoint(checkpoint, field)
    return str(folder) if (folder / "tokenizer.json").is_file() else None
