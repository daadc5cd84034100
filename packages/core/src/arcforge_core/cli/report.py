"""``arcforge-report``: writes a run's report again from its files."""

from __future__ import annotations

import argparse
from pathlib import Path

from arcforge_core.cli.errors import run_main
from arcforge_core.errors import DataError


@run_main
def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="arcforge-report", description="Write report.html of a run again.")
    parser.add_argument("run", type=Path, nargs="?", default=Path("outputs/latest"), help="the run's folder")
    run: Path = parser.parse_args().run
    if not (run / "config.yaml").is_file():
        raise DataError(f"{run} is not a run's folder: it has no config.yaml")
    from arcforge_core.train.report import write_report

    print(write_report(run))
