"""scripts/loss_compare: what it says of two runs, and whole comparisons in a repository of its own."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from arcforge_core.plugins.loader import registry
from support.corpora import fixed_texts

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "loss_compare"
sys.path.insert(0, str(SCRIPT.parent))

from compare import losses, requests, rl, server, streams, trees, values  # noqa: E402


def rows(*losses, **more):
    return [{"step": float(n), "loss": loss, "grad_norm": 1.0, **more} for n, loss in enumerate(losses, 1)]


def test_equal_rows_are_bit_identical():
    verdict = values.compare(rows(3.0, float("nan")), rows(3.0, float("nan")))
    assert verdict == (True, ["bit-identical over 2 steps: loss, grad_norm"])


def test_the_first_step_that_differs_is_named_with_its_values():
    identical, lines = values.compare(rows(3.0, 2.0, 1.0), rows(3.0, 2.0 + 2**-51, 1.25))
    assert not identical
    assert lines == [
        "first difference in step 2:",
        "  loss: 2.0 and 2.0000000000000004, relative 2.2e-16",
        "largest relative difference of all steps: 2.0e-01",
    ]


def test_a_loss_that_one_of_them_lacks_is_a_difference():
    identical, (line,) = values.compare(rows(3.0), rows(3.0, mtp_loss_1=4.0))
    assert not identical and line.endswith("lacks: mtp_loss_1")


def test_rows_are_read_without_times_and_without_the_last_unfinished_one(tmp_path):
    path = tmp_path / "metrics.csv"
    assert values.read_rows(path) == []
    path.write_bytes(b"step,loss,seconds,mfu\r\n1,0.1,9,9\r\n2,0.30000000000000004,9,9\r\n3,0.2")
    assert values.read_rows(path) == [{"step": 1.0, "loss": 0.1}, {"step": 2.0, "loss": 0.30000000000000004}]


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        ({"x": [1, {"y": 0.1}]}, {"x": [1, {"y": 0.1 + 2**-56}]}, ".x[1].y: 0.1 and 0.10000000000000002"),
        ([0.0], [-0.0], "[0]: 0.0 and -0.0"),
        ({"x": 1, "z": 2}, {"x": 1}, ".z is only in the first"),
        ({"x": 1}, {"x": 1, "z": 2}, ".z is only in the second"),
        ({"x": 1, "z": 2}, {"x": 3}, ".x: 1 and 3"),
        ([1, 2], [1], " has 2 and 1 entries"),
        (["a"], ["b"], '[0]: "a" and "b"'),
        ([None], [0], "[0]: null and 0"),
        ({"x": [float("nan"), 1, "a", None]}, {"x": [float("nan"), 1.0, "a", None]}, None),
    ],
)
def test_the_first_place_that_differs_is_named(a, b, said):
    assert values.difference(a, b) == said


def test_values_are_counted():
    assert values.count({"a": [1, "b", {}], "c": None}) == 3


def test_cells_are_numbers_or_texts_without_times(tmp_path):
    (tmp_path / "metrics.csv").write_text("step,reward,seconds,seconds_train,domain\n1,0.5,9,9,math\n2,,9,9,math\n")
    assert values.read_cells(tmp_path / "metrics.csv") == [
        {"step": 1.0, "reward": 0.5, "domain": "math"},
        {"step": 2.0, "reward": "", "domain": "math"},
    ]


def test_each_tensor_has_a_hash_of_its_own_bits(tmp_path):
    def hashes(name, **tensors):
        (tmp_path / name).mkdir()
        save_file(tensors, tmp_path / name / "model.safetensors", {"format": name})
        return values.weights(tmp_path / name)

    first = hashes("a", u=torch.ones(2, 3), v=torch.zeros(4))
    assert first == hashes("b", u=torch.ones(2, 3), v=torch.zeros(4)), "metadata is no weight"
    changed = hashes("c", u=torch.ones(2, 3), v=torch.tensor([0.0, 0.0, 0.0, -0.0]))
    assert (first["u"], first["v"] == changed["v"]) == (changed["u"], False)
    assert hashes("d", u=torch.ones(3, 2), v=torch.zeros(4))["u"] != first["u"]


def test_the_cases_are_the_golden_ones_and_every_algorithm():
    golden = json.loads((ROOT / "tests" / "golden" / "losses.json").read_text())["losses"]
    assert set(losses.CASES) == set(golden)
    assert set(registry().names("algorithm")) <= set(rl.CASES)


def chunk(finish_reason=None, index=0, **delta):
    return {"choices": [{"index": index, "delta": delta, "finish_reason": finish_reason}], "model": "tiny"}


def test_where_a_stream_is_cut_does_not_matter():
    def call(arguments, **first):
        return {"tool_calls": [{"index": 0, "function": {**first, "arguments": arguments}}]}

    fine = [
        chunk(role="assistant", content="a"), chunk(index=1, content="x"), chunk(content="b"),
        chunk(**call("{", name="f")), chunk(**call("}")), chunk("stop"), {"choices": [], "usage": {"total_tokens": 3}},
    ]  # fmt: skip
    coarse = [
        chunk(role="assistant", content="ab"), chunk(**call("{}", name="f"), finish_reason="stop"),
        chunk(index=1, content="x"), {"choices": [], "usage": {"total_tokens": 3}},
    ]  # fmt: skip
    (whole,) = streams.joined(fine)
    assert values.difference([whole], streams.joined(coarse)) is None
    assert whole["choices"][0]["delta"]["content"] == "ab"
    assert values.difference([whole], streams.joined([*coarse[:2], chunk(index=1, content="y")]))

    def typed(*pieces):
        deltas = [{"type": "content_block_delta", "index": 0, "delta": {"text": piece}} for piece in pieces]
        return [{"type": "content_block_start"}, *deltas, {"type": "content_block_stop"}]

    assert streams.joined(typed("a", "bc")) == streams.joined(typed("ab", "c")) == typed("abc")


def test_replies_are_compared_without_ids():
    text = 'event: x\ndata: {"id": "1", "text": "a", "item": {"call_id": "2", "name": "f"}}\n\ndata: [DONE]\n'
    assert server.comparable(streams.events(text)) == [{"text": "a", "item": {"name": "f"}}]


def test_there_are_two_hundred_requests_of_every_endpoint():
    asked = [request for kind in requests.KINDS.values() for request in kind]
    assert len(asked) == 200
    paths = {path for path, _ in asked}
    assert paths == {"/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses"}
    for path in paths:
        bodies = [body for of, body in asked if of == path]
        assert {body["stream"] for body in bodies} == {True, False}
        assert 0 in {body["temperature"] for body in bodies} and len({body["temperature"] for body in bodies}) > 2


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


@pytest.mark.nightly(reason="two training runs in fresh processes")
@pytest.mark.parametrize(
    ("commits", "code", "words"),
    [(("base", "words"), 0, "bit-identical over 2 steps: "), (("wider", "."), 1, "first difference in step 1:")],
)
def test_two_commits(repository, tmp_path_factory, commits, code, words):
    done = run(repository, *commits, "--steps", "2", *overrides(tmp_path_factory))
    assert (done.returncode, done.stderr) == (code, "")
    assert words in done.stdout
    assert not list(repository.glob("outputs")), "the working tree was written to"


@pytest.mark.nightly(reason="training runs in fresh processes")
def test_cases_that_differ_are_named(repository):
    case = ("--what", "losses", "--steps", "1", "--cases")
    done = run(repository, "base", ".", *case, "attention=m*")
    assert done.returncode == 1 and "attention=mla " in done.stdout and "[0].loss: " in done.stdout
    done = run(repository, "base", "base", *case, "attention=m*", "model=tinny")
    assert done.returncode == 2 and "failed: " in done.stdout and "did you mean 'tiny'?" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("--what", "los"), "los is unknown"), (("--what", "rl", "--cases", "x*"), "x* names no case of rl")],
)
def test_unknown_parts_and_cases_are_refused(repository, arguments, said):
    done = run(repository, "base", ".", *arguments)
    assert done.returncode == 2 and said in done.stderr


def test_scripts_are_found_in_the_tree(tmp_path):
    (tmp_path / "packages" / "x").mkdir(parents=True)
    (tmp_path / "packages" / "x" / "pyproject.toml").write_text('[project]\nscripts = {run-x = "x.cli:main"}\n')
    tree = trees.Tree("here", tmp_path, sys.executable)
    assert "from x.cli import main" in tree.command("run-x", "a=1")[2]
    with pytest.raises(trees.UserError, match=r"here has no script run-y; it has run-x"):
        tree.command("run-y")


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
    with pytest.raises(trees.UserError, match=r"arcforge_x is imported from .*json"):
        trees.environment(tmp_path, sys.executable)
