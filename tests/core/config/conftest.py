import pytest

from arcforge_core.config.sweep import SweepJob
from arcforge_core.console.result import Result


@pytest.fixture
def jobs(tmp_path):
    for name, loss in (("a", 3.5), ("b", 3.25)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.csv").write_text(f"step,loss\n1,6\n10,{loss}\n")
    (tmp_path / "a" / "report.html").touch()
    return [
        SweepJob(
            0, {"attention": "gqa", "seed": "1"}, Result(tmp_path / "a", {"bits_per_byte": 2.5, "status": "finished"})
        ),
        SweepJob(1, {"attention": "mla", "seed": "1"}, Result(tmp_path / "b", {"loss": 3.25})),
        SweepJob(2, {"attention": "dsa", "seed": "1"}, error=ValueError("two\nlines")),
    ]
