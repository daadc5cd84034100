"""The job ``reward``, ``arcforge-train stage=reward``: trains a reward model on preferences."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import lightning as L
import torch

from arcforge_core.checkpoint.adapter import links_of, weights_sha256
from arcforge_core.checkpoint.pretrained import find_checkpoint, load_pretrained, open_checkpoint
from arcforge_core.checkpoint.reward_model import conversation_encoder
from arcforge_core.checkpoint.scalar import HEAD, load_head
from arcforge_core.config.reward import RewardTrainConfig
from arcforge_core.console.progress import working
from arcforge_core.console.result import Result
from arcforge_core.contracts.hardware import Hardware
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.files.rundir import write_json
from arcforge_core.model.adapt.lora import Adapter, attach
from arcforge_core.model.scalar import ScalarModel
from arcforge_core.ops.dispatch import Ops
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_core.train.adapter import narrow
from arcforge_core.train.callbacks.console import ConsoleProgress
from arcforge_core.train.callbacks.metrics import METRICS_FILE, MetricsWriter, append_row, log_scalars
from arcforge_core.train.prepare import compute_dtype, freeze
from arcforge_core.train.reward.module import PairLoader, RewardModule
from arcforge_core.train.reward.page import CALIBRATION, EVALUATIONS, write_report
from arcforge_core.train.reward.pairs import Pairs, load_pairs
from arcforge_core.train.session import Hooks, Parts, Session

SHOWN = {"loss": "loss {:.3f}", "accuracy": "accuracy {:.1%}"}
"""Columns of ``metrics.csv`` that the console shows."""


def train(config: RewardTrainConfig) -> Result:
    """Trains as configured and writes the run's folder; see `Session`.

    Raises:
        ConfigError, DataError, CheckpointError: before any work starts.
        NonFiniteError: a score, a loss or a gradient is not finite; the last checkpoint is kept.
    """
    with Session(config) as session:
        return session.run(RewardTraining(config))


class RewardTraining(Hooks):
    """Runs that learn from preferences."""

    # what the saved state depends on: shapes of tensors, and the order of the pairs
    fixed: tuple[str, ...] = ("adapter.", "optimizer.name", "pairs.", "objective.", "trainer.batch", "seed")
    free: tuple[str, ...] = ("adapter.dropout",)
    tables: tuple[str, ...] = (METRICS_FILE, EVALUATIONS)

    def __init__(self, config: RewardTrainConfig) -> None:
        self.config = config
        self.last: dict[str, float] = {}

    def build(self, session: Session) -> Parts:
        """Reads the pairs and builds the model.

        Raises:
            ConfigError, DataError, CheckpointError: an input cannot be used.
        """
        config, restored = self.config, session.restored
        folder = find_checkpoint(config.init or config_init(session.run_dir), "init")
        if not (folder / "tokenizer.json").is_file():
            raise CheckpointError(f"init={config.init}: {folder} has no tokenizer.json")
        tokenizer = Tokenizer.load(folder)
        L.seed_everything(config.seed, verbose=False)
        scalar = build_scalar(folder, config, session.hardware)
        check_sizes(config, scalar, tokenizer)
        most = config.pairs.max_tokens or scalar.model.config.max_position_embeddings
        self.pairs: Pairs = load_pairs(config.pairs, conversation_encoder(tokenizer), most)
        rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        if config.trainer.batch % world:
            raise ConfigError("trainer.batch", config.trainer.batch, f"must be a multiple of {world} processes")
        self.module = RewardModule(scalar, config, self.pairs.training)
        step = restored.step if restored else 0
        batches = PairLoader(len(self.pairs.training), config.trainer.batch, config.seed, step, rank, world)
        return Parts(self.module, tokenizer, batches)

    def callbacks(self, session: Session) -> list[L.Callback]:
        """Returns metrics, evaluations and progress."""
        session.console.print(f"{len(self.pairs.training):,} pairs to train on, {len(self.pairs.heldout):,} held out")
        metrics = MetricsWriter(session.run_dir)
        return [metrics, HeldoutPairs(self, session.run_dir), ConsoleProgress(session.console, metrics, SHOWN)]

    def finish(self, session: Session) -> None:
        """Measures the held-out pairs, unless the last step did."""
        if session.first:
            self.evaluate(session.trainer, session.run_dir)

    def evaluate(self, trainer: L.Trainer, run_dir: Path) -> None:
        """Measures the held-out pairs and writes a row of ``eval.csv`` and ``calibration.json``."""
        if not self.pairs.heldout:
            return
        found, step = self.module.evaluate(self.pairs.heldout), self.module.progress.step
        self.last = found.figures
        append_row(run_dir / EVALUATIONS, {"step": step, **found.figures}, key=("step",))
        write_json(run_dir / CALIBRATION, {"step": step, "bins": found.bins})
        log_scalars(trainer, {f"heldout_{name}": value for name, value in found.figures.items()}, step)
        self.module.progress.restart_clock()

    def report(self, session: Session, status: str) -> dict[str, float | str]:
        """Writes ``summary.json`` and the report."""
        progress = self.module.progress
        figures: dict[str, float] = {"steps": progress.step, "tokens": progress.tokens, "seconds": progress.seconds}
        figures |= {"training_pairs": len(self.pairs.training), **self.last}
        left_out = {f"left out: {reason}": count for reason, count in self.pairs.left_out.items()}
        write_json(session.run_dir / "summary.json", {"status": status, **figures, **left_out})
        Result(session.run_dir, figures).show(f"reward model: {status}")
        with working("writing the report"):
            page = write_report(session.run_dir)
        session.console.print(f"report {os.path.relpath(page)}")
        return {**figures}


class HeldoutPairs(L.Callback):
    """Measures held-out pairs before the first step and every `trainer.eval_every` steps."""

    def __init__(self, training: RewardTraining, run_dir: Path) -> None:
        self.training, self.run_dir = training, run_dir

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Measures the untrained head."""
        if trainer.is_global_zero and self.training.module.progress.step == 0:
            self.training.evaluate(trainer, self.run_dir)

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Measures every `trainer.eval_every` steps."""
        every = self.training.config.trainer.eval_every
        if trainer.is_global_zero and self.training.module.progress.step % every == 0:
            self.training.evaluate(trainer, self.run_dir)


def config_init(run_dir: Path) -> str:
    """Returns the checkpoint that a resumed run began with.

    Raises:
        CheckpointError: its configuration cannot be read.
    """
    from omegaconf import OmegaConf

    try:
        saved: Any = OmegaConf.load(run_dir / "config.yaml")
        return str(saved["init"])
    except Exception as error:  # YAML's own errors have no base in common
        raise CheckpointError(f"cannot read how {os.path.relpath(run_dir)} was configured: {error}") from error


def build_scalar(folder: Path, config: RewardTrainConfig, hardware: Hardware) -> ScalarModel:
    """Loads a model in float32 with a head: its own if it has one, else zeros.

    Raises:
        ConfigError: no parameter is trained, or no layer can be adapted.
        CheckpointError: a file is missing or damaged.
    """
    model = load_pretrained(folder, torch.float32, Ops(hardware, config.trainer.deterministic)).train()
    if config.adapter.name != "none":
        checkpoint = open_checkpoint(folder)
        links = links_of(checkpoint.state)
        attach(model, Adapter(config.adapter, str(folder.resolve()), weights_sha256(checkpoint.path), links))
    model = model.to(hardware.identity.device)
    model.set_compute_dtype(compute_dtype(config, hardware))
    if config.adapter.name != "none":
        narrow(model)
    freeze(model, config.trainer.trainable)
    model.activation_checkpointing = config.trainer.activation_checkpointing
    scalar = ScalarModel(model).train()
    if (folder / HEAD).is_file():
        load_head(scalar, folder)
    return scalar


def check_sizes(config: RewardTrainConfig, scalar: ScalarModel, tokenizer: Tokenizer) -> None:
    """Checks that the model can read what the tokenizer writes.

    Raises:
        ConfigError: it has fewer ids or positions.
    """
    sizes = scalar.model.config
    if tokenizer.vocab_size > sizes.vocab_size:
        accepted = f"its tokenizer has {tokenizer.vocab_size} ids, its model {sizes.vocab_size}"
        raise ConfigError("init", config.init, accepted)
    if (config.pairs.max_tokens or 0) > sizes.max_position_embeddings:
        accepted = f"must be at most {sizes.max_position_embeddings}, the positions of init"
        raise ConfigError("pairs.max_tokens", config.pairs.max_tokens, accepted)
