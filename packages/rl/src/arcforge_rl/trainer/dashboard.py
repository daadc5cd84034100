"""Shows a run on a terminal: progress, rewards, agreement of engine and trainer, time per phase, a sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lightning as L
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from arcforge_core.report.html import duration
from arcforge_rl.rollouts.clock import PHASES
from arcforge_rl.rollouts.collect import TracedRollout
from arcforge_rl.trainer.callbacks import Evaluations
from arcforge_rl.trainer.figures import ALL, failures
from arcforge_rl.trainer.module import PolicyModule
from arcforge_rl.trainer.monitor import Monitoring

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 48
"""Steps that a sparkline shows."""
MOST_TEXT = 600
"""Maximum characters shown of a sample."""
DROPPED = ("all_right", "all_wrong", "all_equal", "nothing_sampled")


def sparkline(values: Sequence[float], width: int = WIDTH) -> str:
    """Returns the last values as bars, scaled from minimum to maximum."""
    shown = list(values)[-width:]
    if not shown:
        return ""
    low, span = min(shown), max(shown) - min(shown)
    return "".join(BARS[round((len(BARS) - 1) * (value - low) / span) if span else 0] for value in shown)


def harmless(text: str) -> str:
    """Removes control characters for terminals from model output."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "\N{REPLACEMENT CHARACTER}" for letter in text)


