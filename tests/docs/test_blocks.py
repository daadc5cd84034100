"""What the pages tell people to type works: bash and Python blocks run in a folder with a tiny run.

Long commands are made short by overrides added to what stands on the page; what stands there is composed first.
"""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import uvicorn
from fastapi.testclient import TestClient

from arcforge_core.config.compose import compose

ROOT = Path(__file__).parents[2]
SEARCHED = ROOT / "tests/conformance/search/pages.jsonl"
CHEAP = {
    "arcforge-eval": {
        "data": "files",
        "data.paths": "[my_texts]",
        "data.heldout": "0.1",
        "sequence_length": "64",
        "micro_batch_tokens": "64",
        "max_tokens": "64",
        "functions": "1",
        "max_new_tokens": "4",
    },
    "arcforge-eval suite=long_context": {
        "data": "files",
        "data.paths": "[my_texts]",
        "data.heldout": "0.3",
        "tasks": "[single,multi_value]",
        "lengths": "[400]",
        "depths": "[0.5]",
        "samples": "1",
    },
    "arcforge-eval suite=mtp_acceptance": {
        "data": "files",
        "data.paths": "[my_texts]",
        "data.heldout": "0.1",
        "sequence_length": "32",
        "positions": "16",
    },
    "arcforge-eval suite=conversations": {"limit": "1", "max_new_tokens": "4"},
    "arcforge-swa-search": {
        "data": "files",
        "data.paths": "[my_texts]",
        "data.heldout": "0.3",
        "tasks": "[single]",
        "lengths": "[400]",
        "depths": "[0.5]",
        "samples": "1",
    },
    "arcforge-env validate": {"episodes": "1"},
    "arcforge-env list": {},
    "arcforge-env export": {},
    "arcforge-env": {"episodes": "2", "rollouts": "1", "max_new_tokens": "4"},
    "arcforge-data": {"data": "files", "data.paths": "[my_texts]", "data.heldout": "0.1", "vocab_size": "512"},
    "arcforge-sample": {"samples": "2", "limit": "1", "max_new_tokens": "4"},
    "arcforge-conversations": {"count": "3", "heldout": "1"},
    "arcforge-conversations sources=[expressions]": {"count": "60", "heldout": "1"},  # enough for a row
    "arcforge-rl": {
        "trainer.max_steps": "1",
        "rollout.groups": "1",
        "rollout.group_size": "2",
        "rollout.refills": "0",
        "rollout.drop_equal": "false",  # an untrained policy's groups are equal
        "rollout.max_new_tokens": "4",
        "evaluation.tasks": "1",
        "evaluation.samples": "1",
    },
    "arcforge-rl rescore": {},
    "arcforge-train stage=reward": {"trainer.max_steps": "1", "trainer.batch": "2"},
    "arcforge-env calibrate": {"repeats": "1"},
    "arcforge-serve": {"port": "0"},
    "arcforge suite=quantization": {"suite.methods": "[nearest,gptq]", "suite.rows": "4", "suite.max_tokens": "2048"},
    "arcforge plan": {"model": "tiny", "context": "1k", "new_tokens": "100"},
}
FORM_OF_THE_COMMAND = ("data", "data.paths")
"""What a page chooses stays: only what makes a run long is replaced."""
WHOLE_ROWS = ("trainer.sequence_length", "trainer.micro_batch_tokens")
LOOKS_ONLY = ("--help", "--cfg", "--info", "-sc", "--version", "check=true")
TRAINING = ("arcforge-train", "arcforge-pipeline")
EXEMPT = {"source .venv/bin/activate": "the tests run inside the environment"}


@pytest.fixture
def quick(monkeypatch):
    """Leaves out what takes most of a tiny run's time and no page is about; yields clients of the servers."""
    served, lives = [], ExitStack()
    monkeypatch.setattr("arcforge_core.train.run.write_report", lambda folder: folder / "report.html")
    monkeypatch.setattr("arcforge_core.train.run.matmul_rate", lambda *args: 1e11)

    def serve(self, sockets=None):
        served.append(lives.enter_context(TestClient(self.config.app)))

    monkeypatch.setattr(uvicorn.Server, "run", serve)
    with lives:
        yield served


@pytest.mark.slow(reason="a block holds several commands, and some of them train for two steps")
def test_bash_block_runs(bash_block, project, monkeypatch, cheap_run, console_script, quick):
    for line in bash_block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if not words or shlex.join(words) in EXEMPT:
            continue
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            monkeypatch.setenv(*words.pop(0).split("=", 1))
        if words[0] == "make":
            make_plans(words[1:])
        elif words[0] == "curl":
            post(quick[-1], words)
        elif words[0].startswith("arcforge"):
            arguments = short(words[0], words[1:], cheap_run)
            assert console_script(words[0], arguments) == 0, line
        else:
            in_a_shell(line)


