"""scripts/bench_compare: rounds and their verdict, and whole comparisons of trees of which one is slower."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "bench_compare"
sys.path.insert(0, str(SCRIPT.parent))

from compare import jobs, trees, turns  # noqa: E402


def rounds_of(first, second, **options):
    """Returns rounds of two sides with these seconds, and the order of the calls."""
    order, sides = [], {"a": iter(first), "b": iter(second)}

    def side(name):
        def call():
            order.append(name)
            return next(sides[name])

        return call

    return turns.alternate(side("a"), side("b"), **{"least": 3, "most": 9, "limit": 1.03, **options}), "".join(order)


def test_sides_alternate_and_the_median_decides():
    found, order = rounds_of([1.0, 1.0, 1.0], [1.05, 1.04, 1.06])
    assert order == "abbaab" and found.factors == [1.05, 1.04, 1.06]
    assert found.lost and found.clear and "1.050 (1.040 to 1.060, 3 rounds)  LOST" in str(found)
    found, _ = rounds_of([1.0, 1.0, 1.0], [1.02, 0.5, 1.02])
    assert not found.lost and str(found).endswith("kept")


def test_rounds_that_disagree_bring_more_of_them():
    found, _ = rounds_of([1.0] * 9, [1.0, 1.1, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    assert len(found.factors) == 4 and found.clear and not found.lost, "three of four agree"
    found, _ = rounds_of([1.0] * 9, [1.0, 1.1] * 5)
    assert len(found.factors) == 9 and "unclear: rounds disagree" in str(found)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A commit as here, and a working tree whose clipping of gradients takes long, with a benchmark of its own."""
    folder = tmp_path_factory.mktemp("repository")
    for part in ("packages", "conf", "benchmarks"):
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "dist")
        shutil.copytree(ROOT / part, folder / part, ignore=ignored)
    (folder / "tests").mkdir()
    (folder / "tests" / "empty.py").write_text("")
    shutil.copy(ROOT / "pyproject.toml", folder)
    benchmark = folder / "benchmarks" / "optimizer.py"
    report = '{"ratios": {"up_proj_vs_torch_muon": 8.0, "over_floor": 2.0, "other": 1.0}}'
    benchmark.write_text(f"import sys\nopen(sys.argv[sys.argv.index('--json') + 1], 'w').write('''{report}''')")
    identity = ["-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "base"], ["tag", "base"]):
        subprocess.run(["git", "-C", str(folder), *identity, *command], check=True, capture_output=True)
    benchmark.write_text(benchmark.read_text().replace("8.0", "7.0").replace("2.0", "1.0"))
    step = folder / "packages/core/src/arcforge_core/train/step.py"
    slow = "def clip_gradients(*args, **kwargs):\n    sum(range(20_000_000))\n    return _clip(*args, **kwargs)\n"
    step.write_text(f"{step.read_text().replace('def clip_gradients(', 'def _clip(')}\n\n{slow}")
    return folder


def run(repository, *arguments):
    command = [sys.executable, str(SCRIPT), *arguments, "--threads", "1"]
    return subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=250)


@pytest.mark.nightly(reason="builds models in eight processes")
def test_a_slower_tree_fails_and_an_equal_one_passes(repository):
    """Of the processor's seconds, and with a wide limit: other programs share this machine."""
    options = ("--cases", "train", "--clock", "processor", "--rounds", "3", "--loss", "0.5", "model=tiny")
    done = run(repository, "base", ".", *options)
    assert done.returncode == 1 and "lost 50% or more: train" in done.stdout and "differ" not in done.stdout
    done = run(repository, "base", "base", *options)
    assert done.returncode == 0 and "nothing lost 50%" in done.stdout
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("train"))
    assert re.search(r"\d\.\d{3} \(.* rounds\)  kept", line)


@pytest.mark.nightly(reason="copies the packages and unpacks them twice")
def test_ratios_of_a_benchmark_know_which_way_is_better(repository):
    done = run(repository, "base", ".", "--benchmark", "optimizer", "--rounds", "1")
    assert done.returncode == 1 and "lost 3% or more: up_proj_vs_torch_muon\n" in done.stdout
    assert re.search(r"over_floor +0\.500 .*kept", done.stdout), "half as far over the floor is better"
    assert "other" not in done.stdout, "it says nothing about speed"


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A repository with a file in each part."""
    folder = tmp_path_factory.mktemp("small")
    for part in ("packages/a.txt", "conf/a.txt", "benchmarks/a.txt", "tests/a.txt", "pyproject.toml"):
        (folder / part).parent.mkdir(exist_ok=True)
        (folder / part).write_text("")
    identity = ["-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "base"], ["tag", "base"]):
        subprocess.run(["git", "-C", str(folder), *identity, *command], check=True, capture_output=True)
    return folder


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["base", "nonesuch"], "nonesuch is no commit of"),
        (["base", ".", "--cases", "trian"], "--cases trian is unknown; the cases are train, train_bf16"),
        (["base", ".", "--loss", "3"], "--loss between 0 and 1"),
        (["base", "base", "--benchmark", "chaos"], "chaos is none of train_vs_transformers"),
    ],
)
def test_wrong_arguments_are_named(small, arguments, said):
    done = run(small, *arguments)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr


@pytest.mark.nightly(reason="composes a configuration in a fresh process")
def test_what_a_failing_case_said_is_shown():
    tree = trees.Tree("here", ROOT, sys.executable)
    with pytest.raises(trees.UserError, match=r"(?s)here: train does not run:.*did you mean 'tiny'"):
        jobs.Worker(tree, "train", 1, ["model=tinny"])
