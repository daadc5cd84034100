"""The folder of a run, and what is known at its start."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import subprocess
import sys
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from arcforge_core.config.schema import TrainConfig
from arcforge_core.errors import CheckpointError


def create_run_dir(config: TrainConfig) -> Path:
    """Creates ``<output_dir>/<date>/<time>-<name>`` and points ``<output_dir>/latest`` at it."""
    root, now = Path(config.output_dir), datetime.now()
    base = root / now.strftime("%Y-%m-%d") / f"{now.strftime('%H-%M-%S')}-{config.name}"
    run_dir, count = base, 1
    while run_dir.exists():
        count += 1
        run_dir = base.with_name(f"{base.name}-{count}")
    run_dir.mkdir(parents=True)
    point_latest(root, run_dir)
    return run_dir


def point_latest(root: Path, run_dir: Path) -> None:
    """Points ``root/latest`` at the run, atomically."""
    link = root / f".latest-{os.getpid()}"
    link.unlink(missing_ok=True)
    link.symlink_to(run_dir.resolve().relative_to(root.resolve()), target_is_directory=True)
    link.replace(root / "latest")


def find_run(config: TrainConfig) -> Path:
    """Returns the run folder that ``config.resume`` names.

    Raises:
        CheckpointError: there is none, or it holds no checkpoint.
    """
    assert config.resume is not None
    path = Path(config.output_dir) / "latest" if config.resume == "latest" else Path(config.resume)
    if not path.is_dir():
        raise CheckpointError(f"resume={config.resume}: no run at {path}")
    return path.resolve()


def write_run_start(run_dir: Path, config: TrainConfig) -> None:
    """Writes the resolved configuration and the versions."""
    OmegaConf.save(OmegaConf.create(dataclasses.asdict(config)), run_dir / "config.yaml")
    write_json(run_dir / "versions.json", versions())


def versions() -> dict[str, str]:
    """Returns versions of what a run depends on."""
    names = ("arcforge-core", "torch", "lightning", "numpy", "tokenizers", "hydra-core")
    found = {name: metadata.version(name) for name in names}
    plugins = {e.dist.name: e.dist.version for e in metadata.entry_points(group="arcforge.plugins") if e.dist}
    git = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"], capture_output=True, text=True
    )
    return {
        **found,
        **plugins,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "git": git.stdout.strip() or "not a checkout",
        "command": " ".join(sys.argv),
    }


def write_json(path: Path, value: Any) -> None:
    """Writes JSON by way of a temporary file, so that readers never see half of it."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(value, indent=1, ensure_ascii=False))
    temporary.replace(path)
