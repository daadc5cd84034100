"""The work of ``arcforge-rl``: a run from a checkpoint to a better one, with its folder."""

from __future__ import annotations

import gc
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lightning as L
import torch
from omegaconf import OmegaConf
from rich.console import Console
from torch.nn import Parameter

from arcforge_core.checkpoint.pretrained import find_checkpoint, load_pretrained
from arcforge_core.cli.figures import Figures
from arcforge_core.config.schema import EngineConfig
from arcforge_core.contracts.algorithm import Algorithm
from arcforge_core.data.tokenizer import Tokenizer
from arcforge_core.errors import ArcforgeError, CheckpointError, ConfigError
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.model.engine import build_engine
from arcforge_core.ops.dispatch import Ops
from arcforge_core.train.callbacks.checkpointing import Checkpointing
from arcforge_core.train.callbacks.stopping import Stopping
from arcforge_core.train.resume import check_same_run, find_state, resume_command
from arcforge_core.train.run import build_trainer, compute_dtype, freeze, prepare_hardware, use_threads
from arcforge_core.train.rundir import create_run_dir, drop_rows_after, point_latest, write_run_start
from arcforge_core.train.snapshot import TrainingState
from arcforge_core.train.step import NonFiniteError
from arcforge_rl.configs_learning import RlConfig
from arcforge_rl.learning.build import build_algorithm
from arcforge_rl.learning.callbacks import METRICS_FILE, ConsoleLines, Evaluations, Records
from arcforge_rl.learning.dashboard import Dashboard
from arcforge_rl.learning.module import PolicyModule, noise_seed
from arcforge_rl.learning.monitor import Monitoring
from arcforge_rl.learning.report import write_report
from arcforge_rl.learning.streams import Teachers
from arcforge_rl.learning.sync import hand_over
from arcforge_rl.rollouts.curriculum import Curriculum
from arcforge_rl.rollouts.sampler import Sampler, build_environment
from arcforge_rl.rollouts.solver import build_speaker
from arcforge_rl.rollouts.unstable import UnstableSelection

FIXED = ("algorithm.name", "environment.", "rollout.", "curriculum.", "optimizer.name", "seed")
"""Prefixes of fields that a resumed run must keep, or what it has learnt so far would mean something else."""
FREE = tuple(f"rollout.engine_{name}" for name in ("noise", "logprob_noise", "topk", "topk_bits"))


@dataclass
class Parts:
    """What a run is made of."""

    module: PolicyModule
    tokenizer: Tokenizer


def run(config: RlConfig) -> Figures:
    """Trains as configured, writes the run's folder, and returns the final figures with it.

    Raises:
        ConfigError, CheckpointError: before any work starts.
        NonFiniteError, ArcforgeError: a loss, a gradient or the engine went wrong; the last checkpoint is kept.
    """
    first = int(os.environ.get("RANK", 0)) == 0  # the only process that writes
    console = Console(markup=False, highlight=False, soft_wrap=True, quiet=not first)
    algorithm = build_algorithm(config)
    restored = None
    if config.resume is not None:
        run_dir, restored = find_state(config, console)
        config = replace(config, init=begun_with(run_dir, config.init))
        check_same_run(config, run_dir, restored, console, FIXED, FREE)
    else:  # a link may lead elsewhere when the run is resumed: to the run itself
        config = replace(config, init=str(find_checkpoint(str(config.init)).resolve()))
    parts = build(config, algorithm, console)
    if restored is not None:
        restored.restore_model(parts.module)
        seed = noise_seed(config, restored.step)
        hand_over(parts.module.model, parts.module.engine, config.rollout.engine_noise, seed)
        for name in Records.FILES if first else ():
            drop_rows_after(run_dir / name, restored.step)
    else:
        run_dir = create_run_dir(config) if first else Path(config.output_dir)
    if first:
        point_latest(Path(config.output_dir), run_dir)
        write_run_start(run_dir, config)
    console.print(f"run {os.path.relpath(run_dir)}")
    return fit(parts, run_dir, restored, console)


def begun_with(run_dir: Path, named: str | None) -> str:
    """Returns the checkpoint that a run began with, by its own word.

    Raises:
        ConfigError: another one is named; the run's own do not count, because ``outputs/latest`` is the run now.
        CheckpointError: the run's configuration cannot be read.
    """
    try:
        saved: Any = OmegaConf.load(run_dir / "config.yaml")
        begun = str(saved["init"])
    except Exception as error:  # YAML's own errors have no base in common
        raise CheckpointError(f"cannot read how {os.path.relpath(run_dir)} was configured: {error}") from error
    if named is not None:
        found = find_checkpoint(named).resolve()
        if str(found) != begun and run_dir.resolve() not in found.parents:
            raise ConfigError("init", named, f"this run began with {begun}: leave init out to resume it")
    return begun


