"""Small training runs for tests: a corpus of generated Python, the test-sized model, core's own components."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from arcforge_core.config.compose import compose
from arcforge_core.config.schema import TrainConfig
from arcforge_core.testing.small_models import small_tokenizer

CORE_ONLY = ("attention=reference", "optimizer=torch_adamw", "schedule=constant", "hardware=torch_cpu")
"""Overrides that need no package but core."""


def write_corpus(folder: Path, files: int = 40) -> Path:
    """Writes `files` small Python files, varied enough for a vocabulary of 512, and returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    words = ["".join(rng.choices(("ka", "lo", "mi", "ren", "su", "tor", "va", "xe"), k=3)) for _ in range(300)]
    for n in range(files):
        text = f"# module {n}\n"
        for _ in range(12):
            name, a, b, c = rng.sample(words, 4)
            text += f"def {name}({a}, {b}):\n    {c} = {a} + {b} * {rng.randrange(100)}\n    return {c}\n\n\n"
        (folder / f"module_{n}.py").write_text(text)
    return folder


def tiny_overrides(tmp_path: Path) -> list[str]:
    """Returns the overrides of a run of the test-sized model on a generated corpus, everything below `tmp_path`."""
    return [
        "model=tiny",
        *CORE_ONLY,
        "data=files",
        f"data.paths=[{write_corpus(tmp_path / 'corpus')}]",
        f"data.cache_dir={tmp_path / 'cache'}",
        "data.heldout=0.2",
        f"output_dir={tmp_path / 'outputs'}",
        "trainer.max_steps=6",
        "trainer.sequence_length=64",
        "trainer.micro_batch_tokens=256",
        "trainer.log_every=2",
        "trainer.eval_every=4",
        "trainer.eval_tokens=512",
        "trainer.checkpoint_every=2",
        "trainer.samples=1",
        "trainer.sample_tokens=16",
        "trainer.threads=1",
    ]


def tiny_run(tmp_path: Path, *overrides: str) -> TrainConfig:
    """Composes a run of `tiny_overrides`."""
    return compose([*tiny_overrides(tmp_path), *overrides])


def tiny_conversations_run(folder: Path, records: Sequence[Mapping[str, Any]], *overrides: str) -> TrainConfig:
    """Returns a run of the test-sized model on conversations, everything below `folder`; files that are there stay.

    Each record gets a task, so that the same ones are held out wherever the folder is.
    """
    path, tokenizer = folder / "train.json", folder / "tokenizer"
    if not path.exists():
        path.write_text(json.dumps([{"task": f"{n}", **record} for n, record in enumerate(records)]))
        small_tokenizer().save(tokenizer)
    return compose(
        [
            "data=conversations",
            "model=tiny",
            *CORE_ONLY,
            f"data.chat=[{path}]",
            f"data.tokenizer.path={tokenizer}",
            f"data.cache_dir={folder / 'cache'}",
            "data.heldout=0.2",
            f"output_dir={folder / 'outputs'}",
            "trainer.max_steps=4",
            "trainer.sequence_length=64",
            "trainer.micro_batch_tokens=128",
            "trainer.checkpoint_every=2",
            "trainer.threads=1",
            *overrides,
        ]
    )
