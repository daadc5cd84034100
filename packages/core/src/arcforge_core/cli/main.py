"""``arcforge``: lists the commands and runs ``arcforge NAME ...``; every script ``arcforge-NAME`` calls it as well."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from arcforge_core.cli.errors import run_main
from arcforge_core.config.foreign import COMMANDS as FOREIGN_COMMANDS
from arcforge_core.config.ready import check_folders, check_packages
from arcforge_core.config.schema import RunConfig
from arcforge_core.config.sources import FilesDataConfig, check_paths
from arcforge_core.console.progress import working
from arcforge_core.errors import ArcforgeError, PluginError, nearest
from arcforge_core.files.find import find_checkpoint
from arcforge_core.plugins.commands import COMMANDS
from arcforge_core.plugins.loader import registry
from arcforge_core.plugins.wheels import how_to_install
from arcforge_core.version import __version__


def usage() -> str:
    """Returns the list of commands; those whose wheel is not installed are marked."""
    lines = [f"arcforge {__version__}", "Usage: arcforge COMMAND ...   (the same as arcforge-COMMAND ...)", ""]
    for name, command in COMMANDS.items():
        note = "" if installed(command.wheel) else f"  [not installed: {how_to_install(command.wheel)}]"
        lines.append(f"  {name:<12} {command.summary}{note}")
    for job in registry().jobs.values():
        if job.script == f"arcforge {job.name}" and job.name not in COMMANDS:
            lines.append(f"  {job.name:<12} {job.summary}  [{job.distribution}]")
    return "\n".join([*lines, "", "arcforge COMMAND --help lists its options."])


def installed(wheel: str) -> bool:
    """Returns whether a distribution is installed."""
    try:
        return bool(metadata.version(wheel))
    except metadata.PackageNotFoundError:
        return False


@run_main
def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line: ``arcforge NAME ...``, or ``...`` in a script whose own name is ``arcforge-NAME``.

    Raises:
        PluginError: the command's wheel is not installed, or its plugin is not loaded.
        ArcforgeError: there is no such command.
    """
    script = Path(sys.argv[0]).stem
    if argv is None and script.startswith("arcforge-"):
        return run_command(script.removeprefix("arcforge-"))
    name, *rest = [*(sys.argv[1:] if argv is None else argv)] or ["--help"]
    if name == "help":
        name, rest = (rest[0], ["--help"]) if rest else ("--help", [])
    if name in ("-h", "--help"):
        print(usage())
        return 0
    if name == "--version":
        print(__version__)
        return 0
    sys.argv = [f"arcforge-{name}", *rest]
    return run_command(name)


def run_command(name: str, after: Callable[[Any], None] | None = None) -> int:
    """Runs a command on the arguments in ``sys.argv``; see `main` and, for jobs, `run_job`."""
    command = COMMANDS.get(name)
    if command and not installed(command.wheel):
        raise PluginError(f"arcforge-{name} needs the package {command.wheel!r}: {how_to_install(command.wheel)}")
    if command and command.main:
        module, _, function = command.main.partition(":")
        code: int | None = getattr(importlib.import_module(module), function)()
        return code or 0
    if name in registry().jobs:
        return run_job(name, after=after)
    if command:
        raise PluginError(f"arcforge-{name}: the plugin {command.wheel!r} is not loaded; arcforge-plugins says why")
    meant = FOREIGN_COMMANDS.get(name)
    hint = f"; did you mean {meant!r}?" if meant else nearest(name, [*COMMANDS, *registry().jobs])
    raise ArcforgeError(f"no command {name!r}; commands: {', '.join(COMMANDS)}{hint}")


@run_main
def run_job(name: str, before: Callable[[Any], None] | None = None, after: Callable[[Any], None] | None = None) -> int:
    """Runs a job once, or once per combination of a sweep, as ``sys.argv`` says.

    Args:
        name: the job.
        before: called with the configuration before the job, unless ``-m`` asks for a sweep.
        after: called with the job's result.
    """
    from arcforge_core.config.compose import run_app

    job = registry().job(name)

    def work(config: Any) -> Any:
        check_inputs(config)
        with working("importing libraries"):
            run = job.load()  # imported here, so that --help and Tab completion load no torch
        if before and not {"-m", "--multirun"} & set(sys.argv):
            before(config)
        result = run(config)
        if after:
            after(result)
        return result

    return run_app(name, job.load_schema(), work)


def check_inputs(config: Any) -> None:
    """Looks for what a job starts from and where it writes, before torch is imported.

    Raises:
        CheckpointError: there is no such checkpoint.
        DataError: a path of `data.paths` does not exist.
        ConfigError: a folder cannot be written, or a logger's package is not installed.
    """
    for field in ("init", "checkpoint"):
        if isinstance(place := getattr(config, field, None), str):
            find_checkpoint(place, field)
    if isinstance(data := getattr(config, "data", None), FilesDataConfig):
        check_paths(data.paths)
    if isinstance(config, RunConfig):
        check_packages(config)
        if "RANK" not in os.environ:  # torchrun may have restarted this process: its run tells where it writes
            check_folders(config)


if __name__ == "__main__":
    sys.exit(main())
