"""The directory of a run, and the files written at its start."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from arcforge_core.errors import ConfigError
from arcforge_core.files.atomic import flush

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

BY_NAME = "by-name"
"""Folder of links to the last run of each name."""

PAGE = 4096
"""Bytes that a full disk refuses."""


def create_run_dir(root: Path, name: str, folder: str | None = None) -> Path:
    """Creates a run's folder, by default a `dated_folder`.

    Raises:
        ConfigError: `folder` is given and exists.
    """
    while True:
        run_dir = dated_folder(root, name) if folder is None else Path(folder)
        try:
            run_dir.mkdir(parents=True)
        except FileExistsError:
            if folder is not None:
                check_new("folder", run_dir)
            continue  # another process has created a run of this name in the same second
        root.mkdir(parents=True, exist_ok=True)
        return run_dir


def check_new(field: str, folder: Path) -> None:
    """Raises `ConfigError` if a folder exists, so that no run writes into another one's."""
    if folder.exists():
        raise ConfigError(field, str(folder), "exists: name a new folder, or continue its run with resume=FOLDER")


def check_writable(field: str, folder: Path) -> None:
    """Writes a nameless file of one page in the folder, or in the first of its parents that exists.

    Raises:
        ConfigError: names the field, the folder and the system's reason.
    """
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing) as file:  # removed when it is closed
            file.write(bytes(PAGE))
            file.flush()
    except OSError as error:
        raise ConfigError(field, str(folder), f"cannot be written: {error.strerror}") from error


def dated_folder(root: Path, name: str) -> Path:
    """Returns ``<root>/<date>/<time>-<name>``, numbered if it exists; creates nothing."""
    now = datetime.now()
    base = root / now.strftime("%Y-%m-%d") / f"{now.strftime('%H-%M-%S')}-{name}"
    folder, count = base, 1
    while folder.exists():
        count += 1
        folder = base.with_name(f"{base.name}-{count}")
    return folder


def point_latest(root: Path, run_dir: Path) -> None:
    """Points ``root/latest`` to the run, atomically."""
    point_to(root / "latest", run_dir)


def point_name(root: Path, name: str, run_dir: Path) -> None:
    """Points ``root/by-name/<name>`` to the run, atomically."""
    point_to(root / BY_NAME / name, run_dir)


def read_latest(root: Path) -> Path | None:
    """Returns the run that ``root/latest`` points to, or None."""
    latest = root / "latest"
    return latest.resolve() if latest.exists() else None


def point_to(link: Path, target: Path) -> None:
    """Makes `link` a relative link to a directory, atomically, in a folder that is made if necessary."""
    link.parent.mkdir(parents=True, exist_ok=True)
    new = link.with_name(f".{link.name}-{os.getpid()}")
    new.unlink(missing_ok=True)
    new.symlink_to(os.path.relpath(target.resolve(), link.parent.resolve()), target_is_directory=True)
    new.replace(link)


def write_run_start(run_dir: Path, config: DataclassInstance) -> None:
    """Writes ``config.yaml``, the resolved configuration, and ``versions.json``."""
    write_text(run_dir / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(dataclasses.asdict(config))))
    write_json(run_dir / "versions.json", versions())


def versions() -> dict[str, str]:
    """Returns the versions of the code and libraries that a run depends on."""
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
        "command": shlex.join(sys.argv),
        "launch": launch(),
    }


def launch() -> str:
    """Returns an identity of the torchrun that started this process, the same after it restarts it; else ``""``."""
    name = os.environ.get("TORCHELASTIC_RUN_ID", "")
    if name != "none":  # torchrun's default, shared by all launches without --rdzv-id
        return name
    stat = Path(f"/proc/{os.getppid()}/stat")
    started = stat.read_text().rpartition(")")[2].split()[19] if stat.exists() else ""
    return f"torchrun {os.getppid()} {started}".strip()


def write_json(path: Path, value: Any) -> None:
    """Writes JSON; see `write_text`."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False))


def write_text(path: Path, text: str) -> None:
    """Writes a file through a temporary one, so that neither a reader nor a killed process sees a partial file.

    Raises:
        OSError: it cannot be written, e.g. to a full disk; its `filename` is the path, and no temporary file remains.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        flush(temporary)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        error.filename = os.path.relpath(path)
        raise


def drop_rows_after(path: Path, step: int) -> None:
    """Removes the rows of later steps, and an incomplete last row, from a CSV file if it exists."""
    if not path.exists():
        return
    header, *rows = path.read_text(encoding="utf-8").splitlines(keepends=True) or [""]
    kept = [row for row in rows if row.endswith("\n") and int(row.split(",", 1)[0]) <= step]
    if len(kept) < len(rows):
        write_text(path, "".join([header, *kept]))
