"""The ledger of stages and skills: rows in order, losses and recoveries, and folders without held-out tasks."""

import csv
import json
import re

import pytest

from arcforge_core.errors import DataError
from arcforge_rl.trainer.report.skills import change, rows_of, runs_of, verdict, write_skills


def run_of(folder, steps):
    """A run with 10 held-out tasks of each skill; `steps` has the number of right ones by step and skill."""
    folder.mkdir(parents=True)
    with (folder / "heldout.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "task", "domain", "right", "tries"])
        for step, skills in steps.items():
            for place, (skill, right) in enumerate(skills.items()):
                writer.writerows([step, 10 * place + n, skill, int(n < right), 1] for n in range(10))
    return folder


@pytest.fixture
def stages(tmp_path):
    return [
        run_of(tmp_path / "reasoning", {0: {"sums": 2}, 5: {"sums": 8}}),
        run_of(tmp_path / "general", {0: {"sums": 8, "chat": 1}, 5: {"sums": 3, "chat": 7}}),
        run_of(tmp_path / "distilled", {0: {"sums": 3, "chat": 7}, 5: {"sums": 7, "chat": 7}}),
    ]


def test_the_page_says_what_was_lost_and_what_came_back(stages):
    page = write_skills(stages)
    assert page == stages[-1] / "skills.html"
    text = re.sub(r"<[^>]+>", " ", page.read_text(encoding="utf-8"))
    assert "20.0% (" in text and "general (-50.0 points)" in text and "80%" in text
    rows = rows_of(stages)
    assert [row.name for row in rows] == ["start", "reasoning", "general", "distilled"]
    best, _, against, recovered = change(rows, "sums")
    assert best == "reasoning" and recovered == "80%" and against.startswith("-10.0 points (")
    assert change(rows, "chat")[1] == "nothing"
    assert "more than 2 points below the best stage on sums (-10.0 points)." in text
    assert verdict(rows, ["chat"]) == "The end is within 2 points of the best stage on every skill."


def test_an_evaluation_before_the_end_is_named_with_its_step(stages):
    for folder, end in zip(stages, (5, 7, 5), strict=True):
        (folder / "metrics.csv").write_text("step,reward\n" + "".join(f"{n},0.5\n" for n in range(1, end + 1)))
    assert [row.name for row in rows_of(stages)] == ["start", "reasoning", "general at step 5 of 7", "distilled"]


def test_a_pipeline_is_its_stages_with_held_out_tasks(stages, tmp_path):
    listed = [{"name": one.name, "folder": one.name, "dir": ""} for one in (tmp_path / "made", *stages)]
    (tmp_path / "pipeline.json").write_text(json.dumps({"stages": listed}))
    assert runs_of(tmp_path) == stages
    with pytest.raises(DataError, match=r"made: no held-out tasks"):
        runs_of(tmp_path / "made")
