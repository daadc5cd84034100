"""Lightning modules that hold the model and call plain functions; Lightning provides loop, devices and hooks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import optim

from arcforge_core.config.schema import RunConfig, StepsConfig, TrainConfig
from arcforge_core.contracts.optimizer import collect_roles
from arcforge_core.eval.bits_per_byte import BitsPerByte
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.plugins.loader import registry
from arcforge_core.train.accelerator import AfterBackward
from arcforge_core.train.processes import add_gradients
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
    """The progress of a run, stored in checkpoints.

    Attributes:
        step: optimizer steps taken.
        tokens: input tokens trained on, over all processes.
        cursor: micro-batches of this process trained on.
        seconds: training time including evaluations, over all resumptions.
        step_seconds: duration of the longer one of the last two steps.
    """

    step: int = 0
    tokens: int = 0
    cursor: int = 0
    seconds: float = 0.0
    step_seconds: float = 0.0
    _tick: float = field(default_factory=time.monotonic, repr=False)

    def tick(self) -> None:
        """Adds the time since the last tick."""
        now = time.monotonic()
        self.seconds += now - self._tick
        self._tick = now

    def restart_clock(self) -> None:
        """Discards the time since the last tick."""
        self._tick = time.monotonic()

    def fraction(self, budget: StepsConfig) -> float:
        """Returns the largest used share of the budget's steps, tokens and time, in [0, 1].

        It is 1 if the time that is left is too short for another step.
        """
        by_steps = self.step / budget.max_steps if budget.max_steps else 0.0
        by_tokens = self.tokens / budget.max_tokens if budget.max_tokens else 0.0
        limit = 60.0 * budget.minutes if budget.minutes else math.inf
        by_time = self.seconds / limit if self.seconds + self.step_seconds <= limit else 1.0
        return min(max(by_steps, by_tokens, by_time), 1.0)


T = TypeVar("T")


@dataclass
class StepRecord(Generic[T]):
    """The outcome of one optimizer step, for the callbacks.

    Attributes:
        figures: scalars by name, the columns of ``metrics.csv``; tensors are read only when a row is written.
        result: details by kind of run: `StepResult` on text, the rollouts in reinforcement learning.
    """

    figures: dict[str, Any]
    result: T


class TrainingModule(L.LightningModule):
    """A `CausalLM` with its optimizer and progress; subclasses implement the step.

    Args:
        model: the model, on the CPU or on its device.
        config: the run.

    Attributes:
        record: the last step; None before the first.
        heldout: the last evaluation on held-out text, or None.
    """

    def __init__(self, model: CausalLM, config: RunConfig) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model, self.progress = model, Progress()
        self.record: StepRecord[Any] | None = None
        self.heldout: BitsPerByte | None = None
        self.page: dict[str, Any] = {}
        self.settings = config
        self._step_start, self._last_step = time.monotonic(), 0.0
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
        return self.progress.fraction(self.settings.trainer)

    def scheduled_optimizer(self) -> LightningOptimizer:
        """Returns the optimizer with the current learning rates."""
        optimizer = self.optimizers()
        assert isinstance(optimizer, LightningOptimizer)
        factor = self.schedule(self.fraction())
        for group in optimizer.param_groups:
            group["lr"] = group["base_lr"] * factor
        return optimizer

    def extra_state(self) -> dict[str, Any]:
        """Returns state that a checkpoint stores besides weights, optimizer and progress: tensors and plain values."""
        return {}

    def tensor_files(self) -> dict[str, dict[str, torch.Tensor]]:
        """Returns further files of a checkpoint's weights by name, with their tensors."""
        return {}

    def restore_extra(self, state: Mapping[str, Any]) -> None:
        """Restores the result of `extra_state`."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Notes when the step began; the shared clock stands still until its end."""
        self._step_start = time.monotonic()

    def share_clock(self) -> None:
        """Ticks; all processes use one clock, otherwise their learning rates would differ."""
        progress = self.progress
        progress.tick()
        last = time.monotonic() - self._step_start
        (seconds, last, before), world = self.sum_over_processes([progress.seconds, last, self._last_step])
        progress.seconds = seconds / world
        progress.step_seconds = max(last, before) / world
        self._last_step = last / world

    def sum_over_processes(self, values: list[float]) -> tuple[list[float], float]:
        """Returns the sums over all processes, and the number of processes, over which gradients are averaged.

        Every process gathers the bytes of all values through the module's device, for a process group of an accelerator
        has no backend for the host, and adds them in the order of the ranks: a device needs no float64.
        """
        world = _world_size()
        if world > 1:
            own = torch.tensor(values, dtype=torch.float64).view(torch.int32).to(self.device)
            all_of_them = own.new_empty(world * len(own))
            dist.all_gather_into_tensor(all_of_them, own)
            values = all_of_them.cpu().view(torch.float64).view(world, -1).sum(0).tolist()
        return values, float(world)

    def share_gradients(self) -> None:
        """Averages gradients over all processes, where torch's data-parallel training has not done so already."""
        if not isinstance(self.trainer.strategy, AfterBackward):
            return
        add_gradients(self.named_parameters())
        for parameter in self.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(_world_size())

    def in_any_process(self, flag: bool) -> bool:
        """Returns whether `flag` is set in any process, so that all stop after the same step."""
        return self.sum_over_processes([float(flag)])[0][0] > 0


class LanguageModelModule(TrainingModule):
    """Trains on text; one Lightning batch is one optimizer step.

    Args:
        model: the model, on the CPU or on its device.
        config: the run.
    """

    def __init__(self, model: CausalLM, config: TrainConfig) -> None:
        super().__init__(model, config)
        self.config = config
        self.record: StepRecord[StepResult] | None = None

    def training_step(self, step: StepBatch, batch_idx: int) -> None:
        """Takes one optimizer step.

        Raises:
            NonFiniteError: names the step and the tensor; weights and optimizer are unchanged.
        """
        optimizer = self.scheduled_optimizer()
        try:
            result = accumulate_gradients(self.model, step, self.manual_backward, self.sum_over_processes)
            self.share_gradients()
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
        rate = optimizer.param_groups[0]["lr"]
        self.record = StepRecord({"lr": rate, **result.losses, "grad_norm": grad_norm}, result)
        self.share_clock()


def _world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def reduce_loads(result: StepResult) -> dict[int, torch.Tensor]:
    """Sums tokens per expert over all processes, so that all routers get the same update."""
    if _world_size() > 1:
        for load_E in result.expert_loads.values():
            dist.all_reduce(load_E)
    return result.expert_loads
