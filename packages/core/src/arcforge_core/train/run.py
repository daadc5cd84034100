"""Training on text, for pre-training and supervised fine-tuning: the hooks of such a run for `Session`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning as L
import torch
from rich.console import Console
from rich.table import Table

from arcforge_core.checkpoint.start import Start, start_from
from arcforge_core.checkpoint.starters import BASE, is_base
from arcforge_core.config.schema import TrainConfig
from arcforge_core.config.sources import ConversationsDataConfig
from arcforge_core.console.progress import working
from arcforge_core.console.result import Result
from arcforge_core.contracts.hardware import Hardware
from arcforge_core.data.tokens.pipeline import Corpus, build_data, with_tokenizer
from arcforge_core.eval.conversations.evaluate import check_evaluation
from arcforge_core.eval.mtp_acceptance import mtp_acceptance
from arcforge_core.files.find import find_checkpoint
from arcforge_core.files.rundir import write_json
from arcforge_core.model.build import build_model, check_model
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.ops.compat import fast_bf16
from arcforge_core.ops.dispatch import Ops
from arcforge_core.train.adapter import adapt, require_init
from arcforge_core.train.callbacks.console import ConsoleProgress
from arcforge_core.train.callbacks.evaluation import Evaluation
from arcforge_core.train.callbacks.experts import ExpertWarning
from arcforge_core.train.callbacks.generation import Generation
from arcforge_core.train.callbacks.samples import Samples
from arcforge_core.train.callbacks.threads import Threads
from arcforge_core.train.callbacks.throughput import ThroughputMetrics
from arcforge_core.train.memory import check_memory
from arcforge_core.train.module import LanguageModelModule
from arcforge_core.train.prepare import compute_dtype, freeze
from arcforge_core.train.report.page import write_report
from arcforge_core.train.resume import check_same_corpus
from arcforge_core.train.session import Hooks, Parts, Session
from arcforge_core.train.step import StepBatch
from arcforge_core.train.summary import HEADLINE, MTP_ACCEPTANCE, Summary
from arcforge_core.train.threads import busy_text
from arcforge_core.train.throughput import matmul_rate

LAYOUT = ("trainer.sequence_length", "trainer.micro_batch_tokens", "seed")
SHOWN = {"loss": "loss {:.3f}", "tokens_per_s": "{:,.0f} tokens/s", "mfu": "MFU {:.0%}"}
"""Columns of ``metrics.csv`` that the console shows."""


def train(config: TrainConfig) -> Result:
    """Trains as configured and writes the run's folder; see `Session`."""
    check_model(config.model, config.attention)
    if config.adapter.name != "none":
        require_init(config)
    with Session(config) as session:
        if config.init is not None:
            session.config = config = dataclasses.replace(config, data=with_tokenizer(config.data, config.init))
        return session.run(TextTraining(config))


