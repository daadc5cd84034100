from arcforge_core.config.sweep import SweepJob, over_seeds, summary_text, table
from arcforge_core.console.result import Result


def test_table_shows_what_differs_and_says_missing(jobs):
    rows = table(jobs)
    assert list(rows[0]) == ["job", "attention", "outcome", "bits_per_byte", "status", "loss", "folder"]
    assert [row["bits_per_byte"] for row in rows] == ["2.5", "missing", "missing"]
    assert rows[2]["outcome"] == "failed: two lines" and rows[2]["folder"] == "missing"
    lines = [line.split() for line in summary_text(jobs).splitlines()]
    assert ["attention", "gqa", "mla", "dsa"] in lines and ["outcome", "ok", "ok", "failed"] in lines
    assert ["bits_per_byte", "2.5", "missing", "missing"] in lines


def test_seeds_of_equal_jobs_are_summed_up(tmp_path):
    losses = {("gqa", "0"): 3.0, ("gqa", "1"): 4.0, ("mla", "0"): 2.0}
    jobs = [
        SweepJob(n, {"attention": name, "seed": seed}, Result(tmp_path, {"loss": loss, "status": "finished"}))
        for n, ((name, seed), loss) in enumerate(losses.items())
    ]
    jobs.append(SweepJob(3, {"attention": "mla", "seed": "1"}, error=ValueError("no memory")))
    assert over_seeds(jobs) == [
        {"attention": "gqa", "seeds": "2", "loss": "3.5 (3 to 4)"},
        {"attention": "mla", "seeds": "1", "loss": "2"},
    ]


def test_sweeps_without_seeds_have_no_such_table(jobs, tmp_path):
    assert over_seeds(jobs) == []
