"""``arcforge-env export``: an environment as an installable package of tasks for the library ``verifiers``."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from arcforge_core import __version__
from arcforge_core.console.result import Result
from arcforge_core.contracts.environment import Environment
from arcforge_core.errors import ArcforgeError, ConfigError
from arcforge_core.files.atomic import write_new
from arcforge_core.plugins.loader import registry
from arcforge_rl.configs.export import EnvExportConfig
from arcforge_rl.environments.skeleton import filled
from arcforge_rl.export.playing import CONFIG_FILE

VERIFIERS = "verifiers>=0.4,<0.5"
BUILT_IN = ("harbor", "nemo_gym", "openenv", "textarena")
"""Tasksets of the library itself, which it prefers to installed ones."""
EXTRAS = {
    "dataset": "math", "reasoning_gym": "puzzles", "science": "science", "search": "search", "slides": "slides",
    "swe": "swe", "terminal": "terminal",
}  # fmt: skip
"""Environments and the extra of arcforge-rl that they use."""
FILES = {
    "pyproject.toml": """\
[build-system]
requires = ["hatchling>=1.25"]
build-backend = "hatchling.build"

[project]
name = "$PACKAGE"
version = "$VERSION"
description = "$SUMMARY"
readme = "README.md"
requires-python = ">=3.11"
keywords = ["verifiers", "arcforge", "environment", "$DOMAIN"]
dependencies = [$DEPENDENCIES]

[tool.hatch.build.targets.wheel]
packages = ["$MODULE"]
""",
    "$MODULE/__init__.py": '''\
"""$SUMMARY."""

from typing import Any

import verifiers.v1 as vf

from arcforge_rl.export.playing import Exported
from arcforge_rl.export.verifiers import ArcforgeEnv, ArcforgeHarness, ArcforgeTaskset

EXPORTED = Exported.beside(__file__)


class $CLASSTaskset(ArcforgeTaskset):
    """The tasks."""

    exported = EXPORTED


class $CLASSHarness(ArcforgeHarness):
    """Plays them."""

    exported = EXPORTED


def load_environment(**taskset: Any) -> vf.Env:
    """Returns the environment; arguments are fields of the taskset's config, ``split`` and ``options``."""
    return vf.load_environment(vf.resolve_env_config({"taskset": {**taskset, "id": "$PACKAGE"}}))


