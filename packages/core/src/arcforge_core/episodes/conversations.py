"""The environment over conversation records: a record with checkers is a task, and each checker is a reward.

The policy gets the user's turns one by one, in the record's thinking mode, and may call the record's tools. The context
of a turn consists of the policy's own replies, not the record's.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from arcforge_core.configs import ConversationEnvironmentConfig
from arcforge_core.console.progress import say
from arcforge_core.contracts.chat import ToolCall
from arcforge_core.contracts.conversation import BadRecord, Checker, Conversation
from arcforge_core.contracts.environment import Agents, Episode, EpisodeFailure, Outcome, Reply, Score, Script, Task
from arcforge_core.data.conversations.rejections import INVALID, Rejection, summary
from arcforge_core.data.split import is_heldout_task
from arcforge_core.episodes.conversation_tasks import ConversationTask, Loaded, load_tasks
from arcforge_core.episodes.conversation_turns import ANSWERED, NOT_REACHED, TOO_MANY_CALLS, Turns
from arcforge_core.episodes.rewards import TOTAL, score_of
from arcforge_core.episodes.tools import CALLS, Use
from arcforge_core.errors import ConfigError

UNKNOWN_CALL = "Error: this call is not in the record"
_CHECKING = ThreadPoolExecutor(1, "arcforge-checker")
"""Checkers may wait, for a sandbox for example. They wait here, one by one, so that they need no locks."""


class ConversationEnvironment:
    """An `Environment` whose tools return the recorded results; a call that is not in the record is an error.

    Subclasses override `check_tools` and `tools` to run calls.

    Args:
        config: options, including the files.
        loaded: records to play instead of the files, with or without checkers, on either side of the split.

    Raises:
        DataError: a file is missing or unreadable, or no record can be played.
        ConfigError: no files are named, or no record with a checker is on this side of the split.
    """

    domain = "conversations"

    def __init__(self, config: ConversationEnvironmentConfig, loaded: Loaded | None = None) -> None:
        self.config = config
        if loaded is None and not config.files:
            raise ConfigError("environment.files", [], "name files or folders, as [outputs/conversations]")
        found = loaded or load_tasks(config.files, "environment.files", config.limit, config.seed)
        self.tasks, self.rejections = self._playable(found)
        if loaded is None:
            if self.rejections:
                say(f"conversations: {summary(self.rejections, len(self.tasks) + len(self.rejections))}")
            self.tasks = [task for task in self.tasks if task.checked and self._on_side(task)]
            if not self.tasks:
                raise ConfigError("environment.split", config.split, "no record with a checker is on this side")
        self.num_tasks: int | None = len(self.tasks)

    def _playable(self, found: Loaded) -> tuple[list[ConversationTask], list[Rejection]]:
        kept, rejections = [], list(found.rejections)
        for task in found.tasks:
            try:
                self.check_tools(task.conversation)
            except (BadRecord, ConfigError) as error:
                rejections.append(Rejection(task.file, task.line, task.source, INVALID, str(error)))
                continue
            kept.append(task)
        return kept, rejections

    def _on_side(self, task: ConversationTask) -> bool:
        return self.config.split == "all" or is_heldout_task(task.side) == (self.config.split == "heldout")

    def task(self, index: int) -> ConversationTask:
        return self.tasks[index % len(self.tasks)]

    def domain_of(self, task: Task) -> str:
        """Returns the record's source."""
        assert isinstance(task, ConversationTask)
        return task.source

    def check_tools(self, conversation: Conversation) -> None:
        """Raises `BadRecord` if the record's tools cannot be run."""

    @asynccontextmanager
    async def tools(self, conversation: Conversation) -> AsyncIterator[Use]:
        """Yields the function that runs the calls of one episode."""
        results = recorded_results(conversation)

        async def use(call: ToolCall) -> str:
            return results.get(_written(call), UNKNOWN_CALL)

        yield use

    async def run(self, task: Task, agents: Agents) -> Episode:
        """Asks the record's questions in order until a turn ends without an answer.

        Artefacts: ``answers`` (outcome, text and expected answer of each question), ``flaws`` of the policy's messages,
        ``obeyed`` (whether each follows the thinking mode), ``calls`` and ``valid_calls``.
        """
        assert isinstance(task, ConversationTask)
        turns = Turns(task.conversation, self.config.max_calls)
        async with self.tools(task.conversation) as use:
            for question in task.questions:
                if not turns.answers or turns.answers[-1]["outcome"] == ANSWERED:
                    outcome, text = await turns.ask(question.given, agents, use)
                else:
                    outcome, text = NOT_REACHED, ""
                turns.answers.append({"outcome": outcome, "text": text, "expected": question.expected})
        finish = CALLS if turns.answers[-1]["outcome"] == TOO_MANY_CALLS else turns.reply.finish_reason
        artefacts = {name: getattr(turns, name) for name in ("answers", "flaws", "obeyed", "calls", "valid_calls")}
        return Episode(tuple(turns.messages), turns.reply, finish, artefacts)

    async def score(self, task: Task, episode: Episode) -> Outcome:
        """Returns the reward ``answer_N`` for each answer with a checker, and their mean, 0 if there are none."""
        assert isinstance(task, ConversationTask)
        scores, loop = {}, asyncio.get_running_loop()
        for number, (question, answer) in enumerate(zip(task.questions, episode.artefacts["answers"], strict=True), 1):
            if question.checker is not None:
                try:
                    judging = loop.run_in_executor(_CHECKING, _judged, question.checker, answer)
                    scores[f"answer_{number}"] = await judging
                except EpisodeFailure as error:
                    return Outcome.failed(error.failure)
        total = sum(score.value for score in scores.values()) / max(1, len(scores))
        short = [f"{name}: {score.reason}" for name, score in scores.items() if score.value < 1.0]
        reason = "; ".join(short) or ("right" if scores else "the record names no checker")
        return Outcome(
            {TOTAL: total} | {name: score.value for name, score in scores.items()},
            {TOTAL: reason} | {name: score.reason for name, score in scores.items()},
        )

    def oracle(self, task: Task) -> Script:
        """Returns the record's own messages."""
        assert isinstance(task, ConversationTask)
        messages = [message for message in task.conversation.messages if message.role == "assistant"]
        return [Reply(message.content, message.reasoning or "", message.tool_calls) for message in messages]

    def cheats(self, task: Task) -> Sequence[Script]:
        """Returns answers among others, truncated answers, and answers in the reasoning only."""
        assert isinstance(task, ConversationTask)
        expected = [question.expected for question in task.questions]
        return [
            [Reply(f"{text} or {text}1") for text in expected],
            [Reply(expected[0], finish_reason="length")],
            [Reply("", reasoning=text) for text in expected],
        ]


def _judged(checker: Checker, answer: Mapping[str, str]) -> Score:
    if answer["outcome"] != ANSWERED:
        return Score(0.0, answer["outcome"])
    try:
        right = checker.check(answer["text"])
    except ConfigError:
        raise
    except Exception as error:
        return score_of(error)
    return Score(float(right), f"the answer is {answer['text'][:80]!r}")


def recorded_results(conversation: Conversation) -> dict[str, str]:
    """Returns the tool results in a record, by call."""
    results: dict[str, str] = {}
    waiting: list[ToolCall] = []
    for message in conversation.messages:
        if message.role == "tool" and waiting:
            results[_written(waiting.pop(0))] = message.content
        elif message.role == "assistant":
            waiting = list(message.tool_calls)
    return results


def _written(call: ToolCall) -> str:
    return json.dumps([call.name, dict(call.arguments)], sort_keys=True)
