"""A training run from configuration to report."""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from rich.console import Console
from rich.table import Table

from arcforge_core.checkpoint.start import Start, start_from, tokenizer_of
from arcforge_core.config.schema import RunConfig, TrainConfig
from arcforge_core.config.sweep import PageWriter
from arcforge_core.contracts.hardware import Hardware
from arcforge_core.data.pipeline import Corpus, build_data
from arcforge_core.errors import ConfigError
from arcforge_core.eval.conversations.evaluate import check_evaluation
from arcforge_core.eval.mtp_acceptance import mtp_acceptance
from arcforge_core.model.build import build_model, check_model
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.ops.compat import fast_bf16
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.hardware import build_hardware
from arcforge_core.train.adapter import adapt, require_init
from arcforge_core.train.callbacks.checkpointing import Checkpointing
from arcforge_core.train.callbacks.console import ConsoleProgress
from arcforge_core.train.callbacks.evaluation import Evaluation
from arcforge_core.train.callbacks.generation import Generation
from arcforge_core.train.callbacks.metrics import MetricsWriter
from arcforge_core.train.callbacks.stopping import Stopping
from arcforge_core.train.module import LanguageModelModule
from arcforge_core.train.report import write_report
from arcforge_core.train.resume import check_same_corpus, check_same_run, find_state, resume_command, rewind
from arcforge_core.train.rundir import create_run_dir, point_latest, write_json, write_run_start
from arcforge_core.train.samples import Samples
from arcforge_core.train.snapshot import TrainingState
from arcforge_core.train.step import NonFiniteError, StepBatch
from arcforge_core.train.summary import HEADLINE, MTP_ACCEPTANCE, Summary
from arcforge_core.train.throughput import matmul_rate

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def compute_dtype(config: RunConfig, hardware: Hardware) -> torch.dtype:
    """Returns the dtype of the activations."""
    if config.trainer.precision == "auto":
        return DTYPES["bf16" if fast_bf16(hardware.device_type) else "fp32"]
    return DTYPES[config.trainer.precision]


@dataclass
class RunResult:
    """Where a run is, and its final figures by name.

    Attributes:
        dir: its folder.
        metrics: final figures.
        page: writes a page of a sweep's own beside the comparison, from the sweep's folder and jobs.
    """

    dir: Path
    metrics: dict[str, float | str] = field(default_factory=dict)
    page: PageWriter | None = None


