"""The page of a pipeline: figures of its stages, links, one curve through all of them."""

import re

import pytest

from arcforge_core.pipeline.page import loss_curves, write_page
from arcforge_core.pipeline.state import PipelineState


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "run"
    for name, losses in (("1-base", (4.0, 3.0)), ("2-extend", (3.5,))):
        (folder / name).mkdir(parents=True)
        lines = [f"{n},{loss},{n * 100}" for n, loss in enumerate(losses, 1)]
        (folder / name / "metrics.csv").write_text("\n".join(["step,loss,tokens", *lines]))
    (folder / "1-base" / "report.html").write_text("a report")
    return folder


@pytest.fixture
def state(plan):
    state = PipelineState.planned("small", plan("schedule.final=0.25"), {})
    state.stages[0].status = "finished"
    state.stages[0].figures = {
        "tokens": 200, "loss": 3.0, "bits_per_byte": 2.125, "tokens_per_s": 1234.5, "seconds": 75.0
    }  # fmt: skip
    state.stages[1].status = "failed: <loss> is nan"
    return state


def cells(page):
    rows = re.findall(r"<tr>(<td>.*?)</tr>", page)
    return [[re.sub(r"<.*?>", "", cell) for cell in re.findall(r"<td>(.*?)</td>", row)] for row in rows]


def test_a_line_per_stage(folder, state):
    page = write_page(folder, state).read_text()
    base, extend, last = cells(page)
    assert base[:7] == ["base", "finished", "reference", "32", "48", "10,000", "0.001 → 0.00025"]
    assert base[7:] == ["200", "3.000", "2.125", "1,234", "1 min 15 s"]
    assert extend[:7] == ["extend", "failed: &lt;loss&gt; is nan", "reference", "64", "64", "1,000,000", base[6]]
    assert set(extend[7:12]) == set(last[7:12]) == {"missing"} and last[1] == "planned"
    assert "--page: light-dark(" in page, "the look of reports"
    assert '<a href="1-base/report.html">base</a>' in page and "2-extend/report.html" not in page
    assert "failed: &lt;loss&gt; is nan</span></h1>" in page


def test_the_plot_names_the_stages_that_have_begun(folder, state):
    page = write_page(folder, state).read_text()
    svg = page[page.index("<svg") : page.index("</svg>")]
    assert "base" in svg and "extend" in svg and "last" not in svg and "training tokens" in svg


def test_curves_go_on_where_the_one_before_ended(folder):
    base, extend, absent = loss_curves([folder / name for name in ("1-base", "2-extend", "3-last")])
    assert base[0].tolist() == [100, 200] and base[1].tolist() == [4.0, 3.0]
    assert extend[0].tolist() == [300] and extend[1].tolist() == [3.5]
    assert absent[0].size == 0


def test_damaged_metrics_are_missing(folder, state):
    for name in ("1-base", "2-extend"):
        (folder / name / "metrics.csv").write_text("step,loss\n1,\n")
    assert all(curve[0].size == 0 for curve in loss_curves([folder / "1-base", folder / "2-extend"]))
    page = write_page(folder, state).read_text()
    assert "<svg" not in page and "missing: metrics.csv" in page
