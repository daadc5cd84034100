from arcforge_core.config.sweep import SweepJob
from arcforge_core.config.sweep_page import write_comparison
from arcforge_core.console.result import Result


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
