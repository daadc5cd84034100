"""Datasets from files: jsonl, json, parquet and folders of the `datasets` library; presets by name."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Self

from arcforge_core.contracts.environment import Episode, Reply, Score, Script, Task
from arcforge_core.data.conversations.records import Row, find_files, read_rows
from arcforge_core.data.split import is_heldout_task
from arcforge_core.episodes.rewards import reward
from arcforge_core.errors import ConfigError, DataError
from arcforge_rl.configs.environments import DatasetConfig
from arcforge_rl.environments.answers import need_math_verify
from arcforge_rl.environments.code import CodeTask, judge_program, program_cheats
from arcforge_rl.environments.datasets_known import KNOWN, BadRow, Extracted, extract_fields
from arcforge_rl.environments.math_judge import MathVerified, math_cheats
from arcforge_rl.environments.science import choice_cheats, judge_choice

log = logging.getLogger("arcforge.environments")


class Dataset(MathVerified):
    """One task per row, scored by the method that `judge` names; after the last row the tasks repeat.

    Raises:
        ConfigError: the file is missing, or no row is on this side of the split.
        DataError: a row has no question or no answer; names file and line. With `skip_bad` it is skipped and counted.
    """

    def __init__(self, config: DatasetConfig) -> None:
        super().__init__(config)
        self._kind = KNOWN[config.preset].judge if config.preset else config.judge
        self.domain = "code" if self._kind == "code" else "math" if self._kind == "math" else "questions"
        if not config.path:
            raise ConfigError("environment.path", config.path, "must name a file, or a folder of files")
        self._files = find_files([config.path], "environment.path")
        if self._kind == "math":
            need_math_verify()
        self.num_tasks = len(self._tasks)

    @classmethod
    def for_verifiers(cls, config: DatasetConfig) -> Self:
        """Returns a dataset without reading its files."""
        made = cls.__new__(cls)
        made.config = config
        return made

    @cached_property
    def _tasks(self) -> list[Task]:
        heldout, left_out = self.config.split == "heldout", Counter[str]()
        tasks: dict[str, Task] = {}
        for path in self._files:
            for row in read_rows(path):
                try:
                    task = self._task(path, row)
                except BadRow as reason:
                    if not self.config.skip_bad:
                        raise DataError(f"{row.file}:{row.line}: {reason}") from reason
                    left_out[str(reason)] += 1
                    continue
                if is_heldout_task(task.key) == heldout:
                    tasks.setdefault(task.key, task)
        for why, count in left_out.items():
            log.warning("%s: %d rows are left out: %s", self.config.path, count, why)
        if not tasks:
            raise ConfigError("environment.split", self.config.split, f"no row of {self.config.path} is on this side")
        return list(tasks.values())

    def task(self, index: int) -> Task:
        """Returns the task of a row; equal questions share a task key."""
        return self._tasks[index % len(self._tasks)]

    @reward(timeout=None)
    async def correct(self, task: Task, episode: Episode) -> Score:
        """Scores by the reference, or by tests."""
        if isinstance(task, CodeTask):
            return await judge_program(task.tests, episode, self.config.seconds)
        if self._kind == "math":
            return await self.judge_math(task, episode)
        if self._kind == "choice":
            return judge_choice(task.answer, episode.reply)
        last = episode.reply.text.strip().rsplit("\n", 1)[-1].strip()
        right = episode.reply.finish_reason == "stop" and last == task.answer
        return Score(float(right), f"the last line is {last[:80]!r}")

    def oracle(self, task: Task) -> Script:
        """Returns the reference answer.

        Raises:
            ConfigError: the row has tests but no solution.
        """
        if isinstance(task, CodeTask):
            if not task.answer:
                raise ConfigError("environment.path", self.config.path, "its rows have no solutions to check with")
            return [Reply(f"```python\n{task.answer}\n```")]
        return [Reply(rf"\boxed{{{task.answer}}}" if self._kind == "math" else task.answer)]

    def cheats(self, task: Task) -> Sequence[Script]:
        if isinstance(task, CodeTask):
            return program_cheats(task.tests, task.answer)
        if self._kind == "math":
            return math_cheats(task)
        if self._kind == "choice":
            return choice_cheats(task)
        texts = [task.prompt, f"{task.answer} {task.answer}x", f"{task.answer}\nor not", f"it is {task.answer}!"]
        return [[Reply(text)] for text in texts]

    def _task(self, path: Path, row: Row) -> Task:
        if row.record is None:
            raise BadRow(row.reason)
        config = self.config
        if config.preset:
            found = KNOWN[config.preset].extract(row.record)
        else:
            found = extract_fields(row.record, config.prompt_field, config.answer_field, config.judge)
        return self._made(found, path.stem)

    def _made(self, found: Extracted, name: str) -> Task:
        prompt = found.prompt + self.config.suffix
        key = f"{name}/{hashlib.sha256(prompt.encode()).hexdigest()[:24]}"
        if found.tests is not None:
            return CodeTask(key, prompt, found.answer, found.tests)
        return Task(key, prompt, found.answer)
