"""SWE-bench's own grader, on exported instances and logs of pytest, gives our verdict."""

import asyncio
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from arcforge_core.contracts.sandbox import Command
from arcforge_rl.configs.environments import SweConfig
from arcforge_rl.layers.recipes import TOOLS
from arcforge_rl.sandbox.sync import shared_desk
from arcforge_rl.swe.command import main
from arcforge_rl.swe.environment import Swe, verdict
from arcforge_rl.swe.instance import FILE, Instance
from arcforge_rl.swe.languages.base import WORKDIR
from arcforge_rl.swe.languages.known import language_of
from arcforge_rl.swe.patches import diff
from arcforge_rl.swe.running import lay, opened

VERSION = "5.0.2"
PATH = "tests/test_toy.py"
TEST = """import pytest
from toy import one, two

@pytest.mark.parametrize("value", [1, 2])
def test_one(value):
    assert one(value) == value

def test_two():
    assert two() == 2
"""
BAD = "def one(value):\n    return 0\n\n\ndef two():\n    return 2\n"
GOOD = BAD.replace("return 0", "return value")
WORK = {
    "oracle": ({"toy.py": GOOD}, True),
    "nothing": ({}, False),
    "half": ({"toy.py": BAD.replace("return 0", "return 1")}, False),
    "breaks what was right": ({"toy.py": GOOD.replace("return 2", "return 3")}, False),
    "not collected": ({"toy.py": "def one(:\n"}, False),
    "leaves with success": ({"toy.py": "import os\nos._exit(0)\n"}, False),
    "deletes the code": ({"toy.py": None}, False),
}
"""Name -> files of a solver, and whether they earn the reward."""
GRADE = """
import json, sys
from types import ModuleType
for name in ("swebench", "swebench.harness"):  # their __init__ imports Docker and data sets
    module = sys.modules[name] = ModuleType(name)
    module.__path__ = [sys.argv[1] + "/" + name.replace(".", "/")]
utils = sys.modules["swebench.utils"] = ModuleType("swebench.utils")
utils.ansi_escape = lambda text: text  # of JavaScript's logs
from swebench.harness.grading import get_eval_report
from swebench.types import TestSpec
row = json.loads(open(sys.argv[2]).readline())
lists = {name: json.loads(row[name]) for name in ("FAIL_TO_PASS", "PASS_TO_PASS")}
spec = TestSpec(row["instance_id"], "", [], row["repo"], row["version"], **lists, log_parser="parse_log_pytest",
                eval_type="pass_and_fail")
for log in sys.argv[3:]:
    said = {"instance_id": row["instance_id"], "model_patch": "x", "model_name_or_path": "x"}
    print(get_eval_report(spec, said, log, False)[row["instance_id"]]["resolved"])
"""


@pytest.fixture(scope="module")
def grader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked wheel, whose dependencies grading does not need."""
    place = tmp_path_factory.mktemp("swebench")
    words = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(place), f"swebench=={VERSION}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        pytest.skip(f"swebench cannot be fetched by pip: {done.stderr.strip()[-200:]}")
    with zipfile.ZipFile(next(place.glob("*.whl"))) as wheel:
        wheel.extractall(place)
    return place


async def log_of(backend, environment, instance, files):
    """Returns the log of a plain run of pytest over a solver's files, as SWE-bench's harness makes it."""
    python = language_of("python")
    tree = environment.folder / "trees" / instance.tree
    sandbox = await opened(backend, python, tree, python.shown(()))
    try:
        await lay(sandbox, {**files, **instance.tests})
        given = {"PYTHONPATH": f"{WORKDIR}:{TOOLS}/pytest", "PYTHONDONTWRITEBYTECODE": "1"}
        words = (shared_desk().python, "-m", "pytest", "-rA", "-p", "no:cacheprovider", PATH)
        done = await sandbox.exec(Command(words, env=given, cwd=WORKDIR))
    finally:
        await sandbox.stop()
    text = (done.stdout + done.stderr).decode(errors="replace")
    return f">>>>> Start Test Output\n{text}\n>>>>> End Test Output\n"


@pytest.mark.nightly(reason="fetches swebench, and runs pytest in a dozen sandboxes")
@pytest.mark.timeout(1800)
def test_its_grader_gives_our_verdict(grader, tmp_path, capsys):
    lists = (f"{PATH}::test_one[1]", f"{PATH}::test_one[2]"), (f"{PATH}::test_two",)
    tests = {PATH: TEST}
    (tmp_path / "trees/toy-1").mkdir(parents=True)
    (tmp_path / "trees/toy-1/toy.py").write_text(BAD)
    patch = diff({"toy.py": BAD}, {"toy.py": GOOD})
    one = Instance("toy-1", "toy", "0" * 40, patch, diff({}, tests), "Repair.", *lists, tree="toy-1", tests=tests)
    (tmp_path / FILE).write_text(json.dumps(one.as_row()) + "\n")
    environment = Swe(SweConfig(path=str(tmp_path), whole=True, seconds=120))
    capsys.readouterr()
    assert main(["export", str(tmp_path)]) == 0
    (tmp_path / "rows.jsonl").write_text(capsys.readouterr().out)

    async def both(files):
        desk = shared_desk()
        log = await desk.do(lambda backend: log_of(backend, environment, one, files))
        return log, verdict(one, await environment.tested(one, files)).value == 1.0

    logs, ours = [], {}
    for name, (files, _) in WORK.items():
        log, ours[name] = asyncio.run(both(files))
        logs.append(tmp_path / f"{len(logs)}.log")
        logs[-1].write_text(log)
    words = [sys.executable, "-c", GRADE, str(grader), str(tmp_path / "rows.jsonl"), *map(str, logs)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    theirs = dict(zip(WORK, [line == "True" for line in done.stdout.split()], strict=True))
    assert theirs == ours, [path.read_text()[-1500:] for path in logs]
    assert ours == {name: wanted for name, (_, wanted) in WORK.items()}