class TextTraining(Hooks):
    """Runs that learn from a corpus: documents or conversations."""

    # the saved state depends on these: shapes of tensors, order and position of the data
    fixed: tuple[str, ...] = ("model.", "attention.", "adapter.", "data.", "optimizer.name", *LAYOUT)
    free: tuple[str, ...] = (
        "model.mtp.fraction",
        "model.mtp.weight",
        "model.balance_loss_weight",
        "model.router_bias_rate",
        "adapter.dropout",
        "data.cache_dir",
        "data.paths",  # the contents of corpus and tokenizer are compared, not their paths
        "data.tokenizer.path",
    )
    tables: tuple[str, ...] = ("metrics.csv", "eval.csv", "experts.csv", "generation.csv")

    def __init__(self, config: TrainConfig) -> None:
        self.config = config

    def build(self, session: Session) -> Parts:
        """Builds the corpus and the model.

        Raises:
            ConfigError, DataError, CheckpointError: an input cannot be used, or differs from that of the resumed run.
        """
        config, restored = self.config, session.restored
        check_memory(config, session.hardware.name, session.hardware.roofline().memory_bytes)
        if config.generation.files:
            check_evaluation(config.generation)
        self.corpus = build_data(config.data, model_vocab_size=config.model.vocab_size)
        if restored is not None:
            check_same_corpus(self.corpus.manifest, session.run_dir)
        steps = StepLoader(self.corpus, config, restored.progress["cursor"] if restored else 0)
        self.module = build_module(config, session.hardware)
        self.module.page = page_of(config)
        start = begin(self.module.model, config, resumed=restored is not None)
        if start is not None and restored is None:
            session.console.print(str(start))
        return Parts(self.module, self.corpus.tokenizer, steps, config.trainer.keep_best)

    def callbacks(self, session: Session) -> list[L.Callback]:
        """Returns metrics, evaluations, samples and progress; measures the machine's matmul rate for MFU."""
        run_dir, console, dtype = session.run_dir, session.console, self.module.model.dtype
        device = session.hardware.identity.device
        if session.first:
            write_json(run_dir / "corpus.json", self.corpus.manifest)
        if dtype == torch.bfloat16 and not fast_bf16(device):
            slow = "this processor multiplies bfloat16 slower than float32"
            console.print(f"{slow}: trainer.precision=fp32 is faster")
        every = self.config.trainer.log_every
        self.metrics = ThroughputMetrics(run_dir, every, lambda: matmul_rate(dtype, device))
        console.print(f"{dtype} matrix products at {self.metrics.peak_flops / 1e9:,.0f} GFLOP/s")
        self.evaluation = Evaluation(self.corpus, run_dir)
        self.samples = Samples(self.corpus, run_dir, self.config)
        self.generation = Generation(self.corpus.tokenizer, run_dir, console)
        settings = self.config.trainer
        alone = int(os.environ.get("WORLD_SIZE", 1)) == 1  # several processes wait for the slowest one
        adapt = settings.threads is None and not settings.deterministic and device == "cpu" and alone
        self.threads = Threads(console, torch.get_num_threads(), adapt)
        shown = [ConsoleProgress(console, self.metrics, SHOWN), ExpertWarning(console, self.metrics)]
        return [self.metrics, self.evaluation, self.samples, self.generation, *shown, self.threads]

    def finish(self, session: Session) -> None:
        """Evaluates on all held-out text, and writes the report's data about the trained model."""
        if not session.first:
            return
        settings, model = self.config.trainer, self.module.model
        self.evaluation.evaluate(session.trainer, self.module, None)
        self.samples.write(model, "after")
        self.generation.evaluate(session.trainer, self.module)
        if settings.mtp_acceptance:
            acceptance = mtp_acceptance(model, self.corpus, settings.mtp_acceptance, settings.sequence_length)
            write_json(session.run_dir / MTP_ACCEPTANCE, acceptance.figures())

    def report(self, session: Session, status: str) -> dict[str, float | str]:
        """Writes ``summary.json`` and, unless the run failed, the report."""
        figures = Summary(session.run_dir, self.module, self.metrics, self.threads, self.corpus).write(status)
        limit, tokens = self.config.trainer.max_tokens, self.module.progress.tokens
        if status == "finished" and limit is not None and tokens < limit and self.config.trainer.minutes:
            minutes = f"trainer.minutes={self.config.trainer.minutes:g}"
            session.console.print(f"{minutes} ended the run after {tokens:,} of trainer.max_tokens={limit:,} tokens")
        if not status.startswith("failed"):
            with working("writing the report"):
                page = write_report(session.run_dir)
            print_result(session.console, figures, page)
        return figures


def page_of(config: TrainConfig) -> dict[str, Any]:
    """Returns the content of ``page.json``: whether the trained model is a base model."""
    talks = isinstance(config.data, ConversationsDataConfig)
    return BASE if not talks and (config.init is None or is_base(find_checkpoint(config.init))) else {}


class StepLoader:
    """Yields optimizer steps of this process without end, starting at a data cursor.

    Raises:
        DataError: the corpus is shorter than one row.
    """

    def __init__(self, corpus: Corpus, config: TrainConfig, cursor: int) -> None:
        trainer = config.trainer
        self.accumulate = trainer.accumulate
        self.micros = corpus.train_batches(
            trainer.sequence_length,
            trainer.micro_batch_tokens,
            seed=config.seed,
            rank=int(os.environ.get("RANK", 0)),
            world_size=int(os.environ.get("WORLD_SIZE", 1)),
            start_cursor=cursor,
        )

    def __iter__(self) -> Iterator[StepBatch]:
        while True:
            yield StepBatch([next(self.micros) for _ in range(self.accumulate)])


def build_module(config: TrainConfig, hardware: Hardware) -> LanguageModelModule:
    """Builds the model, with weights initialised from the run's seed, ready to train.

    Raises:
        ConfigError: an expression of ``trainer.trainable`` matches no parameter.
    """
    L.seed_everything(config.seed, verbose=False)
    model = build_model(config.model, config.attention, Ops(hardware, config.trainer.deterministic))
    model.activation_checkpointing = config.trainer.activation_checkpointing
    model.set_compute_dtype(compute_dtype(config, hardware))
    freeze(model, config.trainer.trainable)
    return LanguageModelModule(model, config)


def begin(model: CausalLM, config: TrainConfig, resumed: bool) -> Start | None:
    """Loads ``config.init`` into the model of a new run; adapters need their base in a resumed run, too.

    Raises:
        ConfigError, CheckpointError: as `start_from` and `adapt`.
    """
    if config.adapter.name != "none":
        return adapt(model, config)
    return None if resumed or config.init is None else start_from(model, config.init)


def print_result(console: Console, figures: dict[str, float | str], report: Path) -> None:
    """Prints the headline figures and the report's path."""
    table = Table(show_header=False, box=None)
    for name in ("status", "steps", "tokens", "seconds", "tokens_per_s", "mfu", *HEADLINE):
        value = figures.get(name)
        if value is not None:
            table.add_row(name.replace("_", " "), value if isinstance(value, str) else f"{value:,.4g}")
    console.print(table)
    if busy := busy_text(figures):
        console.print(busy)
    console.print(f"report {os.path.relpath(report)}")