__all__ = ["ArcforgeEnv", "$CLASSHarness", "$CLASSTaskset", "load_environment"]
''',
    "README.md": """\
# $PACKAGE

$SUMMARY, for [verifiers](https://github.com/PrimeIntellect-ai/verifiers) 0.4.

    pip install -e .
    vf-eval $PACKAGE -n 5 --model MODEL --client.base-url URL
    vf-validate $PACKAGE -n 5 --runtime.type subprocess

| option | meaning |
| --- | --- |
| `--env.taskset.split heldout` | `train` or `heldout`: no task is on both sides; exported with `$SPLIT` |
| `--env.taskset.options '{"FIELD": VALUE}'` | fields of the config in place of those of `$MODULE/$CONFIG` |

$TASKS The harness is the environment's own program: it asks the evaluated
model and scores what it did. A failure of the infrastructure is an error of the trace, never a reward of 0.
$MORE""",
}


def run(config: EnvExportConfig) -> Result:
    """Writes the package and prints the next commands.

    Raises:
        ConfigError: the environment, or a name, cannot be used.
        ArcforgeError: the folder cannot be written.
    """
    name = config.environment.name
    component = registry().get("environment", name)
    package = config.package or f"arcforge-{name.replace('_', '-')}"
    module = package.replace("-", "_")
    folder = Path(config.to) / package
    check_names(package, module, folder)
    environment: Environment = component.load()(config.environment)
    check_playable(environment, config)
    section = located(dataclasses.asdict(config.environment))
    files = sorted(set(_files_in(section)))
    parts = {
        "$PACKAGE": package, "$MODULE": module, "$VERSION": config.version, "$CONFIG": CONFIG_FILE,
        "$CLASS": "".join(part.capitalize() for part in module.split("_")),
        "$SUMMARY": f"The environment {name} of arcforge ({environment.domain})",
        "$DOMAIN": environment.domain, "$SPLIT": config.environment.split,
        "$DEPENDENCIES": ", ".join(json.dumps(one) for one in needs(component.distribution, section)),
        "$TASKS": _tasks_said(environment.num_tasks),
        "$MORE": f"\nFiles that are not in the package: {', '.join(files)}.\n" if files else "",
    }  # fmt: skip
    agents = {name: dataclasses.asdict(agent) for name, agent in config.agents.items()}
    written = filled(FILES, parts)
    written[f"{module}/{CONFIG_FILE}"] = json.dumps({"environment": section, "agents": agents}, indent=2) + "\n"
    try:
        write_new(folder, written)
    except OSError as error:
        raise ArcforgeError(f"cannot write {error.filename or folder}: {error.strerror}") from error
    print(f"{folder}\npip install -e {folder}\nvf-eval {package} -n 5 --model MODEL --client.base-url URL")
    return Result(folder, {"files": len(written)})


def check_names(package: str, module: str, folder: Path) -> None:
    """Refuses names that are taken.

    Raises:
        ConfigError: one is.
    """
    taken = module in BUILT_IN or module in sys.stdlib_module_names or module == "verifiers"
    ours = importlib.util.find_spec(module)
    if taken or (ours is not None and not Path(str(ours.origin)).with_name(CONFIG_FILE).exists()):
        raise ConfigError("package", package, f"is taken: there is a module {module}; choose another name")
    if folder.exists():
        raise ConfigError("package", package, f"{folder} exists already")


def check_playable(environment: Environment, config: EnvExportConfig) -> None:
    """Refuses environments that cannot be played one rollout at a time, or lack an agent.

    Raises:
        ConfigError: it is one.
    """
    name = config.environment.name
    if getattr(environment, "compares", False):
        accepted = "compares the replies of a task with each other, and an exported package plays them one by one"
        raise ConfigError("environment", name, accepted)
    needed = set(getattr(environment, "agents", ()))
    for missing in sorted(needed - set(config.agents)):
        accepted = f"environment={name} needs {missing}: +agents.{missing}.url=URL"
        raise ConfigError("agents", sorted(config.agents), accepted)
    for unused in sorted(set(config.agents) - needed):
        raise ConfigError("agents", unused, f"environment={name} asks {', '.join(sorted(needed)) or 'no other agent'}")


def located(value: Any, name: str = "") -> Any:
    """Returns a config's fields with the files and folders that are there as absolute paths."""
    if isinstance(value, Mapping):
        return {key: located(one, str(key)) for key, one in value.items()}
    if isinstance(value, list):
        return [located(one, name) for one in value]
    if name in ("path", "files") and isinstance(value, str) and value and Path(value).expanduser().exists():
        return str(Path(value).expanduser().resolve())
    return value


def _files_in(value: Any, name: str = "") -> Iterable[str]:
    """Yields the absolute paths that `located` made."""
    if isinstance(value, Mapping | list):
        for key, one in value.items() if isinstance(value, Mapping) else ((name, one) for one in value):
            yield from _files_in(one, str(key))
    elif name in ("path", "files") and isinstance(value, str) and Path(value).is_absolute():
        yield value


def needs(distribution: str, section: Mapping[str, Any]) -> list[str]:
    """Returns the requirements of a package.

    Args:
        distribution: name and version of the one that brings the environment.
        section: fields of the environment's config.
    """
    names = {str(section["name"]), *section.get("parts", ()), *section.get("environments", {}).values()}
    extras = sorted({EXTRAS[name] for name in names & set(EXTRAS)})
    own = f"arcforge-rl[{','.join(extras)}]" if extras else "arcforge-rl"
    brings = distribution.split()[0]
    others = [] if brings in ("arcforge-core", "arcforge-rl") else [brings]
    return [f"{own}>={__version__}", *others, VERIFIERS]


def _tasks_said(number: int | None) -> str:
    return "Tasks are drawn without end: bound a run with `-n`." if number is None else f"It has {number} tasks."
