"""Warns of problems that the reward does not show yet: entropy, masked tokens, log-prob gap."""

from __future__ import annotations

import csv
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lightning as L
from rich.console import Console

from arcforge_core.train.callbacks.metrics import append_row
from arcforge_rl.configs.learning import MonitorConfig
from arcforge_rl.trainer.module import GAPS, PolicyModule, gap_limit

WARNINGS_FILE = "warnings.csv"
ALARMS = ("gold", "length", "repetition", "refusals", "malformed", "canaries")
"""Figures that say that the reward is exploited; `monitor.action` answers them."""


@dataclass(frozen=True)
class Warned:
    """A figure outside its bounds.

    Attributes:
        step: step of the warning.
        figure: ``entropy``, ``masked``, ``logprob_gap``, or one of `ALARMS`.
        value: its mean over the last steps.
        limit: the exceeded limit.
        message: text of the warning.
    """

    step: int
    figure: str
    value: float
    limit: float
    message: str


class Monitor:
    """Checks the figures of steps; warns once when a figure leaves its bounds, and again only after it has been back
    inside.

    Args:
        config: bounds.
        most_gap: limit of the mean log-prob gap.
    """

    def __init__(self, config: MonitorConfig, most_gap: float) -> None:
        self.config, self.most_gap = config, most_gap
        self._past: dict[str, deque[float]] = {}
        self._beginning: dict[str, float] = {}
        self._outside: set[str] = set()

    def add(self, step: int, figures: Mapping[str, float]) -> list[Warned]:
        """Adds a step and returns its warnings; a step without training gives none."""
        config, found = self.config, []
        entropy = self._mean("entropy", figures.get("entropy", math.nan))
        begun = self._beginning.get("entropy")
        if entropy is not None and begun is not None:
            low, high = config.entropy_low * begun, config.entropy_high * begun
            said = f"entropy {entropy:.3g} nats, {{}} x what it began with ({begun:.3g})"
            collapsed = said.format(f"below {config.entropy_low:g}") + ": the policy says the same again and again"
            wild = said.format(f"above {config.entropy_high:g}") + ": the policy turns to noise"
            found += self._crossed("entropy falls", entropy < low, step, "entropy", entropy, low, collapsed)
            found += self._crossed("entropy rises", entropy > high, step, "entropy", entropy, high, wild)
        masked = self._mean("masked", figures.get("masked_low", math.nan) + figures.get("masked_high", math.nan))
        if masked is not None:
            said = f"{masked:.1%} of the tokens are masked, above {config.masked:.1%}: the engine and the trainer drift"
            found += self._crossed("masked", masked > config.masked, step, "masked", masked, config.masked, said)
        gap, limit = self._mean("logprob_gap", figures.get("logprob_gap", math.nan)), config.gap * self.most_gap
        if gap is not None:
            said = f"log-prob gap {gap:.2g} nats a token, above {limit:.2g}: engine and trainer come apart"
            found += self._crossed("gap", gap > limit, step, "logprob_gap", gap, limit, said)
        return [*found, *self._replies(step, figures)]

    def _replies(self, step: int, figures: Mapping[str, float]) -> list[Warned]:
        """Returns the alarms about the form of replies."""
        config, found = self.config, list[Warned]()
        length = self._mean("length", figures.get("length", math.nan))
        begun = self._beginning.get("length")
        if length is not None and begun is not None:
            most = config.length_high * begun
            said = (
                f"replies of {length:.0f} tokens, above {config.length_high:g} x those of the beginning ({begun:.0f})"
            )
            found += self._crossed("length", length > most, step, "length", length, most, said)
        for name, limit, said in (
            ("repetition", config.repetition, "of a reply repeats itself"),
            ("refusals", config.refusals, "of the replies refuse"),
            ("malformed", config.malformed, "of the replies are malformed"),
        ):
            share = self._mean(name, figures.get(name, math.nan))
            if share is not None:
                text = f"{share:.0%} {said}, above {limit:.0%}"
                found += self._crossed(name, share > limit, step, name, share, limit, text)
        return found

    def measured(self, step: int, gold: float, best: float, canaries: float | None) -> list[Warned]:
        """Adds an evaluation and returns its alarms.

        Args:
            step: of the evaluation.
            gold: mean reward of held-out tasks.
            best: the best so far.
            canaries: share of the canaries that fail; None without any.
        """
        limit = best - self.config.gold_drop
        said = f"held-out reward {gold:.3f}, more than {self.config.gold_drop:g} below its best ({best:.3f})"
        found = self._crossed("gold", gold < limit, step, "gold", gold, limit, said)
        if canaries is not None:
            limit = self.config.canary_failures
            said = f"{canaries:.0%} of the canaries fail, above {limit:.0%}"
            found += self._crossed("canaries", canaries > limit, step, "canaries", canaries, limit, said)
        return found

    def _mean(self, name: str, value: float) -> float | None:
        """Returns the mean over the last steps with this figure; the first such mean is the run's initial value."""
        if not math.isfinite(value):
            return None
        past = self._past.setdefault(name, deque(maxlen=self.config.window))
        past.append(value)
        if len(past) < self.config.window:
            return None
        mean = sum(past) / len(past)
        self._beginning.setdefault(name, mean)
        return mean

    def _crossed(
        self, name: str, outside: bool, step: int, figure: str, value: float, limit: float, message: str
    ) -> list[Warned]:
        was = name in self._outside
        (self._outside.add if outside else self._outside.discard)(name)
        return [Warned(step, figure, value, limit, message)] if outside and not was else []


class Monitoring(L.Callback):
    """Prints warnings and writes ``warnings.csv``. A resumed run compares with the start of the original run.

    Args:
        run_dir: folder of ``metrics.csv``.
        metrics: name of that file.
        console: prints the warnings.

    Attributes:
        count: warnings so far.
        alarmed: whether one of them, of this process, was of `ALARMS`.
    """

    def __init__(self, run_dir: Path, metrics: str, console: Console) -> None:
        self.run_dir, self.metrics, self.console = run_dir, metrics, console
        self.monitor: Monitor | None = None
        self.count = 0
        self.alarmed = False

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Adds the steps before a resumed run."""
        assert isinstance(module, PolicyModule)
        self.monitor = Monitor(module.config.monitor, gap_limit(module.config) or GAPS["bf16"])
        path = self.run_dir / self.metrics
        if path.exists():
            with path.open(encoding="utf-8", newline="") as file:
                for row in csv.DictReader(file):
                    known = {name: float(cell) for name, cell in row.items() if cell}
                    self.count += len(self.monitor.add(int(known["step"]), known))

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Adds the step."""
        assert isinstance(module, PolicyModule) and module.record is not None and self.monitor is not None
        self.tell(self.monitor.add(module.progress.step, module.record.figures))

    def tell(self, warnings: Sequence[Warned]) -> None:
        """Prints and writes warnings."""
        for warning in warnings:
            self.count += 1
            self.alarmed = self.alarmed or warning.figure in ALARMS
            self.console.print(f"warning: step {warning.step}: {warning.message}")
            append_row(self.run_dir / WARNINGS_FILE, asdict(warning))