def build(config: RlConfig, algorithm: Algorithm, console: Console) -> Parts:
    """Loads the policy, the engine's copy of it, and what the algorithm needs besides.

    Raises:
        ConfigError: parts that do not go together, or an environment that cannot work here.
        CheckpointError: a checkpoint cannot be read, or has no tokenizer.
    """
    use_threads(config.trainer.threads)
    torch.use_deterministic_algorithms(config.trainer.deterministic)
    L.seed_everything(config.seed, verbose=False)
    hardware = prepare_hardware(config, console)
    folder = find_checkpoint(str(config.init))
    if not (folder / "tokenizer.json").is_file():
        raise CheckpointError(f"init={config.init}: {folder} has no tokenizer.json")
    tokenizer = Tokenizer.load(folder)
    speaker = build_speaker(tokenizer, config.rollout.thinking == "on")
    training, heldout = build_environment(config.environment), build_environment(config.environment, "heldout")
    dtype = compute_dtype(config, hardware)

    def load(ops: Ops | None = None, kept: torch.dtype = torch.float32) -> CausalLM:
        model = load_pretrained(folder, kept, ops or Ops(hardware, config.trainer.deterministic))
        model = model.to(hardware.device_type)
        model.set_compute_dtype(dtype)
        return model

    model = load().train()
    freeze(model, config.trainer.trainable)
    if config.trainer.freeze_indexer:
        for parameter in indexers(model):
            parameter.requires_grad_(False)
    model.activation_checkpointing = config.trainer.activation_checkpointing
    unstable = None
    if config.rollout.engine_topk == "unstable":
        check_selects(model, config.engine)
        unstable = UnstableSelection(hardware, config.trainer.deterministic, config.rollout.engine_topk_bits)
    engines = load(unstable, dtype).requires_grad_(False)  # kept as it computes: nothing is cast in each call
    engine = build_engine(config.engine, engines)
    curriculum = Curriculum(config.curriculum, config.seed)
    positions = model.config.max_position_embeddings
    sampler = Sampler(config, engine, speaker, positions, training, heldout, curriculum, unstable)
    reference = load().requires_grad_(False) if "reference" in algorithm.needs else None
    teachers = None
    if "teacher" in algorithm.needs:
        teachers = Teachers(config.teachers, tokenizer, Ops(hardware, config.trainer.deterministic))
    elif config.teachers:
        raise ConfigError("teachers", sorted(config.teachers), f"algorithm={config.algorithm.name} asks no teacher")
    module = PolicyModule(model, config, algorithm, sampler, reference, teachers)
    if config.rollout.engine_noise:
        hand_over(model, engine, config.rollout.engine_noise, noise_seed(config, 0))
    return Parts(module, tokenizer)


def indexers(model: CausalLM) -> list[Parameter]:
    """Returns the parameters of all indexers."""
    return [parameter for name, parameter in model.named_parameters() if ".indexer." in name]


def check_selects(model: CausalLM, engine: EngineConfig) -> None:
    """Raises `ConfigError` unless the engine computes the model here, and that has an indexer to be unstable."""
    if not indexers(model):
        accepted = f"must be stable: attention={model.attention.name} has no indexer, which selects keys (dsa has one)"
        raise ConfigError("rollout.engine_topk", "unstable", accepted)
    if hasattr(engine, "url"):
        accepted = f"must be stable with engine={engine.name}: how a server of others selects is not ours to change"
        raise ConfigError("rollout.engine_topk", "unstable", accepted)


@contextmanager
def left_alone() -> Iterator[None]:
    """Keeps garbage collections off everything that is there already, which they would search several times a step."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def fit(parts: Parts, run_dir: Path, restored: TrainingState | None, console: Console) -> Figures:
    """Runs Lightning's loop, evaluates, and writes the report."""
    module, config = parts.module, parts.module.config
    evaluations, stopping = Evaluations(run_dir), Stopping()
    records = Records(run_dir, parts.tokenizer)
    checkpointing = Checkpointing(run_dir, parts.tokenizer, None, restored, keep_best=False)
    monitoring = Monitoring(run_dir, METRICS_FILE, console)
    seen = Dashboard(console, evaluations, monitoring) if console.is_terminal else ConsoleLines(console, evaluations)
    callbacks: list[L.Callback] = [monitoring, records, evaluations, seen, checkpointing, stopping]
    if console.quiet:  # not the process that writes
        callbacks = [evaluations, checkpointing, stopping]
    trainer = build_trainer(config, prepare_hardware(config, Console(quiet=True)), run_dir, callbacks)
    status = "finished"
    if module.fraction() < 1.0:
        try:
            # the module samples, so that nothing is sampled ahead of the weights
            with left_alone():
                trainer.fit(module, itertools.count())
        except NonFiniteError as error:
            if trainer.is_global_zero:
                records.summarise(module, evaluations, "failed: not finite")
                write_report(run_dir)
            raise NonFiniteError(f"{error}; checkpoints are in {os.path.relpath(run_dir)}") from error
        except ArcforgeError:
            if trainer.is_global_zero:
                records.summarise(module, evaluations, "failed")
                write_report(run_dir)
            raise
        status = "interrupted" if stopping.interrupted else "finished"
    if stopping.interrupted:
        console.print(f"stopped at step {module.progress.step}; go on with: {resume_command()}")
    elif evaluations.last_step != module.progress.step:
        evaluations.evaluate(trainer, module)
    if not trainer.is_global_zero:
        return Figures(run_dir, {})
    figures = Figures(run_dir, records.summarise(module, evaluations, status))
    figures.show(f"{config.algorithm.name} on {config.environment.name}: {status}")
    console.print(f"report {os.path.relpath(write_report(run_dir))}")
    return figures