class Dashboard(L.Callback):
    """A live view for terminals that replaces the lines of `ConsoleProgress`.

    Args:
        console: a terminal.
        evaluations, monitoring: callbacks that come before this one.
    """

    def __init__(self, console: Console, evaluations: Evaluations, monitoring: Monitoring) -> None:
        self.console, self.evaluations, self.monitoring = console, evaluations, monitoring
        self.live: Live | None = None
        self.fraction, self.step, self.seconds = 0.0, 0, 0.0
        self.figures: dict[str, float] = {}
        self.trained_tokens = 0
        self.rewards: list[float] = []
        self.heldout: list[tuple[int, float]] = []
        self.sample: TracedRollout | None = None

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Opens the view."""
        assert isinstance(module, PolicyModule)
        self._take(module)
        self.live = Live(self.render(), console=self.console, auto_refresh=False)
        self.live.start(refresh=True)

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Shows the step."""
        assert isinstance(module, PolicyModule) and module.record is not None
        self.figures = module.record.figures
        self.trained_tokens = sum(trace.num_sampled for trace in module.record.result.traces)
        self.rewards += [self.figures["reward"]] if "reward" in self.figures else []
        self.sample = next((r for r in module.record.result.everything if r.outcome.failure is None), self.sample)
        self._take(module)
        if self.live is not None:
            self.live.update(self.render(), refresh=True)

    def _take(self, module: PolicyModule) -> None:
        self.fraction, self.step, self.seconds = module.fraction(), module.progress.step, module.progress.seconds
        last, at = self.evaluations.last, self.evaluations.last_step
        if last is not None and (not self.heldout or self.heldout[-1][0] != at):
            self.heldout.append((at, last[ALL]["pass@1"]))

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Keeps the last view on screen."""
        self._close()

    def on_exception(self, trainer: L.Trainer, module: L.LightningModule, exception: BaseException) -> None:
        """Keeps the last view, with the error below it."""
        self._close()

    def _close(self) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None

    # ---- the view --------------------------------------------------------------------------------------------------

    def render(self) -> RenderableType:
        """Returns the current view."""
        parts: list[RenderableType] = [self._progress(), self._rows()]
        if self.sample is not None:
            parts.append(_sample(self.sample))
        return Group(*parts)

    def _progress(self) -> RenderableType:
        left = self.seconds * (1 - self.fraction) / self.fraction if self.fraction > 0 else None
        line = Table.grid(padding=(0, 1))
        line.add_row(
            Text(f"{self.fraction:4.0%}"),
            ProgressBar(total=1.0, completed=self.fraction, width=WIDTH),
            Text(f"step {self.step}  {duration(self.seconds)}" + (f"  {duration(left)} left" if left else "")),
        )
        return line

    def _rows(self) -> Table:
        rows = Table.grid(padding=(0, 2))
        for name, value in self.lines():
            rows.add_row(Text(name, style="dim"), Text(value))
        return rows

    def lines(self) -> list[tuple[str, str]]:
        """Returns lines by name, without figures that the last step lacks."""
        found, figures = [], self.figures
        if self.rewards:
            found.append(("reward", f"{self.rewards[-1]:.3f}  {sparkline(self.rewards)}"))
        if self.heldout:
            history = "  ".join(f"{share:.1%}" for _, share in self.heldout[-6:])
            found.append(("held-out pass@1", f"{history}  {sparkline([share for _, share in self.heldout])}"))
        if "entropy" in figures:
            masked = figures.get("masked_low", 0.0) + figures.get("masked_high", 0.0)
            found.append(("entropy", f"{figures['entropy']:.3f} nats a token"))
            if "logprob_gap" in figures:
                gap = f"{figures['logprob_gap']:.1e} mean, {figures['logprob_gap_max']:.1e} most"
                found.append(("log-prob gap", gap))
            found.append(("masked", f"{masked:.1%} of the tokens"))
        if "length" in figures:  # of rollouts that did not fail
            found.append(("length", f"{figures['length']:.0f} tokens, {figures['truncated']:.0%} cut off"))
        if figures:
            dropped = ", ".join(f"{figures[name]:.0f} {name.replace('_', ' ')}" for name in DROPPED if figures[name])
            found.append(("groups", f"{figures['groups']:.0f} trained on; dropped: {dropped or 'none'}"))
            if failed := failures(figures):
                found.append(("failed", f"rollouts: {failed}"))
            if "staleness_take_mean" in figures:
                found += self._asynchrony()
            if "trainer_idle" in figures:
                found.append(("idle", self._idle()))
            found += [("speed", self._speed()), ("time", self._time())]
        if self.monitoring.count:
            found.append(("warnings", f"{self.monitoring.count}"))
        return found

    def _asynchrony(self) -> list[tuple[str, str]]:
        """Returns the lines of a run that samples while it trains."""
        figures = self.figures
        staleness = f"{figures['staleness_take_mean']:.2f} mean, {figures['staleness_take_max']:.0f} most"
        drift = f"; drift {figures['logprob_drift']:.1e} nats a token" if "logprob_drift" in figures else ""
        dropped = {n.removeprefix("dropped_"): c for n, c in figures.items() if n.startswith("dropped_") and c}
        lost = ", ".join(f"{count:.0f} {name}" for name, count in dropped.items())
        rollouts = "none ended"
        if "rollout_p50" in figures:
            rollouts = f"{figures['rollout_p50']:.1f} s median, {figures['rollout_p99']:.1f} s p99"
        found = [
            ("staleness", staleness + drift),
            ("rollouts", rollouts + (f"; groups dropped: {lost}" if lost else "")),
        ]
        if "trained_per_sampled" in figures:
            used = f"{figures['trained_per_sampled']:.0%} of the sampled tokens; "
            found.append(("trained", used + f"{figures['prefix_hits']:.0%} of the prompts cached"))
        return found

    def _idle(self) -> str:
        engine = f", engine {self.figures['engine_idle']:.0%}" if "engine_idle" in self.figures else ""
        return f"trainer {self.figures['trainer_idle']:.0%}{engine}"

    def _speed(self) -> str:
        rates = []
        for phase, tokens in (("sampling", self.figures["sampled_tokens"]), ("training", self.trained_tokens)):
            seconds = self.figures[f"seconds_{phase}"]
            rates.append(f"{phase} {tokens / seconds if seconds else 0.0:,.0f}")
        return ", ".join(rates) + " tokens/s"

    def _time(self) -> str:
        seconds = {phase: self.figures[f"seconds_{phase}"] for phase in PHASES}
        whole = sum(seconds.values()) or 1.0
        return ", ".join(f"{phase} {of / whole:.0%}" for phase, of in seconds.items())


def _sample(rollout: TracedRollout) -> Panel:
    """Returns the last reply of a rollout, its reward and the reason. The text is untrusted and has no markup."""
    question = harmless(rollout.task.prompt)[:MOST_TEXT]
    reply = harmless(rollout.episode.reply.text)
    cut = "" if len(reply) <= MOST_TEXT else f" … ({len(reply) - MOST_TEXT:,} more characters)"
    reason = harmless(rollout.outcome.reasons.get("reward", ""))[:MOST_TEXT]
    words = Text.assemble((question + "\n", "dim"), reply[:MOST_TEXT] + cut)
    verdict = Text(f"\nreward {rollout.outcome.reward:.2f}" + (f": {reason}" if reason else ""), style="bold")
    return Panel(words + verdict, title="sample", title_align="left")
