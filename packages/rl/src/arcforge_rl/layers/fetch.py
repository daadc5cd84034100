"""Layers by name, recipe, or both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from arcforge_rl.layers.debian import fetch_debian
from arcforge_rl.layers.downloads import Downloads
from arcforge_rl.layers.npm import fetch_npm
from arcforge_rl.layers.recipes import Recipe
from arcforge_rl.layers.store import Layer, LayerStore
from arcforge_rl.layers.wheels import fetch_folder, fetch_installed, fetch_wheels

LISTS = "debian-lists"
BY_SOURCE = {"wheels": fetch_wheels, "wheels-alone": fetch_wheels, "npm": fetch_npm}
LOCAL = {"installed": fetch_installed, "folder": fetch_folder}
"""Sources that download nothing."""


def ensure(recipe: Recipe, store: LayerStore | None = None) -> Layer:
    """Returns the layer of a recipe, fetched if the store has none.

    Raises:
        LayerError: it cannot be fetched.
    """
    store = store or LayerStore()

    def fetch(recipe: Recipe, tree: Path, downloads: Downloads) -> Sequence[str]:
        if recipe.source == "debian":
            return fetch_debian(recipe, tree, downloads, store.folder / LISTS)
        if recipe.source in LOCAL:
            return LOCAL[recipe.source](recipe, tree)
        return BY_SOURCE[recipe.source](recipe, tree, downloads)

    return store.ensure(recipe, fetch)
