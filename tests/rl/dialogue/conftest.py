"""The benchmark's own data, where they are: nightly tests fetch them as the layer ``tau2``."""

from pathlib import Path

import pytest

from arcforge_rl.dialogue.benchmark import INSIDE
from arcforge_rl.layers.fetch import ensure
from arcforge_rl.layers.recipes import recipe_of


@pytest.fixture(scope="session")
def tau2_package() -> Path:
    """The folder that has the package inspect_evals."""
    recipe = recipe_of("tau2")
    return ensure(recipe).folder / "tree" / recipe.prefix.lstrip("/")


@pytest.fixture(scope="session")
def tau2(tau2_package: Path) -> Path:
    """The benchmark's folder in it."""
    return tau2_package / INSIDE
