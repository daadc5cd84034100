"""Packs ``conf/`` and the table of our components into the wheel, from the checkout and from an sdist alike."""

from __future__ import annotations

import importlib.util
import json
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

TABLE = "arcforge_core/plugins/wheels.json"


class RecipesHook(BuildHookInterface[Any]):
    """Adds ``conf/`` as ``arcforge_core/recipes`` and ``wheels.json``; an editable install reads the checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Finds the folder: beside this file in an sdist, two levels up in the checkout."""
        if version == "editable":
            return
        root = Path(self.root)
        candidates = [root / "conf", root.parent.parent / "conf"]
        conf = next(folder for folder in candidates if (folder / "arcforge.toml").is_file())
        target = "conf" if self.target_name == "sdist" else "arcforge_core/recipes"
        build_data["force_include"][str(conf)] = target
        source = root / "src" / TABLE
        if not source.exists():  # in an sdist it does
            table = "src/" * (self.target_name == "sdist") + TABLE
            build_data["force_include"][str(written_table(source, root.parent))] = table


def written_table(source: Path, packages: Path) -> Path:
    """Returns a temporary file with the rows that ``wheels.py`` finds in the checkout's plugin modules."""
    spec = importlib.util.spec_from_file_location("wheels", source.with_name("wheels.py"))
    assert spec is not None and spec.loader is not None
    wheels = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(wheels)
    written = Path(tempfile.mkdtemp()) / source.name
    written.write_text(json.dumps(wheels.wheel_rows(packages)), encoding="utf-8")
    return written
