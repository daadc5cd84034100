"""scripts/loss_compare: what it says of two runs, and whole comparisons in a repository of its own."""

import importlib.machinery
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from arcforge_core.testing.corpora import fixed_texts

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "loss_compare"


def load():
    loader = importlib.machinery.SourceFileLoader("loss_compare", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("loss_compare", loader))
    loader.exec_module(module)
    return module


loss_compare = load()


def rows(*losses, **more):
    return [{"step": float(n), "loss": loss, "grad_norm": 1.0, **more} for n, loss in enumerate(losses, 1)]


def test_equal_rows_are_bit_identical():
    verdict = loss_compare.compare(rows(3.0, float("nan")), rows(3.0, float("nan")))
    assert verdict == (True, ["bit-identical over 2 steps: loss, grad_norm"])


def test_the_first_step_that_differs_is_named_with_its_values():
    identical, lines = loss_compare.compare(rows(3.0, 2.0, 1.0), rows(3.0, 2.0 + 2**-51, 1.25))
    assert not identical
    assert lines == [
        "first difference in step 2:",
        "  loss: 2.0 and 2.0000000000000004, relative 2.2e-16",
        "largest relative difference of all steps: 2.0e-01",
    ]


def test_a_loss_that_one_of_them_lacks_is_a_difference():
    identical, (line,) = loss_compare.compare(rows(3.0), rows(3.0, mtp_loss_1=4.0))
    assert not identical and line.endswith("lacks: mtp_loss_1")


def test_rows_are_read_without_times_and_without_the_last_unfinished_one(tmp_path):
    path = tmp_path / "metrics.csv"
    assert loss_compare.read_rows(path) == []
    path.write_bytes(b"step,loss,seconds,mfu\r\n1,0.1,9,9\r\n2,0.30000000000000004,9,9\r\n3,0.2")
    assert loss_compare.read_rows(path) == [{"step": 1.0, "loss": 0.1}, {"step": 2.0, "loss": 0.30000000000000004}]


def git(repository, *arguments):
    identity = ["-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(repository), *identity, *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """Three commits: as here, another text, another initialisation; the working tree has a third one."""
    folder = tmp_path_factory.mktemp("repository")
    for part in ("packages", "conf"):
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "dist")
        shutil.copytree(ROOT / part, folder / part, ignore=ignored)
    init = folder / "packages/core/src/arcforge_core/model/init.py"
    std = "std = config.initializer_range"
    git(folder, "init", "-q", "-b", "main")
    for tag, change in (("base", ("", "")), ("words", ("Weight init", "Init")), ("wider", (std, f"{std} * 1.01"))):
        init.write_text(init.read_text().replace(*change, 1))
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "--allow-empty", "-m", tag)
        git(folder, "tag", tag)
    init.write_text(init.read_text().replace("1.01", "1.02"))
    return folder


def run(repository, *arguments):
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=250)


def overrides(tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / "loss_compare"
    texts = fixed_texts(folder / "texts")
    return (
        "model=tiny", "data=files", f"data.paths=[{texts}]", f"data.cache_dir={folder / 'cache'}",
        "data.tokenizer.vocab_size=400", "trainer.sequence_length=32", "trainer.micro_batch_tokens=64",
        "trainer.precision=fp32", "trainer.threads=1",
    )  # fmt: skip


@pytest.mark.slow(reason="two training runs in fresh processes")
@pytest.mark.parametrize(
    ("commits", "code", "words"),
    [
        (("base", "words"), 0, "bit-identical over 2 steps: "),
        (("wider", "."), 1, "first difference in step 1:"),
    ],
)
def test_two_commits(repository, tmp_path_factory, commits, code, words):
    done = run(repository, *commits, "--steps", "2", *overrides(tmp_path_factory))
    assert (done.returncode, done.stderr) == (code, "")
    assert words in done.stdout
    assert not list(repository.glob("outputs")), "the working tree was written to"


def test_an_unknown_commit_is_named(repository):
    done = run(repository, "base", "nonesuch")
    assert done.returncode == 2
    assert "nonesuch is no commit of" in done.stderr and not done.stdout


@pytest.mark.slow(reason="composes a configuration in a fresh process")
def test_what_a_failing_run_said_is_shown(repository):
    done = run(repository, "base", ".", "model=tinny")
    assert done.returncode == 2
    assert "0 of 10 steps" in done.stderr and "did you mean 'tiny'?" in done.stderr


def test_packages_from_elsewhere_are_refused(tmp_path):
    """A tree whose package imports another file than its own."""
    package = tmp_path / "packages" / "x" / "src" / "arcforge_x"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import json; __file__ = json.__file__")
    with pytest.raises(loss_compare.UserError, match=r"arcforge_x is imported from .*json"):
        loss_compare.environment(tmp_path, sys.executable)
