"""Lessons without a training run: a program that writes a run's files."""

import sys
from pathlib import Path

from arcforge_serving.server.shared.lesson import Lesson

PROGRAM = """
import sys, time
from pathlib import Path
seconds, code = sys.argv[1:3]
folder = Path(next(a for a in sys.argv if a.startswith("folder=")).removeprefix("folder="))
folder.mkdir(parents=True)
(folder / "evaluations.csv").write_text("step,domain,pass@1\\n0,math,0.4\\n0,all,0.4\\n")
(folder / "metrics.csv").write_text("step,progress,reward\\n1,0.25,0.5\\n2,0.5,0.75\\n3,0.7")  # cut off
end = time.monotonic() + float(seconds)
while time.monotonic() < end and not Path(f"{folder}.released").exists():
    time.sleep(0.01)
if int(code):
    print("hardware cpu", file=sys.stderr)
    print("error: init=demo: is damaged", file=sys.stderr)
    sys.exit(int(code))
with (folder / "evaluations.csv").open("a") as file:
    file.write("2,all,0.85\\n")
(folder / "report.html").write_text("<title>What it learned</title><h1>Report</h1>")
(folder / "checkpoints" / "step-00000002").mkdir(parents=True)
"""


def lesson(take=lambda folder: None, seconds=0.0, code=0):
    """A lesson that takes this long, or up to its release, and ends with this exit code."""
    return Lesson([str(seconds), str(code)], take, [sys.executable, "-c", PROGRAM])


def release(lesson):
    """Has a lesson end now."""
    lesson.folder.parent.mkdir(parents=True, exist_ok=True)
    Path(f"{lesson.folder}.released").touch()
