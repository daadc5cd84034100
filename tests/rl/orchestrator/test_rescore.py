"""Rewards of recorded rollouts, computed again."""

from pathlib import Path

import pytest

from arcforge_core.contracts.environment import Episode, Score, Task
from arcforge_core.episodes.copy import CopyEnvironment
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_rl.configs.commands import RescoreConfig
from arcforge_rl.orchestrator.ledger import Ledger
from arcforge_rl.orchestrator.record import unpack_outcome
from arcforge_rl.orchestrator.rescore import recorded_services, run
from arcforge_rl.orchestrator.rules import Rules
from support.ledger_run import train
from support.policies import reward_even


def rewards(folder: Path) -> list[float | None]:
    ledger = Ledger(folder / "ledger.sqlite")
    outcomes = [unpack_outcome(one.outcome) for group in ledger.all_groups() for one in group.rollouts if one.outcome]
    ledger.close()
    return [None if outcome.failure else outcome.reward for outcome in outcomes]


def test_another_verdict_is_counted_and_written_if_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CopyEnvironment, "exact", reward_even)
    train(tmp_path, Rules(threshold=2, group_size=3, eta=0.0, concurrency=4, retries=1))
    (tmp_path / "config.yaml").write_text("environment:\n  name: copy\n  split: train\n")
    before = rewards(tmp_path)
    same = run(RescoreConfig(str(tmp_path))).figures
    scored = [reward for reward in before if reward is not None]
    assert same["scored"] == len(scored) and same["changed"] == 0 and same["left_out"] == len(before) - len(scored) > 0
    assert same["reward before"] == same["reward now"] == sum(scored) / len(scored)

    def opposite(environment: CopyEnvironment, task: Task, episode: Episode) -> Score:
        return Score(float(not episode.reply.text.startswith("2")), "")

    monkeypatch.setattr(CopyEnvironment, "exact", opposite)
    assert run(RescoreConfig(str(tmp_path))).figures["changed"] == len(scored)
    assert rewards(tmp_path) == before, "not written"
    run(RescoreConfig(str(tmp_path), write=True))
    assert rewards(tmp_path) == [None if reward is None else 1.0 - reward for reward in before]


def test_a_folder_without_a_ledger_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no ledger\.sqlite: name the folder of a run with collection=async"):
        run(RescoreConfig(str(tmp_path)))
    train(tmp_path, Rules(threshold=1, group_size=2, eta=0.0, concurrency=4, retries=1))
    with pytest.raises(CheckpointError, match=r"cannot read how .* was configured"):
        run(RescoreConfig(str(tmp_path)))


def test_a_run_with_a_file_of_rewards_is_refused(tmp_path: Path) -> None:
    """Those of the environment alone would take the place of its own."""
    (tmp_path / "config.yaml").write_text("environment: {name: copy}\nrewards: reward.toml\n")
    with pytest.raises(ConfigError, match=r"rewards=reward\.toml.*must be a run whose environment made its rewards"):
        recorded_services(tmp_path)
