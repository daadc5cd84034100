"""Watches the held-out reward, which no component of the training reward can raise by itself, and answers alarms."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import lightning as L

from arcforge_core.checkpoint.pretrained import load_weights, save_pretrained
from arcforge_core.files.rundir import write_json
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_rl.environments.canaries import Canaries, read_canaries
from arcforge_rl.trainer.callbacks import Evaluations
from arcforge_rl.trainer.figures import ALL
from arcforge_rl.trainer.module import PolicyModule
from arcforge_rl.trainer.monitor import Monitoring

GOLD_FILE, BEST_FOLDER = "gold.json", "best"


class GoldWatch(L.Callback):
    """Alarms of evaluations, and `monitor.action`: a run that is stopped ends as one at its budget does.

    With ``action=rollback`` the best weights are in the run's folder ``best``; they replace those of the alarm, and are
    evaluated again as the run's last.

    Args:
        run_dir: folder of the run.
        evaluations: of held-out tasks; it runs before this callback.
        monitoring: prints the warnings; it runs before this callback.
        tokenizer: of the policy.
        canaries: file of them, or None.

    Attributes:
        best: step and held-out reward of the best evaluation; None before the first.
    """

    def __init__(
        self,
        run_dir: Path,
        evaluations: Evaluations,
        monitoring: Monitoring,
        tokenizer: Tokenizer,
        canaries: str | None,
    ) -> None:
        self.run_dir, self.evaluations, self.monitoring, self.tokenizer = run_dir, evaluations, monitoring, tokenizer
        self.canaries = None if canaries is None else Canaries(read_canaries(Path(canaries)))
        self.best: tuple[int, float] | None = None
        self._seen = -1

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Reads the best evaluation before a resumed run; one of steps that will be repeated does not count."""
        assert isinstance(module, PolicyModule)
        with suppress(OSError, ValueError, KeyError, TypeError):
            found = json.loads((self.run_dir / GOLD_FILE).read_text(encoding="utf-8"))
            if int(found["step"]) <= module.progress.step:
                self.best = int(found["step"]), float(found["reward"])
        self._look(trainer, module)

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Looks at a new evaluation, and answers alarms."""
        assert isinstance(module, PolicyModule)
        self._look(trainer, module)
        action = module.config.monitor.action
        if action == "warn" or not self.monitoring.alarmed:
            return
        if action == "rollback" and self.best is not None:
            load_weights(module.model, self.run_dir / BEST_FOLDER)
            module.sync_weights(module.weight_version + 1)
            self.evaluations.asked_step = -1  # of other weights
            self.monitoring.console.print(f"the weights are those of step {self.best[0]} again")
        self.monitoring.console.print(f"monitor.action={action} ends the run at step {module.progress.step}")
        trainer.should_stop = True

    def _look(self, trainer: L.Trainer, module: PolicyModule) -> None:
        evaluations = self.evaluations
        if evaluations.last is None or evaluations.last_step == self._seen:
            return
        self._seen = step = evaluations.last_step
        gold = evaluations.last[ALL]["reward"]
        if self.best is None or gold > self.best[1]:
            self.best = step, gold
            if trainer.is_global_zero:
                if module.config.monitor.action == "rollback":
                    save_pretrained(module.model, self.run_dir / BEST_FOLDER, self.tokenizer)
                write_json(self.run_dir / GOLD_FILE, {"step": step, "reward": gold})
        failing = None
        if self.canaries is not None:
            groups = module.sampler.play_greedily(self.canaries, len(self.canaries.canaries))
            outcomes = [rollout.outcome for group in groups for rollout in group if rollout.outcome.failure is None]
            failing = sum(outcome.reward < 1.0 for outcome in outcomes) / len(outcomes) if outcomes else None
        assert self.monitoring.monitor is not None
        self.monitoring.tell(self.monitoring.monitor.measured(step, gold, self.best[1], failing))
