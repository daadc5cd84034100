"""Agents: which program works on a task, and its limits; torch-free."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field

from arcforge_core.config.schema import HarnessConfig, check_choice, check_minimums
from arcforge_core.errors import ConfigError

PLACES = ("host", "sandbox")
"""Where `CommandHarnessConfig.command` runs."""
PLACEHOLDERS = ("prompt", "prompt_file", "base_url", "model", "workdir")
"""Names in braces in a command."""


@dataclass
class AskingHarnessConfig(HarnessConfig):
    """Base of harnesses that ask the policy by chat completions themselves."""

    keep_recent: int | None = None
    """Rounds of tool calls whose results the policy sees; earlier ones are omitted. GLM-5 has 5. null: all."""
    discard_all: int | None = None
    """Tokens of a prompt and its reply beyond which all tool calls so far are left out, and the policy begins with the
    question again. GLM-5 has 32k. null: never."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_minimums(self, "harness", keep_recent=1, discard_all=1)


@dataclass
class LoopHarnessConfig(AskingHarnessConfig):
    """The environment's own program and tools; the policy is asked by chat completions."""

    name: str = "loop"


@dataclass
class CommandHarnessConfig(HarnessConfig):
    """Any program that speaks OpenAI's or Anthropic's API, run once for each rollout."""

    name: str = "command"
    command: str = ""
    """The program and its arguments, split as a shell does, without one. ``{prompt}`` is the task, ``{prompt_file}`` a
    file with it, ``{base_url}`` OPENAI_BASE_URL, ``{model}`` the model's name, ``{workdir}`` the work directory."""
    answer_file: str | None = None
    """File in the work directory whose text is graded; null: the standard output."""
    files: list[str] = field(default_factory=list)
    """Further files of the work directory for the verifier: artefact ``files``, path -> text."""
    place: str = "sandbox"
    """``sandbox``; ``host`` runs the program without isolation, for programs that run nothing a model writes."""
    gateway_socket: str | None = None
    """Unix socket of the gateway (``arcforge-serve unix_socket=PATH``); a sandbox reaches nothing else."""
    read_only: list[str] = field(default_factory=list)
    """Absolute paths that the program may read in the sandbox besides /usr, e.g. its interpreter's prefix."""
    memory_mb: int = 1024
    """MiB of all processes and files of a sandbox."""
    processes: int = 64
    """Processes and threads of a sandbox."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("harness.place", self.place, PLACES)
        check_minimums(self, "harness", memory_mb=16, processes=1)

    def check(self) -> None:
        """Checks that the command can be run."""
        if (self.gateway_socket is None) == (self.place == "sandbox"):
            accepted = "must name the gateway's socket with harness.place=sandbox, and nothing with host"
            raise ConfigError("harness.gateway_socket", self.gateway_socket, accepted)
        try:
            words = shlex.split(self.command)
            for word in words:
                word.format_map(dict.fromkeys(PLACEHOLDERS, ""))
        except (ValueError, KeyError, IndexError, AttributeError) as error:
            accepted = f"must be words with {', '.join(PLACEHOLDERS)} in braces, other braces doubled: {error}"
            raise ConfigError("harness.command", self.command, accepted) from error
        if not words:
            raise ConfigError("harness.command", self.command, "must name a program")
