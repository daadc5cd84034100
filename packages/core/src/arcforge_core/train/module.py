"""The Lightning modules: they hold the model and calls plain functions; the loop, devices and hooks are Lightning's."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import optim

from arcforge_core.config.schema import RunConfig, TrainConfig
from arcforge_core.contracts.optimizer import collect_roles
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.registry import registry
from arcforge_core.train.step import (
    NonFiniteError,
    StepBatch,
    StepResult,
    accumulate_gradients,
    balance_routers,
    clip_gradients,
)


@dataclass
class Progress:
    """How far a run is; stored in checkpoints.

    Attributes:
        step: optimizer steps taken.
        tokens: input tokens trained on, over all processes.
        cursor: micro-batches of this process trained on.
        seconds: training time, evaluations included, of all sittings.
    """

    step: int = 0
    tokens: int = 0
    cursor: int = 0
    seconds: float = 0.0
    _tick: float = field(default_factory=time.monotonic, repr=False)

    def tick(self) -> None:
        """Adds the time since the last tick."""
        now = time.monotonic()
        self.seconds += now - self._tick
        self._tick = now

    def restart_clock(self) -> None:
        """Forgets the time since the last tick."""
        self._tick = time.monotonic()

    def fraction(self, max_steps: int | None, minutes: float | None) -> float:
        """Returns the share of the budget that is used, in [0, 1]: of steps or of time, whichever is further."""
        by_steps = self.step / max_steps if max_steps else 0.0
        by_time = self.seconds / (60.0 * minutes) if minutes else 0.0
        return min(max(by_steps, by_time), 1.0)


@dataclass
class StepRecord:
    """What one step showed, for the callbacks."""

    result: StepResult
    grad_norm: float
    lr: float
    batch: StepBatch


class TrainingModule(L.LightningModule):
    """A `CausalLM` with its optimizer and its progress; subclasses say what a step is.

    Args:
        model: the model, on the CPU or on its device.
        config: the run.
        progress: nothing done yet.
    """

    def __init__(self, model: CausalLM, config: RunConfig, progress: Progress) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model, self.progress = model, progress
        self.settings = config
        self.schedule: Callable[[float], float] = (
            registry().get("schedule", config.schedule.name).load()(config.schedule)
        )

    def configure_optimizers(self) -> optim.Optimizer:
        """Builds the optimizer from parameter roles."""
        factory = registry().get("optimizer", self.settings.optimizer.name).load()
        optimizer: optim.Optimizer = factory(self.settings.optimizer, collect_roles(self.model))
        return optimizer

    def fraction(self) -> float:
        """Returns progress in [0, 1]."""
        return self.progress.fraction(self.settings.trainer.max_steps, self.settings.trainer.minutes)

    def scheduled_optimizer(self) -> LightningOptimizer:
        """Returns the optimizer with the rates of this moment."""
        optimizer = self.optimizers()
        assert isinstance(optimizer, LightningOptimizer)
        factor = self.schedule(self.fraction())
        for group in optimizer.param_groups:
            group["lr"] = group["base_lr"] * factor
        return optimizer

    def extra_state(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps besides weights, optimizer and progress; tensors and plain values."""
        return {}

    def restore_extra(self, state: Mapping[str, Any]) -> None:
        """Takes what `extra_state` returned."""

    def share_clock(self) -> None:
        """Ticks; all processes go by one clock, or their learning rates would differ."""
        self.progress.tick()
        seconds, world = sum_over_processes([self.progress.seconds])
        self.progress.seconds = seconds[0] / world


class LanguageModelModule(TrainingModule):
    """Trains on text; one Lightning batch is one optimizer step.

    Args:
        model: the model, on the CPU or on its device.
        config: the run.
    """

    def __init__(self, model: CausalLM, config: TrainConfig) -> None:
        super().__init__(model, config, Progress())
        self.config = config
        self.record: StepRecord | None = None

    def training_step(self, step: StepBatch, batch_idx: int) -> None:
        """Takes one optimizer step.

        Raises:
            NonFiniteError: names the step and the tensor; weights and optimizer are as before the step.
        """
        optimizer = self.scheduled_optimizer()
        try:
            result = accumulate_gradients(self.model, step, self.manual_backward, sum_over_processes)
            grad_norm = clip_gradients(self.model.named_parameters(), self.config.trainer.clip_norm)
        except NonFiniteError as error:
            raise NonFiniteError(f"step {self.progress.step + 1}: {error}") from error
        optimizer.step()
        optimizer.zero_grad()
        loads = reduce_loads(result)
        balance_routers(self.model, loads, self.config.model.router_bias_rate)
        self.progress.step += 1
        self.progress.tokens += step.num_tokens * _world_size()
        self.progress.cursor = step.cursor
        self.record = StepRecord(result, grad_norm, optimizer.param_groups[0]["lr"], step)
        self.share_clock()


def _world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def sum_over_processes(values: list[float]) -> tuple[list[float], float]:
    """Returns the sums over all processes and their number, by which their gradients are averaged."""
    world = _world_size()
    if world > 1:
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        values = total.tolist()
    return values, float(world)


def in_any_process(flag: bool) -> bool:
    """Returns whether `flag` is set in any process, so that all stop after the same step."""
    return sum_over_processes([float(flag)])[0][0] > 0


def reduce_loads(result: StepResult) -> dict[int, torch.Tensor]:
    """Sums tokens per expert over all processes, so that every router moves alike."""
    if _world_size() > 1:
        for load_E in result.expert_loads.values():
            dist.all_reduce(load_E)
    return result.expert_loads
