"""``benchmarks/judge_cost.py``: its judge answers by the schema, and a run accepts its verdicts."""

import json
import subprocess
import sys
from importlib import import_module as module
from pathlib import Path

import pytest


def asked(texts, **properties):
    quoted = "\n".join(f"QUOTED {json.dumps(text)}" for text in ("the prompt", *texts))
    schema = {"json_schema": {"schema": {"properties": properties}}}
    return {"messages": [{"role": "user", "content": quoted}], "response_format": schema}


def test_the_longer_of_two_is_better_and_equal_ones_tie():
    fields = {"reason": {}, "better": {"enum": ["1", "2", "tie", "cannot tell"]}}
    found = [
        json.loads(module("_scripted_judge").verdict(asked(pair, **fields)))["better"]
        for pair in (("ab", "c"), "ab", ("c", "ab"))
    ]
    assert found == ["1", "tie", "2"]


def test_a_single_reply_has_its_choice_by_length_and_its_number():
    fields = {"candidate": {"enum": ["7f"]}, "reason": {}, "thorough": {"enum": ["no", "partly", "yes", "cannot tell"]}}
    found = [
        json.loads(module("_scripted_judge").verdict(asked([text], **fields))) for text in ("x", "x" * 50, "x" * 500)
    ]
    assert [one["thorough"] for one in found] == ["no", "partly", "yes"] and found[0]["candidate"] == "7f"


@pytest.mark.slow(reason="two runs of reinforcement learning in processes of their own")
@pytest.mark.nightly(reason="two runs of reinforcement learning in processes of their own")
def test_the_second_run_asks_for_nothing(tmp_path):
    found = module("judge_cost").cached(tmp_path / "cached", 3)
    assert found["requests_first"] > 0 == found["requests_second"] and 0 < found["added"] < 1


def test_two_steps_are_refused():
    command = [sys.executable, str(Path(module("judge_cost").__file__)), "--steps", "2"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "--steps 2: must be at least 3" in done.stderr
