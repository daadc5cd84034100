"""Implements ``arcforge-env calibrate``: a judge is compared with labelled pairs before it is a reward."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from arcforge_core.console.result import Result
from arcforge_core.contracts.chat import Message
from arcforge_core.contracts.environment import Episode, Reply, Task
from arcforge_core.data.conversations.records import read_rows
from arcforge_core.errors import ConfigError, DataError
from arcforge_core.files.rundir import write_json
from arcforge_core.ops.hardware import build_hardware
from arcforge_rl.configs.judge import CalibrateConfig
from arcforge_rl.rewards.judge.agreement import JudgedPair, LabelledPair, agreement_figures
from arcforge_rl.rewards.judge.judge import GenerativeJudge
from arcforge_rl.rollouts.others import Others, check_judge

TEXTS = ("prompt", "chosen", "rejected")


def run(config: CalibrateConfig) -> Result:
    """Judges the pairs, prints the figures and writes them, with the reason why the judge is refused, if it is.

    Raises:
        ConfigError, DataError: the judge, its agents or the labels cannot be used.
    """
    pairs = read_labels(Path(config.labels))[: config.limit]
    samples = config.judge.samples * config.repeats
    options = replace(config.judge, samples=samples, uncalibrated=True, calibration=None)
    judge = GenerativeJudge(options)
    for name in judge.agents:
        if name not in config.agents:
            raise ConfigError("agents", sorted(config.agents), f"judge.judges names {name}: +agents.{name}.url=URL")
        check_judge(name, config.agents[name])
    for name in sorted(set(config.agents) - set(judge.agents)):
        raise ConfigError("agents", name, f"judge.judges are {', '.join(judge.agents)}")
    others = Others(config.agents, None, 0, build_hardware(config.hardware))
    try:
        judge.connect(others.asked_alone, others.identity)
        figures = agreement_figures(asyncio.run(judge_all(judge, pairs)), config.own)
    finally:
        others.close()
    refused = refusal(figures, config)
    output = Path(config.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_json(output, {"judge": judge.identity, "refused": refused, "labels": config.labels, **figures})
    found = Result(output.parent, figures)
    found.show(f"judge {judge.identity}: {f'refused as a reward: {refused}' if refused else 'accepted'}")
    print(os.path.relpath(output))
    return found


def refusal(figures: Mapping[str, float], config: CalibrateConfig) -> str:
    """Returns why a judge with these figures is no reward; empty if it is one."""
    found = []
    if figures.get("kappa", -1.0) < config.least_kappa:
        found.append(f"kappa {figures.get('kappa', float('nan')):.2f} is below {config.least_kappa:g}")
    if abs(figures.get("position_bias", 0.0)) > config.most_position_bias:
        found.append(f"position bias {figures['position_bias']:+.2f} is beyond {config.most_position_bias:g}")
    if figures["failures"] > config.most_failures:
        found.append(f"{figures['failures']:.0%} of the verdicts are missing, more than {config.most_failures:.0%}")
    return "; ".join(found)


async def judge_all(judge: GenerativeJudge, pairs: Sequence[LabelledPair]) -> list[JudgedPair]:
    """Returns what a judge says about labelled pairs."""
    return list(await asyncio.gather(*[judge_pair(judge, pair) for pair in pairs]))


async def judge_pair(judge: GenerativeJudge, pair: LabelledPair) -> JudgedPair:
    """Returns what a judge says about a pair: a comparison in both orders, or the two values of a pointwise judge."""
    task = Task(pair.prompt, pair.prompt, "")
    if judge.compares:
        found = await judge.compare(task, pair.chosen, pair.rejected)
        known = [(a, b) for a, b in found if a is not None and b is not None]
        scores = [a if a == b else 0.5 for a, b in known]
        return JudgedPair(pair, scores, known, len(found) - len(known))
    values = await asyncio.gather(
        *[judge.values(task, episode_of(pair, text)) for text in (pair.chosen, pair.rejected)]
    )
    points = [(a, b) for a, b in zip(*values, strict=True) if a is not None and b is not None]
    scores = [0.5 if a == b else float(a > b) for a, b in points]
    return JudgedPair(pair, scores, (), len(values[0]) - len(points))


def episode_of(pair: LabelledPair, text: str) -> Episode:
    """Returns the episode in which a reply was given."""
    return Episode((Message("user", pair.prompt), Message("assistant", text)), Reply(text))


def read_labels(path: Path) -> list[LabelledPair]:
    """Returns the pairs of a file.

    Raises:
        DataError: it cannot be read, has no pair, or a record is none.
    """
    found = []
    for row in read_rows(path):
        record: dict[str, Any] | None = row.record
        where = f"labels={row.file}:{row.line}"
        if record is None:
            raise DataError(f"{where}: {row.reason}")
        for name in TEXTS:
            if not isinstance(record.get(name), str):
                raise DataError(f"{where}: {name}={record.get(name)!r} must be a text")
        if not isinstance(record.get("tie", False), bool):
            raise DataError(f"{where}: tie={record['tie']!r} must be true or false")
        authors = {name: str(record.get(name, "")) for name in ("author_chosen", "author_rejected")}
        texts = {name: record[name] for name in TEXTS}
        found.append(LabelledPair(**texts, tie=record.get("tie", False), **authors))
    if not found:
        raise DataError(f"labels={path}: has no pair")
    return found
