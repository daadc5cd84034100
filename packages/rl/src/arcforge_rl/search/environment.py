"""``environment=search``: a question of several hops, pages to search, one name as the answer."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from arcforge_core.contracts.chat import Message, Tool, ToolCall
from arcforge_core.contracts.environment import Agents, Episode, Reply, Score, Script, Task
from arcforge_core.data.split import is_heldout_task
from arcforge_core.episodes.rewards import metric, reward
from arcforge_core.episodes.tools import ToolEnvironment, converse
from arcforge_core.errors import ConfigError
from arcforge_rl.configs.environments import SearchConfig
from arcforge_rl.environments.boxed import sandboxed_tools
from arcforge_rl.problems.tools import definition
from arcforge_rl.sandbox.sync import shared_desk
from arcforge_rl.search.query import QueryPart
from arcforge_rl.search.questions import PAGES, QUESTIONS, SearchQuestion, corpus_of, read_folder, verdict
from arcforge_rl.search.tools import TOOLS, Library

PYTHON = "python"
"""A tool, and the corpus whose pages its sandbox could compute."""


@dataclass(frozen=True)
class SearchTask(Task):
    """A task; the answer is the title of a page."""

    question: SearchQuestion


class Search(ToolEnvironment):
    """Questions of a folder, which ``arcforge-env search build`` writes.

    All questions whose answers are of one group of pages are on one side of the split; so are the rare entities on
    their chains.

    Raises:
        DataError: the folder has no usable questions.
        ConfigError: no question is on this side of the split, or the index's package is not installed.
    """

    domain = "search"

    def __init__(self, config: SearchConfig) -> None:
        super().__init__(config)
        folder = Path(config.path).expanduser().resolve()
        self.library, questions = _opened(folder)
        self.python = corpus_of(folder) != [PYTHON] if config.python is None else config.python
        heldout = config.split == "heldout"
        self.questions = [one for one in questions if is_heldout_task(f"search/{one.group}") == heldout]
        if not self.questions:
            raise ConfigError("environment.split", config.split, f"none of {len(questions)} questions is on this side")
        self.num_tasks: int | None = len(self.questions)

    def task(self, index: int) -> Task:
        """Returns the task of a question."""
        one = self.questions[index % len(self.questions)]
        return SearchTask(one.key, one.text, one.answers[0], one)

    def labels_of(self, task: Task) -> tuple[str, ...]:
        """Returns the number of hops and the kind of the answer."""
        assert isinstance(task, SearchTask)
        return (f"{task.question.part.size} hops", task.question.part.kind)

    async def run(self, task: Task, agents: Agents) -> Episode:
        """Lets the solver search, and run programs in one sandbox, opened at the first such call.

        Raises:
            ConfigError: untrusted code cannot be run here.
            SandboxFault: the sandbox broke.
        """
        messages, calls = [Message("user", task.prompt)], self.config.max_calls
        if not self.python:
            return await converse(agents, messages, TOOLS, self.library.use, max_calls=calls)
        async with sandboxed_tools(shared_desk) as run_program:

            async def use(call: ToolCall) -> str:
                return await (run_program if call.name == PYTHON else self.library.use)(call)

            return await converse(agents, messages, (*TOOLS, Tool(definition(PYTHON))), use, max_calls=calls)

    @reward(timeout=None)
    def right(self, task: Task, episode: Episode) -> Score:
        """Compares the answer with the names of the entity; needs no timeout."""
        assert isinstance(task, SearchTask)
        if episode.finish_reason != "stop":
            return Score(0.0, f"the conversation ended with {episode.finish_reason}")
        return verdict(task.question, episode.reply)

    @metric(timeout=None)
    def pages_on_chain(self, task: Task, episode: Episode) -> Score:
        """Returns the share of the question's pages that were opened."""
        assert isinstance(task, SearchTask)
        calls = [call for message in episode.messages for call in message.tool_calls if call.name == "open"]
        opened = {str(call.arguments.get("page")) for call in calls}
        wanted = {part.entity for part in task.question.part.parts}
        return Score(len(wanted & opened) / len(wanted), f"{len(wanted & opened)} of {len(wanted)} pages opened")

    def oracle(self, task: Task) -> Script:
        """Returns the calls that find and open each page from the leaves up, and the answer."""
        assert isinstance(task, SearchTask)
        return [*_walk(task.question.part), Reply(f"Answer: {task.answer}")]

    def cheats(self, task: Task) -> Sequence[Script]:
        """Returns lists of candidates, hedged, negated and wrong answers, pages, and answers that come too late."""
        assert isinstance(task, SearchTask)
        answer, others = task.answer, task.question.others
        calls = self.oracle(task)[:-1]
        page = self.library.pages[answer].text
        candidates = [*others, *(part.entity for part in task.question.part.parts)]
        texts = [
            ", ".join(candidates),
            "\n".join(f"Answer: {one}" for one in candidates),
            f"{answer} or {others[0]}" if others else f"{answer} or none",
            f"Answer: not {answer}",
            f"Answer: {answer}\nI am not sure.",
            f"Answer: {answer}\nAnswer: {answer}x",
            f"{answer}\n\n{page or 'nothing'}",
            *others,
            *[part.entity for part in task.question.part.parts if part.entity not in task.question.answers],
        ]
        endless = [*calls, *[calls[0]] * (self.config.max_calls + 1)]
        return [*[[*calls, Reply(text)] for text in texts], endless, [Reply(answer, finish_reason="length")]]


def _walk(part: QueryPart) -> list[Reply]:
    found = [reply for hop in part.hops for reply in _walk(hop.part)]
    words = " ".join([part.entity, *(clue.text for clue in part.clues)])
    for name, arguments in (("search", {"query": words}), ("open", {"page": part.entity})):
        found.append(Reply(calls=(ToolCall(name, arguments),)))
    return found


_opening = threading.Lock()


def _opened(folder: Path) -> tuple[Library, Sequence[SearchQuestion]]:
    """Returns pages and questions of a folder; all environments of this process share them."""
    paths = [folder / name for name in (PAGES, QUESTIONS)]
    stamps = [path.stat().st_mtime_ns if path.is_file() else 0 for path in paths]
    with _opening:
        return _read(folder, tuple(stamps))


@functools.lru_cache(maxsize=4)
def _read(folder: Path, stamps: tuple[int, ...]) -> tuple[Library, Sequence[SearchQuestion]]:
    pages, questions = read_folder(folder)
    return Library(pages), questions
