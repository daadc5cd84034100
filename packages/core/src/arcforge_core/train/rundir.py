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

from arcforge_core.checkpoint.atomic import flush
from arcforge_core.config.schema import RunConfig


def create_run_dir(config: RunConfig, folder: Path | None = None) -> Path:
    """Creates a run's folder, by default a `dated_folder`, and points ``<output_dir>/latest`` at it."""
    root = Path(config.output_dir)
    run_dir = dated_folder(root, config.name) if folder is None else folder
    run_dir.mkdir(parents=True)
    point_latest(root, run_dir)
    return run_dir


def dated_folder(root: Path, name: str) -> Path:
    """Returns ``<root>/<date>/<time>-<name>``, with a number behind it where that is taken; it is not created."""
    now = datetime.now()
    base = root / now.strftime("%Y-%m-%d") / f"{now.strftime('%H-%M-%S')}-{name}"
    folder, count = base, 1
    while folder.exists():
        count += 1
        folder = base.with_name(f"{base.name}-{count}")
    return folder


def point_latest(root: Path, run_dir: Path) -> None:
    """Points ``root/latest`` at the run, atomically."""
    point_to(root / "latest", run_dir)


def point_to(link: Path, target: Path) -> None:
    """Makes `link` a relative link to a folder, atomically."""
    new = link.with_name(f".{link.name}-{os.getpid()}")
    new.unlink(missing_ok=True)
    new.symlink_to(os.path.relpath(target.resolve(), link.parent.resolve()), target_is_directory=True)
    new.replace(link)


def write_run_start(run_dir: Path, config: RunConfig) -> None:
    """Writes the resolved configuration and the versions."""
    write_text(run_dir / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(dataclasses.asdict(config))))
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
    """Writes JSON; see `write_text`."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False))


def write_text(path: Path, text: str) -> None:
    """Writes a file by way of a temporary one, so that neither a reader nor a killed process leaves half of it."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    flush(temporary)
    temporary.replace(path)


def drop_rows_after(path: Path, step: int) -> None:
    """Removes the rows of later steps, and one that a killed process did not finish, from a CSV file if it is there."""
    if not path.exists():
        return
    header, *rows = path.read_text(encoding="utf-8").splitlines(keepends=True) or [""]
    kept = [row for row in rows if row.endswith("\n") and int(row.split(",", 1)[0]) <= step]
    if len(kept) < len(rows):
        write_text(path, "".join([header, *kept]))
