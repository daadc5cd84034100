"""``procedure=expert_iteration``: try problems, keep what is right, train on it, evaluate; and again.

Each round's tries are kept on disk, and its run is an ordinary one. The same command skips what is finished and goes on
with what is not.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from arcforge_core.checkpoint.pretrained import find_checkpoint, load_with_tokenizer
from arcforge_core.cli.progress import say
from arcforge_core.config.schema import TrainConfig
from arcforge_core.config.sweep import aligned
from arcforge_core.configs import ConversationsDataConfig, OneRunConfig
from arcforge_core.errors import ConfigError, DataError
from arcforge_core.eval.conversations.command import check_files
from arcforge_core.ops.hardware import build_hardware
from arcforge_core.train.run import RunResult, train
from arcforge_core.train.rundir import write_json
from arcforge_core.train.state import checkpoints
from arcforge_rl.configs import ExpertIterationConfig
from arcforge_rl.sampling.command import told
from arcforge_rl.sampling.figures import ALL
from arcforge_rl.sampling.sample import FIGURES_FILE, KEPT, sample

SUMMARY = "expert_iteration.json"
SHOWN = ("pass@1", "kept", "generation_exact_before", "generation_exact")


def run(config: TrainConfig) -> RunResult:
    """Runs all rounds that are not finished.

    Raises:
        ConfigError: no checkpoint to begin with, no problems, or data that is no conversations.
        DataError: not one try was right.
    """
    procedure = check(config)
    root = folder_of(config)
    rounds: list[dict[str, Any]] = []
    last, result = str(config.init), RunResult(root)
    for number in range(1, procedure.rounds + 1):
        folder = root / f"round-{number}"
        sampled = tried(config, procedure, number, last, folder)
        result = trained(config, procedure, number, last, folder)
        if result.metrics["status"] != "finished":
            return result
        rounds.append({"round": number, **sampled, **result.metrics})
        write_json(root / SUMMARY, {"rounds": rounds})
        last = str(result.dir)
    names = [name for name in SHOWN if all(name in one for one in rounds)]
    print(aligned([["round", *names], *([str(r["round"]), *(f"{r[n]:,.4g}" for n in names)] for r in rounds)]))
    print(root / SUMMARY)
    return RunResult(root, {**result.metrics, **{f"round_{r['round']}_{n}": r[n] for r in rounds for n in names}})


def check(config: TrainConfig) -> ExpertIterationConfig:
    """Refuses what cannot be iterated; returns the procedure's own options."""
    procedure = config.procedure
    assert isinstance(procedure, ExpertIterationConfig)
    if config.resume is not None:
        raise ConfigError("resume", config.resume, "must be null: the same command goes on with what is not finished")
    if config.init is None:
        raise ConfigError("init", None, "a checkpoint that can answer must be named, as init=outputs/latest")
    if not isinstance(config.data, ConversationsDataConfig):
        raise ConfigError("data", config.data.name, "must be conversations: kept tries are added to them")
    check_files(procedure)
    return procedure


def folder_of(config: TrainConfig) -> Path:
    """Returns the folder of a configuration, the same for the same one."""
    what = {k: v for k, v in dataclasses.asdict(config).items() if k not in ("output_dir", "hardware")}
    digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:8]
    return Path(config.output_dir) / f"{config.name}-expert-{digest}"


def tried(
    config: TrainConfig, procedure: ExpertIterationConfig, number: int, init: str, folder: Path
) -> dict[str, float]:
    """Tries this round's problems unless that is done; returns the figures of all sources."""
    done = folder / "tries"
    if not (done / FIGURES_FILE).is_file():
        part = folder / "tries.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        say(f"round {number} of {procedure.rounds}: trying problems with {init}")
        model, tokenizer = load_with_tokenizer(find_checkpoint(init), build_hardware(config.hardware))
        options = replace(procedure, seed=procedure.seed + number - 1)
        sampled = sample(model, tokenizer, options)
        sampled.write(part, {**dataclasses.asdict(options), "checkpoint": init})
        say(told(sampled))
        part.replace(done)
    figures: dict[str, float] = json.loads((done / FIGURES_FILE).read_text(encoding="utf-8"))["figures"][ALL]
    return figures


def trained(config: TrainConfig, procedure: ExpertIterationConfig, number: int, last: str, folder: Path) -> RunResult:
    """Trains this round's run unless that is done, from its last checkpoint if it has one."""
    run_dir = folder / "run"
    summary = run_dir / "summary.json"
    figures: dict[str, Any] = json.loads(summary.read_text(encoding="utf-8")) if summary.is_file() else {}
    if figures.get("status") == "finished":
        return RunResult(run_dir, figures)
    kept = [folder.parent / f"round-{n}" / "tries" / KEPT for n in range(1, number + 1)]
    of_round = replace(
        config,
        name=f"{config.name}-round-{number}",
        procedure=OneRunConfig(),
        init=str(config.init) if procedure.restart else last,
        data=with_kept(config.data, kept),
        seed=config.seed + number - 1,
        output_dir=str(folder),
    )
    if checkpoints(run_dir):
        return train(replace(of_round, resume=str(run_dir)))
    shutil.rmtree(run_dir, ignore_errors=True)  # stopped before its first checkpoint
    return train(of_round, run_dir)


def with_kept(data: Any, kept: list[Path]) -> ConversationsDataConfig:
    """Returns the data with kept tries beside what it has already.

    Raises:
        DataError: nothing was kept, and there is nothing else.
    """
    assert isinstance(data, ConversationsDataConfig)
    found = {name: [str(f / name) for f in kept if (f / name).is_dir()] for name in ("reasoning", "agent")}
    if not any(found.values()) and any((data.chat, data.reasoning, data.agent)):
        say("not one try is right: what is trained on is the other conversations alone")
    elif not any(found.values()):
        raise DataError(f"{kept[-1].parent}: not one try is right, so there is nothing to learn from")
    return replace(data, reasoning=[*data.reasoning, *found["reasoning"]], agent=[*data.agent, *found["agent"]])
