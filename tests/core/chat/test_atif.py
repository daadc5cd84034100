"""ATIF: records to trajectories and back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from arcforge_core.chat.atif import from_atif, to_atif
from arcforge_core.data.conversations.parse import parse
from arcforge_core.errors import DataError


def call(id_: str | None, **arguments: Any) -> dict[str, Any]:
    given = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    return given if id_ is None else {**given, "id": id_}


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
RECORD = {
    "rollout": "0/1/2",
    "task": "key",
    "rewards": {"reward": 1.0},
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "", "reasoning_content": "r", "tool_calls": [call("a", n=1), call("b")]},
        {"role": "tool", "content": "one", "tool_call_id": "a"},
        {"role": "tool", "content": "two", "tool_call_id": "b"},
        {"role": "assistant", "content": "done", "trained": False},
    ],
    "tools": [TOOL],
}


def test_a_record_survives_and_is_what_the_format_says() -> None:
    found = json.loads(json.dumps(to_atif(RECORD)))
    assert (found["schema_version"], found["session_id"]) == ("ATIF-v1.4", "0/1/2") and found["agent"]["version"]
    assert [(step["step_id"], step["source"]) for step in found["steps"]] == [
        (1, "system"), (2, "user"), (3, "agent"), (4, "agent"),
    ]  # fmt: skip
    assert found["steps"][2]["tool_calls"][0] == {"tool_call_id": "a", "function_name": "f", "arguments": {"n": 1}}
    assert found["steps"][2]["observation"]["results"][1] == {"source_call_id": "b", "content": "two"}
    assert found["steps"][2]["reasoning_content"] == "r" and found["extra"]["rewards"] == {"reward": 1.0}
    assert from_atif(found) == RECORD


def test_calls_without_an_id_get_one_that_their_results_name() -> None:
    messages = [
        {"role": "assistant", "content": "", "tool_calls": [call(None), call(None)]},
        {"role": "tool", "content": "one"},
        {"role": "tool", "content": "two"},
    ]
    (step,) = to_atif({"messages": messages})["steps"]
    assert [r["source_call_id"] for r in step["observation"]["results"]] == ["call_1_1", "call_1_2"]
    with pytest.raises(DataError, match="'one' follows no call"):
        to_atif({"messages": messages[1:]})


def test_a_trajectory_is_a_record_to_train_on() -> None:
    conversation = parse(to_atif(RECORD), "auto", "interleaved", mask_errors=False)
    assert conversation.messages == parse(RECORD, "auto", "interleaved", mask_errors=False).messages
    assert [tool.name for tool in conversation.tools] == ["f"] and conversation.task == "key"


def test_later_versions_and_results_without_a_call() -> None:
    steps = [
        {"step_id": 1, "source": "user", "message": [{"type": "text", "text": "a"}, {"type": "image"}]},
        {"step_id": 2, "source": "agent", "message": "b", "observation": {"results": [{"content": "subagent"}]}},
    ]
    given = {"schema_version": "ATIF-v1.7", "session_id": "s", "agent": {"tool_definitions": [TOOL]}, "steps": steps}
    found = from_atif(given)
    said = [(message["role"], message["content"]) for message in found["messages"]]
    assert said == [("user", "a"), ("assistant", "b"), ("user", "subagent")]
    assert found["tools"] == [TOOL]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"schema_version": "ATIF-v2.0"}, "schema_version must be"),
        ({"messages": []}, "schema_version must be"),
        ({"schema_version": "ATIF-v1.4", "agent": {}}, "malformed"),
        ({"schema_version": "ATIF-v1.4", "agent": {}, "steps": [{"source": "robot", "message": ""}]}, "malformed"),
    ],
)
def test_what_is_no_trajectory_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(DataError, match=why):
        from_atif(given)


def test_a_file_of_records_is_converted(tmp_path: Path) -> None:
    (tmp_path / "rollouts.jsonl").write_text(json.dumps(RECORD) + "\n")
    line = [sys.executable, "-m", "arcforge_core.chat.atif", str(tmp_path / "rollouts.jsonl")]
    assert json.loads(subprocess.run(line, check=True, capture_output=True, text=True).stdout) == to_atif(RECORD)
