"""`arcforge-env validate` passes what is sound, and names what is not."""

import asyncio
import sys
from pathlib import Path

import pytest

from arcforge_core.config.compose import compose_config
from arcforge_core.contracts.environment import Reply
from arcforge_core.episodes.copy import CopyEnvironment
from arcforge_core.errors import ArcforgeError, ConfigError
from arcforge_rl.cli import main
from arcforge_rl.configs.commands import ValidateConfig
from arcforge_rl.environments import validate
from arcforge_rl.environments.validate import run


def config(*overrides: str) -> ValidateConfig:
    return compose_config("env_validate", ValidateConfig, list(overrides))


def test_sound_environments_pass(capsys: pytest.CaptureFixture[str]) -> None:
    tallies = run(config("environment=copy", "episodes=3"))
    assert {kind: (t.played, t.right) for kind, t in tallies.items()} == {
        "oracle": (3, 3), "silence": (3, 3), "question": (3, 3), "cheat": (21, 21)
    }  # fmt: skip
    assert "must earn" in capsys.readouterr().out


def test_it_plays_in_a_notebook_whose_cells_run_in_a_loop() -> None:
    async def cell() -> int:
        return run(config("environment=copy", "episodes=1"))["oracle"].right

    assert asyncio.run(cell()) == 1


def test_an_oracle_that_is_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CopyEnvironment, "oracle", lambda self, task: [Reply("nothing")])
    with pytest.raises(ArcforgeError, match=r"copy: oracle must earn 1: task 0 .* earned 0: the first line"):
        run(config("environment=copy", "episodes=2"))


def test_a_cheat_that_pays_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CopyEnvironment, "cheats", lambda self, task: [[Reply("no")], [Reply(task.answer)]])
    with pytest.raises(ArcforgeError, match="copy: cheat must earn 0: task 0"):
        run(config("environment=copy", "episodes=2"))


@pytest.mark.parametrize("option", ["episodes=0", "repeats=0", "concurrency=0"])
def test_bad_options_are_refused(option: str) -> None:
    with pytest.raises(ConfigError, match=option):
        config(option)


def test_a_verdict_that_changes_is_named_as_flaky(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = iter(range(100))
    whole = validate.play

    async def play(environment, task, script):  # type: ignore[no-untyped-def]
        wrong = script == environment.oracle(task) and next(turns) == 1
        return await whole(environment, task, [Reply("nothing")] if wrong else script)

    monkeypatch.setattr(validate, "play", play)
    with pytest.raises(ArcforgeError, match=r"flaky: task 0 .*: oracle earned 1, 0, 1"):
        run(config("environment=copy", "episodes=2", "repeats=3"))


def test_plays_overlap_up_to_the_chosen_number(monkeypatch: pytest.MonkeyPatch) -> None:
    now, most = 0, 0
    whole = validate.play

    async def play(environment, task, script):  # type: ignore[no-untyped-def]
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1
        return await whole(environment, task, script)

    monkeypatch.setattr(validate, "play", play)
    assert run(config("environment=copy", "episodes=2", "concurrency=3"))["oracle"].right == 2
    assert most == 3


def test_a_stopped_check_continues_from_its_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("environment=copy", "episodes=2", "repeats=2", f"results={tmp_path}/plays.jsonl")
    first = run(config(*options))
    file = tmp_path / "plays.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    assert len(lines) == 1 + sum(tally.played for tally in first.values())
    file.write_text("".join(lines[:-3]) + lines[-3][:20])
    count, whole = 0, validate.play

    async def play(environment, task, script):  # type: ignore[no-untyped-def]
        nonlocal count
        count += 1
        return await whole(environment, task, script)

    monkeypatch.setattr(validate, "play", play)
    again = run(config(*options))
    assert count == 3
    assert {kind: tally.right for kind, tally in again.items()} == {kind: tally.right for kind, tally in first.items()}
    file.write_text("something else\n")
    with pytest.raises(ConfigError, match="results="):
        run(config(*options))


def test_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["arcforge-env", "validate", "environment=copy", "episodes=1"])
    assert main() == 0
    monkeypatch.setattr(sys, "argv", ["arcforge-env", "run", "agent=noop", "episodes=1", f"output_dir={tmp_path}"])
    assert main() == 0
    monkeypatch.setattr(sys, "argv", ["arcforge-env", "validate", "--help"])
    assert main() == 0
    assert "arcforge-env validate: Check an environment" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["arcforge-env", "valdate"])
    assert main() == 2
    assert "did you mean 'validate'" in capsys.readouterr().err
