"""Writes the skill ledger: pass@1 of each stage of a recipe on each skill, what it forgot and what came back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from arcforge_core.errors import DataError
from arcforge_core.report.html import card, missing, table
from arcforge_core.report.page import Page, Section
from arcforge_rl.trainer.figures import ALL
from arcforge_rl.trainer.report.data import Rate, RlRun, paired, read_run
from arcforge_rl.trainer.report.page import interval

FILE = "skills.html"
PIPELINE = "pipeline.json"
CLOSE = 2.0
"""Points below a skill's best stage within which the end has kept it."""


@dataclass(frozen=True)
class StageRow:
    """A row of the ledger.

    Attributes:
        name: of the stage.
        run: has its evaluations.
        step: of the evaluation.
    """

    name: str
    run: RlRun
    step: int

    def of(self, skill: str) -> Rate | None:
        """Returns pass@1 of a skill with its interval."""
        return self.run.share(self.step, skill)


def write_skills(folders: Sequence[Path], output: Path | None = None) -> Path:
    """Writes the ledger of stages in order, and returns its path.

    Args:
        folders: runs of ``arcforge-rl``, or of ``arcforge-pipeline``, whose stages with held-out tasks count.
        output: of the page; None: `FILE` in the last folder.

    Raises:
        DataError: a folder has no held-out tasks.
    """
    rows = rows_of([run for folder in folders for run in runs_of(folder)])
    skills = sorted({skill for row in rows for skill in row.run.tasks[row.step]})
    head = ["stage", *map(escape, skills)]
    cells = [[escape(row.name), *(_cell(row.of(skill)) for skill in skills)] for row in rows]
    changes = [[escape(skill), *change(rows, skill)] for skill in skills]
    note = "<p>pass@1 of held-out tasks with 95% intervals; changes in points, paired where the tasks are equal.</p>"
    page = Page(
        "skill ledger",
        ", ".join(dict.fromkeys(row.name for row in rows[1:])),
        [
            Section("Stages and skills", card("", note + table(head, cells))),
            Section(
                "Forgetting and recovery",
                card(
                    "",
                    f"<p>{verdict(rows, skills)}</p>"
                    + table(["skill", "best", "lost by", "end against best", "recovered"], changes),
                ),
            ),
        ],
    )
    return page.write(output or folders[-1] / FILE)


def runs_of(folder: Path) -> list[Path]:
    """Returns a run, or the runs of a pipeline that have held-out tasks, in order.

    Raises:
        DataError: there is none.
    """
    if (folder / "heldout.csv").is_file():
        return [folder]
    path = folder / PIPELINE
    if path.is_file():
        stages = json.loads(path.read_text(encoding="utf-8"))["stages"]
        inside = [folder / str(stage.get("dir") or stage["folder"]) for stage in stages]
        found = [run for run in inside if (run / "heldout.csv").is_file()]
        if found:
            return found
    raise DataError(f"{folder}: no held-out tasks: it needs heldout.csv of arcforge-rl with evaluation.tasks above 0")


def rows_of(folders: Sequence[Path]) -> list[StageRow]:
    """Returns the start of the first run, and the last evaluation of each, with its step if the run went further."""
    rows: list[StageRow] = []
    for folder in folders:
        run = read_run(folder)
        if not run.evaluated:
            raise DataError(f"{folder}: heldout.csv cannot be read: {run.problems.get('heldout.csv', 'it is empty')}")
        if not rows:
            rows.append(StageRow("start", run, run.evaluated[0]))
        measured = run.evaluated[-1]
        end = int(max(run.metrics.get("step", ()), default=measured))
        name = folder.name if measured == end else f"{folder.name} at step {measured} of {end}"
        rows.append(StageRow(name, run, measured))
    return rows


def change(rows: Sequence[StageRow], skill: str) -> list[str]:
    """Returns cells: the best stage, the stage after it that lost most, the end against the best, and the recovered
    share of the loss."""
    known = [(row, rate) for row in rows if (rate := row.of(skill)) is not None]
    best = max(range(len(known)), key=lambda place: known[place][1].value)
    worst = min(range(best, len(known)), key=lambda place: known[place][1].value)
    top, low, end = (known[place][1].value for place in (best, worst, len(known) - 1))
    lost = f"{escape(known[worst][0].name)} ({100 * (low - top):+.1f} points)" if low < top else "nothing"
    recovered = f"{(end - low) / (top - low):.0%}" if low < top else "-"
    return [escape(known[best][0].name), lost, _against(known[best][0], known[-1][0], skill), recovered]


def verdict(rows: Sequence[StageRow], skills: Sequence[str]) -> str:
    """Returns whether the end is within `CLOSE` points of the best stage on every skill, or on which it is not.

    All skills together are none: their mean has no stage of its own.
    """
    short = []
    for skill in (one for one in skills if one != ALL):
        values = [100 * rate.value for row in rows if (rate := row.of(skill)) is not None]
        if (fall := max(values) - values[-1]) > CLOSE + 1e-9:
            short.append(f"{escape(skill)} ({-fall:.1f} points)")
    if not short:
        return f"The end is within {CLOSE:g} points of the best stage on every skill."
    return f"The end is more than {CLOSE:g} points below the best stage on {', '.join(short)}."


def _against(best: StageRow, end: StageRow, skill: str) -> str:
    before, after = (row.run.tasks[row.step][skill] for row in (best, end))
    if before.size != after.size:
        return f"{100 * (float(after.mean()) - float(before.mean())):+.1f} points"
    return interval(paired(before, after), signed=True)


def _cell(rate: Rate | None) -> str:
    return missing() if rate is None else interval(rate)
