"""Packs the recipes of ``conf/`` into the wheel, from the checkout and from an sdist alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class RecipesHook(BuildHookInterface[Any]):
    """Adds ``conf/`` as ``arcforge_core/recipes``; an editable install reads the checkout's own folder."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Finds the folder: beside this file in an sdist, two levels up in the checkout."""
        if version == "editable":
            return
        root = Path(self.root)
        candidates = [root / "conf", root.parent.parent / "conf"]
        conf = next(folder for folder in candidates if (folder / "arcforge.toml").is_file())
        target = "conf" if self.target_name == "sdist" else "arcforge_core/recipes"
        build_data["force_include"][str(conf)] = target
