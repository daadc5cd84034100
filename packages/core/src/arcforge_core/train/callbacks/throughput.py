"""Metrics of training on text: the averages, tokens per second, MFU, and the load of experts."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor

from arcforge_core.model.params import training_flops_per_token
from arcforge_core.train.callbacks.metrics import MetricsWriter, append_rows
from arcforge_core.train.module import LanguageModelModule, TrainingModule
from arcforge_core.train.step import StepBatch


class ThroughputMetrics(MetricsWriter):
    """Adds ``tokens_per_s``, ``mfu`` and ``busiest_expert`` to ``metrics.csv``, and writes ``experts.csv``.

    MFU is (6 x active matmul parameters + attention) FLOPs of the trained tokens, MTP by its share of them, divided by
    the time spent in steps and by the matmul rate measured in this process. The optimizer's arithmetic, including
    Muon's Newton-Schulz products, counts as time but not as FLOPs, so fewer of them improve MFU.

    ``busiest_expert`` is the largest load of an expert in any layer over the fair share; models without experts have no
    such column.

    Args:
        run_dir: folder of the files.
        every: steps between rows.
        measure: measures the matmul rate in the compute dtype, in FLOP/s.

    Attributes:
        peak_flops: that rate. It is measured again when training beats it, as other programs may have been running
            during the measurement, and is then at least what training has shown: MFU never exceeds 1.
        shares: share of the tokens of each expert [E] by layer, in the last row.
    """

    def __init__(self, run_dir: Path, every: int, measure: Callable[[], float]) -> None:
        super().__init__(run_dir, every)
        self.measure = measure
        self.peak_flops = measure()
        self.total_tokens, self.total_seconds, self.total_flops = 0, 0.0, 0.0
        self.loads: dict[int, Tensor] = {}
        self.shares: dict[int, Tensor] = {}
        self.tokens, self.seconds, self.flops = 0, 0.0, 0.0

    def on_train_batch_start(self, trainer: L.Trainer, module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        """Starts the step's clock; the time of callbacks between steps does not count."""
        self._start = time.perf_counter()

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: StepBatch, batch_idx: int
    ) -> None:
        """Adds the step; writes a row every `every` steps."""
        assert isinstance(module, LanguageModelModule) and module.record is not None
        self.seconds += time.perf_counter() - self._start
        self.tokens += batch.num_tokens
        self.flops += step_flops(module, batch)
        for layer, load_E in module.record.result.expert_loads.items():
            self.loads[layer] = self.loads.get(layer, torch.zeros_like(load_E)) + load_E
        super().on_train_batch_end(trainer, module, outputs, batch, batch_idx)

    def columns(self) -> dict[str, float]:
        """Returns tokens per second, MFU and the load of the busiest expert in the steps since the last row."""
        if self.flops / self.seconds > self.peak_flops:
            self.peak_flops = max(self.measure(), self.flops / self.seconds)
        found = {"tokens_per_s": self.tokens / self.seconds, "mfu": self.flops / self.seconds / self.peak_flops}
        used = [load_E for load_E in self.loads.values() if load_E.any()]
        if used:
            found["busiest_expert"] = max(float(load_E.max() / load_E.mean()) for load_E in used)
        return found

    def write(self, trainer: L.Trainer, module: TrainingModule) -> None:
        """Writes a row, and the share of tokens of each expert in each layer."""
        super().write(trainer, module)
        self.shares = {layer: load_E / load_E.sum() for layer, load_E in sorted(self.loads.items())}
        rows = [
            {"step": module.progress.step, "layer": layer, "expert": expert, "share": share}
            for layer, share_E in self.shares.items()
            for expert, share in enumerate(share_E.tolist())
        ]
        if rows and trainer.is_global_zero:
            append_rows(self.run_dir / "experts.csv", rows)
        self.total_tokens += self.tokens
        self.total_seconds += self.seconds
        self.total_flops += self.flops
        self.loads, self.tokens, self.seconds, self.flops = {}, 0, 0.0, 0.0

    def averages(self) -> dict[str, float]:
        """Returns tokens per second and MFU over all steps since the run was started or resumed."""
        if not self.total_seconds:
            return {}
        flops_per_s = self.total_flops / self.total_seconds
        return {"tokens_per_s": self.total_tokens / self.total_seconds, "mfu": flops_per_s / self.peak_flops}


def step_flops(module: LanguageModelModule, batch: StepBatch) -> float:
    """Returns the model's FLOPs, forward and backward, in the latest step."""
    assert module.record is not None
    keys_T = torch.cat([micro.batch.positions_T + 1 for micro in batch.micros])
    per_token = training_flops_per_token(module.model, keys_T)
    mtp = module.record.result.mtp_tokens * module.model.config.mtp.depths * per_token.mtp_depth
    return batch.num_tokens * per_token.main + mtp
