"""``arcforge-env new NAME``: an installable plugin package with one environment and its test."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from arcforge_core.cli.errors import Parser
from arcforge_core.errors import ArcforgeError, ConfigError
from arcforge_core.files.atomic import write_new
from arcforge_core.plugins.loader import registry

FILES = {
    "pyproject.toml": """\
[build-system]
requires = ["hatchling>=1.25"]
build-backend = "hatchling.build"

[project]
name = "$DASHED-environment"
version = "0.1.0"
description = "The environment $NAME for arcforge"
requires-python = ">=3.11"
dependencies = ["arcforge-core", "arcforge-rl"]

[project.optional-dependencies]
test = ["arcforge-core[test]"]

[project.entry-points."arcforge.plugins"]
$DASHED-environment = "$PACKAGE.plugin"

[tool.hatch.build.targets.wheel]
packages = ["src/$PACKAGE"]
""",
    "src/$PACKAGE/__init__.py": '''\
"""The environment $NAME."""
''',
    "src/$PACKAGE/plugin.py": '''\
"""Registers the environment. Imports nothing heavy."""

from arcforge_core.plugins.hookspecs import PLUGIN_API, hookimpl
from arcforge_core.plugins.registry import Registrar


@hookimpl
def arcforge_plugin_api() -> int:
    """Returns the API number this plugin was written for."""
    return PLUGIN_API


@hookimpl
def arcforge_register_components(registry: Registrar) -> None:
    """Registers the components."""
    registry.add(
        "environment", "$NAME", "$PACKAGE.environment:$CLASS",
        schema="$PACKAGE.configs:$CLASSConfig", summary="Count the letters of a word",
    )
''',
    "src/$PACKAGE/configs.py": '''\
"""The options, checked on the command line; torch-free."""

from dataclasses import dataclass

from arcforge_core.config.schema import EnvironmentConfig, check_between


@dataclass
class $CLASSConfig(EnvironmentConfig):
    """Count letters."""

    name: str = "$NAME"
    letters: int = 12
    """Maximum length of a word."""
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("environment.letters", self.letters, 2, 100)
''',
    "src/$PACKAGE/environment.py": '''\
"""Counts how often a letter occurs in a word."""

import random
from collections.abc import Sequence

from arcforge_core.contracts.environment import Episode, Reply, Score, Script, Task
from arcforge_core.episodes.base import GeneratedEnvironment
from arcforge_core.episodes.rewards import metric, reward


class $CLASS(GeneratedEnvironment):
    """The reply must be only the number."""

    domain = "words"

    def draw(self, draw: random.Random) -> tuple[str, Task]:
        """Returns the key that decides the side of the split, and a task."""
        word = "".join(draw.choices("abcd", k=draw.randint(2, self.config.letters)))
        letter = draw.choice(word)
        question = f"How many times is {letter} in {word}? Answer with the number."
        return word, Task(f"$NAME/{word}/{letter}", question, str(word.count(letter)))

    @reward(weight=1.0)
    def right(self, task: Task, episode: Episode) -> Score:
        """Runs in a process that is killed after five seconds; raising and hanging score 0."""
        return Score(float(episode.reply.text.strip() == task.answer), f"said {episode.reply.text[:40]!r}")

    @metric()
    def short(self, task: Task, episode: Episode) -> bool:
        """Is reported along with the reward."""
        return len(episode.reply.text) < 10

    def cheats(self, task: Task) -> Sequence[Script]:
        """Returns replies that must score 0."""
        return [[Reply(text)] for text in (task.prompt, f"{task.answer}?", f"{task.answer} or not", "0 1 2 3 4")]
''',
    "tests/test_$NAME.py": """\
import pytest
from $PACKAGE.configs import $CLASSConfig
from $PACKAGE.environment import $CLASS

from arcforge_core.testing import EnvironmentSuite


class Test$CLASS(EnvironmentSuite):
    @pytest.fixture
    def make_environment(self):
        return lambda split: $CLASS($CLASSConfig(split=split))


def test_letters_are_counted():
    task = $CLASS($CLASSConfig()).task(0)
    _, word, letter = task.key.split("/")
    assert task.answer == str(word.count(letter))
""",
    "README.md": """\
# $NAME

    pip install -e '.[test]'
    arcforge-env validate environment=$NAME
    pytest tests
""",
}


def main(argv: Sequence[str]) -> int:
    """Writes the package and prints the next commands.

    Raises:
        ArcforgeError: the name cannot be used, or the folder exists.
    """
    parser = Parser(prog="arcforge-env new", description=__doc__)
    parser.add_argument("name", help="name of the environment, e.g. letters for environment=letters")
    parser.add_argument("--to", default=".", help="parent of the new folder (default: current folder)")
    options = parser.parse_args(argv)
    folder = write(options.name, Path(options.to))
    print(f"{folder}\npip install -e '{folder}[test]'\narcforge-env validate environment={options.name}")
    return 0


def write(name: str, to: Path) -> Path:
    """Writes the package and returns its folder.

    Raises:
        ArcforgeError: the name cannot be used, or the folder exists or cannot be written.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ConfigError("name", name, "must be lower-case letters, digits and _, starting with a letter")
    if name in registry().names("environment"):
        raise ConfigError("name", name, "is already an environment; choose another name")
    parts = {
        "$NAME": name,
        "$DASHED": name.replace("_", "-"),
        "$PACKAGE": f"{name}_environment",
        "$CLASS": "".join(part.capitalize() for part in name.split("_")),
    }
    folder = to / f"{parts['$DASHED']}-environment"
    if folder.exists():
        raise ConfigError("name", name, f"{folder} exists already")
    try:
        write_new(folder, filled(FILES, parts))
    except OSError as error:
        raise ArcforgeError(f"cannot write {error.filename or folder}: {error.strerror}") from error
    return folder


def filled(files: Mapping[str, str], parts: Mapping[str, str]) -> dict[str, str]:
    """Returns paths and texts of files with the value of each mark in its place."""

    def put(text: str) -> str:
        for mark, value in parts.items():
            text = text.replace(mark, value)
        return text

    return {put(path): put(text) for path, text in files.items()}
