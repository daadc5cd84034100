"""Implements ``arcforge-rl rescore``: computes the rewards of a run's recorded rollouts again."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from arcforge_core.console.result import Result
from arcforge_core.episodes.loops import run_to_end
from arcforge_core.episodes.rollout import UNSCORED, FailedTask, judge, take_task
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.ops.dispatch import default_ops
from arcforge_core.plugins.loader import registry
from arcforge_rl.configs.collection import service_of
from arcforge_rl.configs.commands import RescoreConfig
from arcforge_rl.configs.learning import CurriculumConfig, RewardModelConfig
from arcforge_rl.orchestrator.ledger import LEDGER_FILE, Ledger, RecordedRollout
from arcforge_rl.orchestrator.record import can_be_scored, pack_outcome, unpack, unpack_outcome
from arcforge_rl.orchestrator.services.desk import Service, Services, environment_of, single
from arcforge_rl.rewards.learned import with_reward_model
from arcforge_rl.rollouts.curriculum import Curriculum


def run(config: RescoreConfig) -> Result:
    """Scores every played rollout of a run with the present verifiers, prints how the rewards changed, and with
    ``write=true`` records them: rollouts that wait for a batch are then trained on with them.

    Raises:
        CheckpointError: the folder has no ledger.
        ArcforgeError: a run uses it, or it is damaged.
    """
    folder = Path(config.run)
    if not (folder / LEDGER_FILE).is_file():
        accepted = f"{os.path.relpath(folder)} has no {LEDGER_FILE}: name the folder of a run with collection=async"
        raise CheckpointError(f"run={config.run}: {accepted}")
    services = recorded_services(folder)
    ledger = Ledger(folder / LEDGER_FILE)
    try:
        figures = run_to_end(rescore(ledger, services, config.write))
    finally:
        ledger.close()
    found = Result(folder, figures)
    found.show(f"rewards of {os.path.relpath(folder)}" + ("" if config.write else ", not written"))
    return found


def recorded_services(folder: Path) -> Services:
    """Returns the environment of a run and its task services, as its ``config.yaml`` has them, with the present
    verifiers.

    Raises:
        CheckpointError: the configuration cannot be read.
        ConfigError: a file of rewards made those of the run.
    """
    try:
        saved: Any = OmegaConf.load(folder / "config.yaml")
        section = saved["environment"]
        component = registry().get("environment", str(section["name"]))
        config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(component.load_schema()), section))
        collection: Any = OmegaConf.to_container(saved.get("collection", OmegaConf.create()))
        services = collection.get("services") or {}
        learned = RewardModelConfig(**saved.get("reward_model", {}))
        configs = {name: service_of(one, f"collection.services.{name}") for name, one in services.items()}
    except Exception as error:  # YAML's own errors have no base in common
        raise CheckpointError(f"cannot read how {os.path.relpath(folder)} was configured: {error}") from error
    if saved.get("rewards") is not None:
        accepted = "must be a run whose environment made its rewards: those of a file are not computed again"
        raise ConfigError("run", f"{os.path.relpath(folder)} (rewards={saved['rewards']})", accepted)
    environment = with_reward_model(component.load()(config), learned, default_ops())
    (own,) = single(environment).by_name.values()
    others = [
        Service(name, environment_of(name, one), one, Curriculum(CurriculumConfig(), 0))
        for name, one in configs.items()
    ]
    return Services([own, *others])


async def rescore(ledger: Ledger, services: Services, write: bool) -> dict[str, float | str]:
    """Returns counts and means; writes the outcomes if asked to."""
    await services.open()
    try:
        return await _rescored(ledger, services, write)
    finally:
        await services.close()


async def _rescored(ledger: Ledger, services: Services, write: bool) -> dict[str, float | str]:
    counts: Counter[str] = Counter(scored=0, changed=0, failed=0, left_out=0)
    before: list[float] = []
    after: list[float] = []
    for group in ledger.all_groups():
        environment = services.by_name[group.service].environment
        task = take_task(environment, group.task)
        for one in group.rollouts:
            if one.payload is None or isinstance(task, FailedTask) or not _can_be_scored(one):
                counts["left_out"] += one.payload is not None
                continue
            outcome = (await judge(environment, unpack(one.payload, task, UNSCORED))).outcome
            if outcome.failure is not None:
                counts["failed"] += 1
                continue
            known = None if one.outcome is None else unpack_outcome(one.outcome)
            counts["scored"] += 1
            after.append(outcome.reward)
            if known is not None and known.failure is None:
                before.append(known.reward)
            if known is None or dict(known.rewards) != dict(outcome.rewards):
                counts["changed"] += 1
                if write:
                    ledger.rewrite(group.key, one.place, pack_outcome(outcome))
    means = {"reward before": before, "reward now": after}
    return {**counts, **{name: sum(values) / len(values) for name, values in means.items() if values}}


def _can_be_scored(one: RecordedRollout) -> bool:
    """Whether it was played to its end; the policy's part of a rollout that its engine failed is not."""
    assert one.payload is not None
    known = None if one.outcome is None else unpack_outcome(one.outcome)
    played = known is None or known.failure is None or known.failure.kind == "verifier"
    return played and can_be_scored(one.payload)
