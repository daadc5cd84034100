"""The work of ``arcforge-env run``: rollouts into a file, figures into a table."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path

from arcforge_core.checkpoint.pretrained import load_with_tokenizer
from arcforge_core.cli.figures import Figures
from arcforge_core.cli.progress import track
from arcforge_core.contracts.algorithm import Branch
from arcforge_core.contracts.environment import Agent, Environment, Episode, Outcome, Task
from arcforge_core.environments.scripted import SILENCE, ScriptedAgent
from arcforge_core.errors import ArcforgeError
from arcforge_core.model.engine import build_engine
from arcforge_core.ops.hardware import build_hardware
from arcforge_core.registry import registry
from arcforge_rl.configs import EnvConfig
from arcforge_rl.rollouts.collect import play
from arcforge_rl.rollouts.solver import Manner, Solver, build_speaker
from arcforge_rl.rollouts.turns import Turns

CHUNK = 64
"""Rollouts that are played at once; what is finished is written before the next ones start."""


@dataclass(frozen=True)
class Played:
    """One scored episode; number `index` of all."""

    index: int
    task: Task
    episode: Episode
    outcome: Outcome
    branches: Sequence[Branch] = ()


def run(config: EnvConfig) -> Figures:
    """Rolls out, writes rollouts.jsonl as the rollouts end, prints a table and returns it with the file's folder.

    Raises:
        ConfigError: tools or thinking, and no chat template.
        CheckpointError: the checkpoint cannot be used.
        ArcforgeError: the file cannot be written.
    """
    environment: Environment = registry().get("environment", config.environment.name).load()(config.environment)
    turns, make_agent = build_agents(config, environment)
    total = config.episodes * config.rollouts
    played: list[Played] = []
    try:
        folder = create_folder(Path(config.output_dir))
        start = time.perf_counter()
        with (folder / "rollouts.jsonl").open("w", buffering=1, encoding="utf-8") as file:
            ended = play_all(environment, turns, make_agent, config.episodes, config.rollouts)
            for one in track(ended, "rolling out", total):
                file.write(json.dumps(as_row(one), ensure_ascii=True) + "\n")
                played.append(one)
    except OSError as error:
        raise ArcforgeError(f"cannot write {error.filename or config.output_dir}: {error.strerror}") from error
    figures = Figures(folder, measure(played, environment, time.perf_counter() - start))
    figures.show(f"{config.environment.name}, agent {config.agent}")
    print(folder / "rollouts.jsonl")
    return figures


def build_agents(config: EnvConfig, environment: Environment) -> tuple[Turns, Callable[[Task, int], Agent]]:
    """Returns what makes the solver of a rollout; a model is loaded for ``agent=model`` only."""
    if config.checkpoint is None:
        oracle = config.agent == "oracle"
        return Turns(None), lambda task, index: ScriptedAgent(environment.oracle(task) if oracle else SILENCE)
    model, tokenizer = load_with_tokenizer(config.checkpoint, build_hardware(config.hardware))
    speaker = build_speaker(tokenizer, config.thinking == "on", "thinking")
    positions = model.config.max_position_embeddings
    manner = Manner(speaker, config.max_new_tokens, config.temperature, positions, str(config.seed))
    turns = Turns(build_engine(config.engine, model))
    return turns, lambda task, index: Solver(turns, index, manner)


def play_all(
    environment: Environment, turns: Turns, make_agent: Callable[[Task, int], Agent], episodes: int, per_task: int = 1
) -> Iterator[Played]:
    """Yields `per_task` scored rollouts of each of the tasks 0, 1, ... `episodes` - 1, in order."""
    indices = iter(range(episodes * per_task))
    while chunk := list(islice(indices, CHUNK)):
        tasks = [environment.task(index // per_task) for index in chunk]
        agents = [make_agent(task, index) for task, index in zip(tasks, chunk, strict=True)]
        ended = play(environment, tasks, agents, turns)
        for index, task, agent, (episode, outcome) in zip(chunk, tasks, agents, ended, strict=True):
            yield Played(index, task, episode, outcome, agent.recorded if isinstance(agent, Solver) else ())


def create_folder(root: Path) -> Path:
    """Creates ``root/<date>/<time>-env``, numbered when it exists."""
    base = root / datetime.now().strftime("%Y-%m-%d/%H-%M-%S-env")
    folder, count = base, 1
    while folder.exists():
        count += 1
        folder = base.with_name(f"{base.name}-{count}")
    folder.mkdir(parents=True)
    return folder


def as_row(played: Played) -> dict[str, object]:
    """Returns one line of rollouts.jsonl; the model's own tokens stand in ``branches``."""
    return {
        "task_key": played.task.key,
        "rollout_id": f"{played.task.key}#{played.index}",
        "prompt": played.task.prompt,
        "completion": played.episode.reply.text,
        "finish_reason": played.episode.finish_reason,
        "rewards": dict(played.outcome.rewards),
        "reasons": dict(played.outcome.reasons),
        "messages": [asdict(message) for message in played.episode.messages],
        "branches": [
            {name: getattr(branch, name) for name in ("ids", "sampled", "logprobs", "versions")}
            for branch in played.branches
        ],
    }


def measure(played: list[Played], environment: Environment, seconds: float) -> dict[str, float]:
    """Returns mean rewards by name and by domain, and the speed where a model generated."""
    by_name: dict[str, list[float]] = {}
    for one in played:
        for name, value in one.outcome.rewards.items():
            by_name.setdefault(f"mean {name}", []).append(value)
    domains = [environment.domain_of(one.task) for one in played]
    if len(set(domains)) > 1:
        for domain, one in zip(domains, played, strict=True):
            by_name.setdefault(f"mean reward {domain}", []).append(one.outcome.reward)
    metrics = {name: sum(values) / len(values) for name, values in by_name.items()}
    metrics |= {"rollouts": len(played), "seconds": seconds}
    generated = sum(branch.num_sampled for one in played for branch in one.branches)
    if generated:
        metrics |= {"generated tokens": generated, "tokens/s": generated / seconds}
    return metrics
