"""Implements ``arcforge-env run``: writes rollouts to a file and prints a table of figures."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from arcforge_core.checkpoint.pretrained import load_with_tokenizer
from arcforge_core.console.progress import track
from arcforge_core.console.result import Result
from arcforge_core.contracts.environment import Agent, Environment, Task
from arcforge_core.episodes.agent import PolicyAgent, SamplingSetup, build_dialogue
from arcforge_core.episodes.lockstep import Lockstep
from arcforge_core.episodes.rollout import FailedTask, Rollout, roll_out, take_task
from arcforge_core.episodes.scripted import SILENCE, ScriptedAgent
from arcforge_core.errors import ArcforgeError
from arcforge_core.files.rundir import dated_folder
from arcforge_core.generation.engine import build_engine
from arcforge_core.ops.hardware import build_hardware
from arcforge_core.plugins.loader import registry
from arcforge_rl.configs.commands import EnvConfig
from arcforge_rl.rollouts.collect import check_some_worked
from arcforge_rl.rollouts.records import write_records

WIDTH = 64
"""Concurrent rollouts."""


def run(config: EnvConfig) -> Result:
    """Rolls out, writes rollouts.jsonl as the rollouts end, prints a table and returns it with the file's folder.

    Raises:
        ConfigError: tools or thinking are requested without a chat template.
        CheckpointError: the checkpoint cannot be used.
        ArcforgeError: the file cannot be written, or every rollout failed.
    """
    environment: Environment = registry().get("environment", config.environment.name).load()(config.environment)
    lockstep, make_agent = build_agents(config, environment)
    total = config.episodes * config.rollouts
    played: list[Rollout] = []
    try:
        folder = dated_folder(Path(config.output_dir), "env")
        folder.mkdir(parents=True)
        start = time.perf_counter()
        with (folder / "rollouts.jsonl").open("w", buffering=1, encoding="utf-8") as file:
            tasks = [take_task(environment, number // config.rollouts) for number in range(total)]
            agents = map(make_agent, tasks, range(total))
            ended = roll_out(environment, tasks, agents, lockstep, width=WIDTH, group_size=config.rollouts)
            for one in track(ended, "rolling out", total):
                file.write(json.dumps(one.as_row(), ensure_ascii=True) + "\n")
                played.append(one)
        check_some_worked(played)
        if config.records:
            earned = [one for one in played if one.outcome.failure is None and one.outcome.reward == 1.0]
            write_records(folder, sorted(earned, key=lambda one: one.number), config.thinking == "on")
    except OSError as error:
        raise ArcforgeError(f"cannot write {error.filename or config.output_dir}: {error.strerror}") from error
    figures = Result(folder, measure(played, time.perf_counter() - start))
    figures.show(f"{config.environment.name}, agent {config.agent}")
    print(folder / "rollouts.jsonl")
    return figures


def build_agents(config: EnvConfig, environment: Environment) -> tuple[Lockstep, Callable[[Task, int], Agent]]:
    """Returns the lockstep and a factory of solvers; loads a model for ``agent=model`` only."""
    if config.checkpoint is None:
        oracle = config.agent == "oracle"

        def scripted(task: Task, number: int) -> Agent:
            return ScriptedAgent(environment.oracle(task) if oracle and not isinstance(task, FailedTask) else SILENCE)

        return Lockstep(None), scripted
    model, tokenizer = load_with_tokenizer(config.checkpoint, build_hardware(config.hardware))
    dialogue = build_dialogue(tokenizer, config.thinking, "thinking")
    setup = SamplingSetup(dialogue, config.max_new_tokens, config.temperature, model.config.max_position_embeddings)
    lockstep = Lockstep(build_engine(config.engine, model))
    return lockstep, lambda task, number: PolicyAgent(lockstep, number, setup, f"{config.seed}/{number}")


def measure(played: list[Rollout], seconds: float) -> dict[str, float]:
    """Returns mean rewards by name and by domain, failures by kind, and the speed if a model generated."""
    by_name: dict[str, list[float]] = {}
    scored = [one for one in played if one.outcome.failure is None]
    for one in scored:
        for name, value in one.outcome.rewards.items():
            by_name.setdefault(f"mean {name}", []).append(value)
    if len({one.domain for one in scored}) > 1:
        for one in scored:
            by_name.setdefault(f"mean reward {one.domain}", []).append(one.outcome.reward)
    metrics = {name: sum(values) / len(values) for name, values in by_name.items()}
    metrics |= {"rollouts": len(played), "seconds": seconds}
    kinds = Counter(one.outcome.failure.kind for one in played if one.outcome.failure is not None)
    metrics |= {f"failed {kind}": count for kind, count in kinds.items()}
    generated = sum(branch.num_sampled for one in played for branch in one.branches)
    if generated:
        metrics |= {"generated tokens": generated, "tokens/s": generated / seconds}
    return metrics
