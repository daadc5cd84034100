"""The report of one run of the conformance kit, for people and for programs."""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

from arcforge_core.contracts.hardware import Hardware
from arcforge_core.files.rundir import versions, write_text
from arcforge_core.report.html import card, table
from arcforge_core.report.page import Page, Section
from arcforge_core.testing.hardware_checks import CheckResult

COLUMNS = ("op", "kernel", "dtype", "error", "allowed", "verdict", "reason")


def write_report(folder: Path, hardware: Hardware, seed: int, results: Sequence[CheckResult]) -> Path:
    """Writes report.json, report.md and report.html, and returns the page's path.

    Args:
        folder: made if it is missing.
        hardware: the backend.
        seed: of all values.
        results: of every check, in order.
    """
    folder.mkdir(parents=True, exist_ok=True)
    about = {"device": hardware.confirm().reason, **asdict(hardware.identity), "seed": seed, "python": _python()}
    about |= {name: str(version) for name, version in versions().items()}
    claims = {k: sorted(v) if isinstance(v, frozenset) else v for k, v in asdict(hardware.capabilities).items()}
    data = {"hardware": hardware.name, "about": about, "capabilities": claims, "results": [asdict(r) for r in results]}
    write_text(folder / "report.json", json.dumps(data, indent=1))
    counts = Counter(result.verdict for result in results)
    summary = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    rows = [_row(result) for result in results]
    write_text(folder / "report.md", _markdown(hardware.name, summary, about, rows))
    sections = [
        Section("Result", card("", f"<p>{escape(summary)}</p>"), headline=True),
        Section("Checks", table(COLUMNS, [[escape(cell) for cell in row] for row in rows], sortable=True)),
        Section("Device", table(["", ""], [[escape(str(k)), escape(str(v))] for k, v in (about | claims).items()])),
    ]
    return Page("conformance", hardware.name, sections).write(folder / "report.html")


def _row(result: CheckResult) -> list[str]:
    figures = [f"{result.error:.1e}", f"{result.tolerance:.0e}"] if result.kernel else ["", ""]
    return [result.op, result.kernel, result.dtype, *figures, result.verdict, result.reason]


def _markdown(name: str, summary: str, about: dict[str, Any], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    listed = [f"- {key}: {value}" for key, value in about.items()]
    head = [line(COLUMNS), line(["---"] * len(COLUMNS))]
    return "\n".join([f"# {name}: {summary}", "", *listed, "", *head, *map(line, rows), ""])


def _python() -> str:
    return f"{platform.python_version()} on {platform.machine()}"