class StepLoader:
    """Endless optimizer steps of this process, from a data cursor on.

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
    """Builds the model with the weights of the run's seed, ready to train.

    Raises:
        ConfigError: no parameter's name fits an expression of ``trainer.trainable``.
    """
    L.seed_everything(config.seed, verbose=False)
    model = build_model(config.model, config.attention, Ops(hardware, config.trainer.deterministic))
    model.activation_checkpointing = config.trainer.activation_checkpointing
    model.set_compute_dtype(compute_dtype(config, hardware))
    freeze(model, config.trainer.trainable)
    return LanguageModelModule(model, config)


def begin(model: CausalLM, config: TrainConfig, resumed: bool) -> Start | None:
    """Gives a model what ``config.init`` names, where a run begins with it: adapters need their base when resumed too.

    Raises:
        ConfigError, CheckpointError: as `start_from` and `adapt`.
    """
    if config.adapter.name != "none":
        return adapt(model, config)
    return None if resumed or config.init is None else start_from(model, config.init)


def freeze(model: CausalLM, trainable: list[str]) -> None:
    """Lets only parameters be trained in whose names one of the expressions is found; none at all lets all.

    Raises:
        ConfigError: an expression is found in no name.
    """
    if not trainable:
        return
    names = [name for name, _ in model.named_parameters()]
    for index, pattern in enumerate(trainable):
        if not any(re.search(pattern, name) for name in names):
            accepted = f"no parameter has it in its name; there are {names[-1]} and the like"
            raise ConfigError(f"trainer.trainable[{index}]", pattern, accepted)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(any(re.search(pattern, name) for pattern in trainable))


def train(config: TrainConfig, folder: Path | None = None) -> RunResult:
    """Trains as configured and writes the run's folder.

    Args:
        config: the run.
        folder: where a new run goes; one named after date, time and run below ``config.output_dir`` when None.

    Raises:
        ConfigError, DataError, CheckpointError: before any work starts.
        NonFiniteError: a loss or gradient was NaN or infinite; the last checkpoint is kept.
    """
    rank = int(os.environ.get("RANK", 0))
    console = Console(markup=False, highlight=False, soft_wrap=True, quiet=rank > 0)
    check_model(config.model, config.attention)
    if config.adapter.name != "none":
        require_init(config)
    restored = None
    if config.resume is not None:
        run_dir, restored = find_state(config, console)
    use_threads(config.trainer.threads)
    torch.use_deterministic_algorithms(config.trainer.deterministic)
    hardware = prepare_hardware(config, console)
    if config.init is not None:
        config = with_tokenizer(config, config.init)
    if restored is not None:
        check_same_run(config, run_dir, restored, console)
    if config.generation.files:
        check_evaluation(config.generation)
    corpus = build_data(config.data, model_vocab_size=config.model.vocab_size)
    if restored is not None:
        check_same_corpus(corpus.manifest, run_dir)
    steps = StepLoader(corpus, config, restored.progress["cursor"] if restored else 0)
    module = build_module(config, hardware)
    start = begin(module.model, config, resumed=restored is not None)
    if restored is not None:
        restored.restore_model(module)
        if rank == 0:
            rewind(run_dir, restored.step)
    else:
        if start is not None:
            console.print(str(start))
        # only the first process writes
        run_dir = create_run_dir(config, folder) if rank == 0 else Path(config.output_dir)
    if rank == 0:
        point_latest(Path(config.output_dir), run_dir)
        write_run_start(run_dir, config)
        write_json(run_dir / "corpus.json", corpus.manifest)
    console.print(f"run {os.path.relpath(run_dir)}")
    return fit(module, steps, corpus, hardware, run_dir, restored, console)


def use_threads(threads: int | None) -> None:
    """Has torch compute with so many threads; None: all cores, shared with the other processes of this machine."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    torch.set_num_threads(threads or max(1, (os.cpu_count() or 1) // local))


def with_tokenizer(config: TrainConfig, init: str) -> TrainConfig:
    """Returns the configuration with the tokenizer of the checkpoint to start from, unless another one is named."""
    if config.data.tokenizer.path is not None:
        return config
    tokenizer = dataclasses.replace(config.data.tokenizer, path=tokenizer_of(init))
    return dataclasses.replace(config, data=dataclasses.replace(config.data, tokenizer=tokenizer))


