"""Small training runs for tests: a corpus of generated Python, the test-sized model, core's own components."""

from __future__ import annotations

import random
from pathlib import Path

from arcforge_core.config.compose import compose
from arcforge_core.config.schema import TrainConfig

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
        "trainer.threads=1",
    ]


def tiny_run(tmp_path: Path, *overrides: str) -> TrainConfig:
    """Composes a run of `tiny_overrides`."""
    return compose([*tiny_overrides(tmp_path), *overrides])
