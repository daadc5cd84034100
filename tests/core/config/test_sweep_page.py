import re

import pytest

from arcforge_core.config.sweep import SweepJob
from arcforge_core.config.sweep_page import write_comparison
from arcforge_core.console.result import Result
from support.page_checks import looked_at


def test_page_has_figures_curves_and_links(jobs, tmp_path):
    pages = write_comparison(tmp_path / "sweep", jobs)
    assert pages == [tmp_path / "sweep/index.html"]
    page = pages[0].read_text()
    assert page.count("<svg") == 1 and "http://" not in page.split("<svg")[0]
    assert 'href="../a/report.html"' in page and "attention=gqa" in page
    assert "No loss curve (missing): attention=dsa" in page
    assert (tmp_path / "sweep/summary.csv").read_text().startswith("job,attention,outcome,")


def test_page_has_a_table_of_seeds_if_jobs_differ_in_theirs(jobs, tmp_path):
    (page,) = write_comparison(tmp_path / "sweep", jobs)
    assert "Over seeds" not in page.read_text()
    seeds = [SweepJob(n, {"seed": str(n)}, Result(tmp_path, {"loss": 3.0})) for n in range(2)]
    (page,) = write_comparison(tmp_path / "seeds", seeds)
    assert "<h2>Over seeds</h2>" in page.read_text()


def test_page_without_any_curve_says_so(tmp_path):
    write_comparison(tmp_path, [SweepJob(0, {}, error=ValueError("x <b>"))])
    page = (tmp_path / "index.html").read_text()
    assert "No loss curve (missing): job 0." in page and "<svg" not in page
    assert "x &lt;b&gt;" in page


def test_a_run_without_a_finite_loss_has_no_curve(tmp_path):
    (tmp_path / "metrics.csv").write_text("step,loss\n1,\n2,nan\n")
    (page,) = write_comparison(tmp_path, [SweepJob(0, {}, Result(tmp_path))])
    assert "No loss curve (missing): job 0." in page.read_text()


def test_curves_of_the_same_colour_differ_and_failed_jobs_miss_nothing(tmp_path):
    (tmp_path / "metrics.csv").write_text("step,loss\n1,6\n10,3\n")
    jobs = [SweepJob(n, {"seed": str(n)}, Result(tmp_path, {"loss": 3.0})) for n in range(7)]
    (page,) = write_comparison(tmp_path / "sweep", [*jobs, SweepJob(7, {"seed": "7"}, error=ValueError("no"))])
    text = page.read_text()
    assert "seed=6 (dashed)" in text and "seed=5 (dashed)" not in text
    assert 'class="missing"' not in text and "<td>&ndash;</td>" in text


@pytest.mark.slow(reason="opens a page twice and runs axe-core")
def test_the_page_fits_every_screen_and_is_accessible(browser, screens, jobs, tmp_path):
    (page,) = write_comparison(tmp_path / "sweep", jobs)
    looked_at(browser, page.as_uri(), screens)


def test_the_figure_of_the_sweep_is_in_view_and_its_best_job_marked(tmp_path):
    figures = [{"matmul_flops": 1.5e10, "loss": 4.0, "bits_per_byte": bits} for bits in (1.5, 1.25, 1.75)]
    jobs = [SweepJob(n, {"optimizer.lr": f"0.{n}"}, Result(tmp_path, each)) for n, each in enumerate(figures)]
    (page,) = write_comparison(tmp_path / "sweep", [*jobs, SweepJob(3, {"optimizer.lr": "9"}, error=ValueError("no"))])
    text = page.read_text()
    heads = re.findall(r"<th>([^<]*)</th>", text)
    assert heads[:4] == ["job", "optimizer.lr", "bits per byte", "loss"]
    (best,) = re.findall(r"<tr>(?:(?!</tr>).)*best</span>(?:(?!</tr>).)*</tr>", text)
    assert "0.1" in best and "1.25" in best and "optimizer.lr=0.1: bits per byte 1.25" in text
    assert '<span class="failed">failed</span>' in text and "failed: no" in text
