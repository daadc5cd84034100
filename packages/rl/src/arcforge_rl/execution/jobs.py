"""Jobs of the execution service, and their serialisation."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from arcforge_core.contracts.sandbox import Command, ExecResult, SandboxLimits


@dataclass(frozen=True)
class ExecutionJob:
    """One command in a fresh sandbox.

    Attributes:
        id: chosen by the caller; submitting it again changes nothing.
        command: the command to run.
        files: written into the sandbox before the command starts, by path.
        base: host directory that is copied to ``/workspace``.
        priority: higher ones first, then in order of submission.
    """

    id: str
    command: Command
    files: Mapping[str, bytes] = field(default_factory=dict)
    base: str | None = None
    priority: int = 0

    def dump(self) -> str:
        """Returns the job as JSON; equal jobs give the same text."""
        command = self.command
        parts = {
            "argv": list(command.argv),
            "stdin": _text(command.stdin),
            "env": dict(command.env),
            "cwd": command.cwd,
            "limits": None if command.limits is None else asdict(command.limits),
            "files": {path: _text(data) for path, data in self.files.items()},
            "base": self.base,
        }
        return json.dumps(parts, sort_keys=True)

    @classmethod
    def load(cls, id: str, priority: int, text: str) -> ExecutionJob:
        """Returns the job serialised by `dump`."""
        parts: dict[str, Any] = json.loads(text)
        limits = None if parts["limits"] is None else SandboxLimits(**parts["limits"])
        command = Command(parts["argv"], _bytes(parts["stdin"]), parts["env"], parts["cwd"], limits)
        files = {path: _bytes(data) for path, data in parts["files"].items()}
        return cls(id, command, files, parts["base"], priority)


@dataclass(frozen=True)
class JobResult:
    """The only result of a job.

    Attributes:
        number: increasing in the order in which results are written.
        id: the job's.
        result: how the command ended; None if it could not be run or was cancelled.
        error: why `result` is None.
        attempts: number of starts, including those ended by sandbox faults and deaths of the service.
    """

    number: int
    id: str
    result: ExecResult | None
    error: str | None
    attempts: int


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)
