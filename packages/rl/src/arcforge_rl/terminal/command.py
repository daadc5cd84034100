"""``arcforge-env terminal``: writes tasks of the template families as Harbor folders, and checks folders.

``write FOLDER`` writes ``--count`` tasks, the families in turn; ``check FOLDER`` says of each task below a folder
whether it can be read and played here; ``author FOLDER`` writes tasks from seeds or pages and keeps those that hold,
with options of its own: ``author --help``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from arcforge_core.cli.errors import Parser
from arcforge_core.errors import ArcforgeError, ConfigError, DataError, nearest
from arcforge_rl.configs.environments import TerminalConfig
from arcforge_rl.terminal.authoring.command import author
from arcforge_rl.terminal.dockerfile import read_dockerfile
from arcforge_rl.terminal.environment import Terminal, TerminalTask
from arcforge_rl.terminal.harbor import name_of, read_task, write_task
from arcforge_rl.terminal.settings import unplayable
from arcforge_rl.terminal.table import FAMILIES


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Raises:
        ArcforgeError: an argument is wrong, a folder exists, or a task cannot be played.
    """
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == ["author"]:
        return author(words[1:])
    parser = Parser(prog="arcforge-env terminal", description=__doc__)
    parser.add_argument("action", choices=("write", "check", "author"))
    parser.add_argument("folder", type=Path, help="folder of the tasks")
    parser.add_argument("--count", type=int, default=len(FAMILIES), help="tasks to write (default: one of each family)")
    parser.add_argument("--families", default="", help="names with commas between them (default: all)")
    parser.add_argument("--split", default="train", choices=("train", "heldout"), help="side (default: train)")
    parser.add_argument("--seed", type=int, default=0, help="decides which tasks are drawn (default: 0)")
    options = parser.parse_args(words)
    if options.action == "check":
        return check(options.folder)
    families = [name for name in options.families.split(",") if name]
    for name in families:
        if name not in FAMILIES:
            raise ConfigError("--families", name, f"known: {', '.join(FAMILIES)}{nearest(name, FAMILIES)}")
    if options.count < 1:
        raise ConfigError("--count", options.count, "must be at least 1")
    environment = Terminal(TerminalConfig(families=families, seed=options.seed, split=options.split))
    for index in range(options.count):
        task = environment.task(index)
        assert isinstance(task, TerminalTask)
        write_task(task.harbor, options.folder / name_of(task.harbor.name))
    print(f"{options.count} tasks in {options.folder}")
    return 0


def check(folder: Path) -> int:
    """Prints a line for each task that cannot be read or played, and a count.

    Raises:
        ArcforgeError: there is such a task, or none at all.
    """
    places = [folder] if (folder / "task.toml").exists() else sorted(path.parent for path in folder.glob("*/task.toml"))
    if not places:
        raise DataError(f"{folder} has no task: no folder with a task.toml")
    bad = 0
    for place in places:
        try:
            task = read_task(place)
            if reason := unplayable(task.settings):
                raise DataError(f"{place}: {reason}")
            where = f"{place}/environment/Dockerfile"
            read_dockerfile(task.environment["Dockerfile"].decode("utf-8", "replace"), where)
        except DataError as error:
            bad += 1
            print(error)
    print(f"{len(places) - bad} of {len(places)} tasks can be played")
    if bad:
        raise ArcforgeError(f"{bad} tasks cannot be played")
    return 0
