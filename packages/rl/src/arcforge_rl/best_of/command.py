"""Implements ``arcforge-sample``."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

from arcforge_core.checkpoint.pretrained import find_checkpoint, load_with_tokenizer
from arcforge_core.config.sweep import aligned
from arcforge_core.console.result import Result
from arcforge_core.errors import ArcforgeError
from arcforge_core.eval.conversations.command import check_files
from arcforge_core.eval.conversations.evaluate import plays_records
from arcforge_core.ops.hardware import build_hardware
from arcforge_rl.best_of.figures import ALL, figures_of
from arcforge_rl.best_of.sample import FIGURES_FILE, REJECTED_FILE, Sampled, sample
from arcforge_rl.configs.commands import SampleConfig
from arcforge_rl.rollouts.records import KEPT


def run(config: SampleConfig) -> Result:
    """Tries, writes the kept and the rejected tries, prints figures and returns those of all sources.

    Raises:
        CheckpointError: the checkpoint cannot be used.
        ConfigError, DataError: as `sample`.
        ArcforgeError: the files cannot be written.
    """
    if plays_records(config.environment):
        check_files(config)
    checkpoint = find_checkpoint(config.checkpoint)
    model, tokenizer = load_with_tokenizer(checkpoint, build_hardware(config.hardware))
    sampled = sample(model, tokenizer, config)
    folder = Path(config.output_dir)
    try:
        shutil.rmtree(folder / KEPT, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        sampled.write(folder, {**dataclasses.asdict(config), "checkpoint": str(checkpoint)})
    except OSError as error:
        raise ArcforgeError(f"cannot write below {folder}: {error.strerror or error}") from error
    print(f"{checkpoint}\n{told(sampled)}\n{folder / KEPT}, {folder / REJECTED_FILE}, {folder / FIGURES_FILE}")
    return Result(folder, sampled.figures[ALL])


def told(sampled: Sampled) -> str:
    """Returns a text with the figures by source, and the number of rejected rollouts by reason."""
    reasons = "".join(f"\nnot kept: {count:,} {reason}" for reason, count in sampled.reasons.most_common())
    return aligned(figures_of(sampled.figures)) + reasons
