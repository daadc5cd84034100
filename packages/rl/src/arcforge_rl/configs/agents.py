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
class SandboxedHarnessConfig(HarnessConfig):
    """Base of harnesses with sandboxes."""

    read_only: list[str] = field(default_factory=list)
    """Absolute paths that programs may read in a sandbox besides /usr, e.g. their interpreter's prefix."""
    memory_mb: int = 1024
    """MiB of all processes and files of a sandbox."""
    processes: int = 64
    """Processes and threads of a sandbox."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_minimums(self, "harness", memory_mb=16, processes=1)


@dataclass
class AskingHarnessConfig(SandboxedHarnessConfig):
    """Base of harnesses that ask the policy by chat completions themselves."""

    keep_recent: int | None = None
    """Rounds of tool calls whose results the policy sees; earlier ones are omitted. GLM-5 has 5. null: all."""
    discard_all: int | None = None
    """Tokens of a prompt and its reply beyond which all tool calls so far are left out, and the policy begins with the
    question again. GLM-5 has 32k. null: never."""
    max_tool_calls: int = 100
    """Calls of the harness's own tools in a rollout; beyond them its work so far is graded."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_minimums(self, "harness", keep_recent=1, discard_all=1, max_tool_calls=1)


@dataclass
class LoopHarnessConfig(AskingHarnessConfig):
    """The environment's own program and tools; the policy is asked by chat completions."""

    name: str = "loop"
    mcp_servers: dict[str, str] = field(default_factory=dict)
    """MCP servers whose tools the policy has besides the environment's, by name: a command line, which speaks over its
    standard streams in a sandbox of each rollout, or a URL. Extra ``mcp``."""
    mcp_seconds: float = 30.0
    """In which a server must answer; the policy sees a call that takes longer as an error."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.mcp_seconds < float("inf"):
            raise ConfigError("harness.mcp_seconds", self.mcp_seconds, "must be finite and above 0")
        for name, server in self.mcp_servers.items():
            if not split(f"harness.mcp_servers.{name}", server):
                raise ConfigError(f"harness.mcp_servers.{name}", server, "must be a command line or a URL")


@dataclass
class MiniSweHarnessConfig(AskingHarnessConfig):
    """A shell and an editor in a sandbox, in place of the environment's program: its task is graded by its verifier."""

    name: str = "mini_swe"
    answer_file: str | None = None
    """File in the work directory whose text is graded; null: the last reply."""
    files: list[str] = field(default_factory=list)
    """Further files of the work directory for the verifier: artefact ``files``, path -> text."""
    command_seconds: float = 60.0
    """Time of a command."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.command_seconds < float("inf"):
            raise ConfigError("harness.command_seconds", self.command_seconds, "must be finite and above 0")


def split(field: str, command: str) -> list[str]:
    """Returns the words of a command line, as a shell reads them.

    Raises:
        ConfigError: a quotation does not end.
    """
    try:
        return shlex.split(command)
    except ValueError as error:
        raise ConfigError(field, command, f"must be words: {error}") from error


@dataclass
class CommandHarnessConfig(SandboxedHarnessConfig):
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

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("harness.place", self.place, PLACES)

    def check(self) -> None:
        """Checks that the command can be run."""
        if (self.gateway_socket is None) == (self.place == "sandbox"):
            accepted = "must name the gateway's socket with harness.place=sandbox, and nothing with host"
            raise ConfigError("harness.gateway_socket", self.gateway_socket, accepted)
        words = split("harness.command", self.command)
        try:
            for word in words:
                word.format_map(dict.fromkeys(PLACEHOLDERS, ""))
        except (ValueError, KeyError, IndexError, AttributeError) as error:
            accepted = f"must be words with {', '.join(PLACEHOLDERS)} in braces, other braces doubled: {error}"
            raise ConfigError("harness.command", self.command, accepted) from error
        if not words:
            raise ConfigError("harness.command", self.command, "must name a program")
