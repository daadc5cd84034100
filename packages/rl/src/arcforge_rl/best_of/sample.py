"""Samples problems with a model, selects right rollouts, and writes them as training records."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from arcforge_core.chat.load import build_chat_template
from arcforge_core.console.progress import track
from arcforge_core.contracts.environment import Environment, Task
from arcforge_core.data.conversations.rejections import Rejection
from arcforge_core.episodes.conversation_tasks import ConversationTask
from arcforge_core.episodes.rollout import Rollout, take_task
from arcforge_core.errors import ArcforgeError, ConfigError, DataError
from arcforge_core.eval.conversations.evaluate import failures, open_conversations, plays_records, sample_tasks
from arcforge_core.eval.conversations.figures import conversation_row
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.plugins.loader import registry
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_rl.best_of.figures import ALL, by_source
from arcforge_rl.best_of.select import Selection, select
from arcforge_rl.configs.commands import SamplingConfig
from arcforge_rl.rollouts.records import write_records

TASKS = 64
"""Default number of tasks of an environment without files."""
FIGURES_FILE, REJECTED_FILE = "sampling.json", "rejected.jsonl"


@dataclass(frozen=True)
class Sampled:
    """The results of sampling.

    Attributes:
        problems: the rollouts of each problem, by number.
        selections: the selection of each problem.
        rejections: records that could not be played, and problems with a failed rollout.
        thinking: the mode of tasks that do not come from records.
    """

    problems: list[list[Rollout]]
    selections: list[Selection]
    rejections: list[Rejection]
    thinking: bool = False

    @property
    def figures(self) -> dict[str, dict[str, float]]:
        """Returns figures by source, including the number of kept rollouts."""
        kept = Counter(one.domain for found in self.selections for one in found.kept)
        kept[ALL] = kept.total()
        return {source: {**of, "kept": kept[source]} for source, of in by_source(self.problems).items()}

    @property
    def reasons(self) -> Counter[str]:
        """Returns the number of rejected rollouts by reason."""
        return Counter(reason for found in self.selections for _, reason in found.rejected)

    def write(self, folder: Path, settings: dict[str, Any]) -> None:
        """Writes ``kept/{reasoning,agent}/<source>.jsonl``, figures, and a line per rejected rollout."""
        write_records(folder, [one for found in self.selections for one in found.kept], self.thinking)
        with (folder / REJECTED_FILE).open("w", encoding="utf-8") as file:
            for found in self.selections:
                for one, reason in found.rejected:
                    row = conversation_row(one) if isinstance(one.task, ConversationTask) else one.as_row()
                    file.write(json.dumps({**row, "reason": reason}, ensure_ascii=True) + "\n")
        content = {
            "settings": settings,
            "figures": self.figures,
            "rejected": dict(self.reasons),
            "not_tried": [asdict(rejection) for rejection in self.rejections],
        }
        (folder / FIGURES_FILE).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def sample(model: CausalLM, tokenizer: Tokenizer, config: SamplingConfig) -> Sampled:
    """Samples each problem `config.samples` times and selects rollouts.

    Raises:
        ConfigError: as `arcforge_core.eval.conversations.evaluate.evaluate`, or options that do not fit the problems.
        DataError: no problem can be played, or no record has a checker.
        ArcforgeError: every problem has a failed rollout.
    """
    if plays_records(config.environment):
        environment, tasks, rejections = records_with_checkers(model, tokenizer, config)
    else:
        environment, tasks, rejections = *tasks_of_environment(config), []
    thinking, total = config.thinking == "on", len(tasks) * config.samples
    ended = sample_tasks(
        model, tokenizer, config, environment, tasks, config.samples, thinking=thinking, engine=config.engine
    )
    rollouts = sorted(track(ended, "trying problems", total), key=lambda rollout: rollout.number)
    failed = failures(rollouts)
    groups = [rollouts[n : n + config.samples] for n in range(0, total, config.samples)]
    problems = [tries for tries in groups if all(one.outcome.failure is None for one in tries)]
    if not problems:
        raise ArcforgeError(f"every problem has a failed rollout; the first: {failed[0].reason}")
    selections = [select(tries, config.per_problem, config.choose) for tries in problems]
    return Sampled(problems, selections, [*rejections, *failed], thinking)


def records_with_checkers(
    model: CausalLM, tokenizer: Tokenizer, config: SamplingConfig
) -> tuple[Environment, Sequence[Task], list[Rejection]]:
    """Returns the conversations with checkers, and the rejections of the others."""
    for name in ("tasks", "thinking"):
        if getattr(config, name) not in (None, "off"):
            accepted = "is for environments without files; records have their own"
            raise ConfigError(f"{config.prefix}{name}", getattr(config, name), accepted)
    positions = model.config.max_position_embeddings
    environment, _ = open_conversations(config, build_chat_template(tokenizer), positions, config.environment)
    unchecked = [
        Rejection(task.file, task.line, task.source, "unchecked", "the record has no checker for its answers")
        for task in environment.tasks
        if not task.checked
    ]
    checked = [task for task in environment.tasks if task.checked]
    if not checked:
        raise DataError(f"{config.prefix}files: none of {len(unchecked)} records has a checker")
    return environment, checked, [*environment.rejections, *unchecked]


def tasks_of_environment(config: SamplingConfig) -> tuple[Environment, Sequence[Task]]:
    """Builds an environment without files, and returns it with its first tasks."""
    assert config.environment is not None
    name = config.environment.name
    if config.files:
        raise ConfigError(f"{config.prefix}files", config.files, f"environment={name} plays no files")
    environment: Environment = registry().get("environment", name).load()(config.environment)
    known, wanted = environment.num_tasks, config.tasks or TASKS
    return environment, [take_task(environment, n) for n in range(wanted if known is None else min(wanted, known))]
