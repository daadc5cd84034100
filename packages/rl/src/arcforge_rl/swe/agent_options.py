"""Options of ``arcforge-env swe`` that name the agent of set-ups."""

from __future__ import annotations

import math
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass

from arcforge_core.errors import ArcforgeError
from arcforge_rl.configs.others import AgentConfig
from arcforge_rl.endpoints import add_server, server_in

CALLS, SECONDS = 40, 1200.0
OPTIONS = {"url": None, "model": None, "key_variable": None, "agent_calls": CALLS, "agent_seconds": SECONDS}
"""Options and their defaults."""
LONGEST_REPLY = 300.0
"""Seconds for which a reply is waited for."""


@dataclass(frozen=True)
class AgentBounds:
    """The model that sets up a repository, and bounds of its work on one.

    Attributes:
        config: of the model.
        calls: of tools.
        seconds: wall time; a fetch of packages that has begun ends first.
    """

    config: AgentConfig
    calls: int
    seconds: float


def add_agent(parser: ArgumentParser) -> None:
    """Adds the options to a parser."""
    add_server(parser, "the agent, a model that sets up what rules cannot")
    parser.add_argument("--agent-calls", type=int, default=CALLS, help=f"calls of tools in a set-up (default: {CALLS})")
    parser.add_argument(
        "--agent-seconds", type=float, default=SECONDS, help=f"bound of a set-up by the agent (default: {SECONDS:g})"
    )


def agent_in(options: Namespace) -> AgentBounds | None:
    """Returns the agent that options name; None without one.

    Raises:
        ArcforgeError: an option is wrong, or there is no agent to which it belongs.
    """
    if options.agent_calls < 1 or not 0 < options.agent_seconds < math.inf:
        raise ArcforgeError("--agent-calls must be at least 1, --agent-seconds finite and above 0")
    seconds = min(LONGEST_REPLY, options.agent_seconds)
    if config := server_in(options, temperature=0.6, max_new_tokens=4096, seconds=seconds):
        return AgentBounds(config, options.agent_calls, options.agent_seconds)
    if given := [flag_of(name) for name, default in OPTIONS.items() if getattr(options, name) != default]:
        raise ArcforgeError(f"{given[0]}: is of an agent: name its server with --url")
    return None


def words_of(options: Namespace) -> list[str]:
    """Returns the options as words of a command."""
    return [f"{flag_of(name)}={value}" for name in OPTIONS if options.url and (value := getattr(options, name))]


def flag_of(name: str) -> str:
    """Returns an option as it is typed."""
    return f"--{name.replace('_', '-')}"
