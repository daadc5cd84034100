"""Two agents of npm, unmodified: one run of each through the gateway, and the ids trained are the ids sampled.

Their prompts are longer than a small model's context, so the engine computes nothing.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from arcforge_rl.agents.chat import ChatSetup
from arcforge_rl.agents.rollouts import AgentRollouts
from arcforge_rl.configs.agents import CommandHarnessConfig
from arcforge_serving.server.serve import state_of
from support.agent_tasks import Conversations, check_tokens, played
from support.sessions import TOKENIZER
from support.stub_engine import StubEngine

AGENTS = {
    "@openai/codex@0.169": (
        "responses",
        "/usr/bin/env HOME={{workdir}} {bin}/codex exec --skip-git-repo-check "
        "--dangerously-bypass-approvals-and-sandbox -m {{model}} -c model_provider=gateway "
        "-c model_providers.gateway.name=gateway -c model_providers.gateway.base_url={{base_url}} "
        "-c model_providers.gateway.env_key=OPENAI_API_KEY -c model_providers.gateway.wire_api=responses {{prompt}}",
    ),
    "@anthropic-ai/claude-code@2.1": (
        "messages",
        "/usr/bin/env HOME={{workdir}} IS_SANDBOX=1 {bin}/claude -p {{prompt}} --model {{model}} "
        "--dangerously-skip-permissions",
    ),
}
"""Package -> its dialect, and its command line (docs/agentic_reference.md)."""


def installed(package: str, prefix: Path) -> Path:
    """Returns the folder of the programs of a package."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    command = [npm, "install", "--no-fund", "--no-audit", "--prefix", str(prefix), package]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode:
        pytest.skip(f"{package} cannot be fetched by npm: {done.stderr.strip()[-300:]}")
    return prefix / "node_modules" / ".bin"


@pytest.mark.nightly(reason="installs the agent from npm")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("package", AGENTS)
def test_its_tokens_are_trained_as_they_were_sampled(served: Any, tmp_path: Path, package: str) -> None:
    dialect, line = AGENTS[package]
    folder = installed(package, tmp_path / "prefix")
    engine: Any = StubEngine(TOKENIZER.encode("three<|user|>", allow_special=True), 0.0)
    address = served(state_of(engine, TOKENIZER, "small"))
    config = CommandHarnessConfig(command=line.format(bin=folder), place="host", seconds=600)
    ((one,),) = played(AgentRollouts(config, address), Conversations(), [0], 1, ChatSetup(max_new_tokens=200))
    assert one.outcome.failure is None, one.outcome.failure
    (record,) = served.records
    assert {turn.dialect for turn in record.turns} == {dialect} and one.trace.num_sampled
    assert all(turn.finish_reason == "stop" and turn.prompt_tokens > 1000 for turn in record.turns)
    check_tokens([one], served)
