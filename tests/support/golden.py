"""Golden losses: the first losses of every recipe, attention variant and optimizer, on a corpus that never changes.

A recipe runs as it is but for `SHRUNK`: its data, the number of steps and tokens, and fp32 on the CPU.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import lightning as L
import torch
from rich.console import Console

from arcforge_core.config.compose import compose
from arcforge_core.config.schema import TrainConfig
from arcforge_core.config.search_path import options
from arcforge_core.data.tokens.pipeline import build_data
from arcforge_core.plugins.loader import registry
from arcforge_core.train.callbacks.stopping import Stopping
from arcforge_core.train.module import LanguageModelModule
from arcforge_core.train.prepare import prepare_hardware
from arcforge_core.train.run import StepLoader, build_module
from arcforge_core.train.trainer import build_trainer
from support.corpora import fixed_texts

STEPS = 10
SHRUNK = (
    "data=files",
    "data.tokenizer.vocab_size=400",
    "trainer.minutes=null",
    f"trainer.max_steps={STEPS}",
    "trainer.sequence_length=128",
    "trainer.micro_batch_tokens=256",
    "trainer.precision=fp32",
    "trainer.threads=1",
    "hardware=cpu",
)
"""Overrides of every run; with Muon also ``optimizer.ns_dtype=fp32``."""

RTOL = 1e-5
"""Relative; five times the largest difference seen between products with AVX2 and with SSE, forty in small cases."""
RTOL_AFTER_FLIP, MAX_FLIPS = 2e-3, 2
"""The tolerance once a router's near-tie fell the other way, five times the largest difference seen; and the number of
choices that may differ in the first such step."""

RTOL_SELECTING = 5e-4
"""Where attention selects keys. Near-ties at the border of the selection fall differently with any rounding, and
nothing records which; seven times the largest difference seen between the C++ kernels and torch's operators."""

Losses = dict[str, list[Any]]
"""Values of each step by name: ``loss``, ``balance_loss``, ``mtp_loss_1``, ..., ``grad_norm``, and ``loads``, a list of
the tokens of all experts of all layers."""


@functools.cache
def golden_cases() -> dict[str, list[str]]:
    """Returns the overrides of each run, before `SHRUNK`: all recipes of one run, and all variants on the small model.

    Variants with a pattern of full and other layers get one for its three layers. Recipes on conversations begin with a
    checkpoint, and are not among them.
    """
    recipes = {name: compose([f"experiment={name}"]) for name in options("experiment")}
    cases = {
        f"experiment={name}": [f"experiment={name}"]
        for name, config in recipes.items()
        if name != "attention_ablation" and config.data.name != "conversations"  # the job ablation has several runs
    }
    for kind in ("attention", "optimizer"):
        for name in registry().names(kind):
            letter = getattr(registry().get(kind, name).load_schema(), "letter", "")
            pattern = [f"attention.pattern={letter}F{letter}"] if letter else []
            if name == "pattern":
                pattern = ["attention.pattern=R", "+attention@attention.kinds.R=reference"]
            cases[f"{kind}={name}"] = ["model=tiny", f"{kind}={name}", *pattern]
    return cases


class Recorder(L.Callback):
    """Keeps what each step showed."""

    def __init__(self) -> None:
        self.losses: Losses = {}

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Adds the step."""
        assert isinstance(module, LanguageModelModule) and module.record is not None
        record = module.record
        loads = [int(load) for _, load_E in sorted(record.result.expert_loads.items()) for load in load_E]
        values = {name: float(value) for name, value in record.result.losses.items()}
        for name, value in {**values, "grad_norm": record.figures["grad_norm"], "loads": loads}.items():
            self.losses.setdefault(name, []).append(value)


def golden_config(overrides: list[str], folder: Path) -> TrainConfig:
    """Composes a case; its corpus and other files go below `folder`, where all cases share them."""
    texts = fixed_texts(folder / "texts")
    config: TrainConfig = compose([*overrides, *SHRUNK, f"data.paths=[{texts}]", f"data.cache_dir={folder / 'cache'}"])
    if hasattr(config.optimizer, "ns_dtype"):
        config.optimizer.ns_dtype = "fp32"
    return config


def golden_tokens(folder: Path) -> str:
    """Returns the SHA-256 of the training tokens: another version of ``tokenizers`` may learn another vocabulary."""
    corpus = build_data(golden_config(["model=tiny"], folder).data, model_vocab_size=512, progress=False)
    return str(next(shard["sha256"] for shard in corpus.manifest["shards"] if shard["split"] == "train"))


def golden_losses(overrides: list[str], folder: Path) -> Losses:
    """Runs a case on one thread."""
    return losses_of(golden_config(overrides, folder), folder)


def losses_of(config: TrainConfig, folder: Path) -> Losses:
    """Trains on one thread and returns what each step showed."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        hardware = prepare_hardware(config, Console(quiet=True))
        corpus = build_data(config.data, model_vocab_size=config.model.vocab_size, progress=False)
        module, recorder = build_module(config, hardware), Recorder()
        trainer = build_trainer(config, hardware, folder, [recorder, Stopping()])
        trainer.fit(module, StepLoader(corpus, config, cursor=0))
    finally:
        torch.set_num_threads(threads)
    return recorder.losses


def rounding(overrides: list[str]) -> float:
    """Returns the relative tolerance of a case."""
    return RTOL_SELECTING if "attention=dsa" in overrides else RTOL


def mismatches(got: Losses, wanted: Losses, rtol: float = RTOL) -> list[str]:
    """Says how losses differ from golden ones beyond rounding, `rtol`; empty when they do not."""
    shapes = [{name: len(rows[0]) if name == "loads" else 1 for name, rows in run.items()} for run in (got, wanted)]
    if shapes[0] != shapes[1]:
        return [f"the run has {shapes[0]}, the golden one {shapes[1]}"]
    flips = [
        sum(abs(a - b) for a, b in zip(ours, golden, strict=True)) // 2
        for ours, golden in zip(got["loads"], wanted["loads"], strict=True)
    ]
    first = next((step for step, count in enumerate(flips) if count), STEPS)
    if first < STEPS and flips[first] > MAX_FLIPS:
        return [f"step {first + 1}: {flips[first]} choices of experts differ"]
    found = []
    for name in got.keys() - {"loads"}:
        for step, (value, golden) in enumerate(zip(got[name], wanted[name], strict=True)):
            tolerance = rtol if step < first else RTOL_AFTER_FLIP
            if not abs(value - golden) <= tolerance * abs(golden):
                found.append(f"step {step + 1}: {name} is {value:.9g}, golden {golden:.9g}, tolerance {tolerance:g}")
    return sorted(found)
