"""The work of ``arcforge-env run``: rollouts into a file, figures into a table."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from arcforge_core.checkpoint.pretrained import load_with_tokenizer
from arcforge_core.cli.figures import Figures
from arcforge_core.cli.progress import track
from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.contracts.environment import Environment
from arcforge_core.errors import ArcforgeError
from arcforge_core.model.engine import build_engine
from arcforge_core.ops.hardware import build_hardware
from arcforge_core.registry import registry
from arcforge_rl.configs import EnvConfig
from arcforge_rl.rollout import Players, Rollout, model_players, oracle_players, roll_out, silent_players


def run(config: EnvConfig) -> Figures:
    """Rolls out, writes rollouts.jsonl as the rollouts end, prints a table and returns it with the file's folder.

    Raises:
        CheckpointError: the checkpoint cannot be used.
        ArcforgeError: the file cannot be written.
    """
    environment: Environment = registry().get("environment", config.environment.name).load()(config.environment)
    players = build_players(config, environment)
    total = config.episodes * config.rollouts
    rollouts: list[Rollout] = []
    try:
        folder = create_folder(Path(config.output_dir))
        start = time.perf_counter()
        with (folder / "rollouts.jsonl").open("w", encoding="utf-8") as file:
            for rollout in track(
                roll_out(environment, players, config.episodes, config.rollouts), "rolling out", total
            ):
                file.write(json.dumps(as_row(rollout), ensure_ascii=True) + "\n")
                rollouts.append(rollout)
    except OSError as error:
        raise ArcforgeError(f"cannot write {error.filename or config.output_dir}: {error.strerror}") from error
    figures = Figures(folder, measure(rollouts, environment, time.perf_counter() - start))
    figures.show(f"{config.environment.name}, agent {config.agent}")
    print(folder / "rollouts.jsonl")
    return figures


def build_players(config: EnvConfig, environment: Environment) -> Players:
    """Returns the configured solvers; a model is loaded for ``agent=model`` only."""
    if config.checkpoint is None:
        return oracle_players(environment) if config.agent == "oracle" else silent_players()
    model, tokenizer = load_with_tokenizer(config.checkpoint, build_hardware(config.hardware))
    params = SamplingParams(config.max_new_tokens, config.temperature, seed=config.seed)
    return model_players(build_engine(config.engine, model), tokenizer, params)


def create_folder(root: Path) -> Path:
    """Creates ``root/<date>/<time>-env``, numbered when it exists."""
    base = root / datetime.now().strftime("%Y-%m-%d/%H-%M-%S-env")
    folder, count = base, 1
    while folder.exists():
        count += 1
        folder = base.with_name(f"{base.name}-{count}")
    folder.mkdir(parents=True)
    return folder


def as_row(rollout: Rollout) -> dict[str, object]:
    """Returns one line of rollouts.jsonl; the model's own tokens stand in ``turns``."""
    return {
        "task_key": rollout.task.key,
        "rollout_id": f"{rollout.task.key}#{rollout.index}",
        "prompt": rollout.task.prompt,
        "completion": rollout.episode.reply.text,
        "finish_reason": rollout.episode.finish_reason,
        "rewards": dict(rollout.outcome.rewards),
        "reasons": dict(rollout.outcome.reasons),
        "messages": [asdict(message) for message in rollout.episode.messages],
        "turns": [asdict(turn) for turn in rollout.turns],
    }


def measure(rollouts: list[Rollout], environment: Environment, seconds: float) -> dict[str, float]:
    """Returns mean rewards by name and by domain, and the speed where a model generated."""
    by_name: dict[str, list[float]] = {}
    for rollout in rollouts:
        for name, value in rollout.outcome.rewards.items():
            by_name.setdefault(f"mean {name}", []).append(value)
    domains = [environment.domain_of(rollout.task) for rollout in rollouts]
    if len(set(domains)) > 1:
        for domain, rollout in zip(domains, rollouts, strict=True):
            by_name.setdefault(f"mean reward {domain}", []).append(rollout.outcome.reward)
    metrics = {name: sum(values) / len(values) for name, values in by_name.items()}
    metrics |= {"rollouts": len(rollouts), "seconds": seconds}
    generated = sum(len(turn.token_ids) for rollout in rollouts for turn in rollout.turns)
    if generated:
        metrics |= {"generated tokens": generated, "tokens/s": generated / seconds}
    return metrics
