"""A person in the terminal has the same tools and the same verdict as a model."""

import io
import json
import sys

import pytest

from arcforge_core.config.compose import compose_config
from arcforge_core.errors import ArcforgeError, ConfigError
from arcforge_core.plugins.loader import registry
from arcforge_rl.cli import main
from arcforge_rl.configs.commands import PlayConfig
from arcforge_rl.environments.by_hand import play


def config(*overrides):
    return compose_config("env_play", PlayConfig, list(overrides))


def typed(monkeypatch, *lines):
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def test_the_right_answer_earns_1_and_another_0(monkeypatch, capsys):
    task = registry().get("environment", "math").load()(config("environment=math").environment).task(2)
    typed(monkeypatch, task.answer, ".")
    assert play(config("environment=math", "task=2")).figures["reward"] == 1.0
    assert task.prompt in capsys.readouterr().out
    typed(monkeypatch, "perhaps", "7 or 8")  # the end of the input ends the reply
    assert play(config("environment=math", "task=2")).figures["reward"] == 0.0


def test_tools_are_called_by_hand(monkeypatch, capsys):
    chosen = ("environment=tool_math", "environment.tools=[calculator]")
    task = registry().get("environment", "tool_math").load()(config(*chosen).environment).task(0)
    call = json.dumps({"expression": task.argument})
    typed(
        monkeypatch, "/call calculator {nonsense", "/call calculator []", f"/call calculator {call}", task.answer, "."
    )
    assert play(config(*chosen)).figures == {"reward": 1.0, "correct": 1.0, "used_tool": 1.0}
    said = capsys.readouterr().out
    assert "the arguments are not JSON" in said and "must be a JSON object" in said and f"tool\n{task.answer}" in said


def test_leaving_gives_no_verdict(monkeypatch):
    typed(monkeypatch, "/quit")
    with pytest.raises(ArcforgeError, match="no verdict"):
        play(config("environment=math"))


def test_a_task_that_is_not_there():
    with pytest.raises(ConfigError, match="task=500"):
        play(config("environment=human_eval", "task=500"))
    with pytest.raises(ConfigError, match="task=-1"):
        config("task=-1")


def test_list_has_every_environment(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["arcforge-env", "list", "--json"])
    assert main() == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["name"] for row in rows] == sorted(registry().names("environment"))
    assert all(row["summary"] and row["package"] for row in rows)
    monkeypatch.setattr(sys, "argv", ["arcforge-env", "list", "--josn"])
    assert main() == 2
