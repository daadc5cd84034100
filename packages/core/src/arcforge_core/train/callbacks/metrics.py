"""Gathers scalars and writes one row every N steps: CSV files and TensorBoard."""

from __future__ import annotations

import csv
import time
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor

from arcforge_core.model.params import training_flops_per_token
from arcforge_core.train.module import LanguageModelModule, StepRecord


def append_row(path: Path, row: dict[str, Any]) -> None:
    """Appends to a CSV file whose header is that of its first row."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(row))
        if new:
            writer.writeheader()
        writer.writerow(row)


class MetricsWriter(L.Callback):
    """Writes ``metrics.csv`` and ``experts.csv``; means over the steps since the last row.

    MFU is (6 x active matmul parameters + attention) FLOPs of the tokens trained on, MTP by its share of them, over
    the time spent in steps and over the matmul rate measured in this process. The optimizer's arithmetic counts as time
    and not as FLOPs, Muon's Newton-Schulz products included: a step that needs fewer of them is the better one.

    Args:
        run_dir: where the files go.
        every: steps between rows.
        peak_flops: measured matmul rate in the compute dtype.
    """

    def __init__(self, run_dir: Path, every: int, peak_flops: float) -> None:
        self.run_dir, self.every, self.peak_flops = run_dir, every, peak_flops
        self.last_row: dict[str, float] = {}
        self.total_tokens, self.total_seconds, self.total_flops = 0, 0.0, 0.0
        self._reset()

    def _reset(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.loads: dict[int, Tensor] = {}
        self.steps, self.tokens, self.seconds, self.flops, self.grad_norm = 0, 0, 0.0, 0.0, 0.0

    def on_train_batch_start(self, trainer: L.Trainer, module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        """Starts the step's clock; what callbacks do between steps does not count."""
        self._start = time.perf_counter()

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Adds the step; writes a row when it is due."""
        assert isinstance(module, LanguageModelModule) and module.record is not None
        record = module.record
        self.seconds += time.perf_counter() - self._start
        self.steps += 1
        self.tokens += record.batch.num_tokens
        self.grad_norm += record.grad_norm
        self.flops += self._step_flops(module, record)
        for name, value in record.result.losses.items():
            self.sums[name] = self.sums.get(name, torch.zeros_like(value)) + value
        for layer, load_E in record.result.expert_loads.items():
            self.loads[layer] = self.loads.get(layer, torch.zeros_like(load_E)) + load_E
        if module.progress.step % self.every == 0 or module.progress.step == 1:
            self.write(trainer, module)

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Writes what is left."""
        assert isinstance(module, LanguageModelModule)
        if self.steps:
            self.write(trainer, module)

    def _step_flops(self, module: LanguageModelModule, record: StepRecord) -> float:
        keys_T = torch.cat([micro.batch.positions_T + 1 for micro in record.batch.micros])
        per_token = training_flops_per_token(module.model, keys_T)
        mtp = record.result.mtp_tokens * module.model.config.mtp.depths * per_token.mtp_depth
        return record.batch.num_tokens * per_token.main + mtp

    def write(self, trainer: L.Trainer, module: LanguageModelModule) -> None:
        """Writes one row of means and starts anew."""
        assert module.record is not None
        progress = module.progress
        self.total_tokens += self.tokens
        self.total_seconds += self.seconds
        self.total_flops += self.flops
        row: dict[str, float] = {
            "step": progress.step,
            "tokens": progress.tokens,
            "seconds": round(progress.seconds, 3),
            "progress": module.fraction(),
            "lr": module.record.lr,
            **{name: float(value) / self.steps for name, value in self.sums.items()},
            "grad_norm": self.grad_norm / self.steps,
            "tokens_per_s": self.tokens / self.seconds,
            "mfu": self.flops / self.seconds / self.peak_flops,
        }
        self.last_row = row
        if trainer.is_global_zero:
            append_row(self.run_dir / "metrics.csv", row)
            for layer, load_E in sorted(self.loads.items()):
                for expert, share in enumerate((load_E / load_E.sum()).tolist()):
                    cells = {"step": progress.step, "layer": layer, "expert": expert, "share": share}
                    append_row(self.run_dir / "experts.csv", cells)
            if trainer.logger is not None:
                trainer.logger.log_metrics({k: v for k, v in row.items() if k != "step"}, step=progress.step)
        self._reset()

    def averages(self) -> dict[str, float]:
        """Returns tokens/s and MFU over all steps of this sitting."""
        if not self.total_seconds:
            return {}
        flops_per_s = self.total_flops / self.total_seconds
        return {"tokens_per_s": self.total_tokens / self.total_seconds, "mfu": flops_per_s / self.peak_flops}
