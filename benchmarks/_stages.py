"""Benchmarks of several commands that may be stopped at any time: each has a folder, and is run until it is done."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from _machine import describe_machine
from arcforge_core.files.lock import locked

COMMAND = str(Path(__file__).parent / "_hacking_command.py")
LONGEST_STAGE = 24 * 3600.0
"""Seconds for which a stage that another process runs is waited for."""
R = TypeVar("R")
Run = tuple[Callable[[], bool], Callable[[], None]]


def options_of(name: str, doc: str | None, recipe: Mapping[str, int | float]) -> argparse.ArgumentParser:
    """Returns the options that these benchmarks share, and those of a recipe.

    Args:
        name: of the benchmark.
        doc: of its module.
        recipe: names of its numbers, with their defaults.
    """
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--out", type=Path, default=Path("outputs") / name)
    made.add_argument("--seeds", type=int, default=3)
    made.add_argument("--first-seed", type=int, default=0)
    made.add_argument("--minutes", type=float, default=90.0)
    made.add_argument("--quick", action="store_true")
    made.add_argument("--table", action="store_true")
    made.add_argument("--json", type=Path, metavar="FILE")
    group = made.add_argument_group("recipe")
    group.add_argument("--init", default="demo")
    for flag, value in recipe.items():
        group.add_argument(f"--{flag}", type=type(value), default=value)
    return made


def begun(made: argparse.ArgumentParser, quick: Mapping[str, Any]) -> argparse.Namespace:
    """Returns the options of the command line, with those of ``--quick``, and a folder that is there."""
    options = made.parse_args()
    if options.quick:
        for name, value in quick.items():
            setattr(options, name, value)
        options.out = options.out / "quick"
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    return options


def frozen(recipe: type[R], out: Path, options: argparse.Namespace) -> R:
    """Returns the recipe of a folder: as it was begun, in ``recipe.json``, or of the options.

    Args:
        recipe: a dataclass whose fields are options.
        out: the folder.
        options: with ``table`` those of the recipe do not count.

    Raises:
        SystemExit: the folder was begun with another recipe.
    """
    names = [field.name for field in fields(recipe)]  # type: ignore[arg-type]
    wanted = recipe(**{name: getattr(options, name) for name in names})
    note = out / "recipe.json"
    if not note.exists():
        note.write_text(json.dumps(asdict(wanted), indent=2))  # type: ignore[call-overload]
    found = recipe(**json.loads(note.read_text()))
    changed = [name for name in names if getattr(found, name) != getattr(wanted, name)]
    if changed and not options.table:
        was = ", ".join(f"{name} {getattr(found, name)} (now {getattr(wanted, name)})" for name in changed)
        raise SystemExit(f"{note} was begun with another recipe: {was}. Name another --out, or the same options")
    return found


def once(place: Path, command: list[str]) -> dict[str, Any]:
    """Runs a command of arcforge unless it is done, and returns the notes about it; its folder is ``place / "run"``.

    A second process that wants the same stage waits until the first has finished it.
    """
    note = place / "done.json"
    place.mkdir(parents=True, exist_ok=True)
    with locked(place, LONGEST_STAGE):
        if not note.exists():
            shutil.rmtree(place / "run", ignore_errors=True)
            begun = time.monotonic()
            with (place / "output.txt").open("w") as output:
                process = subprocess.Popen([sys.executable, COMMAND, *command], stdout=output, stderr=subprocess.STDOUT)
                _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                raise SystemExit(f"{' '.join(command)}\n{(place / 'output.txt').read_text()[-3000:]}")
            wall, processor = time.monotonic() - begun, usage.ru_utime + usage.ru_stime
            note.write_text(json.dumps({"wall": wall, "processor": processor, "command": command}, indent=2))
            print(f"{place.name}: {wall:.0f} s, processor {processor:.0f} s", flush=True)
    done: dict[str, Any] = json.loads(note.read_text())
    return done


def longest(notes: Iterable[Path]) -> float:
    """Returns the seconds of the longest of the commands with these notes; 0 before the first."""
    return max((float(json.loads(path.read_text())["wall"]) for path in notes), default=0.0)


def run_missing(options: argparse.Namespace, notes: Callable[[], Iterable[Path]], runs: Iterable[Run]) -> None:
    """Does the runs that are not done, until one as long as the longest would not end in time, and counts the rest.

    Args:
        options: with ``table`` nothing is run; ``minutes`` bounds all runs.
        notes: returns the notes about finished commands.
        runs: for each, whether it is done, and the work, which is called for a done one too, as parts may be missing.
    """
    end, left = time.monotonic() + 60 * options.minutes, 0
    for done, work in runs:
        if options.table or not (done() or time.monotonic() + longest(notes()) < end):
            left += not done()
        else:
            work()
    if left:
        print(f"{left} runs are left: the same command continues", flush=True)


def publish(name: str, recipe: Any, figures: Mapping[str, Any], path: Path | None) -> None:
    """Writes a benchmark's figures with its recipe and the machine as JSON, if there is a path."""
    if path is not None:
        told = {"benchmark": name, "machine": describe_machine(1), "recipe": asdict(recipe), **figures}
        path.write_text(json.dumps(told, indent=2))


def run_all(
    name: str,
    made: argparse.ArgumentParser,
    quick: Mapping[str, Any],
    recipe: type[R],
    runs: Callable[[argparse.Namespace, R, range], Iterable[Run]],
    report: Callable[[argparse.Namespace, range], Mapping[str, Any]],
) -> None:
    """Does the runs of a benchmark that are missing, prints, and publishes.

    Args:
        name: of the benchmark.
        made: has the options, see `options_of`.
        quick: options of ``--quick``.
        recipe: see `frozen`.
        runs: returns those of the options, the recipe and the seeds.
        report: prints what has been run, and returns its figures.
    """
    options = begun(made, quick)
    of_folder = frozen(recipe, options.out, options)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    run_missing(options, partial(options.out.glob, "*/done.json"), runs(options, of_folder, seeds))
    publish(name, of_folder, report(options, seeds), options.json)


def write_lines(path: Path, records: Sequence[Any]) -> None:
    """Writes records as jsonl."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
