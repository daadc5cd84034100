"""Whole builds of ``environment=swe`` for tests of languages."""

import asyncio
import sys

import pytest

from arcforge_rl.cli import main
from arcforge_rl.layers.store import LayerError
from arcforge_rl.swe.instance import read_instances
from arcforge_rl.swe.running import runs_of


def runs_with_layer(language, tree, files=None):
    """Returns two runs of a tree's tests in different orders, some files replaced; skips without a toolchain."""
    try:
        return asyncio.run(runs_of(language, tree, files or {}, (), language.test_files(tree), 300, range(2)))
    except LayerError as error:
        pytest.skip(f"a toolchain cannot be fetched: {error}")


def build_and_validate(words, folder, monkeypatch, seconds=300):
    """Builds by words of ``arcforge-env swe``, plays oracle, silence and all cheats, and returns the instances."""
    to = folder / "swe"
    monkeypatch.setattr(sys, "argv", ["arcforge-env", "swe", *words, "--to", str(to), "--seconds", str(seconds)])
    assert main() == 0
    validate(to, folder, monkeypatch, seconds)
    return read_instances(to)


def validate(to, folder, monkeypatch, seconds=300):
    """Plays oracle, silence and all cheats of an environment's folder."""
    options = [f"environment.path={to}", "environment.whole=true", f"environment.seconds={max(seconds, 300)}"]
    monkeypatch.setattr(
        sys, "argv", ["arcforge-env", "validate", "environment=swe", *options, f"hydra.run.dir={folder}/out"]
    )
    assert main() == 0
