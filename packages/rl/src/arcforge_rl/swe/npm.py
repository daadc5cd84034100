"""Archives of npm's packages, fetched by ``npm pack``, which compares them with the registry's hashes and runs nothing.

A source is ``npm:NAME==VERSION``; NAME may have a scope, as ``@scope/name``.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from arcforge_core.errors import DataError
from arcforge_rl.layers.archives import intact, stored
from arcforge_rl.layers.npm import run_npm
from arcforge_rl.layers.store import LayerError

NPM = "npm:"
SOURCE = re.compile(r"npm:((?:@[a-z0-9][\w.-]*/)?[a-z0-9][\w.-]*)==(\d+\.\d+\.\d+(?:[-+][\w.+-]+)?)", re.IGNORECASE)


def fetch_pack(source: str, folder: Path) -> Path:
    """Returns the archive of a release; one that the folder has is used without the registry.

    Args:
        source: ``npm:NAME==VERSION``.
        folder: of the archives and of their hashes, ``FILE.sha256``.

    Raises:
        DataError: the source is malformed.
        LayerError: as `run_npm`; or the stored archive was changed.
    """
    found = SOURCE.fullmatch(source)
    if found is None:
        raise DataError(f"{source!r} is not npm:NAME==VERSION")
    name, version = found[1], found[2]
    target = folder / f"npm-{name.removeprefix('@').replace('/', '-')}-{version}.tgz"
    if target.is_file():
        return intact(target)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        run_npm(source, ("pack", f"{name}@{version}", "--ignore-scripts"), Path(place), Path(place, "cache"))
        packed = list(Path(place).glob("*.tgz"))
        if len(packed) != 1:
            raise LayerError("registry", f"{source}: npm gave no archive")
        return stored(packed[0].read_bytes(), target)
