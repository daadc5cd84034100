"""Trainer and task service are killed at random: each finished rollout is trained on once, or dropped with a reason."""

from __future__ import annotations

import multiprocessing
import sys
from functools import partial
from pathlib import Path

import pytest

from arcforge_rl.configs.collection import ServiceConfig
from arcforge_rl.configs.learning import CurriculumConfig
from arcforge_rl.orchestrator.rules import Rules
from arcforge_rl.orchestrator.services.desk import Service, environment_of
from arcforge_rl.rollouts.curriculum import Curriculum
from support import even_service
from support.ledger_run import train
from support.run_chaos import checked, drive, killed_service

RULES = Rules(threshold=2, group_size=3, eta=2.0, max_staleness=2, concurrency=8, retries=2)
STEPS = 120


@pytest.mark.slow(reason="kills and resumes a run ten times")
@pytest.mark.parametrize("seed", [1])
def test_processes_are_killed_at_random_and_nothing_is_lost(tmp_path: Path, seed: int) -> None:
    pid_file = tmp_path / "service.pid"

    def even() -> list[Service]:
        config = ServiceConfig(command=[sys.executable, even_service.__file__, str(pid_file), "0.01"])
        return [Service("even", environment_of("even", config), config, Curriculum(CurriculumConfig(), 0))]

    def start() -> int:
        child = multiprocessing.get_context("fork").Process(target=train, args=(tmp_path, RULES, STEPS, even))
        child.start()
        assert child.pid is not None
        return child.pid

    def progress() -> float:
        log = tmp_path / "ledger.sqlite-wal"
        return log.stat().st_mtime if log.exists() else 0.0

    victims = {"service": partial(killed_service, pid_file)}
    kills = drive(start, lambda: True, progress, victims, seed, every=0.25, least=3)
    assert min(kills.values()) >= 3
    counts = checked(tmp_path / "ledger.sqlite")
    assert counts["trained"] >= STEPS and "batched" not in counts
