"""``arcforge-report``: writes a run's report again from its files; ``arcforge-report skills`` compares stages."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml

from arcforge_core.cli.errors import Parser, run_main
from arcforge_core.errors import DataError
from arcforge_core.plugins.loader import registry
from arcforge_core.plugins.wheels import known_wheels


@run_main
def main() -> None:
    """Runs the command line."""
    if sys.argv[1:2] == ["skills"]:
        skills(sys.argv[2:])
        return
    parser = Parser(prog="arcforge-report", description="Write report.html of a run again.")
    parser.add_argument("run", type=Path, nargs="?", default=Path("outputs/latest"), help="the run's folder")
    run: Path = parser.parse_args().run
    if not (run / "config.yaml").is_file():
        raise DataError(f"{run} is not a run's folder: it has no config.yaml")
    print(report_of(run)(run))


def skills(arguments: Sequence[str]) -> None:
    """Writes one page with each stage's figures on each skill."""
    parser = Parser(prog="arcforge-report skills", description="Compare the stages of a recipe, skill by skill.")
    parser.add_argument("runs", type=Path, nargs="+", help="runs of arcforge-rl or arcforge-pipeline, in order")
    parser.add_argument("--output", type=Path, help="the page; by default skills.html in the last run")
    given = parser.parse_args(arguments)
    write: Callable[[Sequence[Path], Path | None], Path] = registry().get("report", "skills").load()
    print(write(given.runs, given.output))


def report_of(run: Path) -> Callable[[Path], Path]:
    """Returns the report writer of a run: the one named like a section of its configuration.

    Raises:
        UnknownComponentError: the package that made the run is not installed.
    """
    try:
        config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError):
        config = None  # the report says so
    sections = config if isinstance(config, dict) else {}
    known = sorted({*registry().names("report"), *(name for kind, name in known_wheels() if kind == "report")})
    name = next((name for name in known if name in sections and name != "skills"), "data")
    writer: Callable[[Path], Path] = registry().get("report", name).load()
    return writer
