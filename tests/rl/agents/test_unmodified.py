"""Third-party agents, unmodified, in a sandbox that reaches the gateway alone: the ids trained are the ids sampled.

Each is installed from PyPI into an environment of its own, because their dependencies are others than ours.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from arcforge_rl.agents.chat import ChatSetup
from arcforge_rl.agents.rollouts import AgentRollouts
from arcforge_rl.configs.agents import CommandHarnessConfig
from support.agent_tasks import Conversations, check_tokens, played
from support.servers import scripted_state
from support.sessions import TOKENIZER

PROGRAMS = Path(__file__).parents[2] / "support" / "agents"
END = "<|observation|>"


def call(name: str, **arguments: str) -> str:
    given = "".join(f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>" for key, value in arguments.items())
    return f"two <tool_call>{name}{given}</tool_call>{END}"


WRITE = call("write", path="notes.txt", text="one")
AGENTS = {
    "mini-swe-agent==2.4.6": (
        "/usr/bin/env MSWEA_CONFIGURED=true MSWEA_COST_TRACKING=ignore_errors LITELLM_LOCAL_MODEL_COST_MAP=True "
        "{bin}/mini -m openai/{{model}} -t {{prompt}} -y --exit-immediately -l 0 -o run.json",
        (call("bash", command="printf one > notes.txt"),
         call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")),
    ),
    "openai-agents==0.24.0": ("{bin}/python {programs}/with_openai_agents.py {{model}} {{prompt_file}}",
                              (WRITE, "three<|user|>")),
    "anthropic==2.14.0": ("{bin}/python {programs}/with_anthropic.py {{model}} {{prompt_file}}",
                          (WRITE, "three<|user|>")),
}  # fmt: skip
"""Package -> its command line (docs/agentic_reference.md), and what the model says."""


def environment_of(package: str, cache: Path) -> Path:
    """Returns the environment of a package, made at its first use."""
    folder = cache / package.partition("==")[0]
    if not (folder / "bin" / "pip").exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([folder / "bin" / "pip", "install", "-q", package], check=True)
    return folder


@pytest.mark.nightly(reason="installs the agent from PyPI")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("package", AGENTS)
def test_its_tokens_are_trained_as_they_were_sampled(served: Any, tmp_path: Path, package: str) -> None:
    line, replies = AGENTS[package]
    folder = environment_of(package, tmp_path)

    def script(text: str) -> str:
        return replies[min(text.count("<tool_response>"), len(replies) - 1)]

    socket = str(tmp_path / "gateway")
    address = served(scripted_state(TOKENIZER, script), socket)
    readable = [str(path) for path in (folder, sys.base_prefix, PROGRAMS) if not str(path).startswith("/usr")]
    config = CommandHarnessConfig(
        command=line.format(bin=shlex.quote(str(folder / "bin")), programs=PROGRAMS),
        gateway_socket=socket,
        read_only=readable,
        files=["notes.txt"],
        seconds=120,
    )
    group = played(AgentRollouts(config, address), Conversations(), [0], 2, ChatSetup(max_new_tokens=200))[0]
    assert [one.outcome.failure for one in group] == [None, None], group[0].outcome.failure
    check_tokens(group, served)
    for one, record in zip(group, served.records, strict=True):
        assert one.episode.artefacts == {"files": {"notes.txt": "one"}}
        assert [turn.drift for turn in record.turns] == ["new", "clean"] and len(one.branches) == 1
        assert one.trace.num_sampled == sum(len(TOKENIZER.encode(reply, allow_special=True)) for reply in replies)
