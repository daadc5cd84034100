"""Warns on the console when experts are loaded unevenly."""

from __future__ import annotations

from typing import Any

import lightning as L
from rich.console import Console
from torch import Tensor

from arcforge_core.train.callbacks.throughput import ThroughputMetrics
from arcforge_core.train.module import TrainingModule

MOST = 3.0
"""Load of an expert, in units of the fair share, above which the console warns."""
FIRST_STEPS = 20
"""Steps in which the router biases are given time to settle."""


class ExpertWarning(L.Callback):
    """Prints a line when a row of the metrics has a load above `MOST`, and again only after a row without one.

    Args:
        console: output; only the first process prints.
        metrics: source of the rows; must precede this callback.
    """

    def __init__(self, console: Console, metrics: ThroughputMetrics) -> None:
        self.console, self.metrics = console, metrics
        self._warned = False
        self._seen: dict[int, Tensor] = {}

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Looks at the row of this step, if there is one."""
        assert isinstance(module, TrainingModule)
        shares = self.metrics.shares
        if not trainer.is_global_zero or not shares or shares is self._seen or module.progress.step <= FIRST_STEPS:
            return
        self._seen = shares
        warning = uneven(shares)
        if warning and not self._warned:
            self.console.print(f"warning: step {module.progress.step}: {warning}")
        self._warned = warning is not None


def uneven(shares: dict[int, Tensor]) -> str | None:
    """Returns a description of the layer with the busiest expert if its load is above `MOST`.

    Args:
        shares: share of the tokens of each expert [E] by layer.
    """
    loads = {layer: share_E * len(share_E) for layer, share_E in shares.items() if share_E.isfinite().all()}
    if not loads:
        return None
    layer = max(loads, key=lambda layer: float(loads[layer].max()))
    load_E = loads[layer]
    if float(load_E.max()) <= MOST:
        return None
    return (
        f"expert {int(load_E.argmax())} of layer {layer} gets {float(load_E.max()):.1f} times its fair share of the "
        f"tokens, expert {int(load_E.argmin())} {float(load_E.min()):.2f} times; a larger model.router_bias_rate "
        "balances faster"
    )
