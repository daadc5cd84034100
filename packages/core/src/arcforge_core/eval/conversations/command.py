"""``arcforge-eval suite=conversations``: plays held-out conversations and checks the answers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from arcforge_core.checkpoint.pretrained import find_checkpoint, load_with_tokenizer
from arcforge_core.config.schema import EvalConfig, PlayBaseConfig
from arcforge_core.configs import ConversationsSuiteConfig
from arcforge_core.console.result import Result
from arcforge_core.errors import ArcforgeError, ConfigError
from arcforge_core.eval.conversations.evaluate import FIGURES_FILE, evaluate
from arcforge_core.eval.conversations.figures import headline, table
from arcforge_core.files.rundir import dated_folder
from arcforge_core.ops.hardware import build_hardware


def measure_conversations(config: EvalConfig) -> Result:
    """Plays, prints a table, writes figures and rollouts, and returns the figures with their folder.

    Raises:
        CheckpointError: there is no usable checkpoint.
        ConfigError: no files are named, or see `evaluate`.
        DataError: nothing can be played.
        ArcforgeError: the folder cannot be written.
    """
    suite = config.suite
    assert isinstance(suite, ConversationsSuiteConfig)
    if config.checkpoint is None:
        raise ConfigError("checkpoint", None, "a run or a model must be named, as checkpoint=outputs/latest")
    check_files(suite)
    checkpoint = find_checkpoint(config.checkpoint)
    model, tokenizer = load_with_tokenizer(checkpoint, build_hardware(config.hardware))
    folder = dated_folder(Path("outputs"), "conversations") if suite.output is None else Path(suite.output)
    report = evaluate(model, tokenizer, suite)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        report.write(folder, {"checkpoint": str(checkpoint), **dataclasses.asdict(suite)})
    except OSError as error:
        raise ArcforgeError(f"cannot write below {folder}: {error.strerror or error}") from error
    print(f"{checkpoint}\n{table(report.figures)}\n{folder / FIGURES_FILE}")
    return Result(folder, headline(report.figures))


def check_files(config: PlayBaseConfig) -> None:
    """Raises ConfigError if the configuration names no files."""
    if not config.files:
        accepted = "name files or folders, as files=[outputs/conversations/heldout]"
        raise ConfigError(f"{config.prefix}files", [], accepted)
