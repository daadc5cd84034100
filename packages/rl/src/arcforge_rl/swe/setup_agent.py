"""Set-ups by an agent, for repositories whose rules fail: a model on a server chooses packages and test files.

It reads files of the repository, names packages of the language's registry, whose files sandboxes alone show, and names
test files to leave out. A set-up works by the rule of `arcforge_rl.swe.setup`. The repository's files may say anything
to the model: it can choose no more than this.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from pathlib import Path

from arcforge_core.chat.openai import MalformedReply
from arcforge_core.contracts.chat import ChatOptions, Message, Tool
from arcforge_core.contracts.environment import Agents, EpisodeFailure, Reply
from arcforge_core.episodes.tools import CALLS, converse
from arcforge_core.errors import UnavailableError, listed
from arcforge_rl.endpoints import Endpoint
from arcforge_rl.swe.agent_options import AgentBounds
from arcforge_rl.swe.languages.base import Language
from arcforge_rl.swe.packages import KINDS, MOST
from arcforge_rl.swe.setup import AGENT, LEAST, Attempt, log_attempts, set_up
from arcforge_rl.swe.setup_tools import SHOWN, TOOLS, TRIES, SetupTools, shown

NAMED = 200
"""Files that the question names."""
TOO_LONG = ("context_length_exceeded", "maximum context length")
"""In the words of a server that has no room for a conversation."""
ASKED = 3
"""Times that the model is asked for a reply that can be read."""
QUESTION = """\
The tests of a repository do not run yet. Find packages with which they run. Test files that cannot run \
in a sandbox, as they need a network, a service or another system, may be left out, at most half of all. \
A set-up works if the run of the tests ends by itself, at least {least} tests pass, and half of all; it \
is then accepted, and the work is done. There are {calls} calls of tools and {tries} tries. No file can \
be changed, and the repository's own package is never installed. Each package is {words}. If there is no \
way, call done.

Language: {language}
Packages that rules read from its metadata: {declared}
Test files ({count}): {tests}
Other files: {files}
Attempts so far:
{attempts}"""


async def attempts_at(
    name: str, language: Language, tree: Path, seconds: float, log: Path, agent: AgentBounds | None
) -> list[Attempt]:
    """Returns attempts at a set-up by rules, then by an agent, if there is one; they are appended to a file.

    Args:
        name, language, tree: the repository.
        seconds: bound of one run of the tests.
        log: the file.
        agent: None for rules alone.

    Raises:
        UnavailableError, SandboxFault: as `set_up_by_agent`.
    """
    _, attempts = await set_up(language, tree, seconds)
    try:
        if attempts[-1].reason and agent:
            await set_up_by_agent(agent, name, language, tree, seconds, attempts)
    finally:
        log_attempts(log, name, language.name, attempts)
    return attempts


async def set_up_by_agent(
    bounds: AgentBounds, name: str, language: Language, tree: Path, seconds: float, attempts: list[Attempt]
) -> None:
    """Lets a model try set-ups, which become attempts; the last one says why it failed.

    Args:
        bounds: the model, and bounds of its work.
        name, language, tree: the repository.
        seconds: bound of one run of the tests.
        attempts: of rules, which failed; those of the agent are added.

    Raises:
        UnavailableError: the model's server gave no reply, or layers cannot be stored here.
        SandboxFault: the sandbox broke.
    """
    tools = SetupTools(name, language, tree, seconds, attempts)
    ending = await _ending(bounds, tools) if tools.tests and tools.source in KINDS else "has nothing to choose"
    if attempts[-1].reason:
        attempts.append(Attempt((), f"{attempts[-1].reason}; the agent {ending}", AGENT))


async def _ending(bounds: AgentBounds, tools: SetupTools) -> str:
    """Lets a model use tools; returns why that has ended."""
    agent, limit = SetupAgent(bounds, tools), asyncio.timeout(bounds.seconds)
    messages, longest = [Message("user", question(bounds, tools))], 2 * SHOWN  # results are cut already
    try:
        async with limit:
            episode = await converse(
                Agents(agent), messages, TOOLS, tools.use, max_calls=bounds.calls, longest_result=longest
            )
    except TimeoutError:
        if not limit.expired():
            raise
        if agent.waited >= bounds.config.seconds:
            told = f"the agent's server gave no reply in {min(bounds.seconds, bounds.config.seconds):g} s"
            raise UnavailableError(f"{tools.name}: {told}") from None
        return f"has used its {bounds.seconds:g} s"
    endings = {
        CALLS: f"has used its {bounds.calls} calls",
        "length": f"was cut off at {bounds.config.max_new_tokens} tokens",
    }
    return tools.ended or endings.get(episode.finish_reason) or f"ended with {episode.reply.text[:200]!r}"


def question(bounds: AgentBounds, tools: SetupTools) -> str:
    """Returns the first message."""
    others = sorted({*tools.files} - {*tools.tests})
    made = [f"- {listed(one.packages) or 'no packages'}: {one.reason}" for one in tools.attempts]
    return QUESTION.format(
        least=LEAST, calls=bounds.calls, tries=TRIES, words=KINDS[tools.source].words, language=tools.language.name,
        declared=listed(tools.declared, MOST) or "none", count=len(tools.tests),
        tests=shown(listed(tools.tests, NAMED)), files=shown(listed(others, NAMED)), attempts=shown("\n".join(made)),
    )  # fmt: skip


class SetupAgent:
    """Implements `contracts.environment.Agent`: the model, until the tools say that its set-up has ended."""

    def __init__(self, bounds: AgentBounds, tools: SetupTools) -> None:
        self.tools, self._since = tools, -math.inf
        self._endpoint = Endpoint("setup", bounds.config, None, f"setup/{tools.name}")

    @property
    def waited(self) -> float:
        """Seconds for which the server has owed a reply; infinite if it never gave one."""
        return time.monotonic() - self._since

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), options: ChatOptions | None = None
    ) -> Reply:
        """Asks for the next turn.

        Raises:
            UnavailableError: the server gave no reply.
        """
        for _ in range(0 if self.tools.ended else ASKED):
            self._since = min(self._since, time.monotonic())
            try:
                reply = await self._endpoint.reply(messages, tools, options)
            except MalformedReply as error:
                self.tools.ended = f"made replies that cannot be read: {error.failure.reason[:300]}"
                self._since = math.inf
                continue
            except EpisodeFailure as error:
                if any(sign in str(error) for sign in TOO_LONG):
                    self.tools.ended = "has no room for a longer conversation"
                    break
                told = error.failure.reason.removeprefix("agents.setup: ")
                raise UnavailableError(f"{self.tools.name}: the agent's server gave no reply: {told}") from error
            self.tools.ended, self._since = "", math.inf
            return reply
        return Reply()