def fit(
    module: LanguageModelModule,
    steps: StepLoader,
    corpus: Corpus,
    hardware: Hardware,
    run_dir: Path,
    restored: TrainingState | None,
    console: Console,
) -> RunResult:
    """Runs Lightning's loop over a prepared module, then evaluates and writes summary and report."""
    config = module.config
    if module.model.dtype == torch.bfloat16 and not fast_bf16(hardware.device_type):
        console.print("this processor multiplies bfloat16 far slower than float32: trainer.precision=fp32 is faster")
    peak = matmul_rate(module.model.dtype, hardware.device_type)
    console.print(f"{module.model.dtype} matrix products at {peak / 1e9:,.0f} GFLOP/s")
    metrics = MetricsWriter(run_dir, config.trainer.log_every, peak)
    evaluation = Evaluation(corpus, run_dir)
    checkpointing = Checkpointing(run_dir, corpus.tokenizer, evaluation, restored, keep_best=config.trainer.keep_best)
    stopping = Stopping()
    progress = ConsoleProgress(console, metrics, evaluation)
    generation = Generation(corpus.tokenizer, run_dir, console)
    callbacks = [metrics, evaluation, generation, checkpointing, stopping, progress]
    trainer = build_trainer(config, hardware, run_dir, callbacks)
    samples, summary = Samples(corpus, run_dir, config), Summary(run_dir, module, metrics, evaluation, corpus)
    if restored is None and trainer.is_global_zero:
        samples.write(module.model, "before")
        generation.before(trainer, module)
    if module.fraction() < 1.0:
        try:
            trainer.fit(module, steps)
        except NonFiniteError as error:
            summary.write("failed: not finite")
            step = checkpointing.saved_step
            kept = f"the checkpoint of step {step} is kept" if step >= 0 else "no checkpoint was saved before"
            raise NonFiniteError(f"{error}; {kept} in {os.path.relpath(run_dir)}") from error
    else:
        console.print(f"nothing left to train: {module.progress.step} steps have used up the budget")
    if stopping.interrupted:
        figures = summary.write("interrupted")
        console.print(f"stopped at step {module.progress.step}; go on with: {resume_command()}")
    elif trainer.is_global_zero:
        evaluation.evaluate(trainer, module, None)
        samples.write(module.model, "after")
        generation.evaluate(trainer, module)
        if config.trainer.mtp_acceptance:
            length, positions = config.trainer.sequence_length, config.trainer.mtp_acceptance
            acceptance = mtp_acceptance(module.model, corpus, positions, length)
            write_json(run_dir / MTP_ACCEPTANCE, acceptance.figures())
        figures = summary.write("finished")
    else:
        return RunResult(run_dir)
    report = write_report(run_dir)
    print_result(console, figures, report)
    return RunResult(run_dir, figures)


def build_trainer(config: RunConfig, hardware: Hardware, run_dir: Path, callbacks: list[L.Callback]) -> L.Trainer:
    """Builds Lightning's trainer; torchrun, never Lightning, starts further processes."""
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.ERROR)  # adverts on every fit
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"lightning\.pytorch\.utilities\._pytree")
    world, local = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    settings: dict[str, Any] = {
        "accelerator": hardware.device_type,
        "devices": local,
        "num_nodes": world // local,
        "strategy": "ddp_find_unused_parameters_true" if world > 1 else "auto",
        "max_epochs": 1,
        "logger": TensorBoardLogger(run_dir, name="", version="tensorboard"),
        "callbacks": callbacks,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    clash = settings.keys() & config.trainer.extra.keys()
    if clash:
        raise ConfigError("trainer.extra", sorted(clash), "these are set by arcforge itself")
    try:
        return L.Trainer(**settings, **config.trainer.extra)
    except TypeError as error:
        raise ConfigError(
            "trainer.extra", config.trainer.extra, f"not accepted by lightning.Trainer: {error}"
        ) from error


def prepare_hardware(config: RunConfig, console: Console) -> Hardware:
    """Builds the hardware, prints the decision, and applies and prints the changes that it asks for."""
    hardware = build_hardware(config.hardware)
    console.print(f"hardware {hardware.name}: {hardware.probe().reason}")
    for change in hardware.adjust_config(config):
        *parents, name = change.field.split(".")
        section: Any = config
        for parent in parents:
            section = getattr(section, parent)
        console.print(f"{change.field}: {getattr(section, name)} -> {change.value} ({change.reason})")
        setattr(section, name, change.value)
    return hardware


def print_result(console: Console, figures: dict[str, float | str], report: Path) -> None:
    """Prints the headline figures and where the report is."""
    table = Table(show_header=False, box=None)
    for name in ("status", "steps", "tokens", "seconds", "tokens_per_s", "mfu", *HEADLINE):
        value = figures.get(name)
        if value is not None:
            table.add_row(name.replace("_", " "), value if isinstance(value, str) else f"{value:,.4g}")
    console.print(table)
    console.print(f"report {os.path.relpath(report)}")
