from dataclasses import dataclass
from pathlib import Path

import pytest

from arcforge_core.config.sweep import Job, loss_curve, over_seeds, summary_text, table, write_comparison


@dataclass
class Result:
    dir: Path
    metrics: dict[str, float | str]


@pytest.fixture
def jobs(tmp_path):
    for name, loss in (("a", 3.5), ("b", 3.25)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.csv").write_text(f"step,loss\n1,6\n10,{loss}\n")
    (tmp_path / "a" / "report.html").touch()
    return [
        Job(0, {"attention": "gqa", "seed": "1"}, Result(tmp_path / "a", {"bits_per_byte": 2.5, "status": "finished"})),
        Job(1, {"attention": "mla", "seed": "1"}, Result(tmp_path / "b", {"loss": 3.25})),
        Job(2, {"attention": "dsa", "seed": "1"}, error=ValueError("two\nlines")),
    ]


def test_table_shows_what_differs_and_says_missing(jobs):
    rows = table(jobs)
    assert list(rows[0]) == ["job", "attention", "outcome", "bits_per_byte", "status", "loss", "folder"]
    assert [row["bits_per_byte"] for row in rows] == ["2.5", "missing", "missing"]
    assert rows[2]["outcome"] == "failed: two lines" and rows[2]["folder"] == "missing"
    lines = [line.split() for line in summary_text(jobs).splitlines()]
    assert ["attention", "gqa", "mla", "dsa"] in lines and ["outcome", "ok", "ok", "failed"] in lines
    assert ["bits_per_byte", "2.5", "missing", "missing"] in lines


def test_page_has_figures_curves_and_links(jobs, tmp_path):
    write_comparison(tmp_path / "sweep", jobs)
    page = (tmp_path / "sweep/index.html").read_text()
    assert page.count("<svg") == 1 and "http://" not in page.split("<svg")[0]
    assert 'href="../a/report.html"' in page and "attention=gqa" in page
    assert "No loss curve (missing): attention=dsa" in page
    assert (tmp_path / "sweep/summary.csv").read_text().startswith("job,attention,outcome,")


def test_seeds_of_equal_jobs_are_summed_up(tmp_path):
    losses = {("gqa", "0"): 3.0, ("gqa", "1"): 4.0, ("mla", "0"): 2.0}
    jobs = [
        Job(n, {"attention": name, "seed": seed}, Result(tmp_path, {"loss": loss, "status": "finished"}))
        for n, ((name, seed), loss) in enumerate(losses.items())
    ]
    jobs.append(Job(3, {"attention": "mla", "seed": "1"}, error=ValueError("no memory")))
    assert over_seeds(jobs) == [
        {"attention": "gqa", "seeds": "2", "loss": "3.5 (3 to 4)"},
        {"attention": "mla", "seeds": "1", "loss": "2 (2 to 2)"},
    ]
    write_comparison(tmp_path, jobs)
    assert "<h2>Over seeds</h2>" in (tmp_path / "index.html").read_text()


def test_sweeps_without_seeds_have_no_such_table(jobs, tmp_path):
    assert over_seeds(jobs) == []
    write_comparison(tmp_path / "sweep", jobs)
    assert "Over seeds" not in (tmp_path / "sweep/index.html").read_text()


def test_page_without_any_curve_says_so(tmp_path):
    write_comparison(tmp_path, [Job(0, {}, error=ValueError("x <b>"))])
    page = (tmp_path / "index.html").read_text()
    assert "No loss curve (missing): job 0." in page and "<svg" not in page
    assert "x &lt;b&gt;" in page


def test_loss_curve_skips_rows_without_a_loss(tmp_path):
    (tmp_path / "metrics.csv").write_text("step,loss,lr\n1,5.5,0.1\n2,,0.2\n3,4.5,0.3\n")
    assert loss_curve(tmp_path) == ([1.0, 3.0], [5.5, 4.5])
    assert loss_curve(tmp_path / "absent") == ([], [])
