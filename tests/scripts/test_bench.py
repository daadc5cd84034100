"""scripts/bench: runs benchmarks, keeps their results by processor and commit, and names those that fail."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAST = """
import argparse, json
parser = argparse.ArgumentParser()
for name in ("--quick",):
    parser.add_argument(name, action="store_true")
for name in ("--threads", "--cores", "--json"):
    parser.add_argument(name)
options = parser.parse_args()
assert options.quick
open(options.json, "w").write(json.dumps({"machine": {}, "ratios": {"up_proj_vs_torch_muon": 9.0}}))
"""


@pytest.fixture
def tree(tmp_path):
    """The script with benchmarks of its own: one that is done, one that fails, one that never ends."""
    for folder in ("scripts", "benchmarks"):
        (tmp_path / folder).mkdir()
    shutil.copy(ROOT / "scripts" / "bench", tmp_path / "scripts")
    for path in (ROOT / "benchmarks").glob("_*.py"):
        shutil.copy(path, tmp_path / "benchmarks")
    (tmp_path / "benchmarks" / "optimizer.py").write_text(FAST)
    (tmp_path / "benchmarks" / "sandbox.py").write_text("print('one'); raise SystemExit('no bwrap <here>')")
    endless = "import os, subprocess, time\nprint(subprocess.Popen(['sleep', '60']).pid, flush=True)\ntime.sleep(60)"
    (tmp_path / "benchmarks" / "startup.py").write_text(endless)
    return tmp_path


def bench(tree, *arguments):
    command = [sys.executable, str(tree / "scripts" / "bench"), "--threads", "1", *arguments]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)


@pytest.mark.slow(reason="starts torch five times")
def test_results_are_kept_by_processor_and_a_failure_stops_nothing(tree):
    done = bench(tree, "sandbox", "optimizer", "startup", "--limit", "0.1")
    assert done.returncode == 1
    assert "sandbox: ended with status 1: no bwrap <here>" in done.stderr
    assert "startup: stopped after 0.1 minutes" in done.stderr and "optimizer" not in done.stderr
    (folder,) = (path.parent for path in (tree / "outputs" / "bench").rglob("run.json"))
    about = json.loads((folder / "run.json").read_text())
    assert about["ended"]["optimizer"] == "" and about["quick"] and about["processor"].endswith("1 thread")
    left = int((folder / "startup.txt").read_text().split()[0])
    for _ in range(50):
        if not os.path.exists(f"/proc/{left}") or "Z" in Path(f"/proc/{left}/stat").read_text().rpartition(")")[2][:3]:
            break
        time.sleep(0.1)
    else:
        pytest.fail("the program that a stopped benchmark had started still runs")
    page = (tree / "outputs" / "bench" / "index.html").read_text()
    assert "up_proj_vs_torch_muon" in page and "no bwrap &lt;here&gt;" in page and "1 of 1 targets met" in page
    assert bench(tree, "optimizer").returncode == 0
    assert len(list((tree / "outputs" / "bench").rglob("run.json"))) == 2, "a run is added, none replaced"
    (tree / "outputs" / "bench" / "index.html").unlink()
    assert bench(tree, "--page", "outputs/bench").returncode == 0
    assert "History" in (tree / "outputs" / "bench" / "index.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["attenton"], "attenton is none of the benchmarks: train_vs_transformers"),
        (["--page", "nowhere"], "--page nowhere: no such folder"),
        (["--page"], "no results in"),
    ],
)
def test_wrong_options_are_named_and_nothing_runs(tree, arguments, said):
    done = bench(tree, *arguments)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
    assert not (tree / "outputs").exists()