def short(script, arguments, cheap_run):
    """Returns the arguments with what makes the command long replaced."""
    if set(arguments) & set(LOOKS_ONLY):
        return arguments
    if arguments[:1] == ["terminal"]:
        return arguments
    if arguments[:1] == ["search"]:
        few = ["--corpus", str(SEARCHED), "--count", "24"]
        return [*arguments, *few] if arguments[1] == "build" else arguments
    if arguments[:2] == ["plan", "measure=here.yaml"]:
        return [*arguments, "probes=0"]
    if script == "arcforge-conformance":
        return [*arguments, "--op", "rms_norm"]
    if arguments[:2] == ["demo", "rl"]:
        return [*arguments, *(f"{name}={value}" for name, value in CHEAP["arcforge-rl"].items())]
    suite = next((f"{script} {argument}" for argument in arguments if f"{script} {argument}" in CHEAP), script)
    replaced = dict(cheap_run if script in TRAINING and suite == script else CHEAP.get(suite, {}))
    if suite == "arcforge-train" and not ({"-m", "--multirun"} & set(arguments)):
        compose(arguments)
    if script == "arcforge-train" and any(argument.startswith("resume=") for argument in arguments):
        replaced["trainer.max_steps"] = "2"  # one step more than the run has
    given = {argument.partition("=")[0] for argument in arguments} - {"data" if "data=stdlib" in arguments else None}
    replaced = {name: value for name, value in replaced.items() if name not in given or name not in FORM_OF_THE_COMMAND}
    if "data=mixture" in arguments:  # which has no paths of its own, and holds out megabytes
        del replaced["data.paths"]
        replaced |= {"data.heldout": "0.001", "data.tokenizer.train_bytes": "500000"}
    if "data=conversations" in arguments:  # whose files the page names, and whose rows hold them whole
        replaced = {name: value for name, value in replaced.items() if name not in ("data.paths", *WHOLE_ROWS)}
        if "vocab_size" in replaced:  # few conversations have few words
            replaced["vocab_size"] = "384" if "init=mini" not in arguments else "512"
    if any(argument.startswith("generation.files=") for argument in arguments):
        replaced |= {"generation.limit": "1", "generation.max_new_tokens": "4"}
    if script == "arcforge-pipeline":
        replaced = stages(arguments, replaced)
    kept = [argument for argument in arguments if argument.partition("=")[0] not in replaced]
    return [*kept, *(f"{name}={value}" for name, value in replaced.items())]


def stages(arguments, replaced):
    """Returns what makes a documented pipeline cheap: its stages that are no training runs have few problems."""
    made = {
        "pipeline=sft_mini": ("arithmetic", "expressions", "lookup"),
        "pipeline=sft_expressions": ("expressions", "terse_expressions"),
    }
    for recipe in made.keys() & set(arguments):  # whose data are made
        whole = ("data", *WHOLE_ROWS)
        replaced = {name: value for name, value in replaced.items() if not name.startswith(whole)}
        replaced |= {"stages.conversations.count": "3", "stages.conversations.heldout": "1"}
        replaced |= {"generation.max_new_tokens": "4"}
        replaced |= {f"stages.conversations.counts.{source}": "3" for source in made[recipe]}
    if "pipeline=expert_iteration" in arguments:
        replaced = {name: value for name, value in replaced.items() if not name.startswith(("data", *WHOLE_ROWS))}
        replaced |= {"stages.rounds.repeat": "1"}
        replaced |= {f"stages.tries.{name}": value for name, value in CHEAP["arcforge-sample"].items()}
    return replaced


def make_plans(targets):
    """Make knows the targets, and the training command that it would start composes; CI runs them for real."""
    environment = {name: value for name, value in os.environ.items() if name != "ARGS"}  # of the tests' own make
    plan = subprocess.run(
        ["make", "-n", *targets], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert plan.returncode == 0, plan.stderr
    for line in plan.stdout.splitlines():
        if "arcforge-train" in line:
            compose(shlex.split(line)[1:])


def post(client, words):
    """Sends what curl would to the server that the block has started."""
    [address] = [word for word in words if word.startswith("localhost:8000/")]
    headers = dict(words[n + 1].split(": ") for n, word in enumerate(words) if word == "-H")
    body = words[words.index("-d") + 1]
    reply = client.post(address.removeprefix("localhost:8000"), content=body, headers=headers)
    assert reply.status_code == 200, reply.text


def in_a_shell(line):
    """Runs anything else as it is, with this environment's scripts on the path."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    if "-sc install=bash" in line:
        line += "; complete -p arcforge-train"  # fails unless completion has been set up
    command = ["bash", "-euo", "pipefail", "-c", line]
    result = subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_python_blocks_run(python_page, project, monkeypatch):
    """The blocks of a page run one after another, as one module."""
    file = project / "page.py"
    text = ["\n"] * max(block.line + block.text.count("\n") for block in python_page)
    for block in python_page:  # at their own line numbers, so that a traceback points into the page
        lines = block.text.splitlines(keepends=True)
        text[block.line : block.line + len(lines)] = lines
    file.write_text("".join(text))
    spec = importlib.util.spec_from_file_location("page", file)
    page = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "page", page)  # dataclasses look their module up
    spec.loader.exec_module(page)


def test_every_kind_of_block_is_known(pages):
    """A misspelt language or a fence that the search does not see would go untested."""
    for page, found in pages.items():
        assert {b.language for b in found} <= {"bash", "python", "toml", "yaml", "text", "mermaid"}, page
        assert 2 * len(found) == page.read_text(encoding="utf-8").count("```"), page
