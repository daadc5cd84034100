"""``harness=mini_swe``: a shell and an editor in a sandbox."""

from __future__ import annotations

from typing import Any

import pytest

from arcforge_core.errors import ConfigError
from arcforge_rl.agents.rollouts import AgentRollouts
from arcforge_rl.configs.agents import MiniSweHarnessConfig
from support.agent_tasks import Conversations, check_tokens, played
from support.servers import scripted_state
from support.sessions import TOKENIZER


def call(name: str, **arguments: str) -> str:
    given = "".join(f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>" for key, value in arguments.items())
    return f"<tool_call>{name}{given}</tool_call><|observation|>"


REPLIES = (
    call("edit", path="notes.txt", old="", new="one two"),
    call("edit", path="notes.txt", old="two", new="three"),
    call("bash", command="cat notes.txt; exit 3"),
    call("edit", path="notes.txt", old="absent", new="x"),
    call("edit", path="none.txt", old="a", new="x"),
    call("edit", path="notes.txt", old="", new="x"),
    "done<|user|>",
)


def says(*replies: str) -> Any:
    """A server whose model gives one reply after the other."""
    return scripted_state(TOKENIZER, lambda text: replies[min(text.count("<tool_response>"), len(replies) - 1)])


@pytest.mark.slow(reason="a sandbox")
def test_the_policy_edits_and_runs_and_its_files_are_graded(served: Any) -> None:
    config = MiniSweHarnessConfig(files=["notes.txt", "none.txt"], answer_file="notes.txt")
    rollouts = AgentRollouts(config, served(says(*REPLIES)))
    (one,) = played(rollouts, Conversations(), [0], 1)[0]
    assert one.outcome.failure is None and not rollouts.counts, one.outcome.failure
    results = [message.content for message in one.episode.messages if message.role == "tool"]
    assert results == [
        "notes.txt is written",
        "notes.txt is written",
        "one three\n[exit 3]",
        "Error: the text occurs 0 times in notes.txt",
        "Error: there is no file none.txt",
        "Error: notes.txt exists",
    ]
    assert one.episode.reply.text == "one three" and one.episode.artefacts == {"files": {"notes.txt": "one three"}}
    assert one.episode.messages[1].content == one.task.prompt and one.outcome.rewards["even"] == 0.0
    assert len(one.branches) == 1
    check_tokens([one], served)


@pytest.mark.slow(reason="a sandbox, a command that times out")
def test_a_command_has_its_time(served: Any) -> None:
    state = says(call("bash", command="sleep 600"), "done<|user|>")
    (one,) = played(AgentRollouts(MiniSweHarnessConfig(command_seconds=0.5), served(state)), Conversations(), [0], 1)[0]
    assert one.outcome.failure is None and "\n[timeout]" in [message.content for message in one.episode.messages]


def test_a_command_needs_time() -> None:
    with pytest.raises(ConfigError, match=r"harness\.command_seconds"):
        MiniSweHarnessConfig(command_seconds=0.0)
