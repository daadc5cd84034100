"""Implements ``arcforge-env play``, in which a person has the tools and the verdict of a model, and ``list``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console
from rich.table import Table

from arcforge_core.cli.errors import Parser
from arcforge_core.console.result import Result
from arcforge_core.contracts.chat import ChatOptions, Message, Tool, ToolCall
from arcforge_core.contracts.environment import Agent, Agents, Environment, Reply
from arcforge_core.episodes.loops import run_to_end
from arcforge_core.episodes.scripted import ScriptedAgent
from arcforge_core.errors import ArcforgeError, ConfigError
from arcforge_core.plugins.loader import registry
from arcforge_rl.configs.commands import PlayConfig
from arcforge_rl.layers.recipes import KNOWN

CALL, QUIT, END = "/call", "/quit", "."
HELP = f"(lines until one with {END!r} alone are the reply; {QUIT} ends)"
HELP_TOOLS = f'(lines until one with {END!r} alone are the reply; {CALL} NAME {{"parameter": ...}} calls; {QUIT} ends)'


class Quit(ArcforgeError):
    """The person has left."""


class PersonAgent:
    """Shows the new messages of a conversation and reads the reply.

    Args:
        read: returns a line without its end; raises EOFError after the last one.
        write: prints a line.
    """

    def __init__(self, read: Callable[[], str], write: Callable[[str], None]) -> None:
        self.read, self.write = read, write
        self._shown = 0

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), options: ChatOptions | None = None
    ) -> Reply:
        """Returns what the person types: calls as soon as one is given, or a text.

        Raises:
            Quit: it was asked for.
        """
        for message in messages[self._shown :]:
            if message.role != "assistant":
                self.write(f"--- {message.role}")
                self.write(message.content)
        self._shown = len(messages) + 1  # the reply itself follows
        for tool in tools:
            self.write(f"--- tool {tool.name} {json.dumps(dict(tool.parameters.get('properties') or {}))}")
        self.write(HELP_TOOLS if tools else HELP)
        return self._typed({tool.name for tool in tools})

    def _typed(self, tools: set[str]) -> Reply:
        lines: list[str] = []
        while True:
            try:
                line = self.read()
            except EOFError:
                return Reply("\n".join(lines))
            if line.strip() == QUIT:
                raise Quit("the person has left; there is no verdict")
            if tools and line.startswith(f"{CALL} "):
                call = self._call(line)
                if call is not None:
                    return Reply("\n".join(lines), calls=(call,))
            elif line == END:
                return Reply("\n".join(lines))
            else:
                lines.append(line)

    def _call(self, line: str) -> ToolCall | None:
        name, _, text = line.removeprefix(CALL).strip().partition(" ")
        try:
            arguments = json.loads(text or "{}")
        except ValueError as error:
            self.write(f"the arguments are not JSON: {error}")
            return None
        if not isinstance(arguments, dict):
            self.write("the arguments must be a JSON object")
            return None
        return ToolCall(name, arguments)


def play(config: PlayConfig) -> Result:
    """Lets a person work on one task and prints the verdict.

    Raises:
        ConfigError: there is no such task.
        Quit: the person has left.
        ArcforgeError: the infrastructure failed, so that there is no verdict.
    """
    environment: Environment = registry().get("environment", config.environment.name).load()(config.environment)
    if environment.num_tasks is not None and config.task >= environment.num_tasks:
        raise ConfigError("task", config.task, f"must be below {environment.num_tasks}, the number of tasks")
    task = environment.task(config.task)
    person: Agent = PersonAgent(_line, print)
    silent: dict[str, Agent] = {name: ScriptedAgent(()) for name in getattr(environment, "agents", ())}

    async def work() -> Result:
        episode = await environment.run(task, Agents(person, away=nullcontext, **silent))
        outcome = await environment.score(task, episode)
        if outcome.failure is not None:
            raise ArcforgeError(f"no verdict: {outcome.failure.kind}: {outcome.failure.reason}")
        for name, value in outcome.rewards.items():
            print(f"{name}: {value:g}  {outcome.reasons.get(name, '')}")
        return Result(Path.cwd(), dict(outcome.rewards))

    return run_to_end(work())


def _line() -> str:
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\n")


def list_environments(argv: Sequence[str]) -> int:
    """Prints the environments with what they are, or as JSON.

    Raises:
        ArcforgeError: an argument is unknown.
    """
    parser = Parser(prog="arcforge-env list", description="Lists the environments that are installed.")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    options = parser.parse_args(argv)
    rows = [one for one in sorted(registry(), key=lambda one: one.name) if one.kind == "environment"]
    if options.json:
        for one in rows:
            row = {"name": one.name, "summary": one.summary, "package": one.distribution}
            print(json.dumps({**row, "third_party": third_party(one.name)}))
        return 0
    table = Table("environment", "package", "tasks")
    for one in rows:
        foreign = third_party(one.name)
        table.add_row(one.name, one.distribution, f"{one.summary} [{foreign}]" if foreign else one.summary)
    Console(markup=False, highlight=False).print(table)
    return 0


def third_party(name: str) -> str:
    """Returns the package that an environment plays, with its version and licence; empty if it is ours."""
    recipe = KNOWN.get(name)
    return f"{recipe.packages[0]}, {recipe.licence}" if recipe and recipe.licence else ""
